"""The Responses API through OpenAI's own client: text, events, tools, structured output, thoughts, conversations that
go on."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from support import MODEL, SORT, STORY, Server, serving, user
from test_tools import CLOCK, WEATHER, call, check, written

SORTED = "35, 49, 50, 79"
TOOLS = [{"type": "function", **tool["function"], "strict": True} for tool in (WEATHER, CLOCK)]


@dataclass
class Responder:
    """Sends the same request streamed or not, and gives the response object of its end."""

    client: OpenAI
    stream: bool

    def __call__(self, input: Any, **fields: Any) -> Any:
        fields = {"model": MODEL, "input": input, "temperature": 0, **fields}
        if not self.stream:
            return self.client.responses.create(**fields)
        events = list(self.client.responses.create(**fields, stream=True))
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
        assert events[-1].type in ("response.completed", "response.incomplete")
        deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        assert deltas == events[-1].response.output_text
        return events[-1].response


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def respond(client: OpenAI, request: pytest.FixtureRequest) -> Responder:
    return Responder(client, request.param)


def test_text(respond: Responder) -> None:
    response = respond(SORT)
    assert response.output_text == SORTED
    assert response.status == "completed" and response.id.startswith("resp_")
    chat = respond.client.chat.completions.create(model=MODEL, messages=user(SORT), temperature=0)
    assert chat.choices[0].message.content == SORTED
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    assert response.usage.output_tokens == chat.usage.completion_tokens


def test_a_limit(respond: Responder) -> None:
    response = respond(STORY, max_output_tokens=5)
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage.output_tokens == 5


def test_instructions_and_items_are_the_messages_of_a_chat(respond: Responder) -> None:
    items = [*user("Hello."), {"role": "assistant", "content": "Hi."}, *user(SORT)]
    response = respond(items, instructions="Be brief.", top_p=0.9)
    messages = [{"role": "system", "content": "Be brief."}, *items]
    chat = respond.client.chat.completions.create(model=MODEL, messages=messages, temperature=0)
    assert response.output_text == chat.choices[0].message.content
    assert response.instructions == "Be brief." and response.top_p == pytest.approx(0.9)


def test_a_conversation_goes_on(client: OpenAI, respond: Responder) -> None:
    first = respond(STORY, max_output_tokens=30)
    second = respond(SORT, previous_response_id=first.id, max_output_tokens=30)
    whole = respond(
        [*user(STORY), *first.output, *user(SORT)],
        max_output_tokens=30,
        store=False,
    )
    assert second.output_text == whole.output_text
    assert client.responses.retrieve(second.id).output_text == second.output_text
    assert [item.content[0].text for item in client.responses.input_items.list(second.id)] == [SORT]
    client.responses.delete(second.id)
    for missing in (second.id, whole.id):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(missing)
    with pytest.raises(openai.BadRequestError) as caught:
        respond(SORT, previous_response_id=second.id)
    assert caught.value.code == "previous_response_not_found"


def test_tools(respond: Responder) -> None:
    first = respond(STORY, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_output_tokens=200)
    (function,) = first.output
    assert function.type == "function_call" and function.status == "completed"
    check(function.name, function.arguments)
    output = {"type": "function_call_output", "call_id": function.call_id, "output": "sunny"}
    again = respond([*user(STORY), function, output], tools=TOOLS, max_output_tokens=20)
    kept = respond([output], previous_response_id=first.id, tools=TOOLS, max_output_tokens=20)
    assert again.output_text == kept.output_text


def test_a_named_tool(respond: Responder) -> None:
    named = {"type": "function", "name": "clock"}
    (function,) = respond(STORY, tools=TOOLS, tool_choice=named, max_output_tokens=200).output
    assert function.name == "clock"
    check("clock", function.arguments)


def test_text_and_calls_in_their_order(respond: Responder) -> None:
    text = "Let me see.\n" + call("clock", '{"zone": "CET"}') + "\n" + call("clock", '{"zone": "UTC"}')
    tools = [{**tool, "strict": False} for tool in TOOLS]
    response = respond(STORY, tools=tools, max_output_tokens=200, extra_body=written(text))
    assert [item.type for item in response.output] == ["message", "function_call", "function_call"]
    assert response.output_text == "Let me see."
    assert [item.arguments for item in response.output[1:]] == ['{"zone": "CET"}', '{"zone": "UTC"}']


PATCH = '*** Begin Patch\n+"é😀\\\t\n*** End Patch\n'
AGENT_TOOLS: list[Any] = [
    {
        "type": "custom",
        "name": "apply_patch",
        "description": "Patches.",
        "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch" /(.|\\n)+/'},
    },
    {
        "type": "namespace",
        "name": "crm",
        "description": "Customers.",
        "tools": [
            {"type": "function", "name": "find", "parameters": {"type": "object"}},
            {"type": "custom", "name": "query"},
        ],
    },
    {"type": "web_search"},
    {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}},
]


def test_tools_of_agents(client: OpenAI, respond: Responder) -> None:
    """Calls of every kind come back as the client knows them, and go round without being kept."""
    text = "\n".join(
        [
            "So:",
            call("apply_patch", json.dumps({"input": PATCH})),
            call("crm__find", '{"id": 5}'),
            call("crm__query", '{"input": "all"}'),
            call("tool_search", '{"query": "mail"}'),
        ]
    )
    fields = {"tools": AGENT_TOOLS, "store": False, "include": ["reasoning.encrypted_content"]}
    output = respond(STORY, **fields, max_output_tokens=400, extra_body=written(text)).output
    assert [item.type for item in output] == [
        "message",
        "custom_tool_call",
        "function_call",
        "custom_tool_call",
        "tool_search_call",
    ]
    assert (output[1].name, output[1].namespace, output[1].input) == ("apply_patch", None, PATCH)
    assert (output[2].name, output[2].namespace, output[2].arguments) == ("find", "crm", '{"id": 5}')
    assert (output[3].name, output[3].namespace, output[3].input) == ("query", "crm", "all")
    assert output[4].arguments == {"query": "mail"} and output[4].execution == "client"
    answers = [
        {"type": "custom_tool_call_output", "call_id": output[1].call_id, "output": "patched"},
        {"type": "function_call_output", "call_id": output[2].call_id, "output": "none"},
        {"type": "custom_tool_call_output", "call_id": output[3].call_id, "output": "none"},
        {
            "type": "tool_search_output",
            "call_id": output[4].call_id,
            "execution": "client",
            "tools": [{"type": "function", "name": "send_mail", "parameters": {"type": "object"}}],
        },
    ]
    again = call("send_mail", "{}")
    (last,) = respond(
        [*user(STORY), *output, *answers], **fields, max_output_tokens=50, extra_body=written(again)
    ).output
    assert last.type == "function_call" and last.name == "send_mail"


def test_the_clients_stream_builds_custom_calls(client: OpenAI) -> None:
    text = call("apply_patch", json.dumps({"input": PATCH}))
    with client.responses.stream(
        model=MODEL, input=STORY, tools=AGENT_TOOLS, temperature=0, max_output_tokens=200, extra_body=written(text)
    ) as stream:
        events = list(stream)
        (item,) = stream.get_final_response().output
    assert item.type == "custom_tool_call" and item.input == PATCH
    deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    (done,) = [event for event in events if event.type == "response.custom_tool_call_input.done"]
    assert "".join(deltas) == done.input == PATCH
    assert not any("function_call" in event.type for event in events)


@pytest.mark.parametrize("pattern", ["[a-f]{3,6}", r"/\w{2}(/[0-9]{1,3})?", r'"[a-z ]{1,9}"\n'])
def test_a_custom_tool_follows_an_expression(respond: Responder, pattern: str) -> None:
    custom = {"type": "custom", "name": "run", "format": {"type": "grammar", "syntax": "regex", "definition": pattern}}
    (item,) = respond(
        STORY, tools=[custom], tool_choice={"type": "custom", "name": "run"}, temperature=1, max_output_tokens=300
    ).output
    assert item.type == "custom_tool_call"
    assert re.fullmatch(pattern, item.input), item.input


def test_hosted_tools_are_left_out_and_named(client: OpenAI) -> None:
    raw = client.responses.with_raw_response.create(
        model=MODEL, input=SORT, tools=[{"type": "web_search"}, {"type": "image_generation"}], temperature=0
    )
    assert raw.headers["x-volley-ignored-tools"] == "image_generation, web_search"
    assert raw.parse().output_text == SORTED
    with Server("--refuse-hosted-tools") as strict:
        with pytest.raises(openai.BadRequestError) as caught:
            strict.client().responses.create(model=MODEL, input=SORT, tools=[{"type": "web_search"}])
        assert caught.value.param == "tools" and "web_search" in caught.value.message
        assert strict.stop() == 0


START_ALONE = """{%- for message in messages -%}
{%- if message.role == 'system' and not loop.first -%}{{- raise_exception('a system message must be the first') -}}{%- endif -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{{- '<|im_start|>assistant\\n' -}}"""


@pytest.fixture(scope="module")
def start_alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    template = tmp_path_factory.mktemp("template") / "start_alone.jinja"
    template.write_text(START_ALONE)
    with Server(f"--chat-template {template}") as running:
        yield running.client()
        assert running.stop() == 0


@pytest.mark.parametrize("role", ["developer", "system"])
@pytest.mark.parametrize("content", ["Be brief.", [{"type": "input_text", "text": "Be brief."}]], ids=["text", "parts"])
@pytest.mark.parametrize("instructions", [None, "Help."])
def test_late_instructions(
    start_alone: OpenAI, role: str, content: str | list[Any], instructions: str | None
) -> None:
    """A template that takes them at the start alone gets them there."""
    late = {"type": "message", "role": role, "content": content}
    hello, bye = user("Hello."), {"role": "assistant", "content": "Bye."}

    def tokens(*items: Any) -> int:
        fields = {"model": MODEL, "instructions": instructions, "max_output_tokens": 1}
        return start_alone.responses.create(input=list(items), **fields).usage.input_tokens

    first = tokens(late, *hello, bye, *user(SORT))
    assert tokens(*hello, late, bye, *user(SORT)) == first
    assert tokens(*hello, bye, late, *user(SORT)) == first
    assert tokens(*hello, bye, *user(SORT), late) == first
    assert tokens(*hello, late, *user(SORT)) == tokens(late, *hello, *user(SORT))


TURNS = """{%- for message in messages -%}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}{{- raise_exception('roles must alternate') -}}{%- endif -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{{- '<|im_start|>assistant\\n' -}}"""


def test_a_template_that_insists_on_turns_gets_them(tmp_path: Path) -> None:
    """Codex sends what surrounds a task and the task as two messages of the user."""
    template = tmp_path / "turns.jinja"
    template.write_text(TURNS)
    with Server(f"--chat-template {template}") as running:
        create = running.client().responses.create
        two = create(model=MODEL, input=[*user("<cwd>/tmp</cwd>"), *user(SORT)], max_output_tokens=1)
        one = create(model=MODEL, input=user("<cwd>/tmp</cwd>\n\n" + SORT), max_output_tokens=1)
        assert two.usage.input_tokens == one.usage.input_tokens
        assert running.stop() == 0


def test_a_history_of_another_service_goes_on(client: OpenAI) -> None:
    history: list[Any] = [
        *user("Look."),
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "function_call", "call_id": "c1", "name": "view", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}],
        },
        *user(SORT),
    ]
    raw = client.responses.with_raw_response.create(model=MODEL, input=history, temperature=0, max_output_tokens=20)
    assert "web_search_call" in raw.headers["x-volley-notes"] and "image" in raw.headers["x-volley-notes"]
    kept = client.responses.input_items.list(raw.parse().id, order="asc").data
    assert [item.type for item in kept][1] == "web_search_call" and kept[1].id == "ws_1"


class Trip(BaseModel):
    city: str
    days: int


def test_structured_output(client: OpenAI) -> None:
    parsed = client.responses.parse(model=MODEL, input=STORY, text_format=Trip, temperature=0, max_output_tokens=200)
    assert isinstance(parsed.output_parsed, Trip)
    with client.responses.stream(
        model=MODEL, input=STORY, text_format=Trip, temperature=0, max_output_tokens=200
    ) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_parsed == parsed.output_parsed


def test_json_object(respond: Responder) -> None:
    response = respond(STORY, text={"format": {"type": "json_object"}}, max_output_tokens=300)
    if response.status == "completed":
        assert isinstance(json.loads(response.output_text), dict)
    else:
        assert response.output_text.startswith("{")


def test_logprobs(respond: Responder) -> None:
    response = respond(SORT, include=["message.output_text.logprobs"], top_logprobs=2)
    entries = response.output[0].content[0].logprobs
    assert "".join(entry.token for entry in entries).startswith(SORTED)
    assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in entries)


@pytest.fixture(scope="module")
def thinking() -> Iterator[Server]:
    yield from serving("--reasoning-parser think")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_reasoning(thinking: Server, stream: bool) -> None:
    respond = Responder(thinking.client(), stream)
    text = "<think>\nHm, so.\n</think>\n\nIt is noon."
    response = respond(
        STORY, max_output_tokens=200, include=["reasoning.encrypted_content"], store=False, extra_body=written(text)
    )
    assert [item.type for item in response.output] == ["reasoning", "message"]
    thought = response.output[0]
    assert thought.content[0].text == "Hm, so."
    sealed = {"type": "reasoning", "id": thought.id, "summary": [], "encrypted_content": thought.encrypted_content}
    for item in (thought, sealed):  # clients send back all of it, or this alone
        respond([*user(STORY), item, response.output[1], *user(SORT)], store=False, max_output_tokens=1)
    assert response.output_text == "It is noon."
    assert response.usage.output_tokens_details.reasoning_tokens > 0


def test_what_is_wrong_is_named(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=MODEL, input=SORT, temperature=-1)
    assert caught.value.param == "temperature" and caught.value.type == "invalid_request_error"
