"""The prompt: what a schema asks for, in the same bytes for every document, then the document.

The engine keeps what prompts share, so the schema is computed once; only the document's own tokens are new.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.schema import ExtractionSchema

REVISION = 1  # part of the work's key: another prompt is other work

RULES_ONE = (
    "You read one document and fill in a record. Copy values from the document word for word. "
    "A value that the document does not state is null. Answer with JSON only."
)
RULES_MANY = (
    "You read one document and list every record in it, in order. Copy values from the document word for word. "
    "A value that the document does not state is null. Answer with a JSON array only."
)
MAX_DEPTH = 6  # of fields inside fields that are described


@dataclass(frozen=True)
class Prompt:
    """The shared prefix of a schema's prompts."""

    system: str

    @classmethod
    def of(cls, schema: ExtractionSchema) -> Prompt:
        """The prompt for a schema: rules, instructions, the fields with their descriptions, the examples."""
        parts = [RULES_MANY if schema.many else RULES_ONE]
        if schema.instructions.strip():
            parts.append(schema.instructions.strip())
        parts.append("Fields:\n" + "\n".join(_fields(schema.entity_schema, schema, 0)))
        for example in schema.examples:
            output = json.dumps(example["output"], ensure_ascii=False)
            parts.append(f"Example:\n{_document(example['text'])}\n{output}")
        return cls("\n\n".join(parts))

    def messages(self, text: str) -> list[dict[str, str]]:
        """The chat for one document's text."""
        return [{"role": "system", "content": self.system}, {"role": "user", "content": _document(text)}]

    def sha256(self, text: str) -> str:
        """What identifies the prompt that was sent."""
        return hashlib.sha256(json.dumps(self.messages(text), ensure_ascii=False).encode()).hexdigest()


def _document(text: str) -> str:
    return f"<document>\n{text}\n</document>"


def _fields(entity: Mapping[str, Any], schema: ExtractionSchema, depth: int) -> Iterator[str]:
    """One line per field: its name, what it holds where that is not plain text, and its description."""
    for name, sub in (entity.get("properties") or {}).items():
        field = schema.resolve(sub)
        described = field.get("description") or sub.get("description") or ""
        kind = _kind(field, schema)
        yield "  " * depth + f"- {name}{f' ({kind})' if kind else ''}: {described}".rstrip(": ")
        inner = field if "properties" in field else schema.resolve(field.get("items") or {})
        if "properties" in inner and depth < MAX_DEPTH:
            yield from _fields(inner, schema, depth + 1)


def _kind(field: Mapping[str, Any], schema: ExtractionSchema) -> str:
    if "enum" in field:
        return "one of " + ", ".join(
            json.dumps(value, ensure_ascii=False) for value in field["enum"] if value is not None
        )
    kinds = sorted(schema.types_of(field) - {"null", "string"})
    if kinds == ["array"]:
        return "list"
    if kinds == ["object"]:
        return "record"
    form = {"date": "date as YYYY-MM-DD", "date-time": "date and time as ISO 8601"}.get(str(field.get("format")))
    return form or " or ".join(kinds)
