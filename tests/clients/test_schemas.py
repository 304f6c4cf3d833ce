"""Generated schemas, and what a model that is led astray writes under them: jsonschema takes every answer.

VOLLEY_SCHEMA_CASES=500 asks for so many schemas, with 20 answers each.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import jsonschema
import pytest

from schema_cases import Schema, schema_of
from support import MODEL, Server, user

CASES = int(os.environ.get("VOLLEY_SCHEMA_CASES", "40"))
ANSWERS = 20 if "VOLLEY_SCHEMA_CASES" in os.environ else 5


# What a schema is refused for: a part of the sentence that the client gets.
REFUSALS = ["\\\\u escapes", "min/maxProperties only supported"]
MOST_POWER = 10**17  # Decimal holds little more


def number(text: str) -> Decimal:
    """As it is written. Where its power of ten is beyond MOST_POWER, that takes its place: no schema here tells the two
    apart."""
    digits, _, power = text.lower().partition("e")
    return Decimal(f"{digits}e{max(-MOST_POWER, min(MOST_POWER, int(power or 0)))}")


def exact(value: Any) -> Any:
    """With numbers as they are written: 0.3 is a multiple of 0.1."""
    return json.loads(value if isinstance(value, str) else json.dumps(value), parse_float=number)


def multiple_of(check: Any, step: Any, value: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
    """jsonschema's own divides, which no Decimal of a large power can be."""
    if not check.is_type(value, "number") or value == 0:
        return

    def parts(given: Any) -> tuple[int, int]:
        _, digits, power = Decimal(given).as_tuple()
        return int("".join(map(str, digits))), int(power)

    (many, high), (few, low) = parts(value), parts(step)
    if high >= low:
        rest = many * pow(10, high - low, few) % few
    elif low - high > len(str(many)):
        rest = many  # less than the step
    else:
        rest = many % (few * 10 ** (low - high))
    if rest:
        yield jsonschema.ValidationError(f"{value} is not a multiple of {step}")


EXACT: Any = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"multipleOf": multiple_of})


def validator(schema: Schema) -> Any:
    return EXACT(exact(schema), format_checker=EXACT.FORMAT_CHECKER)


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
    texts = 0
    refused: Counter[str] = Counter()
    for seed in range(CASES):
        schema = schema_of(seed)
        status, _, body = server.request("POST", "/v1/chat/completions", request_of(schema, seed, ends, escapes))
        if status == 400 and (why := next((part for part in REFUSALS if part in body.decode()), None)):
            refused[why] += 1
            continue
        assert status == 200, f"{seed}: {body.decode()}\n{json.dumps(schema)}"
        check = validator(schema)
        for text in texts_of(json.loads(body)):
            error = next(check.iter_errors(exact(text)), None)
            assert error is None, f"{seed}: {error.message}\n{text}\n{json.dumps(schema)}"
            texts += 1
    print(f"\n{CASES} schemas: {texts} answers are valid; refused: {dict(refused)}")
    assert texts >= 0.97 * ANSWERS * (CASES - refused.total()), "answers were cut off"
    assert refused.total() <= 0.05 * CASES + 1


NUMBERS = [
    ("1195858088e1678", [2, 0.25, 1], [3, 7]),
    ("-5E+99999999999999999999", [2, 0.5], [3]),
    ("1e-99999999999999999999", [], [0.01, 1]),
    ("0." + "25" * 200, [], [0.25, 0.01]),
    ("21" * 400 + "e-3", [0.001, 0.003], [1]),
    ("3.00e0", [1, 0.01, 1.5], [2, 7]),
    ("0e99999999999999999999", [0.25, 7], []),
]


@pytest.mark.parametrize("text,steps,others", NUMBERS)
@pytest.mark.parametrize("place", ["{}", "[{}]", '{{"n": {}}}'])
def test_the_check_takes_any_number(text: str, steps: list[float], others: list[float], place: str) -> None:
    def whole(step: float) -> Schema:
        inner = {"type": "number", "multipleOf": step}
        return {"anyOf": [inner, {"type": ["array", "object"], "items": inner, "properties": {"n": inner}}]}

    value = exact(place.format(text))
    for step in steps + others:
        assert validator(whole(step)).is_valid(value) == (step in steps), step
    assert not validator({"enum": [1, [1], {"n": 1}]}).is_valid(value)
    assert validator({"uniqueItems": True}).is_valid([value, 1])


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
