"""Every field that openapi.json allows in a request, made as large as one likes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

Value = Callable[[int], Any]  # about so many bytes of JSON
Schema = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
API = json.loads((ROOT / "src/serve/api/openapi.json").read_text())
DIGITS = "a number of many digits"  # stands in a body where to_json() writes them


def words(size: int) -> str:
    return ("the quick brown fox, and so on; " * (size // 32 + 1))[:size]


@lru_cache(maxsize=4)
def members(size: int) -> dict[str, Any]:
    return {f"k{i:07}": 1 for i in range(size // 14)}


def to_json(body: dict[str, Any], size: int) -> bytes:
    return json.dumps(body).encode().replace(f'"{DIGITS}"'.encode(), b"1" * size)


def resolve(schema: Schema) -> Schema:
    while "$ref" in schema:
        schema = API["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return schema


def types(schema: Schema) -> list[str]:
    named = schema.get("type", ["object"] if "properties" in schema else [])
    return [named] if isinstance(named, str) else named


def is_null(schema: Schema) -> bool:
    return types(schema) == ["null"]


def is_choice(schema: Schema) -> bool:
    return "anyOf" in schema and "properties" not in schema  # beside those it says which go together


def branches(schema: Schema) -> list[Schema]:
    return [resolve(branch) for branch in schema["anyOf"] if not is_null(resolve(branch))]


def least(schema: Schema) -> Any:
    """A small value that the schema allows."""
    schema = resolve(schema)
    if is_choice(schema):
        return least(branches(schema)[0])
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    kinds = types(schema)
    if "object" in kinds:
        return {name: least(schema["properties"][name]) for name in schema.get("required", [])}
    if "array" in kinds:
        return [least(schema.get("items", {"type": "object"}))] * schema.get("minItems", 0)
    values = {"string": "x", "integer": schema.get("minimum", 1), "number": 1, "boolean": False}
    return next((values[kind] for kind in kinds if kind in values), None)


def grown(schema: Schema) -> Iterator[tuple[str, Value]]:
    """What can be large in a value: where it lies, and such values. Of a value that is small by its type (true, a word
    of a list, null) a text in its place, which somebody has to refuse."""
    schema = resolve(schema)
    if is_choice(schema):
        for branch in branches(schema):
            yield from grown(branch)
        return
    kinds = set(types(schema)) - {"null"}
    if not kinds and not {"enum", "const", "type"} & set(schema):  # anything
        yield "", words
        yield ".*", members
    elif "enum" in schema or "const" in schema or kinds <= {"boolean", "string"}:
        yield "", words
    elif kinds <= {"integer", "number"}:
        yield "", lambda size: DIGITS
        yield " as text", words
    elif kinds == {"array"}:
        item = least(schema.get("items", {"type": "object"}))
        each = len(json.dumps(item)) + 2
        yield "[]", lambda size: [item] * (size // each)
        for where, value in grown(schema.get("items", {"type": "object"})):
            yield "[0]" + where, lambda size, value=value: [value(size)]
    elif kinds == {"object"}:
        small = least(schema)
        yield ".*", lambda size: small | members(size)
        for name, of in schema.get("properties", {}).items():
            for where, value in grown(of):
                yield f".{name}{where}", lambda size, name=name, value=value: small | {name: value(size)}
    else:
        raise AssertionError(f"growing_fields.py cannot make a value of {schema}")


def requests() -> dict[str, Schema]:
    """The schema of each address's JSON body. Forms are bounded by bytes and streamed (test_batches.py)."""
    found = {}
    for path, methods in API["paths"].items():
        content = methods.get("post", {}).get("requestBody", {}).get("content", {})
        if json_body := content.get("application/json"):
            found[path] = resolve(json_body["schema"])
    return found


def cases() -> dict[str, tuple[str, Value]]:
    """Bodies by the field that is large in them."""
    made: dict[str, tuple[str, Value]] = {}
    for path, schema in requests().items():
        properties = schema["properties"]
        small = least(schema)
        if "messages" in small:
            small["messages"] = [{"role": "user", "content": "x"}]
        elif {"required": ["prompt"]} in schema.get("anyOf", []):
            small["prompt"] = "x"
        for limit in ("max_tokens", "max_output_tokens"):
            if limit in properties and not is_null(properties[limit]) and path != "/v1/messages/count_tokens":
                small[limit] = 1
        for name, of in properties.items():
            for where, value in grown(of):
                case = (path, lambda size, small=small, name=name, value=value: small | {name: value(size)})
                made.setdefault(f"{path} {name}{where}", case)
    return made
