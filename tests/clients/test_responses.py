"""The Responses API through OpenAI's own client: text, events, tools, structured output, thoughts, conversations that
go on."""

import json
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from support import MODEL, SORT, STORY, Server, user
from test_tools import call, check, written

SORTED = "35, 49, 50, 79"
TOOLS = [
    {
        "type": "function",
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Bonn", "Lima"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
        "strict": True,
    },
    {
        "type": "function",
        "name": "clock",
        "parameters": {
            "type": "object",
            "properties": {"zone": {"type": "string", "pattern": "^[A-Z]{3}$"}},
            "required": ["zone"],
            "additionalProperties": False,
        },
        "strict": True,
    },
]


class Responder:
    """Sends the same request streamed or not, and gives the response object of its end."""

    def __init__(self, client: OpenAI, stream: bool) -> None:
        self.client = client
        self.stream = stream

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
    with Server("--reasoning-parser think") as running:
        yield running
        assert running.stop() == 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_reasoning(thinking: Server, stream: bool) -> None:
    respond = Responder(thinking.client(), stream)
    text = "<think>\nHm, so.\n</think>\n\nIt is noon."
    response = respond(STORY, max_output_tokens=200, extra_body=written(text))
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert response.output[0].content[0].text == "Hm, so."
    assert response.output_text == "It is noon."
    assert response.usage.output_tokens_details.reasoning_tokens > 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input"),
        ({"extra_body": {"mirostat": 2}}, "mirostat"),
    ],
)
def test_what_is_wrong_is_named(client: OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**{"model": MODEL, "input": SORT, **fields})
    assert caught.value.param == param and caught.value.type == "invalid_request_error"


def test_a_client_that_leaves_frees_its_slot(server: Server, client: OpenAI) -> None:
    stream = client.responses.create(
        model=MODEL, input=STORY, stream=True, max_output_tokens=1500, extra_body={"ignore_eos": True}
    )
    for event in stream:
        if event.type == "response.output_text.delta":
            break
    stream.close()
    for _ in range(2400):
        if server.metric("num_requests_running") == 0:
            return
        time.sleep(0.05)
    raise AssertionError("the request still runs")
