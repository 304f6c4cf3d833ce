"""Structured output under every name that clients of OpenAI, vLLM and SGLang send."""

import json
import re
from typing import Any, Literal

import jsonschema
import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel, Field

from support import JSON_FACTS, MODEL, STORY, Asker, user

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "pets": {"type": "array", "items": {"enum": ["cat", "dog", "bird"]}, "minItems": 1, "maxItems": 3},
        "home": {
            "type": "object",
            "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}, "lat": {"type": "number"}},
            "required": ["zip"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "pets", "home"],
    "additionalProperties": False,
}
# A model of this size may write digits for ever: bounded on purpose.
SCHEMA["properties"]["home"]["properties"]["lat"] = {"type": "number", "minimum": -90, "maximum": 90, "multipleOf": 0.5}


def check(text: str) -> None:
    jsonschema.validate(json.loads(text), SCHEMA)


SCHEMA_FIELDS = [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}}},
    {"extra_body": {"structured_outputs": {"json": SCHEMA}}},
]


@pytest.mark.parametrize("fields", SCHEMA_FIELDS)
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "seed": 2}], ids=["greedy", "sampled"])
def test_schemas(ask: Asker, fields: dict[str, Any], sampling: dict[str, Any]) -> None:
    answer = ask.chat(JSON_FACTS, max_tokens=400, **fields, **sampling)
    assert answer.choices[0].finish_reason == "stop"
    check(answer.text)


def test_any_object(ask: Asker) -> None:
    answer = ask.chat(JSON_FACTS, max_tokens=200, response_format={"type": "json_object"})
    assert isinstance(json.loads(answer.text), dict)


def test_white_space_is_bounded_unless_it_is_asked_for(ask: Asker) -> None:
    compact = ask.chat(JSON_FACTS, max_tokens=200, response_format={"type": "json_object"}).text
    assert not re.search(r"\s\s", re.sub(r'"(\\.|[^"\\])*"', '""', compact)), compact
    none = {"structured_outputs": {"json_object": True, "disable_any_whitespace": True}}
    text = ask.chat(JSON_FACTS, max_tokens=200, extra_body=none).text
    assert not re.search(r"\s", re.sub(r'"(\\.|[^"\\])*"', '""', text)), text
    wide = {"structured_outputs": {"regex": "a", "disable_any_whitespace": False}}
    assert ask.chat(STORY, max_tokens=5, extra_body=wide).text == "a"


def test_regular_expressions(ask: Asker) -> None:
    pattern = r"[0-9]{3}-[a-f]{2}"
    assert re.fullmatch(pattern, ask.chat(STORY, max_tokens=40, extra_body={"guided_regex": pattern}).text)


def test_choices(ask: Asker) -> None:
    choices = ["red", "green and blue"]
    assert ask.chat(STORY, max_tokens=40, extra_body={"structured_outputs": {"choice": choices}}).text in choices


EBNF = 'root ::= greeting " " name\ngreeting ::= "hello" | "goodbye"\nname ::= [A-Z] [a-z]{2,5}\n'
LARK = 'start: GREETING " " NAME\nGREETING: "hello" | "goodbye"\nNAME: /[A-Z][a-z]{2,5}/\n'


@pytest.mark.parametrize("grammar", [EBNF, LARK])
def test_grammars(ask: Asker, grammar: str) -> None:
    text = ask.chat(STORY, max_tokens=40, extra_body={"structured_outputs": {"grammar": grammar}}).text
    assert re.fullmatch(r"(hello|goodbye) [A-Z][a-z]{2,5}", text)


def test_completions_too(ask: Asker) -> None:
    answer = ask.complete("A number:", max_tokens=20, extra_body={"guided_regex": "[0-9]{4}"})
    assert re.fullmatch("[0-9]{4}", answer.text)


def test_parse_into_a_class(client: OpenAI) -> None:
    class Person(BaseModel):
        name: str = Field(max_length=12)
        city: Literal["Lima", "Nairobi"]
        age: int = Field(ge=0, le=150)

    parsed = client.chat.completions.parse(
        model=MODEL, messages=user(JSON_FACTS), response_format=Person, temperature=0, max_tokens=200
    )
    assert isinstance(parsed.choices[0].message.parsed, Person)


def test_the_clients_own_stream_helper(client: OpenAI) -> None:
    class Answer(BaseModel):
        city: Literal["Lima", "Nairobi"]

    with client.chat.completions.stream(
        model=MODEL, messages=user(JSON_FACTS), response_format=Answer, temperature=0, max_tokens=100
    ) as stream:
        list(stream)
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Answer)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1, "seed": 8}])
def test_speculation_is_invisible(ask: Asker, sampling: dict[str, Any]) -> None:
    fields = {"max_tokens": 400, **SCHEMA_FIELDS[0], **sampling}
    fast = ask.chat(JSON_FACTS, **fields)
    plain = ask.chat(JSON_FACTS, extra_body={"volley": {"speculation": False}}, **fields)
    assert fast.text == plain.text
    assert fast.usage.completion_tokens == plain.usage.completion_tokens


def test_n_choices_each_keep_to_the_schema(ask: Asker) -> None:
    answer = ask.chat(JSON_FACTS, max_tokens=400, n=3, temperature=1, seed=1, **SCHEMA_FIELDS[0])
    for choice in answer.choices:
        check(choice.text)


def test_a_text_that_is_cut_off_says_so(ask: Asker) -> None:
    assert ask.chat(JSON_FACTS, max_tokens=4, **SCHEMA_FIELDS[0]).choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    "fields",
    [
        {"extra_body": {"guided_regex": "(["}},
        {"extra_body": {"guided_grammar": "root ::= nothing"}},
        {"extra_body": {"guided_json": {"type": "no such type"}}},
    ],
)
def test_what_cannot_be_compiled_is_refused(ask: Asker, fields: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask.chat(STORY, max_tokens=5, **fields)
    assert len(caught.value.body["message"]) > 20
