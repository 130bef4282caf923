"""From the schema that a caller wrote to one that llguidance compiles, that ends, and whose answers are valid.

What is rewritten, and why:
- Numbers get bounds and a step (numbers.py), or digits could run on for ever: integers to 18 digits, numbers to 15
  digits before the point and 8 behind it, no exponents. Values without a schema (`{}`, open `additionalProperties`)
  become a definition that says the same of JSON at large.
- Formats become patterns of ours (formats.py).
- References become definitions of ours: any local pointer or anchor will do.
- `oneOf` becomes `anyOf`: the same where the branches exclude each other, else reported.
- What cannot be enforced token by token is left out and reported with its JSON pointer. Leaving out only ever allows
  more, so the finished text can be checked against the schema as it was written.

Strings and lists are bounded by the schema, else by `max_tokens`. A request that reaches `max_tokens` ends by `length`
wherever it stands, and its text does not parse: nothing is closed in a hurry, since a made-up end would be taken for
the model's answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, LLParserLimits

from inference.grammar.formats import FORMATS
from inference.grammar.numbers import (
    DECIMALS,
    DECIMALS_BESIDE_STEPS,
    WIDEST,
    BadNumber,
    bounded,
    exact,
    has_fraction,
    step_fault,
)
from inference.grammar.patterns import for_grammar
from inference.grammar.references import Unresolved, escaped, followed, mentions, places, resolve

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

# Separators as most JSON in training data is written; no other whitespace, so none can run away. Without \u escapes
# each string has one spelling: else the key "\u0061" would pass for another key than "a".
STYLE: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "json_allowed_escapes": 'nrbtf\\"',
}
# llguidance counts work, not time: at about 50,000 units of fuel a millisecond this is at most a few hundred
# milliseconds for a compilation, and a mask that would take longer than about 20 ms fails its own request.
LIMITS = LLParserLimits(
    initial_lexer_fuel=5_000_000, step_lexer_fuel=300_000, step_max_items=100_000, max_grammar_size=500_000,
    verbose_errors=False,
)  # fmt: skip
MAX_DEPTH = 64
MAX_SUBSCHEMAS = 10_000
MAX_PROPERTIES = 1_000  # of one object: the work grows with the square
MAX_OPTIONAL = 450  # properties that may be left out: four states each at every step, of 2,000 that llguidance holds
MAX_PATTERN = 20_000  # characters
MAX_COUNT = 1_000_000  # minItems, maxLength and the like

_TYPES = frozenset("null boolean integer number string array object".split())
_ASSERTIONS = frozenset(
    "type items additionalItems prefixItems minItems maxItems properties additionalProperties patternProperties "
    "required minProperties maxProperties minLength maxLength pattern format minimum maximum exclusiveMinimum "
    "exclusiveMaximum multipleOf const enum".split()
)
_APPLICATORS = frozenset(("$ref", "allOf", "anyOf", "oneOf"))
_UNENFORCED = {
    "not": "what it excludes is only found afterwards",
    "if": "conditions are only checked afterwards",
    "contains": "what a list must contain is only checked afterwards",
    "uniqueItems": "repeated items are only found afterwards",
    "propertyNames": "names are only checked afterwards",
    "dependentRequired": "it is only checked afterwards",
    "dependentSchemas": "it is only checked afterwards",
    "dependencies": "it is only checked afterwards",
    "unevaluatedProperties": "further properties are only found afterwards",
    "unevaluatedItems": "further items are only found afterwards",
    "$dynamicRef": "what it refers to is only checked afterwards",
    "$recursiveRef": "what it refers to is only checked afterwards",
}
# What llguidance refuses in some schemas, known by words of its refusal: left out in turn, and reported.
_FREE, _BESIDE = "free values", "beside $ref"
_FALLBACKS = (
    ("min/maxProperties", frozenset(("minProperties", "maxProperties"))),
    ("patternPropert", frozenset(("patternProperties",))),
    ("multipleOf", frozenset(("multipleOf",))),
    ("if regex is empty", frozenset(("minLength", "maxLength"))),
    ("circular references with sibling", frozenset((_BESIDE,))),
    ("intersection stack level", frozenset((_FREE,))),
    ("schema too large", frozenset((_FREE,))),
)


class SchemaRefused(ValueError):
    """The schema can't be turned into a grammar. The message names the place, what is wrong, and the limit if any."""


