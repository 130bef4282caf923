"""Random schemas of what a grammar enforces, random answers drawn through masks, and how long an answer may be."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from inference.grammar import Matcher
from inference.tokenizer import Tokenizer

FORMATS = ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
PATTERNS = (
    r"^[A-Z]{2,3}-[0-9]{1,4}$",
    r"^(red|green|blue)( (light|dark))?$",
    r"^[a-z]+( [a-z]+){0,2}$",
    r"^\d{3}\.\d$",
    r"^[^\"\\]{1,5}$",
    r"^.{0,3}[aeiou]{2}",
    r"[!-~]{2}",
    r"^$|^x+$",
)
NAMES = ("title", "name", "year", "tags", "a b", "größe", 'quo"te', "sla/sh", "back\\slash", "1", "", "$ref", "type")
CONSTANTS: tuple[Any, ...] = (
    "x",
    "a\nb",
    '"',
    "ü",
    "",
    0,
    -7,
    2.5,
    True,
    False,
    None,
    [],
    [1, "a"],
    {"k": [None]},
    2**53,
)


class SchemaMaker:
    """One schema for each seed. `closed` keeps to what is bounded in length."""

    def __init__(self, seed: int, closed: bool) -> None:
        self._rng = random.Random(seed)
        self._closed = closed
        self._recursive = False

    def schema(self) -> dict[str, Any]:
        """Up to two plain definitions and, unless closed, up to one that refers to itself."""
        rng = self._rng
        definitions: dict[str, Any] = {}
        for name in ("amount", "odd~/name")[: rng.randrange(3)]:
            definitions[name] = self._scalar() if rng.random() < 0.4 else self._object(1, [])
        names = list(definitions)
        if not self._closed and rng.random() < 0.35:
            node = self._object(1, names)
            node.pop("maxProperties", None)  # with `next` no longer all are required
            self_reference = {"$ref": "#/$defs/node"}
            node.setdefault("properties", {})["next"] = rng.choice(
                [
                    {"anyOf": [self_reference, {"type": "null"}]},
                    {"type": "array", "items": self_reference, "maxItems": 2},
                ]
            )
            definitions["node"] = node
            names.append("node")
        root = rng.choice([self._object, self._object, self._object, self._array, self._combined])(3, names)
        return {**root, "$defs": definitions} if definitions else root

    def _any(self, depth: int, names: Sequence[str]) -> dict[str, Any]:
        rng = self._rng
        if names and rng.random() < 0.2:
            name = rng.choice(names).replace("~", "~0").replace("/", "~1")
            return {"$ref": f"#/$defs/{name}"} | ({"description": "by reference"} if rng.random() < 0.3 else {})
        if depth <= 0 or rng.random() < 0.5:
            return self._scalar()
        if not self._closed and rng.random() < 0.05:
            return {}
        return rng.choice([self._object, self._array, self._combined])(depth - 1, names)

    def _scalar(self) -> dict[str, Any]:
        rng = self._rng
        kind = rng.choice(["string", "string", "integer", "number", "boolean", "null", "enum", "const", "nullable"])
        match kind:
            case "string":
                return self._string()
            case "integer" | "number":
                return self._number(kind)
            case "enum":
                return {"enum": rng.sample(CONSTANTS, rng.randrange(1, 5))}
            case "const":
                return {"const": rng.choice(CONSTANTS)}
            case "nullable":
                inner = rng.choice([self._string, lambda: self._number("integer"), lambda: self._number("number")])()
                return {**inner, "type": [inner["type"], "null"]}
        return {"type": kind}

    def _string(self) -> dict[str, Any]:
        rng = self._rng
        made: dict[str, Any] = {"type": "string"}
        chance = rng.random()
        if chance < 0.25:
            made["format"] = rng.choice(FORMATS)
            if self._closed and made["format"] == "uri":
                made["maxLength"] = 60
        elif chance < 0.5:
            made["pattern"] = rng.choice(PATTERNS)
            if self._closed:
                made["maxLength"] = 20
        else:
            shortest = rng.choice([0, 0, 1, 5])
            made["minLength"] = shortest
            if self._closed or rng.random() < 0.7:
                made["maxLength"] = shortest + rng.choice([0, 3, 12])
        return made

    def _number(self, kind: str) -> dict[str, Any]:
        rng = self._rng
        made: dict[str, Any] = {"type": kind}
        edge = rng.choice(
            [0, 1, 10, 99, 1_000, 10**9, 2**53 + 1, 10**16] if kind == "integer" else [0, 0.1, 2.5, 1e-6, 1e7]
        )
        edge *= rng.choice([1, -1])
        width = rng.choice([3, 40, 10**6])
        if rng.random() < 0.5:
            made[rng.choice(["minimum", "exclusiveMinimum"])] = edge
        if rng.random() < 0.5:
            made[rng.choice(["maximum", "exclusiveMaximum"])] = edge + width
        if kind == "integer" and rng.random() < 0.15:
            made["multipleOf"] = rng.choice([2, 3])
        return made

    def _array(self, depth: int, names: Sequence[str]) -> dict[str, Any]:
        rng = self._rng
        made: dict[str, Any] = {"type": "array", "items": self._any(depth, names)}
        least = rng.choice([0, 0, 1, 2])
        made["minItems"] = least
        if self._closed or rng.random() < 0.7:
            made["maxItems"] = least + rng.randrange(3)
        if rng.random() < 0.2:
            made["prefixItems"] = [self._any(depth - 1, names) for _ in range(rng.randrange(1, 3))]
            if rng.random() < 0.5:
                made["items"] = False
                made["minItems"] = min(least, len(made["prefixItems"]))
        return made

    def _object(self, depth: int, names: Sequence[str]) -> dict[str, Any]:
        rng = self._rng
        keys = rng.sample(NAMES, rng.randrange(0 if self._closed else 1, 5))
        made: dict[str, Any] = {"type": "object", "properties": {key: self._any(depth - 1, names) for key in keys}}
        made["required"] = [key for key in keys if rng.random() < 0.6]
        extra = rng.random()
        if self._closed or extra < 0.6:
            made["additionalProperties"] = False
        elif extra < 0.8:
            made["additionalProperties"] = self._scalar()
            if rng.random() < 0.3:
                made["required"] = list(keys)
                made["maxProperties"] = len(keys) + 2
        return made

    def _combined(self, depth: int, names: Sequence[str]) -> dict[str, Any]:
        rng = self._rng
        kind = rng.choice(["anyOf", "oneOf", "tagged"] if self._closed else ["anyOf", "oneOf", "tagged", "allOf"])
        if kind == "anyOf":
            return {"anyOf": [self._any(depth, names) for _ in range(rng.randrange(1, 4))]}
        if kind == "oneOf":
            return {"oneOf": [self._string(), self._number("integer"), {"type": "null"}, self._array(depth - 1, names)]}
        if kind == "tagged":
            branches = [self._object(depth - 1, names) for _ in range(2)]
            for tag, branch in zip("ab", branches, strict=True):
                branch["properties"] = {"kind": {"const": tag}, **branch["properties"]}
                branch["required"] = ["kind", *branch["required"]]
                branch.pop("maxProperties", None)
            return {"oneOf": branches}
        # Open objects combined with what refers to itself are reported: llguidance can't intersect the two.
        plain = [name for name in names if name != "node"]
        first, second = self._object(depth - 1, plain), self._object(depth - 1, plain)
        for part in (first, second):
            part.pop("additionalProperties", None)
            part.pop("maxProperties", None)
        second["properties"] = {f"{key}2": value for key, value in second["properties"].items()}
        second["required"] = [f"{key}2" for key in second["required"]]
        return {"allOf": [first, second]}


def most_bytes(schema: Any, definitions: dict[str, Any], depth: int = 0) -> float:
    """No answer in compact JSON with the engine's separators is longer; infinity when the schema bounds nothing."""
    if depth > 12 or not isinstance(schema, dict):
        return 0 if schema is False else math.inf
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/").replace("~1", "/").replace("~0", "~")
        return most_bytes(definitions[name], definitions, depth + 1)
    if "enum" in schema or "const" in schema:
        return max(len(dumped(value)) for value in schema.get("enum", [schema.get("const")]))
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return max(most_bytes(branch, definitions, depth + 1) for branch in schema[key])
    if "allOf" in schema:
        return math.inf
    named = schema.get("type", "nothing")
    return max(_most_of(kind, schema, definitions, depth) for kind in ([named] if isinstance(named, str) else named))


