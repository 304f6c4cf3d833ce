"""No field of a request may cost more than its size: the server's CPU time for texts of n, 8n, 64n and 512n bytes. FIELDS
are what a field's worst texts look like, growing_fields.py has every field of openapi.json, a new one too.

A step from one size to the next is judged where the larger text costs 60 ms more than a small one. What costs less does no
harm: a quadratic field of less than that takes five seconds, in the lane of large bodies, at the 32 MiB that the server reads. Sizes reach from below the limits of grammars (256 KiB) to
above them, because what is refused costs little.
"""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

import growing_fields
from growing_fields import to_json, words
from support import Server, user

Body = Callable[[int], dict[str, Any]]

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
TOKENIZE = "/tokenize"

STEP = 8  # from one size to the next
LARGEST = 3 << 19
LARGEST_OF_FIELDS = 7 << 19  # those of growing_fields.py are many
MOST = 1.3  # the exponent: between linear and n log n on the one hand, and quadratic on the other
# What a step begins with at least. A request costs 0.4 to 3 ms whatever its size, give or take a fraction of that; and a
# byte of a text that fits into a core's caches costs a half or, beside a busy core, an eighth of one of a larger text.
FLOOR_S = 0.004
ROUNDS = 6
# Compiling these is quadratic in the size. --grammar-compile-timeout-ms bounds it (2 s), and so all of such a request.
COMPILED = {"schema's properties", "tool's parameters", "ebnf's rules"}
COMPILED_S = 3.0


