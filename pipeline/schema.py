"""A user's JSON Schema: checked, and turned into the columns of a typed view and a grammar for the engine."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError as InvalidSchema

MAX_SCHEMA_BYTES = 256 * 1024
MAX_FIELDS = 200
MAX_DEPTH = 32

_NAME = re.compile(r"^[a-z][a-z0-9_]{0,47}$")
# What the engine's grammar compiles. Everything else is checked after the answer, and said in a warning.
_GRAMMAR_KEYWORDS = frozenset(
    "type properties required additionalProperties items prefixItems minItems maxItems enum const anyOf allOf "
    "$ref $defs definitions pattern format minLength maxLength minimum maximum exclusiveMinimum exclusiveMaximum "
    "multipleOf".split()
)
_GRAMMAR_FORMATS = frozenset("date time date-time duration email hostname ipv4 ipv6 uuid uri".split())
_UNENFORCED = {
    "oneOf": "the answer may match more than one branch until it is checked",
    "not": "it is only checked after the answer",
    "if": "it is only checked after the answer",
    "contains": "it is only checked after the answer",
    "uniqueItems": "repeated items are only found after the answer",
    "propertyNames": "it is only checked after the answer",
    "patternProperties": "it is only checked after the answer",
    "minProperties": "it is only checked after the answer",
    "maxProperties": "it is only checked after the answer",
    "dependentRequired": "it is only checked after the answer",
    "dependentSchemas": "it is only checked after the answer",
    "unevaluatedProperties": "it is only checked after the answer",
    "unevaluatedItems": "it is only checked after the answer",
}
_SCALAR_SQL = {"string": "text", "integer": "bigint", "number": "numeric", "boolean": "boolean"}
_FORMAT_SQL = {"date": "date", "date-time": "timestamptz"}


class SchemaError(ValueError):
    """The schema can't be used. The message names the place in it, what is wrong, and what would be right."""


@dataclass(frozen=True)
class Column:
    """A column of the typed view. `path` leads from the entity's `data` to the value."""

    name: str
    path: tuple[str, ...]
    sql_type: str  # text, bigint, numeric, boolean, date, timestamptz, text[], jsonb


