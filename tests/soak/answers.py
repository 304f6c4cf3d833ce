"""What an answer says, in one shape for every API and whether it was streamed: what must not depend on how it was asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from http_client import Lost, Reply
from plan import MESSAGES, RESPONSES, Visit

# text; calls: by number, name and arguments; finish_reason, stop_reason; cut: whether a timeout may have ended it.
Choice = dict[str, Any]


def _choice() -> Choice:
    return {"text": "", "calls": {}, "finish_reason": None, "stop_reason": None, "cut": False}


def _add_call(one: Choice, position: int, name: str, arguments: str) -> None:
    had = one["calls"].get(position, ("", ""))
    one["calls"][position] = (had[0] + name, had[1] + arguments)


def _openai(visit: Visit, reply: Reply) -> list[Choice]:
    """As chats and completions answer."""
    if not visit.stream:
        parts = [(c["index"], c.get("message", c), c) for c in reply.json()["choices"]]
    else:
        payloads = reply.events()
        if not payloads or payloads[-1] != "[DONE]":
            raise Lost(f"a stream without its end: {reply.body[-200:]!r}")
        chunks = [json.loads(payload) for payload in payloads[:-1]]
        for chunk in chunks:
            if "error" in chunk:
                raise Lost(f"a stream failed: {chunk['error']}")
        parts = [(c["index"], c.get("delta", c), c) for chunk in chunks for c in chunk["choices"]]
    choices: dict[int, Choice] = {}
    for index, content, choice in parts:
        one = choices.setdefault(index, _choice())
        one["text"] += content.get("content") or content.get("text") or ""
        for position, call in enumerate(content.get("tool_calls") or []):
            function = call["function"]
            _add_call(one, call.get("index", position), function.get("name", ""), function["arguments"])
        if choice.get("finish_reason"):
            one["finish_reason"], one["stop_reason"] = choice["finish_reason"], choice.get("stop_reason")
            one["cut"] = one["stop_reason"] == "timeout"
    return [choices[i] for i in sorted(choices)]


def _events(reply: Reply, last: tuple[str, ...]) -> list[dict[str, Any]]:
    events = [json.loads(payload) for payload in reply.events()]
    if failed := [event for event in events if event["type"] in ("error", "response.failed")]:
        raise Lost(f"a stream failed: {failed[0]}")
    if not events or events[-1]["type"] not in last:
        raise Lost(f"a stream without its end: {reply.body[-200:]!r}")
    return events


def _response(body: dict[str, Any]) -> Choice:
    one = _choice()
    for position, item in enumerate(body["output"]):
        if item["type"] == "function_call":
            _add_call(one, position, item["name"], item["arguments"])
        else:
            one["text"] += "".join(part["text"] for part in item["content"])
    reason = (body["incomplete_details"] or {}).get("reason")
    return {**one, "finish_reason": body["status"], "stop_reason": reason, "cut": reason == "max_output_tokens"}


def _responses(visit: Visit, reply: Reply) -> list[Choice]:
    if not visit.stream:
        return [_response(reply.json())]
    events = _events(reply, ("response.completed", "response.incomplete"))
    end = _response(events[-1]["response"])
    told = _choice()
    for event in events:
        if event["type"] == "response.output_text.delta":
            told["text"] += event["delta"]
        elif event["type"] == "response.function_call_arguments.delta":
            _add_call(told, event["output_index"], "", event["delta"])
        elif event["type"] == "response.output_item.added" and event["item"]["type"] == "function_call":
            _add_call(told, event["output_index"], event["item"]["name"], "")
    if (told["text"], told["calls"]) != (end["text"], end["calls"]):
        raise Lost(f"a stream said {told}, its end {end}")
    return [end]


def _arguments(text: str) -> str:
    """In one form; nothing where they were cut short, as a whole message has them."""
    try:
        value = json.loads(text)
    except ValueError:
        return ""
    return json.dumps(value) if value else ""


def _messages(visit: Visit, reply: Reply) -> list[Choice]:
    one = _choice()
    end: dict[str, Any] = {}
    if not visit.stream:
        end = reply.json()
        for position, block in enumerate(end["content"]):
            if block["type"] == "tool_use":
                _add_call(one, position, block["name"], json.dumps(block["input"]))
            else:
                one["text"] += block["text"]
    else:
        for event in _events(reply, ("message_stop",)):
            if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
                _add_call(one, event["index"], event["content_block"]["name"], "")
            elif event["type"] == "content_block_delta" and event["delta"]["type"] == "input_json_delta":
                _add_call(one, event["index"], "", event["delta"]["partial_json"])
            elif event["type"] == "content_block_delta":
                one["text"] += event["delta"]["text"]
            elif event["type"] == "message_delta":
                end = event["delta"]
    one["calls"] = {i: (name, _arguments(text)) for i, (name, text) in one["calls"].items()}
    reason = end.get("stop_reason")
    return [{**one, "finish_reason": reason, "stop_reason": end.get("stop_sequence"), "cut": reason == "max_tokens"}]


_READERS: dict[str, Callable[[Visit, Reply], list[Choice]]] = {RESPONSES: _responses, MESSAGES: _messages}


def choices_of(visit: Visit, reply: Reply) -> list[Choice]:
    """Lost where the answer has no end."""
    choices = _READERS.get(visit.case.path, _openai)(visit, reply)
    if any(one["finish_reason"] is None for one in choices):
        raise Lost("a choice without its end")
    return choices


def is_cut(answer: list[Choice], lone: list[Choice]) -> bool:
    """Each choice is the lone one, or its beginning up to a timeout."""

    def begins(part: Choice, whole: Choice) -> bool:
        if part == whole:
            return True
        calls = {i: name + arguments for i, (name, arguments) in part["calls"].items()}
        full = {i: name + arguments for i, (name, arguments) in whole["calls"].items()}
        # A stop string that has begun is text still. A call that is cut short may stand there in the model's own form.
        stop = whole["stop_reason"] if isinstance(whole["stop_reason"], str) else ""
        text = (whole["text"] + stop).startswith(part["text"]) or bool(full)
        return part["cut"] and text and all(full.get(i, "").startswith(c) for i, c in calls.items())

    return len(answer) == len(lone) and all(map(begins, answer, lone))
