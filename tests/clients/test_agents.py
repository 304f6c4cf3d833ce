"""What agents and their frameworks send: openai-agents, LangChain's use_responses_api, and the requests of coding
agents, with long system prompts, dozens of tools, streams and many turns, through both APIs."""

import asyncio
import json
from typing import Any, Literal

import pytest
from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, RunResult, function_tool, set_tracing_disabled
from anthropic import Anthropic
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from support import MODEL, SORT, STORY, Server
from test_tools import call, written

SORTED = "35, 49, 50, 79"


def agents_model(server: Server) -> OpenAIResponsesModel:
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120)
    return OpenAIResponsesModel(model=MODEL, openai_client=client)


def test_openai_agents(server: Server) -> None:
    asked: list[str] = []

    @function_tool
    def clock(zone: Literal["CET", "UTC"]) -> str:
        """The time."""
        asked.append(zone)
        return "12:00"

    agent = Agent(
        name="pocket",
        instructions="Say the time.",
        model=agents_model(server),
        tools=[clock],
        model_settings=ModelSettings(
            tool_choice="required", parallel_tool_calls=False, temperature=0, max_tokens=60
        ),
    )

    async def whole_and_streamed() -> tuple[str, str]:
        whole = await Runner.run(agent, "What time is it?")
        streamed = Runner.run_streamed(agent, "What time is it?")
        async for _ in streamed.stream_events():
            pass
        return whole.final_output, streamed.final_output

    whole, streamed = asyncio.run(whole_and_streamed())  # one loop: the client keeps its connections
    assert isinstance(whole, str) and streamed == whole
    assert asked in (["CET"] * 2, ["UTC"] * 2), "greedy, so the same call"


def test_openai_agents_structured(server: Server) -> None:
    class Trip(BaseModel):
        city: str
        days: int

    agent = Agent(
        name="pocket",
        model=agents_model(server),
        output_type=Trip,
        model_settings=ModelSettings(temperature=0, max_tokens=200),
    )
    assert isinstance(asyncio.run(Runner.run(agent, STORY)).final_output, Trip)


def test_openai_agents_structured_beside_tools(server: Server) -> None:
    """Each turn is calls or the structured answer; `function_tool` is strict."""

    class Trip(BaseModel):
        city: str
        days: int

    @function_tool
    def clock(zone: Literal["CET", "UTC"]) -> str:
        """The time."""
        return "12:00"

    agent = Agent(
        name="pocket",
        model=agents_model(server),
        tools=[clock],
        output_type=Trip,
        model_settings=ModelSettings(temperature=0, max_tokens=200),
    )
    required = agent.clone(model_settings=ModelSettings(tool_choice="required", temperature=0, max_tokens=60))

    async def run() -> tuple[RunResult, RunResult]:
        return await Runner.run(agent, STORY, max_turns=5), await Runner.run(required, STORY, max_turns=5)

    free, forced = asyncio.run(run())
    assert isinstance(free.final_output, Trip)
    assert [item.type for item in forced.new_items][:2] == ["tool_call_item", "tool_call_output_item"]


@pytest.fixture
def langchain(server: Server) -> ChatOpenAI:
    return ChatOpenAI(
        model=MODEL,
        base_url=server.url + "/v1",
        api_key="none",
        temperature=0,
        use_responses_api=True,
        max_retries=0,
        timeout=120,
    )


def test_langchain(langchain: ChatOpenAI) -> None:
    assert langchain.invoke(SORT).text == SORTED
    streamed = "".join(chunk.text for chunk in langchain.stream(SORT))
    assert streamed == SORTED


def test_langchain_tools(langchain: ChatOpenAI) -> None:
    clock = {
        "name": "clock",
        "description": "The time.",
        "parameters": {
            "type": "object",
            "properties": {"zone": {"enum": ["CET", "UTC"]}},
            "required": ["zone"],
            "additionalProperties": False,
        },
    }
    turns: list[Any] = [SystemMessage("Say the time."), HumanMessage("What time is it?")]
    model = langchain.bind_tools([clock], tool_choice="required", parallel_tool_calls=False)
    message = model.invoke(turns)
    assert isinstance(message, AIMessage)
    (function,) = message.tool_calls
    assert function["name"] == "clock" and function["args"]["zone"] in ("CET", "UTC")
    turns += [message, ToolMessage("12:00", tool_call_id=function["id"])]
    assert langchain.invoke(turns, max_tokens=20).usage_metadata["output_tokens"] > 0