@dataclass(frozen=True)
class ExtractionSchema:
    """`entity_schema` describes one entity: the root itself, or the items of a root array (`many`)."""

    name: str
    json_schema: Mapping[str, Any]
    instructions: str = ""
    examples: Sequence[Mapping[str, Any]] = ()
    many: bool = False
    entity_schema: Mapping[str, Any] = field(default_factory=dict)
    fields: tuple[str, ...] = ()
    key_fields: tuple[str, ...] = ()
    grounded_required: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()
    digest: str = ""

    @classmethod
    def parse(
        cls,
        name: str,
        json_schema: Mapping[str, Any] | str,
        instructions: str = "",
        examples: Sequence[Mapping[str, Any]] = (),
    ) -> ExtractionSchema:
        """Check and digest. Raises SchemaError in words, with the path of the fault.

        `examples` are `{"text": …, "output": …}`, the output as the schema has it. Where instructions or examples are
        not given, the schema's own `x-instructions` and `x-examples` count."""
        if not _NAME.match(name):
            raise SchemaError(
                f"the name {name!r} can't be a view's name: lower-case letters, digits and underscores, "
                "beginning with a letter, at most 48"
            )
        document = _as_mapping(json_schema)
        _check_document(document)
        instructions = instructions or str(document.get("x-instructions") or "")
        examples = examples or _list(document.get("x-examples") or ())
        root = _resolve(document, document)
        many = _type_of(root) == "array"
        entity = _resolve(root.get("items") or {}, document) if many else root
        if (
            _type_of(entity) != "object"
            or not isinstance(entity.get("properties"), Mapping)
            or not entity["properties"]
        ):
            where = "$.items" if many else "$"
            raise SchemaError(
                f"{where} must be an object with `properties` (or the root an array of such objects); it is "
                f"{_type_of(entity) or 'untyped'}: wrap the value, for example "
                '{"type": "object", "properties": {"name": {"type": "string"}}}'
            )
        fields = tuple(entity["properties"])
        if len(fields) > MAX_FIELDS:
            raise SchemaError(f"$.properties has {len(fields)} fields; at most {MAX_FIELDS} fit one answer")
        schema = cls(
            name=name,
            json_schema=document,
            instructions=instructions,
            examples=tuple(examples),
            many=many,
            entity_schema=entity,
            fields=fields,
            key_fields=_key_fields(document, root, entity),
            grounded_required=frozenset(
                field
                for field in fields
                if _resolve(entity["properties"][field], document).get("x-grounded") == "required"
            ),
            warnings=tuple(_warnings(document)),
            digest=_digest(document, instructions, examples),
        )
        schema._check_examples()
        return schema

    @property
    def required(self) -> tuple[str, ...]:
        """The fields that an entity can't be without."""
        return tuple(name for name in self.entity_schema.get("required", ()) if name in self.fields)

    def field_schema(self, name: str) -> Mapping[str, Any]:
        """The sub-schema of a field, with a reference at its top resolved."""
        return _resolve(self.entity_schema["properties"][name], self.json_schema)

    def columns(self) -> list[Column]:
        """The typed view's columns, in the schema's order. Names are snake_case and unique."""
        taken: set[str] = set()
        found = []
        for name in self.fields:
            base = column = _snake(name)
            number = 2
            while column in taken:
                column = f"{base[:59]}_{number}"
                number += 1
            taken.add(column)
            found.append(Column(column, (name,), self._sql_type(self.field_schema(name))))
        return found

    @cached_property
    def grammar_schema(self) -> dict[str, Any]:
        """What the engine is asked to enforce: closed objects, every field present, null where a field is optional,
        and only keywords that the grammar knows."""
        definitions = {
            key: {name: self._grammar(sub) for name, sub in self.json_schema[key].items()}
            for key in ("$defs", "definitions")
            if isinstance(self.json_schema.get(key), Mapping)
        }
        return {**self._grammar(self.json_schema), **definitions}

    @cached_property
    def validator(self) -> Draft202012Validator:
        """Checks a whole answer against the user's schema, formats included."""
        return Draft202012Validator(dict(self.json_schema), format_checker=Draft202012Validator.FORMAT_CHECKER)

    @cached_property
    def entity_validator(self) -> Draft202012Validator:
        """Checks one entity."""
        definitions = {key: self.json_schema[key] for key in ("$defs", "definitions") if key in self.json_schema}
        return Draft202012Validator(
            {**definitions, **self.entity_schema}, format_checker=Draft202012Validator.FORMAT_CHECKER
        )

    def resolve(self, schema: Any) -> Mapping[str, Any]:
        """A sub-schema with a reference at its top followed, and a choice between something and null undone."""
        return _without_null(_resolve(schema, self.json_schema), self.json_schema)

    def types_of(self, schema: Mapping[str, Any]) -> set[str]:
        """The JSON types that a sub-schema allows; empty when it says nothing."""
        return _types(_resolve(schema, self.json_schema), self.json_schema)

    def _sql_type(self, schema: Mapping[str, Any]) -> str:
        types = self.types_of(schema) - {"null"}
        plain = _without_null(schema, self.json_schema)
        if types == {"integer", "number"}:
            types = {"number"}
        if len(types) != 1:
            return "jsonb"
        (kind,) = types
        if kind == "string":
            return _FORMAT_SQL.get(str(plain.get("format")), "text")
        if kind == "array":
            items = plain.get("items")
            return "text[]" if isinstance(items, Mapping) and self.types_of(items) == {"string"} else "jsonb"
        return _SCALAR_SQL.get(kind, "jsonb")

    def _grammar(self, schema: Any) -> Any:
        if not isinstance(schema, Mapping):
            return schema
        kept: dict[str, Any] = {key: value for key, value in schema.items() if key in _GRAMMAR_KEYWORDS}
        if "oneOf" in schema and "anyOf" not in kept:
            kept["anyOf"] = schema["oneOf"]
        for key in ("anyOf", "allOf", "prefixItems"):
            if key in kept:
                kept[key] = [self._grammar(sub) for sub in kept[key]]
        if isinstance(kept.get("items"), Mapping):
            kept["items"] = self._grammar(kept["items"])
        if kept.get("format") not in _GRAMMAR_FORMATS:
            kept.pop("format", None)
        for key in ("$defs", "definitions"):
            kept.pop(key, None)
        if "properties" in kept:
            required = set(schema.get("required", ()))
            kept["properties"] = {
                name: self._grammar(sub) if name in required else self._nullable(self._grammar(sub))
                for name, sub in kept["properties"].items()
            }
            kept["required"] = list(kept["properties"])
            if not isinstance(kept.get("additionalProperties"), Mapping):
                kept["additionalProperties"] = False
        return kept

    def _nullable(self, schema: Any) -> Any:
        if not isinstance(schema, Mapping) or not schema or "null" in _types(schema, self.json_schema):
            return schema
        if "enum" in schema:
            typed = {"type": [*_list(schema["type"]), "null"]} if "type" in schema else {}
            return {**schema, **typed, "enum": [*schema["enum"], None]}
        if "type" in schema and "const" not in schema:
            if "array" in _list(schema["type"]):
                return schema  # an empty list says as much as null
            return {**schema, "type": [*_list(schema["type"]), "null"]}
        return {"anyOf": [schema, {"type": "null"}]}

    def _check_examples(self) -> None:
        for number, example in enumerate(self.examples):
            if not isinstance(example, Mapping) or not isinstance(example.get("text"), str) or "output" not in example:
                raise SchemaError(f"example {number + 1} must be an object with `text` and `output`")
            for error in self.validator.iter_errors(example["output"]):
                raise SchemaError(f"example {number + 1} does not fit the schema at {error.json_path}: {error.message}")