def _most_of(kind: str, schema: dict[str, Any], definitions: dict[str, Any], depth: int) -> float:
    match kind:
        case "null" | "boolean":
            return 5
        case "integer":
            return 20
        case "number":
            return 1 + 19 + 1 + 8
        case "string":
            # A character takes four bytes at most, in UTF-8 or escaped; no format is longer than 560.
            return 2 + 4 * schema.get(
                "maxLength", 560 if "format" in schema and schema["format"] != "uri" else math.inf
            )
        case "array":
            first = [most_bytes(item, definitions, depth + 1) for item in schema.get("prefixItems", [])]
            rest = most_bytes(schema.get("items", {}), definitions, depth + 1)
            count = schema.get("maxItems", math.inf)
            further = max(0, count - len(first)) if rest else 0
            return 2 + sum(size + 2 for size in first) + (further * (rest + 2) if further else 0)
        case "object" if schema.get("additionalProperties") is False:
            return 2 + sum(
                len(dumped(name)) + 2 + most_bytes(sub, definitions, depth + 1) + 2
                for name, sub in schema.get("properties", {}).items()
            )
    return math.inf


def dumped(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


class Sampler:
    """Draws tokens from masks as a model with random logits would, uniform or peaked; past `patience` tokens it takes
    what closes whenever it may, as a model that has said all does."""

    def __init__(self, tokenizer: Tokenizer, head_size: int) -> None:
        self._ends = frozenset(tokenizer.eos_token_ids)
        self._rank = np.full(head_size, 5)
        for token in range(tokenizer.vocab_size):
            text = tokenizer.decode([token])
            first = text.strip()[:1]
            # The quote before the braces: inside a string, braces are text.
            if text == '"':
                self._rank[token] = 0
            elif first in ("}", "]", '"', ","):
                self._rank[token] = 1 + ("}", "]", '"', ",").index(first)
            elif first in ("{", "["):
                self._rank[token] = 6
        self._rank[list(self._ends)] = -1

    def draw(self, row: npt.NDArray[np.int32], rng: np.random.Generator, weights: Any, closing: bool) -> int:
        allowed = np.unpackbits(row.view(np.uint8), bitorder="little").nonzero()[0]
        if closing:
            ranks = self._rank[allowed]
            allowed = allowed[ranks == ranks.min()]
        if weights is None:
            return int(allowed[rng.integers(len(allowed))])
        share = weights[allowed].cumsum()
        return int(allowed[np.searchsorted(share, rng.random() * share[-1], side="right").clip(max=len(allowed) - 1)])

    def ends(self, token: int) -> bool:
        return token in self._ends


def stopped(matcher: Matcher, sampler: Sampler, token: int) -> bool:
    """What the engine does with a sampled token: whether the request ends by `stop` with it."""
    if sampler.ends(token):
        return True
    assert matcher.consume(token), matcher.error
    return matcher.stopped
