"""Tool calls in both formats, streamed and not, and the reasoning before them.

The pocket model knows nothing of tools. A required or named call is held by the grammar, as with any model; what a
model does by its own choice is written for it with a grammar of a single text.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from support import MODEL, SORT, STORY, Asker, Server, serving, user


def tool(name: str, properties: dict[str, Any], **function: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters, **function}}


WEATHER = tool(
    "get_weather", {"city": {"enum": ["Bonn", "Lima"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}
)
CLOCK = tool("clock", {"zone": {"type": "string", "pattern": "^[A-Z]{3}$"}})
TOOLS = [WEATHER, CLOCK]
NAMED = {"type": "function", "function": {"name": "clock"}}


def written(text: str) -> dict[str, Any]:
    """Fields that make any model write exactly this: a grammar of the request's own is on all of the text."""
    return {"structured_outputs": {"grammar": f"start: {json.dumps(text)}\n"}}


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def check(name: str, arguments: str) -> None:
    values = json.loads(arguments)
    if name == "get_weather":
        assert values["city"] in ("Bonn", "Lima") and 1 <= values["days"] <= 9
    else:
        assert name == "clock" and len(values["zone"]) == 3


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1, "seed": 3}], ids=["greedy", "sampled"])
def test_required(ask: Asker, sampling: dict[str, Any]) -> None:
    choice = ask.chat(
        STORY, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=200, **sampling
    ).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.text == ""
    assert len(choice.tool_calls) == 1
    check(choice.tool_calls[0].name, choice.tool_calls[0].arguments)


def test_named(ask: Asker) -> None:
    choice = ask.chat(STORY, tools=TOOLS, tool_choice=NAMED, max_tokens=200).choices[0]
    assert [c.name for c in choice.tool_calls] == ["clock"]
    check("clock", choice.tool_calls[0].arguments)


def test_allowed_tools(ask: Asker) -> None:
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
    choice = ask.chat(STORY, tools=TOOLS, tool_choice=allowed, parallel_tool_calls=False, max_tokens=200).choices[0]
    assert [c.name for c in choice.tool_calls] == ["clock"]


def test_auto_with_a_call_and_text_before_it(ask: Asker) -> None:
    text = "Let me see.\n" + call("get_weather", '{"city": "Bonn", "days": 2}')
    choice = ask.chat(STORY, tools=TOOLS, max_tokens=200, extra_body=written(text)).choices[0]
    assert choice.text == "Let me see."
    assert choice.finish_reason == "tool_calls"
    assert [(c.name, c.arguments) for c in choice.tool_calls] == [("get_weather", '{"city": "Bonn", "days": 2}')]


def test_auto_with_several_calls(ask: Asker) -> None:
    text = call("clock", '{"zone":"CET"}') + "\n" + call("get_weather", "{}")
    choice = ask.chat(STORY, tools=TOOLS, tool_choice="auto", max_tokens=200, extra_body=written(text)).choices[0]
    assert [(c.name, c.arguments) for c in choice.tool_calls] == [("clock", '{"zone":"CET"}'), ("get_weather", "{}")]
    assert len({c.id for c in choice.tool_calls}) == 2


def test_auto_without_a_call(ask: Asker) -> None:
    choice = ask.chat(SORT, tools=TOOLS, max_tokens=200).choices[0]
    assert choice.text and not choice.tool_calls and choice.finish_reason == "stop"


def test_auto_with_a_broken_call_is_content(ask: Asker) -> None:
    text = '<tool_call>\n{"name": "clock", oops\n</tool_call> done'
    choice = ask.chat(STORY, tools=TOOLS, max_tokens=200, extra_body=written(text)).choices[0]
    assert choice.text == text and not choice.tool_calls and choice.finish_reason == "stop"


def test_strict_tools_leave_text_free(ask: Asker) -> None:
    strict = [tool("clock", {"zone": {"type": "string"}}, strict=True)]
    assert ask.chat(SORT, tools=strict, max_tokens=200).text == ask.chat(SORT, max_tokens=200).text


