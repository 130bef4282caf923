"""The one JSON gate: what a model says becomes a value that the database takes, or an error in words.

Stricter than `json.loads` where it is lax (NaN, infinities, duplicate keys, numbers out of range), and it never
repairs: an answer cut short is split and asked again by the caller, not guessed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

from jsonschema.exceptions import ValidationError

from pipeline.gate import clean_value
from pipeline.schema import ExtractionSchema

MAX_ANSWER_CHARS = 4 * 2**20
MAX_DEPTH = 64
MAX_NUMBER_CHARS = 400
BIGINT = 2**63


class BadAnswer(ValueError):
    """The answer is no JSON value that can be stored. `reason`: truncated, not_json, number, duplicate_key, too_deep,
    too_long, schema."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


def parse_answer(text: str) -> Any:
    """Strict JSON from the first character to the last. Strings come out clean (no NUL, no lone surrogates)."""
    if len(text) > MAX_ANSWER_CHARS:
        raise BadAnswer("too_long", f"the answer has {len(text):,} characters; at most {MAX_ANSWER_CHARS:,} are read")
    body = text.strip(" \t\r\n")
    if not body:
        raise BadAnswer("not_json", "the answer is empty")
    if body[0] not in '{["-0123456789tfn':
        raise BadAnswer("not_json", f"the answer is prose, not JSON: {body[:120]!r}")
    _check_depth(body)
    try:
        value = json.loads(
            body,
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_float=_float,
            parse_int=_int,
        )
    except json.JSONDecodeError as error:
        if error.pos >= len(body) or "Unterminated string" in error.msg:
            raise BadAnswer("truncated", f"the answer ends in the middle, after {body[-60:]!r}") from error
        raise BadAnswer(
            "not_json", f"{error.msg} at character {error.pos}: {body[max(0, error.pos - 20) : error.pos + 20]!r}"
        ) from error
    return clean_value(value)


def check_entity(value: Any, schema: ExtractionSchema) -> tuple[dict[str, Any], list[str]]:
    """One entity made to fit: nulls that the schema does not allow are left out, whole floats become integers where
    the schema wants them, and an optional field that does not fit is left out with a note. Raises BadAnswer (`schema`)
    when what is left does not fit."""
    if not isinstance(value, Mapping):
        raise BadAnswer("schema", f"an entity must be an object; this is a {type(value).__name__}")
    entity = {name: item for name, item in value.items() if name in schema.fields}
    notes = [f"/{name}: not in the schema, left out" for name in value if name not in schema.fields]
    required = set(schema.required)
    for name in list(entity):
        field = schema.entity_schema["properties"][name]
        entity[name] = _fit(entity[name], field, schema)
        if entity[name] is None and "null" not in schema.types_of(field) and schema.types_of(field):
            del entity[name]
    for error in schema.entity_validator.iter_errors(entity):
        name = str(error.absolute_path[0]) if error.absolute_path else ""
        if not name or name in required:
            raise BadAnswer("schema", f"{_pointer(error)}: {error.message[:200]}")
        if name in entity:
            notes.append(f"{_pointer(error)}: {error.message[:200]}; left out")
            del entity[name]
    for name, item in list(entity.items()):
        if problem := _not_storable(item, schema.resolve(schema.field_schema(name)), schema):
            if name in required:
                raise BadAnswer("schema", f"/{name}: {problem}")
            notes.append(f"/{name}: {problem}; left out")
            del entity[name]
    return entity, notes


def _fit(value: Any, field: Mapping[str, Any], schema: ExtractionSchema) -> Any:
    types = schema.types_of(field)
    if isinstance(value, float) and value.is_integer() and "integer" in types and "number" not in types:
        return int(value)
    if isinstance(value, str):
        # An empty string says nothing that null does not.
        return value.strip() or (None if "null" in types else "")
    if isinstance(value, list) and isinstance(items := field.get("items"), Mapping):
        return [_fit(item, items, schema) for item in value]
    return value


def _not_storable(value: Any, field: Mapping[str, Any], schema: ExtractionSchema) -> str | None:
    """Why the typed view's column could not hold the value."""
    types = schema.types_of(field) - {"null"}
    if types == {"integer"} and isinstance(value, int) and not -BIGINT <= value < BIGINT:
        return f"{str(value)[:40]} does not fit a 64-bit integer"
    if types == {"string"} and isinstance(value, str) and field.get("format") == "date-time":
        try:
            datetime.fromisoformat(value)
        except ValueError:
            return f"{value[:40]!r} is no date-time as ISO 8601 has it"
    return None


def _pointer(error: ValidationError) -> str:
    return "/" + "/".join(str(part) for part in error.absolute_path)


def _check_depth(text: str) -> None:
    depth = 0
    in_string = escaped = False
    for character in text:
        if in_string:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                in_string = False
        elif character == '"':
            in_string = True
        elif character in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise BadAnswer("too_deep", f"the answer is nested more than {MAX_DEPTH} levels deep")
        elif character in "]}":
            depth -= 1


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise BadAnswer("duplicate_key", f"the key {name[:80]!r} stands twice in one object")
        found[name] = value
    return found


def _constant(word: str) -> NoReturn:
    raise BadAnswer("number", f"{word} is no JSON number")


def _float(digits: str) -> float | int:
    value = float(digits)
    if not math.isfinite(value):
        raise BadAnswer("number", f"{digits[:40]} is out of range")
    return value


def _int(digits: str) -> int:
    if len(digits) > MAX_NUMBER_CHARS:
        raise BadAnswer(
            "number", f"an integer of {len(digits):,} digits is out of range; at most {MAX_NUMBER_CHARS} are kept"
        )
    return int(digits)
