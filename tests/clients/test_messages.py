"""The Messages API through Anthropic's own client: blocks, events, tools, thoughts, counts, errors."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic

from support import MODEL, SORT, STORY, Server, serving, turns, user
from test_tools import CLOCK, WEATHER, call, check, written

SORTED = "35, 49, 50, 79"
TOOLS = [
    {"name": "get_weather", "description": "The weather.", "input_schema": WEATHER["function"]["parameters"]},
    {"name": "clock", "input_schema": CLOCK["function"]["parameters"]},
]


@pytest.fixture(scope="module")
def keyed() -> Iterator[Server]:
    """A server that wants a key and whose model thinks."""
    yield from serving("--reasoning-parser think", {"VOLLEY_API_KEYS": "secret"})


def client_of(server: Server, key: str = "secret", **options: Any) -> Anthropic:
    return Anthropic(base_url=server.url, api_key=key, max_retries=0, timeout=120, **options)


@dataclass
class Messenger:
    """Sends the same request streamed or not, and gives the message of its end."""

    client: Anthropic
    stream: bool

    def __call__(self, messages: str | list[Any], **fields: Any) -> Any:
        fields = {"model": MODEL, "messages": turns(messages), "max_tokens": 100, **fields}
        # The client has no parameter for it any more.
        fields["extra_body"] = {"temperature": 0, **fields.get("extra_body", {})}
        if not self.stream:
            return self.client.messages.create(**fields)
        with self.client.messages.stream(**fields) as stream:
            return stream.get_final_message()


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def send(keyed: Server, request: pytest.FixtureRequest) -> Messenger:
    return Messenger(client_of(keyed), request.param)


def test_text(send: Messenger, keyed: Server) -> None:
    message = send(SORT)
    assert [block.text for block in message.content] == [SORTED]
    assert message.stop_reason == "end_turn" and message.id.startswith("msg_")
    chat = keyed.client(api_key="secret").chat.completions.create(
        model=MODEL,
        messages=user(SORT),
        temperature=0,
        extra_body={"chat_template_kwargs": {"enable_thinking": False}},
    )
    usage = message.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == chat.usage.prompt_tokens
    assert usage.output_tokens == chat.usage.completion_tokens


def test_system_and_turns_are_the_messages_of_a_chat(send: Messenger, keyed: Server) -> None:
    turns = [*user("Hello."), {"role": "assistant", "content": [{"type": "text", "text": "Hi."}]}, *user(SORT)]
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    chat = keyed.client(api_key="secret").chat.completions.create(
        model=MODEL,
        messages=[{"role": "system", "content": "Be brief."}, *user("Hello."), {"role": "assistant", "content": "Hi."}]
        + user(SORT),
        temperature=0,
    )
    assert send(turns, system=system).content[0].text == chat.choices[0].message.content


def test_why_it_stopped(send: Messenger) -> None:
    full = send(STORY).content[0].text
    cut = send(STORY, stop_sequences=["ladder"])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", "ladder")
    assert cut.content[0].text == full[: full.index("ladder")]
    short = send(STORY, max_tokens=5)
    assert short.stop_reason == "max_tokens" and short.usage.output_tokens == 5


def test_the_assistants_text_is_continued(send: Messenger) -> None:
    full = send(SORT).content[0].text
    rest = send([*user(SORT), {"role": "assistant", "content": full[:6]}]).content[0].text
    assert full[:6] + rest == full


def test_tools(send: Messenger) -> None:
    first = send(STORY, tools=TOOLS, tool_choice={"type": "any", "disable_parallel_tool_use": True}, max_tokens=200)
    (use,) = first.content
    assert use.type == "tool_use" and first.stop_reason == "tool_use"
    check(use.name, json.dumps(use.input))
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "sunny"}]}
    turns = [*user(STORY), {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    assert send(turns, tools=TOOLS, max_tokens=20).usage.output_tokens > 0


def test_a_named_tool(send: Messenger) -> None:
    (use,) = send(STORY, tools=TOOLS, tool_choice={"type": "tool", "name": "clock"}, max_tokens=200).content
    assert use.name == "clock" and len(use.input["zone"]) == 3


def test_thoughts_text_and_calls_in_their_order(send: Messenger) -> None:
    text = "<think>Hm.</think>\n\nLet me see.\n" + call("clock", '{"zone": "CET"}')
    asked = {"type": "enabled", "budget_tokens": 1024}
    message = send(STORY, tools=TOOLS, thinking=asked, max_tokens=1500, extra_body=written(text))
    thought, said, use = message.content
    assert (thought.thinking, said.text, use.input) == ("Hm.", "Let me see.", {"zone": "CET"})
    assert thought.signature
    turns = [
        *user(STORY),
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "12:00"}]},
    ]
    assert send(turns, tools=TOOLS, max_tokens=10).content
    hidden = send(STORY, tools=TOOLS, max_tokens=200, extra_body=written(text))
    assert [block.type for block in hidden.content] == ["text", "tool_use"], "thoughts that nobody asked for"


def test_events(keyed: Server) -> None:
    stream = client_of(keyed).messages.create(
        model=MODEL, max_tokens=50, messages=user(SORT), extra_body={"temperature": 0}, stream=True
    )
    types = [event.type for event in stream]
    assert types[0] == "message_start" and types[-2:] == ["message_delta", "message_stop"]
    assert types.index("content_block_start") < types.index("content_block_delta") < types.index("content_block_stop")


def test_counts(send: Messenger) -> None:
    fields = {"messages": user(STORY), "system": "Be brief.", "tools": TOOLS}
    count = send.client.messages.count_tokens(model=MODEL, **fields).input_tokens
    usage = send(fields["messages"], system=fields["system"], tools=TOOLS, max_tokens=1).usage
    assert usage.input_tokens + usage.cache_read_input_tokens == count


def test_a_history_of_another_service_goes_on(send: Messenger) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    history: list[Any] = [
        *user("Look."),
        {
            "role": "assistant",
            "content": [
                {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}},
                {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
                {"type": "tool_use", "id": "c1", "name": "view", "input": {}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [image]}]},
    ]
    assert send(history, max_tokens=5).usage.output_tokens > 0


def test_errors(keyed: Server) -> None:
    client = client_of(keyed)
    fields: dict[str, Any] = {"model": MODEL, "max_tokens": 5, "messages": user(SORT)}
    with pytest.raises(anthropic.AuthenticationError) as caught:
        client_of(keyed, "guess").messages.create(**fields)
    assert caught.value.body["error"]["type"] == "authentication_error"
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**fields, "model": "claude-0"})
    image = [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}]
    for wrong, name in (
        ({"messages": [{"role": "user", "content": image}]}, "image"),
        ({"tools": [{"type": "web_search", "name": "web_search"}]}, "tools[0] is of type \"web_search\""),
        ({"extra_body": {"temperature": 1000}}, "temperature"),
        ({"extra_body": {"mirostat": 2}}, "mirostat"),
        ({"max_tokens": 1_000_000}, "messages"),
    ):
        with pytest.raises(anthropic.BadRequestError) as refused:
            client.messages.create(**{**fields, **wrong}, timeout=60)
        assert name in refused.value.body["error"]["message"] or name == "messages"
        assert refused.value.body["type"] == "error" and refused.value.request_id