def test_none(ask: Asker) -> None:
    text = call("clock", "{}")
    choice = ask.chat(STORY, tools=TOOLS, tool_choice="none", max_tokens=200, extra_body=written(text)).choices[0]
    assert choice.text == text and not choice.tool_calls


def test_arguments_that_are_cut_off(ask: Asker) -> None:
    choice = ask.chat(STORY, tools=[CLOCK], tool_choice="required", max_tokens=12).choices[0]
    assert choice.finish_reason == "length"


def test_a_format_is_that_of_the_text_beside_calls(ask: Asker) -> None:
    format = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer", "maximum": 9}}}
    fields = {"tools": TOOLS, "response_format": format, "max_tokens": 200}
    called = ask.chat(STORY, tool_choice="required", parallel_tool_calls=False, **fields).choices[0]
    assert len(called.tool_calls) == 1 and not called.text
    assert int(ask.chat(STORY, tool_choice="none", **fields).text) <= 9
    free = ask.chat(STORY, **fields).choices[0]
    assert free.tool_calls or int(free.text) <= 9


def test_n_choices_with_calls(ask: Asker) -> None:
    answer = ask.chat(
        STORY,
        tools=TOOLS,
        tool_choice="required",
        parallel_tool_calls=False,
        n=3,
        temperature=1,
        seed=5,
        max_tokens=200,
    )
    ids = [choice.tool_calls[0].id for choice in answer.choices]
    assert len(set(ids)) == 3


def test_arguments_are_streamed_in_pieces(client: OpenAI) -> None:
    pieces = []
    long = '{"zone": "' + "CET and a long text " * 6 + '"}'
    for chunk in client.chat.completions.create(
        model=MODEL,
        messages=user(STORY),
        tools=TOOLS,
        temperature=0,
        max_tokens=300,
        stream=True,
        extra_body=written(call("clock", long)),
    ):
        for delta in chunk.choices[0].delta.tool_calls or []:
            pieces.append(delta.function.arguments or "")
    assert "".join(pieces) == long
    assert len([piece for piece in pieces if piece]) > 3


def test_speculation_is_invisible(ask: Asker) -> None:
    fields = {"tools": TOOLS, "tool_choice": "required", "temperature": 1, "seed": 7, "max_tokens": 200}
    fast = ask.chat(STORY, **fields).choices[0]
    plain = ask.chat(STORY, extra_body={"volley": {"speculation": False}}, **fields).choices[0]
    assert [(c.name, c.arguments) for c in fast.tool_calls] == [(c.name, c.arguments) for c in plain.tool_calls]


def test_the_clients_own_tool_helper(client: OpenAI) -> None:
    class Clock(BaseModel):
        zone: bool

    parsed = client.chat.completions.parse(
        model=MODEL,
        messages=user(STORY),
        tools=[openai.pydantic_function_tool(Clock)],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
        max_tokens=200,
    )
    assert isinstance(parsed.choices[0].message.tool_calls[0].function.parsed_arguments, Clock)


def test_the_clients_own_stream_helper(client: OpenAI) -> None:
    """It puts deltas together itself, and is strict about their shape."""
    text = "One moment. " + call("clock", '{"zone": "CET"}') + call("clock", '{"zone": "UTC"}')
    with client.chat.completions.stream(
        model=MODEL, messages=user(STORY), tools=TOOLS, max_tokens=300, extra_body=written(text)
    ) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_completion().choices[0]
    assert "content.delta" in events and events.count("tool_calls.function.arguments.done") == 2
    assert final.message.content == "One moment." and final.finish_reason == "tool_calls"
    assert [c.function.arguments for c in final.message.tool_calls] == ['{"zone": "CET"}', '{"zone": "UTC"}']


def test_a_conversation_with_a_tools_answer(ask: Asker) -> None:
    """The call goes back as the client got it, content null, and the tool's answer after it."""
    calls = [{"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": '{"zone": "CET"}'}}]
    messages = [
        *user("What time is it?"),
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_1", "content": "12:00"},
    ]
    assert ask.chat(messages, tools=TOOLS, max_tokens=10).usage.completion_tokens > 0


