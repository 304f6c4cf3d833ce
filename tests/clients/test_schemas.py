"""Generated schemas, and what a model that is led astray writes under them: jsonschema takes every answer.

VOLLEY_SCHEMA_CASES=500 asks for so many schemas, with 20 answers each.
"""

import json
import os
from decimal import Decimal
from typing import Any

import jsonschema
import pytest

from schema_cases import Schema, schema_of
from support import MODEL, Server, user

CASES = int(os.environ.get("VOLLEY_SCHEMA_CASES", "40"))
ANSWERS = 20 if "VOLLEY_SCHEMA_CASES" in os.environ else 5


def exact(value: Any) -> Any:
    """With numbers as they are written: 0.3 is a multiple of 0.1."""
    return json.loads(value if isinstance(value, str) else json.dumps(value), parse_float=Decimal)


def validator(schema: Schema) -> jsonschema.Draft202012Validator:
    kind = jsonschema.Draft202012Validator
    return kind(exact(schema), format_checker=kind.FORMAT_CHECKER)


def request_of(schema: Schema, seed: int, ends: set[int], escapes: set[int]) -> dict[str, Any]:
    """Every third time for a tool's arguments; every other time with a liking for what JSON has to escape. A model that
    rambles needs a liking for what ends a key, a number and the like, which have no longest text."""
    body: dict[str, Any] = {"model": MODEL, "messages": user(f"Give me JSON, please. {seed}"), "n": ANSWERS}
    body |= {"seed": seed, "temperature": 1.3, "max_tokens": 700, "volley": {"speculation": seed % 4 != 3}}
    body["logit_bias"] = {str(token): 6 for token in ends | (escapes if seed % 2 else set())}
    if seed % 3 == 0:
        body["tools"] = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
        body["tool_choice"] = {"type": "function", "function": {"name": "f"}}
    else:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    return body


def texts_of(answer: dict[str, Any]) -> list[str]:
    """Of choices that came to an end."""
    ended = [choice for choice in answer["choices"] if choice["finish_reason"] in ("stop", "tool_calls")]
    calls = [call for choice in ended for call in choice["message"].get("tool_calls") or []]
    return [call["function"]["arguments"] for call in calls] or [choice["message"]["content"] for choice in ended]


def test_answers_satisfy_generated_schemas(server: Server) -> None:
    def tokens_of(texts: list[str]) -> set[int]:
        return {token for text in texts for token in server.tokenize(text)}

    ends = tokens_of(['"', '",', '":', '"}', "}", "]", ","])
    escapes = tokens_of(["\\", '\\"', "\\\\", "\\n", "\\u"]) - ends
    texts = refused = 0
    for seed in range(CASES):
        schema = schema_of(seed)
        status, _, body = server.request("POST", "/v1/chat/completions", request_of(schema, seed, ends, escapes))
        if status == 400 and b"\\\\u escapes" in body:
            refused += 1
            continue
        assert status == 200, f"{seed}: {body.decode()}\n{json.dumps(schema)}"
        check = validator(schema)
        for text in texts_of(json.loads(body)):
            error = next(check.iter_errors(exact(text)), None)
            assert error is None, f"{seed}: {error.message}\n{text}\n{json.dumps(schema)}"
            texts += 1
    assert texts >= 0.97 * ANSWERS * (CASES - refused), "answers were cut off"
    assert refused <= 0.05 * CASES + 1


NEAR_MISSES = [
    (r'^[^"\\]{2}$', ['"', "\\", '\\"', "\\\\"]),
    (r"^[^\\]{2}$", ["\\", "\\\\", '\\"']),
    (r'^[^"\\\n]{1,3}$', ['"', "\\", '\\"', "\\n", "\\u"]),
    (r"^[^\\/:*?\"<>|]{2}$", ["\\", "/", '\\"']),
]


@pytest.mark.parametrize("pattern,wanted", NEAR_MISSES)
@pytest.mark.parametrize("speculation", [True, False])
def test_excluded_characters_do_not_come_as_escapes(
    server: Server, pattern: str, wanted: list[str], speculation: bool
) -> None:
    bias = {str(token): 100 for text in wanted for token in server.tokenize(text)}
    value = {"type": "string", "pattern": pattern}
    schema = {"type": "object", "properties": {"q": value}, "required": ["q"]}
    fields = [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}},
        {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
            "tool_choice": "required",
            "parallel_tool_calls": False,
        },
    ]
    for more in fields:
        body = {"model": MODEL, "messages": user("q?"), "max_tokens": 80, "logit_bias": bias, "n": 4, "temperature": 1}
        answer = server.post_json("/v1/chat/completions", {**body, **more, "volley": {"speculation": speculation}})
        texts = texts_of(answer)
        assert len(texts) == 4
        for text in texts:
            validator(schema).validate(exact(text))