def listed(size: int, of: Callable[[int], Any], each: int) -> list[Any]:
    return [of(i) for i in range(size // each)]


def completion(**fields: Any) -> dict[str, Any]:
    return {"prompt": "x", "max_tokens": 1, **fields}


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": user("x"), "max_tokens": 1, **fields}


def tool(number: int) -> dict[str, Any]:
    return {"type": "function", "function": {"name": f"f{number}"}}


def described(text: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "description": text}}


def nulls(size: int) -> dict[str, Any]:
    return {f"p{i:06}": {"type": "null"} for i in range(size // 28)}


def rules(size: int) -> str:
    return "".join(listed(size, lambda i: f"a{i} ::= a{i + 1} | \"b\"\n", 24)) + f"a{size // 24} ::= \"c\"\n"


def schema_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}


def taking(properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


def parts(size: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": listed(size, lambda i: {"type": "text", "text": "x"}, 31)}]


def tools_allowed(size: int) -> dict[str, Any]:
    tools = listed(size, tool, 120)
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools}}
    return chat(tools=tools, tool_choice=allowed)


def responses(**fields: Any) -> dict[str, Any]:
    return {"input": "x", "max_output_tokens": 1, **fields}


def in_namespaces(size: int) -> dict[str, Any]:
    """Tools of one name each in a namespace of its own, and a choice of all of them by another name."""
    tools = [{"type": "function", "name": "f"}]
    spaces = listed(size, lambda i: {"type": "namespace", "name": f"n{i}", "tools": tools}, 160)
    allowed = listed(size, lambda i: {"type": "function", "name": f"n{i}.f"}, 160)
    return responses(tools=spaces, tool_choice={"type": "allowed_tools", "mode": "auto", "tools": allowed})


def search_outputs(size: int) -> list[dict[str, Any]]:
    found = {"type": "tool_search_output", "call_id": "c", "tools": [{"type": "custom", "name": "f"}]}
    return [*user("x"), *[found] * (size // 100)]


def custom_call(text: str) -> dict[str, Any]:
    return {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": text}


def custom_calls(size: int) -> list[dict[str, Any]]:
    return [*user("x"), *[custom_call("x")] * (size // 80)]


def continued(content: str) -> dict[str, Any]:
    messages = [*user("x"), {"role": "assistant", "content": content}]
    return chat(messages=messages, continue_final_message=True)


def markers(size: int) -> str:
    """What the server marks the end of a continued message with, in two spellings."""
    return " ".join(listed(size, lambda i: f"FinalMessageEndsHere{i} FinalMessageEndsHere{i:08}", 56))


def calls(size: int) -> list[dict[str, Any]]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return [*user("x"), {"role": "assistant", "content": None, "tool_calls": [call] * (size // 90)}]


# Whether a request is answered or refused does not matter here: what it costs does.
FIELDS: dict[str, tuple[str, Body]] = {
    "prompt": (COMPLETIONS, lambda n: completion(prompt=words(n))),
    "prompt without a space": (COMPLETIONS, lambda n: completion(prompt="a" * n)),
    "prompts": (COMPLETIONS, lambda n: completion(prompt=listed(n, lambda i: "ab cd", 8))),
    "prompt ids": (COMPLETIONS, lambda n: completion(prompt=listed(n, lambda i: i % 1000, 5))),
    "truncated prompt": (COMPLETIONS, lambda n: completion(prompt=words(n), truncate_prompt_tokens=50)),
    "truncated to what fits": (COMPLETIONS, lambda n: completion(prompt=words(n), truncate_prompt_tokens=-1)),
    "echo": (COMPLETIONS, lambda n: completion(prompt=words(n), echo=True, truncate_prompt_tokens=50)),
    "suffix": (COMPLETIONS, lambda n: completion(suffix=words(n))),
    "stop": (COMPLETIONS, lambda n: completion(stop=words(n))),
    "stops": (COMPLETIONS, lambda n: completion(stop=listed(n, str, 8))),
    "stop ids": (COMPLETIONS, lambda n: completion(stop_token_ids=listed(n, lambda i: i % 1000, 5))),
    "logit_bias": (COMPLETIONS, lambda n: completion(logit_bias={f"{i:07}": 1 for i in range(n // 14)})),
    "cache_salt": (COMPLETIONS, lambda n: completion(cache_salt=words(n))),
    "model": (COMPLETIONS, lambda n: completion(model=words(n))),
    "user": (COMPLETIONS, lambda n: completion(user=words(n))),
    "unknown fields": (COMPLETIONS, lambda n: completion(**{f"field{i:07}": 1 for i in range(n // 18)})),
    "guided_choice": (COMPLETIONS, lambda n: completion(guided_choice=listed(n, str, 9))),
    "content": (CHAT, lambda n: chat(messages=user(words(n)))),
    "content, truncated": (CHAT, lambda n: chat(messages=user(words(n)), truncate_prompt_tokens=50)),
    "parts": (CHAT, lambda n: chat(messages=parts(n))),
    "messages": (CHAT, lambda n: chat(messages=listed(n, lambda i: {"role": "user", "content": "x"}, 34))),
    "continued": (CHAT, lambda n: continued(words(n))),
    "continued, with markers": (CHAT, lambda n: continued(markers(n))),
    "tools": (CHAT, lambda n: chat(tools=listed(n, tool, 60))),
    "tools of one name": (CHAT, lambda n: chat(tools=listed(n, lambda i: tool(1), 60))),
    "tools, allowed": (CHAT, tools_allowed),
    "tool's description": (CHAT, lambda n: chat(tools=[described(words(n))])),
    "tools in namespaces": (RESPONSES, in_namespaces),
    "tools that searches found": (RESPONSES, lambda n: responses(input=search_outputs(n))),
    "custom calls": (RESPONSES, lambda n: responses(input=custom_calls(n))),
    "custom call's input": (RESPONSES, lambda n: responses(input=[*user("x"), custom_call(words(n))])),
    "tool calls": (CHAT, lambda n: chat(messages=calls(n))),
    "documents": (CHAT, lambda n: chat(documents=listed(n, lambda i: {"text": "x"}, 16))),
    "template arguments": (CHAT, lambda n: chat(chat_template_kwargs={f"k{i:07}": 1 for i in range(n // 14)})),
    "reasoning_effort": (CHAT, lambda n: chat(reasoning_effort=words(n))),
    "tokenize": (TOKENIZE, lambda n: {"prompt": words(n)}),
    "tokenize, with texts": (TOKENIZE, lambda n: {"prompt": words(n // 4), "return_token_strs": True}),
    "tokenize messages": (TOKENIZE, lambda n: {"messages": user(words(n))}),
    "detokenize": ("/detokenize", lambda n: {"tokens": listed(n, lambda i: i % 1000, 5)}),
    "schema's properties": (COMPLETIONS, lambda n: completion(guided_json={"properties": nulls(n)})),
    "schema's enum": (COMPLETIONS, lambda n: completion(guided_json={"enum": listed(n, str, 9)})),
    "schema's string": (COMPLETIONS, lambda n: completion(guided_json={"const": words(n)})),
    "schema's definitions": (COMPLETIONS, lambda n: completion(guided_json={"$defs": nulls(n)})),
    "schema as a text": (COMPLETIONS, lambda n: completion(guided_json=json.dumps({"enum": listed(n, str, 9)}))),
    "regex's branches": (COMPLETIONS, lambda n: completion(regex="|".join(listed(n, str, 7)))),
    "ebnf's rules": (COMPLETIONS, lambda n: completion(ebnf="root ::= a0\n" + rules(n))),
    "response's schema": (CHAT, lambda n: chat(response_format=schema_format({"enum": listed(n, str, 9)}))),
    "tool's parameters": (CHAT, lambda n: chat(tools=[taking(nulls(n))], tool_choice="required")),
}
CASES = FIELDS | growing_fields.cases()


# Memory that was touched once is kept: what the kernel takes for a first touch of a page depends on the host, not on our
# code (0.15 s for 45,000 pages, then 0.26 s for 29,000). How much memory a request may touch has a test of its own.
KEEPS_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_ARENA_MAX": "1",
}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of its own: nothing else may use CPU time."""
    options = f"--threads 1 --max-num-seqs 4 --files-dir {tmp_path_factory.mktemp('files')} --log-level error"
    with Server(options, KEEPS_MEMORY) as running:
        running.request("POST", COMPLETIONS, completion(prompt="a" * LARGEST_OF_FIELDS))
        yield running


def cpu_s(server: Server) -> float:
    """To the nanosecond: the clock that clock_getcpuclockid() names."""
    return time.clock_gettime((~server.process.pid << 3) | 2)


def peak_mib(server: Server) -> int:
    with open(f"/proc/{server.process.pid}/status") as file:
        return next(int(line.split()[1]) // 1024 for line in file if line.startswith("VmHWM"))


class Cost(NamedTuple):
    seconds: float
    status: int


def cost(server: Server, path: str, data: bytes) -> Cost:
    before = cpu_s(server)
    status, _, answer = server.request("POST", path, data)
    assert status in (200, 400, 404), answer[:200]
    return Cost(cpu_s(server) - before, status)


def exponents(costs: list[Cost]) -> list[float]:
    """Of each step whose larger text costs enough to be judged."""
    found = []
    for number, (small, large) in enumerate(pairwise(costs)):
        # What a small text costs is no matter of size, if it had the same answer.
        fixed = costs[0].seconds if number > 0 and small.status == large.status == costs[0].status else 0.0
        # A difference of two costs is no better known than they are.
        begin = max(small.seconds - fixed, small.seconds / 4, FLOOR_S)
        if large.seconds - fixed >= FLOOR_S * STEP**MOST:
            found.append(math.log((large.seconds - fixed) / begin, STEP))
    return found


@pytest.mark.parametrize("name", CASES)
def test_cost_grows_as_size(own: Server, name: str) -> None:
    path, body = CASES[name]
    largest = LARGEST_OF_FIELDS if name in FIELDS else LARGEST
    sizes = [largest // STEP**i for i in (3, 2, 1, 0)]
    texts = [to_json(body(size), size) for size in sizes]
    costs = [Cost(math.inf, 0)] * len(texts)
    # What others do on the machine only adds to a cost, so the least of several is the nearest.
    for _ in range(ROUNDS):
        costs = [min(had, cost(own, path, text)) for had, text in zip(costs, texts)]
        if name in COMPILED:
            assert max(costs).seconds < COMPILED_S, costs
            return
        if max(exponents(costs), default=0.0) <= MOST:
            break
    else:
        raise AssertionError(f"{exponents(costs)}: {costs}")


def test_large_texts_take_no_memory() -> None:
    with Server("--threads 1 --max-num-seqs 4") as fresh:
        fresh.request("POST", COMPLETIONS, completion())
        before = peak_mib(fresh)
        for path, body in (
            (COMPLETIONS, completion(prompt=words(9 * 2**20), truncate_prompt_tokens=50)),
            (COMPLETIONS, completion(prompt="a" * (9 * 2**20))),
            (CHAT, chat(messages=user(words(9 * 2**20)))),
        ):
            fresh.request("POST", path, body)
        assert peak_mib(fresh) - before < 200


def send_and_leave(server: Server, path: str, body: dict[str, Any]) -> None:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        time.sleep(0.2)


def test_nobody_works_for_a_client_that_left(own: Server) -> None:
    body = {"prompt": words(9 * 2**20)}
    whole = cost(own, TOKENIZE, json.dumps(body).encode()).seconds
    before = cpu_s(own)
    for _ in range(3):
        send_and_leave(own, TOKENIZE, body)
    # Until it works no more.
    last = None
    while last is None or cpu_s(own) - last > 0.02:
        last = cpu_s(own)
        time.sleep(1)
    assert cpu_s(own) - before < 2 * whole, whole