@dataclass(frozen=True)
class Prepared:
    """`grammar` is llguidance's; `unenforced` says what it leaves to a check afterwards, as `pointer: words`."""

    grammar: str
    unenforced: tuple[str, ...]


def unenforced(schema: Any) -> list[str]:
    """What a grammar for this schema cannot enforce, each with its JSON pointer. Raises SchemaRefused."""
    return list(prepare(schema).unenforced)


def prepare(schema: Any) -> Prepared:
    """Rewrite and check a JSON Schema. May take a while: not for the loop's thread. Raises SchemaRefused."""
    try:
        return _prepared(schema)
    except (TypeError, KeyError, AttributeError) as error:  # a keyword with a value that none of its kind has
        raise SchemaRefused(f"it is not a JSON Schema: {error}") from error


def _prepared(schema: Any) -> Prepared:
    dropped: frozenset[str] = frozenset()
    while True:
        rewriter = _Rewriter(schema, dropped)
        document = rewriter.document()
        grammar = LLMatcher.grammar_from_json_schema(document, overrides=STYLE)
        error = _fault(grammar)
        if not error:
            rewriter.check_choices(document["$defs"])
            return Prepared(grammar, tuple(rewriter.report))
        more = next((keys for words, keys in _FALLBACKS if words in error and not keys <= dropped), None)
        if more is None:
            raise SchemaRefused(error)
        dropped |= more


def _fault(grammar: str) -> str:
    refused, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=LIMITS)
    return messages[0] if refused else ""


@lru_cache(maxsize=4096)
def _pattern_fault(pattern: str) -> str:
    return _fault(LLMatcher.grammar_from_json_schema({"type": "string", "pattern": pattern}, overrides=STYLE))