def test_custom_tools(client: OpenAI) -> None:
    """Calls are texts, whole and streamed, and go round."""
    custom = {"type": "custom", "custom": {"name": "apply_patch", "description": "Patches."}}
    patch = '*** Begin\n+"é😀\\\t\n'
    text = call("apply_patch", json.dumps({"input": patch})) + "\n" + call("clock", '{"zone": "CET"}')
    fields: dict[str, Any] = {"model": MODEL, "tools": [custom, CLOCK], "temperature": 0, "max_tokens": 200}
    whole = client.chat.completions.create(messages=user(STORY), **fields, extra_body=written(text))
    message = whole.choices[0].message
    first, second = message.tool_calls
    assert (first.type, first.custom.name, first.custom.input) == ("custom", "apply_patch", patch)
    assert (second.type, second.function.arguments) == ("function", '{"zone": "CET"}')
    streamed: dict[str, str] = {}
    for chunk in client.chat.completions.create(messages=user(STORY), stream=True, **fields, extra_body=written(text)):
        for part in chunk.choices[0].delta.tool_calls or []:
            custom_part = part.to_dict().get("custom")
            if custom_part and part.index == 0:
                for name, more in custom_part.items():
                    streamed[name] = streamed.get(name, "") + more
    assert streamed == {"name": "apply_patch", "input": patch}
    results = [{"role": "tool", "tool_call_id": one.id, "content": "done"} for one in message.tool_calls]
    again = client.chat.completions.create(messages=[*user(STORY), message.to_dict(), *results], **fields)
    assert again.usage.completion_tokens > 0


@pytest.mark.parametrize("pattern", ["[a-f]{3,6}", r'"[a-z ]{1,9}"\n'])
def test_a_custom_tool_follows_an_expression(client: OpenAI, pattern: str) -> None:
    grammar = {"type": "grammar", "grammar": {"syntax": "regex", "definition": pattern}}
    choice = client.chat.completions.create(
        model=MODEL,
        messages=user(STORY),
        tools=[{"type": "custom", "custom": {"name": "run", "format": grammar}}],
        tool_choice={"type": "custom", "custom": {"name": "run"}},
        temperature=1,
        max_tokens=300,
    ).choices[0]
    assert re.fullmatch(pattern, choice.message.tool_calls[0].custom.input)


@pytest.fixture(scope="module")
def llama() -> Iterator[Server]:
    """A server for models that write calls as Llama does, and that think."""
    yield from serving("--tool-call-parser llama --reasoning-parser think")


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def ask_llama(llama: Server, request: pytest.FixtureRequest) -> Asker:
    return Asker(llama.client(), request.param)


def test_llama_required(ask_llama: Asker) -> None:
    choice = ask_llama.chat(STORY, tools=TOOLS, tool_choice=NAMED, max_tokens=300).choices[0]
    assert [c.name for c in choice.tool_calls] == ["clock"]
    check("clock", choice.tool_calls[0].arguments)


def test_llama_auto(ask_llama: Asker) -> None:
    text = '{"name": "clock", "parameters": {"zone": "CET"}}; {"name": "clock", "parameters": {"zone": "UTC"}}'
    choice = ask_llama.chat(STORY, tools=TOOLS, max_tokens=200, extra_body=written(text)).choices[0]
    assert [c.arguments for c in choice.tool_calls] == ['{"zone": "CET"}', '{"zone": "UTC"}']


def test_reasoning(ask_llama: Asker) -> None:
    text = "<think>\nHm, so.\n</think>\n\nIt is noon."
    choice = ask_llama.chat(STORY, max_tokens=200, extra_body=written(text)).choices[0]
    assert (choice.reasoning, choice.text) == ("Hm, so.", "It is noon.")
    plain = ask_llama.chat(STORY, max_tokens=200, extra_body={**written(text), "separate_reasoning": False}).choices[0]
    assert (plain.reasoning, plain.text) == ("", text)


def test_reasoning_before_a_call(ask_llama: Asker) -> None:
    text = '<think>Time.</think>{"name": "clock", "parameters": {}}'
    choice = ask_llama.chat(STORY, tools=TOOLS, max_tokens=200, extra_body=written(text)).choices[0]
    assert choice.reasoning == "Time." and choice.tool_calls[0].name == "clock" and choice.text == ""
