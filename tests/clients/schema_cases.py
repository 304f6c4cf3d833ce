"""Schemas as people and their tools write them, drawn by a seed: every enforced keyword, and annotations.

Strings, lists and numbers are bounded, so that a model that rambles comes to an end.
"""

from __future__ import annotations

import random
import re
from typing import Any

Schema = dict[str, Any]

# Python reads these as ECMAScript does.
PATTERNS = [
    r"^[0-9]{5}$",
    r"^[A-Z]{2}-\d{1,4}$",
    r"^(yes|no|maybe)$",
    r"^[^\\]{1,3}$",
    r"^[^\"\\]{0,4}$",
    r'^[^"]{2}$',
    r"^[^\\/:*?\"<>|]{1,6}$",
    r"^[^\n\r]{1,4}$",
    r"^[\s\S]{1,3}$",
    r"^\S{1,5}$",
    r"^\W{1,3}$",
    r"^[\w.+-]{1,8}@[\w-]{1,8}\.[a-z]{2,3}$",
    r"^\"[a-z]{1,4}\"$",
    r"^\\{1,2}[nt]$",
    r"^C:\\\w{1,6}$",
    r"^\t?\n$",
    r"^\x1b\[\d{1,2}m$",
    r"^#(?:[0-9a-f]{3}){1,2}$",
    r"^é{1,3}[^é]$",
    r"^v\d{1,2}(\.\d{1,2}){2}(-[a-z]{1,5})?$",
    r"^[a&&b]{1,4}$",
    r"^[[\]]{2}$",
    r"^.{1,4}$",
]
FORMATS = ["date", "date-time", "time", "uuid", "ipv4"]
ANNOTATIONS = ["password", "path", "uri-reference", "int64", "color", "markdown"]
NAMES = ["name", "kind", "größe", "a b", "list", 'quoted "key"', "$id_", "count", "日付", "x/y", "c\\d", "~t"]
KEYS = ["^x-[a-z]{1,3}$", r"^[^\"\\]{1,3}$", r"^\d{1,2}$", "^(name|kind)$"]
TEXTS = ["red", 'dark "blue"', "c\\d", "\n", "ümlaut", ""]
CONSTANTS: list[Any] = [*TEXTS, 3, -4.5, 0, True, False, None, [1, "a"], {"k": "v"}]