# ---- As coding agents ask ----

SYSTEM = " ".join(
    f"Rule {i}: before you change file {i} you read it, and after that you run test {i}." for i in range(1, 25)
)
SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "Where."},
        "lines": {"type": "array", "items": {"type": "integer"}},
        "mode": {"enum": ["read", "write"]},
    },
    "required": ["path"],
    "additionalProperties": False,
}
VERBS = ("read", "edit", "list", "find", "run", "move")
NAMES = [f"{verb}_{noun}" for verb in VERBS for noun in ("file", "test", "task", "note", "page", "tree")]
TURNS = 6


def turn_text(turn: int) -> str:
    """What the model writes in a turn: text and one or two calls; in the last one text alone."""
    if turn == TURNS - 1:
        return "All done."
    calls = [call(NAMES[turn], json.dumps({"path": f"src/{turn}.py"}))]
    if turn % 2:
        calls.append(call(NAMES[turn + 6], '{"path": "é", "lines": [1, 2], "mode": "read"}'))
    return f"Step {turn}.\n" + "\n".join(calls)


def called_names() -> list[str]:
    """Of all turns, in their order."""
    texts = [text for turn in range(TURNS) for text in turn_text(turn).split("<tool_call>")[1:]]
    return [json.loads(text.split("\n")[1])["name"] for text in texts]


def test_a_coding_agent_through_responses(server: Server, client: OpenAI) -> None:
    """The whole history each time, nothing kept at the server, as such agents do it."""
    tools = [{"type": "function", "name": name, "description": f"Tool {name}.", "parameters": SCHEMA} for name in NAMES]
    items: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "Fix the bug."}]}]
    done = []
    for turn in range(TURNS):
        stream = client.responses.create(
            model=MODEL,
            instructions=SYSTEM,
            input=items,
            tools=[{**tool, "strict": False} for tool in tools],
            tool_choice="auto",
            parallel_tool_calls=True,
            store=False,
            stream=True,
            include=["reasoning.encrypted_content"],
            reasoning={"effort": "medium", "summary": "auto"},
            prompt_cache_key="session-1",
            temperature=0,
            max_output_tokens=300,
            extra_body=written(turn_text(turn)),
        )
        added = [event.item for event in stream if event.type == "response.output_item.done"]
        assert added[0].content[0].text == turn_text(turn).split("\n")[0]
        for item in added:
            items.append(item.model_dump(exclude_none=True))
            if item.type == "function_call":
                json.loads(item.arguments)
                done.append(item.name)
                items.append({"type": "function_call_output", "call_id": item.call_id, "output": f"ok {turn}"})
    assert done == called_names()


def test_a_coding_agent_through_messages(server: Server) -> None:
    client = Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=120)
    tools = [{"name": name, "description": f"Tool {name}.", "input_schema": SCHEMA} for name in NAMES]
    tools[-1]["cache_control"] = {"type": "ephemeral"}
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "Fix the bug."}]}]
    done, cached = [], []
    for turn in range(TURNS):
        with client.messages.stream(
            model=MODEL,
            max_tokens=300,
            system=[{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}],
            messages=messages,
            tools=tools,
            metadata={"user_id": "session-1"},
            extra_headers={"anthropic-beta": "interleaved-thinking-2025-05-14"},
            extra_body={"temperature": 0, **written(turn_text(turn))},
        ) as stream:
            message = stream.get_final_message()
        uses = [block for block in message.content if block.type == "tool_use"]
        assert message.stop_reason == ("tool_use" if uses else "end_turn")
        assert message.content[0].text == turn_text(turn).split("\n")[0]
        cached.append(message.usage.cache_read_input_tokens)
        done += [use.name for use in uses]
        messages.append({"role": "assistant", "content": message.content})
        if uses:
            results = [{"type": "tool_result", "tool_use_id": use.id, "content": f"ok {turn}"} for use in uses]
            messages.append({"role": "user", "content": results})
    assert done == called_names()
    assert all(later > 0 for later in cached[1:]), "each turn finds the one before it in the cache"


# ---- Requests of agents that are no packages: their fields and the forms of their messages, in our words ----