class _Rewriter:
    """One pass over a schema. `dropped` are keywords to leave out everywhere.

    `covered` in the methods: the sub-schema is combined (allOf and the like) with one that bounds numbers and free
    values already, its carrier. Bounding both would have llguidance intersect two recursive definitions without end.
    """

    def __init__(self, schema: Any, dropped: frozenset[str]) -> None:
        self._root = schema
        self._dropped = dropped
        self._any: dict[str, Any] = {} if _FREE in dropped else {"$ref": "#/$defs/any"}
        self._decimals = DECIMALS_BESIDE_STEPS if mentions(schema, "multipleOf") else DECIMALS
        self._names: dict[tuple[str, bool], str] = {}
        self._todo: list[tuple[str, Any, str, bool]] = []
        self._choices: list[tuple[str, list[Any]]] = []
        self._count = 0
        self.report: list[str] = []

    def document(self) -> dict[str, Any]:
        if self._root is False:
            raise SchemaRefused("the schema is false: nothing fits it")
        body = self._schema(self._root, "#", 0, covered=False)
        # As wide as can be: typed numbers that are combined with it have narrower bounds of their own.
        number = {"type": "number", "minimum": -WIDEST, "maximum": WIDEST, "multipleOf": 10.0**-self._decimals}
        array, table = {"type": "array", "items": self._any}, {"type": "object", "additionalProperties": self._any}
        definitions: dict[str, Any] = {
            "any": {"anyOf": [{"type": ["null", "boolean", "string"]}, number, array, table]}
        }
        while self._todo:
            name, target, where, covered = self._todo.pop()
            definitions[name] = self._schema(target, where, 0, covered=covered)
        if _FREE in self._dropped:
            self.report.append("#: numbers in values without a schema may run on, to max_tokens at most")
        return {**body, "$defs": definitions}

    def check_choices(self, definitions: Mapping[str, Any]) -> None:
        """Report each `oneOf` whose branches llguidance does not see to exclude each other."""
        for where, branches in self._choices:
            probe = {"oneOf": [followed(branch, definitions) for branch in branches], "$defs": dict(definitions)}
            if "oneOf" in _fault(LLMatcher.grammar_from_json_schema(probe, overrides=STYLE)):
                self._say(where, "oneOf", "the answer may match more than one branch until it is checked")

    def _say(self, where: str, key: str, words: str) -> None:
        line = f"{where}/{escaped(key)}: {words}"
        if line not in self.report:
            self.report.append(line)

    def _schema(self, schema: Any, where: str, depth: int, *, covered: bool) -> Any:
        self._count += 1
        if depth > MAX_DEPTH:
            raise SchemaRefused(f"{where} is nested more than {MAX_DEPTH} levels deep; flatten the schema or use $ref")
        if self._count > MAX_SUBSCHEMAS:
            raise SchemaRefused(f"the schema has more than {MAX_SUBSCHEMAS} sub-schemas; split it")
        free = {} if covered else dict(self._any)
        if isinstance(schema, bool):
            return free if schema else False
        if not isinstance(schema, Mapping):
            raise SchemaRefused(f"{where} is {json.dumps(schema)[:60]}; a schema is an object, true or false")
        kept = self._keywords(schema, where)
        carrier = "" if covered else _carrier(kept)
        out: dict[str, Any] = {}
        for key, value in kept.items():
            for name, rewritten in self._keyword(key, value, where, depth, carrier, covered).items():
                if name == "anyOf" and name in out:  # of oneOf beside anyOf
                    out.setdefault("allOf", []).append({name: rewritten})
                else:
                    out[name] = rewritten
        self._text(out, where)
        self._number(out, where, carrier)
        if carrier == "own" and not out.keys() & {"const", "enum"}:
            self._close(out)
        return out or free

    def _keywords(self, schema: Mapping[str, Any], where: str) -> dict[str, Any]:
        """The keywords that stay; the others are reported, or annotations."""
        for key, words in _UNENFORCED.items():
            says_nothing = key != "uniqueItems"  # uniqueItems: false, propertyNames: true
            if key in schema and schema[key] is not says_nothing and (key != "if" or schema.keys() & {"then", "else"}):
                self._say(where, key, words)
        kept = {}
        for key, value in schema.items():
            if key in self._dropped:
                self._say(where, key, "not enforced in this combination; it is only checked afterwards")
            elif key in _ASSERTIONS or key in _APPLICATORS:
                kept[key] = value
        if _BESIDE in self._dropped and "$ref" in kept and len(kept) > 1:
            self._say(where, "$ref", "it refers in a circle; what stands beside it is only checked afterwards")
            kept = {"$ref": kept["$ref"]}
        for key in ("const", "enum"):
            if key in kept and not exact(kept[key]):
                self._say(where, key, "integers beyond 2^53 are only checked afterwards")
                del kept[key]
        return kept

    def _keyword(self, key: str, value: Any, where: str, depth: int, carrier: str, covered: bool) -> dict[str, Any]:
        """One keyword rewritten, under its own name or another's."""
        # Beside a carrier, what is nested meets what the carrier says of the same place.
        beside = covered or carrier != "own"

        def inner(sub: Any, step: str = "", *, covered: bool = beside) -> Any:
            return self._schema(sub, f"{where}/{key}{step and '/' + escaped(step)}", depth + 1, covered=covered)

        match key, value:
            case "$ref", _:
                return {"$ref": f"#/$defs/{self._definition(value, where, covered=covered or carrier != key)}"}
            case (("allOf" | "anyOf" | "oneOf"), list()):
                parts = [
                    inner(sub, str(i), covered=covered or carrier not in (key, f"{key}/{i}"))
                    for i, sub in enumerate(value)
                ]
                if key == "oneOf":
                    self._choices.append((where, parts))
                    return {"anyOf": parts}
                return {key: parts}
            case (("properties" | "patternProperties"), Mapping()):
                if len(value) > MAX_PROPERTIES:
                    raise SchemaRefused(f"{where}/{key} has {len(value)} entries; the limit is {MAX_PROPERTIES}")
                named = for_grammar if key == "patternProperties" else str
                return {key: {named(name): inner(sub, name) for name, sub in value.items()}}
            case (("items" | "prefixItems"), list()):
                return {key: [inner(sub, str(i)) for i, sub in enumerate(value)]}
            case (("items" | "additionalItems" | "additionalProperties"), _):
                return {key: inner(value)}
        return {key: value}

    def _definition(self, reference: Any, where: str, *, covered: bool) -> str:
        """The name of the definition that a reference leads to, made when it is first met."""
        try:
            pointer, target = resolve(reference, self._root)
        except Unresolved as error:
            raise SchemaRefused(f"{where}/$ref {error}") from error
        if (pointer, covered) not in self._names:
            name = self._names[pointer, covered] = f"d{len(self._names)}"
            self._todo.append((name, target, pointer, covered))
        return self._names[pointer, covered]

    def _text(self, out: dict[str, Any], where: str) -> None:
        """Patterns, formats and counts."""
        if isinstance(pattern := out.get("pattern"), str):
            if len(pattern) > MAX_PATTERN:
                raise SchemaRefused(f"{where}/pattern has {len(pattern)} characters; the limit is {MAX_PATTERN}")
            out["pattern"] = for_grammar(pattern)
            if fault := _pattern_fault(out["pattern"]):
                try:
                    re.compile(pattern)
                except re.error as error:
                    raise SchemaRefused(
                        f"{where}/pattern {pattern[:60]!r} is no regular expression: {error}"
                    ) from error
                self._say(where, "pattern", f"{fault.splitlines()[-1][:120]}; it is only checked afterwards")
                del out["pattern"]
        if (name := out.pop("format", None)) is not None:
            if name not in FORMATS:
                self._say(where, "format", f"{json.dumps(name)[:60]} is only checked afterwards")
            elif "pattern" in out:
                out.setdefault("allOf", []).append({"pattern": f"^(?:{FORMATS[name]})$"})
            else:
                out["pattern"] = f"^(?:{FORMATS[name]})$"
        for key in ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"):
            count = out.get(key)
            if isinstance(count, int | float) and count > MAX_COUNT:
                if key.startswith("min"):
                    raise SchemaRefused(f"{where}/{key} is {count}; the limit is {MAX_COUNT}")
                del out[key]  # max_tokens ends it before
        names = out.get("properties")
        optional = names.keys() - set(out.get("required", ())) if isinstance(names, Mapping) else ()
        if len(optional) > MAX_OPTIONAL:
            raise SchemaRefused(
                f"{where} has {len(optional)} optional properties; the limit is {MAX_OPTIONAL}. Require them, and let "
                "them be null"
            )
        least = out.get("minProperties")
        if isinstance(least, int) and least > len(out.get("required", ())):
            self._say(where, "minProperties", "a key may come twice and count as two until it is checked")

    def _number(self, out: dict[str, Any], where: str, carrier: str) -> None:
        try:
            if (step := out.get("multipleOf")) is not None:
                if fault := step_fault(step):
                    self._say(where, "multipleOf", fault)
                    del out["multipleOf"]
                elif step != int(step):
                    self._say(where, "multipleOf", "it holds in decimals; a check in binary floats may differ")
            named = _types(out) if "type" in out or carrier == "own" else frozenset()
            if named & {"integer", "number"} and not out.keys() & {"const", "enum"}:
                numbers = bounded(out, integer="number" not in named, decimals=self._decimals)
                if "multipleOf" not in out and _fractions_within(out):
                    numbers.pop("multipleOf", None)  # llguidance would lose some of these constants to rounding
                out.clear()
                out.update(numbers)
        except BadNumber as error:
            raise SchemaRefused(f"{where}: {error}") from error

    def _close(self, out: dict[str, Any]) -> None:
        """Say what further items and properties are: nothing said would mean values without bounds."""
        if "array" in _types(out) and self._any:
            out.setdefault("additionalItems" if isinstance(out.get("items"), list) else "items", dict(self._any))
        if "object" in _types(out) and self._any:
            out.setdefault("additionalProperties", dict(self._any))


def _fractions_within(schema: Mapping[str, Any]) -> bool:
    """Whether a number with decimals is a constant of what is combined here."""
    combined = [schema[key] for key in ("allOf", "anyOf") if key in schema]
    return any(
        has_fraction([place.get("const"), place.get("enum")])
        for _, place in places(combined)
        if isinstance(place, Mapping)
    )


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    named = schema.get("type", _TYPES)
    return frozenset([named] if isinstance(named, str) else named)


def _carrier(schema: Mapping[str, Any]) -> str:
    """Which of the schemas combined here bounds for all: a reference if there is one (it may be recursive, and then
    must be the only one that is bounded), else what is narrowest."""
    parts = schema.get("allOf")
    parts = parts if isinstance(parts, list) else []
    refers = next((i for i, part in enumerate(parts) if isinstance(part, Mapping) and "$ref" in part), None)
    if "$ref" in schema:
        return "$ref"
    if refers is not None:
        return f"allOf/{refers}"
    if "type" in schema or "const" in schema or "enum" in schema:
        return "own"
    if parts:
        return "allOf/0"
    return next((key for key in ("anyOf", "oneOf") if key in schema), "own")