class Drawer:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.definitions: Schema = {}

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def schema(self) -> Schema:
        root = self.object(0)
        if self.chance(0.1):
            root = {"$ref": self.define(root)}
        elif self.chance(0.1):
            root = {"anyOf": [root, self.object(1)]}
        if self.definitions:
            root["$defs"] = self.definitions
        return root

    def define(self, schema: Schema | bool) -> str:
        name = f"d{len(self.definitions)}"
        self.definitions[name] = schema
        return f"#/$defs/{name}"

    def annotated(self, schema: Schema) -> Schema:
        if self.chance(0.2):
            schema["description"] = 'a "value"'
        if self.chance(0.05):
            schema["deprecated"] = True
        if self.chance(0.05):
            schema["x-order"] = 1
        return schema

    def value(self, depth: int) -> Schema | bool:
        leaves = [self.string, self.string, self.number, self.integer, self.constant, self.plain, self.nullable]
        nested = [self.object, self.array, self.tuple, self.map, self.union, self.choice, self.reference, self.merged]
        draw = self.random.choice(leaves if depth >= 3 or self.chance(0.4) else leaves + nested)
        drawn = draw(depth + 1)
        return self.annotated(drawn) if isinstance(drawn, dict) else drawn

    def object(self, depth: int) -> Schema:
        names = self.random.sample(NAMES, self.random.randint(1, 4 if depth == 0 else 2))
        schema: Schema = {"type": "object", "properties": {name: self.value(depth) for name in names}}
        schema["required"] = [name for name in names if self.chance(0.6)]
        kind = self.random.randrange(8)
        if kind < 3:
            schema["additionalProperties"] = False
        elif kind == 3:
            # Every key of the pattern may be one of the properties.
            key, values = self.random.choice(KEYS), self.random.choice([True, self.string(depth)])
            if any(re.search(key, name) for name in names):
                values = True  # else a property has to be two things at once, which may be nothing
            schema["patternProperties"] = {key: values}
            schema["additionalProperties"] = False
            schema["maxProperties"] = len(names) + 1
            schema["required"] = names
        elif kind == 4:
            schema["required"] = names
            schema["additionalProperties"] = self.string(depth)
            schema["maxProperties"] = len(names) + self.random.randint(0, 2)
        elif kind == 5 and len(names) > 1:
            schema["additionalProperties"] = False
            schema["minProperties"] = 1
            del schema["required"]
        elif kind == 6:
            # What nothing satisfies, and is not asked for.
            name = self.random.choice(["never", "nothing"])
            never: list[Schema | bool] = [
                False,
                {"enum": []},
                {"type": "integer", "minimum": 1, "maximum": 4, "multipleOf": 5},
                {"$ref": self.define(False)},
                {"type": "string", "const": 3},
            ]
            schema["properties"][name] = self.random.choice(never)
        return schema

    def map(self, depth: int) -> Schema:
        schema: Schema = {"type": "object", "additionalProperties": self.string(depth)}
        schema["maxProperties"] = self.random.randint(1, 2)
        kind = self.random.randrange(5)
        if kind == 0:
            schema["propertyNames"] = {"type": "string"}
        elif kind == 1:
            schema["propertyNames"] = {"enum": self.random.sample(NAMES, 2)}
            del schema["maxProperties"]
        elif kind == 2:
            schema["propertyNames"] = {"pattern": self.random.choice(KEYS)}
        elif kind == 3:
            schema["minProperties"] = 1
        return schema

    def string(self, depth: int) -> Schema:
        kind = self.random.randrange(6)
        if kind < 3:
            schema: Schema = {"type": "string", "pattern": self.random.choice(PATTERNS)}
            if self.chance(0.15):
                schema["maxLength"] = 12
            return schema
        if kind == 3:
            schema = {"type": "string", "format": self.random.choice(FORMATS)}
            if "time" in schema["format"]:
                schema["maxLength"] = 30  # a fraction of a second has no longest text
            return schema
        low = self.random.randint(0, 3)
        schema = {"type": "string", "minLength": low, "maxLength": low + self.random.randint(0, 8)}
        if kind == 4:
            schema["format"] = self.random.choice(ANNOTATIONS)
        return schema

    def integer(self, depth: int) -> Schema:
        low = self.random.randint(-50, 1000)
        schema: Schema = {"type": "integer", "minimum": low, "maximum": low + self.random.randint(10, 5000)}
        if self.chance(0.3):
            schema["exclusiveMinimum"] = schema.pop("minimum")
        if self.chance(0.3):
            schema["multipleOf"] = self.random.choice([2, 3, 5, 7])
        return schema

    def number(self, depth: int) -> Schema:
        low = self.random.choice([-9, -0.5, 0, 0.25, 1.75])
        schema: Schema = {"type": "number", "minimum": low, "maximum": low + self.random.choice([2, 10, 99.5])}
        schema["multipleOf"] = self.random.choice([0.25, 0.5, 0.01, 1])
        if self.chance(0.3):
            schema["exclusiveMaximum"] = schema.pop("maximum")
        return schema

    def constant(self, depth: int) -> Schema:
        if self.chance(0.3):
            return {"const": self.random.choice(CONSTANTS)}
        schema: Schema = {"enum": self.random.sample(CONSTANTS, self.random.randint(2, 5))}
        if self.chance(0.3):
            schema = {"type": "string", "enum": ["a", *schema["enum"]]}
        return schema

    def plain(self, depth: int) -> Schema | bool:
        return {"type": self.random.choice(["boolean", "null"])}

    def nullable(self, depth: int) -> Schema:
        inner = self.random.choice([self.string, self.integer])(depth)
        inner["type"] = [inner["type"], "null"]
        return inner

    def array(self, depth: int) -> Schema:
        low = self.random.randint(0, 2)
        schema: Schema = {"type": "array", "items": self.value(depth), "minItems": low}
        schema["maxItems"] = low + self.random.randint(0, 2)
        if schema["maxItems"] < 2 or self.chance(0.1):
            schema["uniqueItems"] = schema["maxItems"] < 2
        return schema

    def tuple(self, depth: int) -> Schema:
        prefix = [self.value(depth) for _ in range(self.random.randint(1, 2))]
        schema: Schema = {"type": "array", "prefixItems": prefix, "minItems": self.random.randint(0, len(prefix))}
        if self.chance(0.5):
            schema["items"] = False
        else:
            schema["items"] = self.value(depth)
            schema["maxItems"] = len(prefix) + 1
        return schema

    def union(self, depth: int) -> Schema:
        return {"anyOf": [self.value(depth) for _ in range(self.random.randint(2, 3))]}

    def choice(self, depth: int) -> Schema:
        """Alternatives that a discriminator tells apart."""
        alternatives = []
        for kind in self.random.sample(["cat", "dog", "bird"], 2):
            one = self.object(depth)
            one["properties"] = {"type": {"const": kind}, **one["properties"]}
            one["required"] = ["type", *one.get("required", [])]
            for bound in ("minProperties", "maxProperties"):
                one.pop(bound, None)
            one.pop("patternProperties", None)
            one["additionalProperties"] = False
            alternatives.append(one if self.chance(0.5) else {"$ref": self.define(one)})
        return {"anyOf" if any("$ref" in one for one in alternatives) else "oneOf": alternatives}

    def reference(self, depth: int) -> Schema:
        if self.chance(0.3):
            name = f"d{len(self.definitions)}"
            following = {"anyOf": [{"type": "null"}, {"$ref": f"#/$defs/{name}"}]}
            self.definitions[name] = {
                "type": "object",
                "properties": {"v": self.integer(depth), "next": following},
                "required": ["v"],
            }
            return {"$ref": f"#/$defs/{name}"}
        return {"$ref": self.define(self.value(depth))}

    def merged(self, depth: int) -> Schema:
        """A base that others extend."""
        base = {"type": "object", "properties": {"id": self.integer(depth)}, "required": ["id"]}
        more = {"type": "object", "properties": {"more": self.string(depth)}}
        more["required"] = ["more"] if self.chance(0.5) else []
        return {"allOf": [{"$ref": self.define(base)}, more]}


def schema_of(seed: int) -> Schema:
    return Drawer(seed).schema()
