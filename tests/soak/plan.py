"""What is asked, from a seed: cases, each with the request that is run alone first, how its copies are sent, and when the
host fails."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from http_client import Manner

DATA = Path(__file__).resolve().parent.parent / "data"

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"


@dataclass
class Case:
    kind: str
    path: str
    body: dict[str, Any] | bytes


@dataclass
class Visit:
    """A case as one client sends it, or something that has no answer to compare."""

    case: Case
    stream: bool = False
    timeout: float | None = None  # the request's own
    manner: Manner = field(default_factory=Manner)
    label: str = "whole"


def _prompts() -> list[str]:
    prompts = []
    for name in ("mixed_prompts.jsonl", "word_problems.jsonl"):
        prompts += [json.loads(line)["prompt"] for line in (DATA / name).read_text().splitlines()]
    return prompts


def make_cases(seed: int, count: int) -> list[Case]:
    """Of every kind about as many; sampled ones have seeds, so that each has one right answer."""
    rng = random.Random(seed)
    prompts = _prompts()
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"]}
    function = {"name": "lookup", "parameters": schema}
    tool = {"type": "function", "function": function}
    response_tool = {"type": "function", **function}
    message_tool = {"name": "lookup", "input_schema": schema}
    response_format = {"type": "json_schema", "name": "p", "schema": schema}

    def chat(text: str, **fields: Any) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": text}], "max_tokens": rng.randint(20, 160), "temperature": 0, **fields}

    def response(asked: str | list[Any], **fields: Any) -> dict[str, Any]:
        return {"input": asked, "max_output_tokens": rng.randint(20, 160), "temperature": 0, **fields}

    def message(text: str, **fields: Any) -> dict[str, Any]:
        return {**chat(text), **fields}

    def sampled() -> dict[str, Any]:
        return {"temperature": rng.choice([0.3, 0.8, 1.2]), "top_p": rng.choice([1, 0.9]), "seed": rng.randrange(1 << 31)}

    def turns(text: str) -> list[dict[str, str]]:
        earlier = prompts[rng.randrange(4)]  # few beginnings, so that prefixes are shared
        history = [{"role": "user", "content": earlier}, {"role": "assistant", "content": earlier[::-1]}] * 3
        return history + [{"role": "user", "content": text}]

    makers = {
        "greedy": lambda text: (CHAT, chat(text)),
        "sampled": lambda text: (CHAT, chat(text, **sampled())),
        "plain": lambda text: (CHAT, chat(text, **sampled(), volley={"speculation": False})),
        "turns": lambda text: (CHAT, chat(text, messages=turns(text))),
        "choices": lambda text: (TEXT, {"prompt": text, "n": 3, "max_tokens": 40, "logprobs": 2, **sampled()}),
        "prompts": lambda text: (TEXT, {"prompt": [text, text[::-1], text.upper()], "max_tokens": 30, "temperature": 0}),
        "long": lambda text: (TEXT, {"prompt": " ".join(rng.sample(prompts, 12)), "max_tokens": 24, "temperature": 0}),
        "scored": lambda text: (TEXT, {"prompt": text, "max_tokens": 8, "prompt_logprobs": 2, "temperature": 0}),
        "stop": lambda text: (CHAT, chat(text, stop=[rng.choice("aeiou") + rng.choice("nrst"), ". "])),
        "rules": lambda text: (CHAT, chat(text, **sampled(), bad_words=["the"], min_tokens=10, presence_penalty=0.7, logit_bias={"50": 2})),
        "json": lambda text: (CHAT, chat(text, response_format={"type": "json_schema", "json_schema": {"name": "p", "schema": schema}})),
        "regex": lambda text: (TEXT, {"prompt": text, "guided_regex": "[a-z]{3,9}( [a-z]{3,9}){2,9}\\.", "max_tokens": 60, **sampled()}),
        "tools": lambda text: (CHAT, chat(text, tools=[tool], tool_choice="required", **sampled())),
        "response": lambda text: (RESPONSES, response(text, **sampled())),
        "response to items": lambda text: (RESPONSES, response(turns(text), instructions="Be brief.")),
        "response as json": lambda text: (RESPONSES, response(text, text={"format": response_format})),
        "response with calls": lambda text: (RESPONSES, response(text, tools=[response_tool], tool_choice="required", **sampled())),
        "message": lambda text: (MESSAGES, message(text, **sampled())),
        "message to turns": lambda text: (MESSAGES, message(text, messages=turns(text), system="Be brief.")),
        "message with stops": lambda text: (MESSAGES, message(text, stop_sequences=[rng.choice("aeiou") + rng.choice("nrst"), ". "])),
        "message with calls": lambda text: (MESSAGES, message(text, tools=[message_tool], tool_choice={"type": "any"}, **sampled())),
    }
    kinds = list(makers)
    cases = []
    for i in range(count):
        kind = kinds[i % len(kinds)]
        path, body = makers[kind](rng.choice(prompts))
        cases.append(Case(kind, path, body))
    return cases


# Wrong at every address.
BROKEN = [
    b"{",
    b'{"messages": 5}',
    b'{"messages": [{"role": "user", "content": "hi"}], "temperature": "hot"}',
    b'{"messages": [{"role": "user", "content": "hi"}], "guided_regex": "("}',
    b"\xff\xfe\x00",
]


def make_visit(rng: random.Random, cases: list[Case]) -> Visit:
    """One in two is a whole answer, one in four a stream that is read to its end; the others are what servers fear."""
    case = rng.choice(cases)
    stream = rng.random() < 0.5
    roll = rng.random()
    if roll < 0.70:
        return Visit(case, stream, label="stream" if stream else "whole")
    if roll < 0.76:
        return Visit(case, True, manner=Manner(leave_after=rng.randint(0, 12)), label="leaves")
    if roll < 0.80:
        return Visit(case, False, manner=Manner(leave_after=0), label="leaves")
    if roll < 0.86:
        return Visit(case, True, manner=Manner(pause=rng.uniform(0.01, 0.05)), label="slow")
    if roll < 0.90:
        return Visit(case, stream, manner=Manner(half_close=True), label="half-closed")
    if roll < 0.97:
        return Visit(case, stream, timeout=rng.choice([0.02, 0.2, 2.0]), label="timeout")
    return Visit(Case("broken", case.path, rng.choice(BROKEN)), label="broken")


def stops(seed: int) -> Iterator[tuple[float, float]]:
    """Faults of the host, which stops the server's process as one does that is suspended or moved: seconds until it stops,
    and how many it stays so."""
    rng = random.Random(seed)
    while True:
        yield rng.uniform(20, 60), rng.uniform(0.2, 2)


def kills(seed: int) -> Iterator[float]:
    """Faults of a device: seconds from one to the next, more than the minute within which a second one ends the server."""
    rng = random.Random(seed)
    while True:
        yield rng.uniform(62, 90)