READ = call("read_file", '{"path": "a.py"}')
FUNCTION = {"name": "read_file", "description": "Reads a file.", "parameters": SCHEMA}
CALLED = {"id": "c1", "type": "function", "function": {"name": "read_file", "arguments": '{"path":"a.py"}'}}
ANSWERED = {"role": "tool", "tool_call_id": "c1", "content": "print(1)"}


def parts(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text} for text in texts]


# Cline 3, provider "OpenAI Compatible".
CLINE: dict[str, Any] = {
    "temperature": 0,
    "stream": True,
    "stream_options": {"include_usage": True},
    "tools": [{"type": "function", "function": {**FUNCTION, "strict": False}}],
}
CLINE_START = [
    {"role": "system", "content": SYSTEM},
    {"role": "user", "content": parts("<task>Fix it.</task>", "# Time")},
]
CLINE_MESSAGES = {
    "first": CLINE_START,
    "call alone": [*CLINE_START, {"role": "assistant", "tool_calls": [CALLED]}, ANSWERED],
    "text and call": [
        *CLINE_START,
        {
            "role": "assistant",
            "content": "I read it.",
            "tool_calls": [CALLED],
            "reasoning_details": [{"type": "reasoning.text", "text": "Hm.", "format": "unknown", "index": 0}],
        },
        ANSWERED,
        {"role": "user", "content": parts("<feedback>Go on.</feedback>")},
    ],
    "users in a row": [*CLINE_START, {"role": "user", "content": parts("More.")}],
    "instructions of a developer": [{"role": "developer", "content": SYSTEM}, *CLINE_START[1:]],
}

# Open WebUI 0.6, with native function calling.
WEBUI: dict[str, Any] = {"stream": True, "tools": [{"type": "function", "function": FUNCTION}]}
WEBUI_TURN = [
    {"role": "user", "content": "Read it."},
    {"role": "assistant", "content": "", "tool_calls": [{"index": 0, **CALLED}]},
    ANSWERED,
]
WEBUI_FIELDS = {
    "plain": {},
    "usage": {"stream_options": {"include_usage": True}},
    "advanced parameters": {
        "temperature": 0.8,
        "top_p": 0.9,
        "min_p": 0.0,
        "frequency_penalty": 1.1,
        "presence_penalty": 0.0,
        "max_tokens": 128,
        "seed": 42,
        "stop": ["###"],
        "logit_bias": {"5": -100},
        "reasoning_effort": "medium",
    },
    "session": {"user": "u1", "chat_template_kwargs": {"enable_thinking": False}},
}


@pytest.mark.parametrize("messages", CLINE_MESSAGES.values(), ids=CLINE_MESSAGES)
def test_requests_of_cline(client: OpenAI, messages: list[Any]) -> None:
    check_read(client, {**CLINE, "messages": messages})


@pytest.mark.parametrize("fields", WEBUI_FIELDS.values(), ids=WEBUI_FIELDS)
def test_requests_of_open_webui(client: OpenAI, fields: dict[str, Any]) -> None:
    check_read(client, {**WEBUI, "messages": WEBUI_TURN, **fields})


def check_read(client: OpenAI, body: dict[str, Any]) -> None:
    """A forced text and call arrive in the stream."""
    text, arguments, names, reason = "", "", [], None
    # As bytes of the agent's own: what the OpenAI client does not know travels too.
    for chunk in client.chat.completions.create(
        model=MODEL, messages=[], stream=True, extra_body={**body, **written("I read it.\n" + READ)}
    ):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for function in choice.delta.tool_calls or []:
                arguments += function.function.arguments or ""
                names += [function.function.name] if function.function.name else []
            reason = choice.finish_reason or reason
    assert (text.strip(), names, json.loads(arguments), reason) == (
        "I read it.",
        ["read_file"],
        {"path": "a.py"},
        "tool_calls",
    )


def test_open_webui_asks_for_titles(server: Server) -> None:
    """The requests behind a chat: for a title, tags and follow-up questions."""
    task = {"role": "user", "content": "### Task:\nSuggest a title.\n### Output:\nJSON"}
    for field in ("max_tokens", "max_completion_tokens"):
        body = {"model": MODEL, "messages": [task], "stream": False, field: 1000, **written('{"title": "Bug"}')}
        assert server.post_json("/v1/chat/completions", body)["choices"][0]["message"]["content"] == '{"title": "Bug"}'
    listed = server.get_json("/v1/models")["data"]
    assert [model["id"] for model in listed] == [MODEL] and listed[0]["object"] == "model"