def _as_mapping(json_schema: Mapping[str, Any] | str) -> dict[str, Any]:
    if isinstance(json_schema, str):
        if len(json_schema) > MAX_SCHEMA_BYTES:
            raise SchemaError(f"the schema has {len(json_schema):,} characters; at most {MAX_SCHEMA_BYTES:,} are read")
        try:
            json_schema = json.loads(json_schema)
        except (ValueError, RecursionError) as error:
            raise SchemaError(f"the schema is not JSON: {error}") from error
    if not isinstance(json_schema, Mapping):
        raise SchemaError(f"the schema must be a JSON object; it is a {type(json_schema).__name__}")
    return dict(json_schema)


def _check_document(document: Mapping[str, Any]) -> None:
    try:
        Draft202012Validator.check_schema(document)
    except InvalidSchema as error:
        raise SchemaError(f"not a JSON Schema (2020-12) at {error.json_path}: {error.message[:300]}") from error
    except RecursionError as error:
        raise SchemaError(f"the schema is nested too deeply; at most {MAX_DEPTH} levels are read") from error
    for path, schema in _walk(document):
        reference = schema.get("$ref")
        if reference is not None and _lookup(str(reference), document) is None:
            raise SchemaError(
                f"{path}.$ref {reference!r} leads nowhere: only references inside the schema are followed, "
                'such as "#/$defs/address"'
            )


def _walk(schema: Any, path: str = "$", depth: int = 0) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every sub-schema with its path. References are not followed."""
    if depth > MAX_DEPTH:
        raise SchemaError(f"{path} is nested too deeply; at most {MAX_DEPTH} levels are read")
    if not isinstance(schema, Mapping):
        return
    yield path, schema
    for key in ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"):
        if isinstance(schema.get(key), Mapping):
            for name, sub in schema[key].items():
                yield from _walk(sub, f"{path}.{key}.{name}", depth + 1)
    for key in ("items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames"):
        yield from _walk(schema.get(key), f"{path}.{key}", depth + 1)
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for number, sub in enumerate(schema.get(key) or ()):
            yield from _walk(sub, f"{path}.{key}[{number}]", depth + 1)


def _warnings(document: Mapping[str, Any]) -> Iterator[str]:
    for path, schema in _walk(document):
        for key, words in _UNENFORCED.items():
            if key in schema:
                yield f"{path}.{key}: the grammar does not enforce it; {words}"
        if (kind := schema.get("format")) is not None and kind not in _GRAMMAR_FORMATS:
            yield f"{path}.format {kind!r}: the grammar does not enforce it; it is only checked after the answer"


def _key_fields(document: Mapping[str, Any], root: Mapping[str, Any], entity: Mapping[str, Any]) -> tuple[str, ...]:
    properties = entity["properties"]
    listed = root.get("x-key") or entity.get("x-key") or document.get("x-key")
    marked = [name for name, sub in properties.items() if isinstance(sub, Mapping) and sub.get("x-key") is True]
    names = _list(listed) if listed else marked
    for name in names:
        if name not in properties:
            raise SchemaError(f"x-key names {name!r}, which is no field; the fields are {', '.join(properties)}")
    return tuple(names)


def _resolve(schema: Any, document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow references at the top of a sub-schema; what stands beside a reference wins."""
    seen = 0
    while isinstance(schema, Mapping) and "$ref" in schema and seen < MAX_DEPTH:
        target = _lookup(str(schema["$ref"]), document)
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**target, **beside} if isinstance(target, Mapping) else beside
        seen += 1
    return schema if isinstance(schema, Mapping) else {}


def _lookup(reference: str, document: Mapping[str, Any]) -> Any:
    if not reference.startswith("#"):
        return None
    found: Any = document
    for part in reference[1:].strip("/").split("/") if reference[1:].strip("/") else ():
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or name not in found:
            return None
        found = found[name]
    return found


def _types(schema: Mapping[str, Any], document: Mapping[str, Any], depth: int = 0) -> set[str]:
    schema = _resolve(schema, document)
    if depth > MAX_DEPTH:
        return set()
    if "type" in schema:
        return set(_list(schema["type"]))
    if "enum" in schema or "const" in schema:
        return {_json_type(value) for value in schema.get("enum", [schema.get("const")])}
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return set().union(*(_types(sub, document, depth + 1) for sub in schema[key]))
    if "properties" in schema:
        return {"object"}
    return {"array"} if "items" in schema else set()


def _type_of(schema: Mapping[str, Any]) -> str | None:
    types = _types(schema, schema) - {"null"}
    return next(iter(types)) if len(types) == 1 else None


def _without_null(schema: Mapping[str, Any], document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The branch that is not null, when a sub-schema is `anyOf` something or null."""
    for key in ("anyOf", "oneOf"):
        branches = [sub for sub in schema.get(key, ()) if _types(sub, document) != {"null"}]
        if len(branches) == 1:
            return _resolve(branches[0], document)
    return schema


def _json_type(value: Any) -> str:
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "object"


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _snake(name: str) -> str:
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    snake = re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")[:63]
    return f"field_{snake}"[:63] if not snake or snake[0].isdigit() else snake


def _digest(document: Mapping[str, Any], instructions: str, examples: Sequence[Mapping[str, Any]]) -> str:
    # The order of properties is part of the schema's meaning here: it is the order of the answer.
    content = json.dumps([document, instructions, list(examples)], ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()
