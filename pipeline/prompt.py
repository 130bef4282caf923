"""The prompt: rules and the schema's instructions and examples, then the document, then the fields to fill in.

All but the document and the fields are the same bytes for every document of a schema, so the engine computes them
once. The fields come last on purpose: a small model forgets what it read before a long document. On twelve recipe
pages the 0.5B default filled 82 % of the values rightly with the fields behind the document, 72 % with them before it
(where lists ran on into what followed them), and 71–81 % with both.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.schema import ExtractionSchema

RULES_ONE = (
    "You read one document and fill in a record. Copy values from the document word for word. "
    "A value that the document does not state is null. Answer with JSON only."
)
RULES_MANY = (
    "You read one document and list the records in it, in order. Copy values from the document word for word. "
    "A value that the document does not state is null. Answer with a JSON array only."
)
ASK_ONE = "Fill in this record of the document:"
ASK_MANY = "List every record of the document with these fields:"
MAX_DEPTH = 6  # of fields inside fields that are described


@dataclass(frozen=True)
class Prompt:
    """What the prompts of one schema have in common."""

    system: str
    ask: str

    @classmethod
    def of(cls, schema: ExtractionSchema) -> Prompt:
        """The prompt for a schema."""
        system = [RULES_MANY if schema.many else RULES_ONE]
        if schema.instructions.strip():
            system.append(schema.instructions.strip())
        for example in schema.examples:
            output = json.dumps(example["output"], ensure_ascii=False)
            system.append(f"Example:\n{_document(example['text'])}\n{output}")
        fields = _fields(schema.entity_schema, schema, 0)
        return cls("\n\n".join(system), "\n".join([ASK_MANY if schema.many else ASK_ONE, *fields]))

    def messages(self, text: str) -> list[dict[str, str]]:
        """The chat for one document's text."""
        return [
            {"role": "system", "content": self.system},
            {"role": "user", "content": f"{_document(text)}\n\n{self.ask}"},
        ]

    def sha256(self, text: str) -> str:
        """What identifies the prompt that was sent."""
        return hashlib.sha256(json.dumps(self.messages(text), ensure_ascii=False).encode()).hexdigest()


def _document(text: str) -> str:
    return f"<document>\n{text}\n</document>"


def _fields(entity: Mapping[str, Any], schema: ExtractionSchema, depth: int) -> Iterator[str]:
    """One line per field: its name, its description, and what it holds where that is not plain text."""
    for name, sub in (entity.get("properties") or {}).items():
        field = schema.resolve(sub)
        described = field.get("description") or sub.get("description") or ""
        parts = [part for part in (described, _kind(field, schema)) if part]
        yield "  " * depth + f'"{name}": {"; ".join(parts)}'.rstrip(": ")
        inner = field if "properties" in field else schema.resolve(field.get("items") or {})
        if "properties" in inner and depth < MAX_DEPTH:
            yield from _fields(inner, schema, depth + 1)


def _kind(field: Mapping[str, Any], schema: ExtractionSchema) -> str:
    if "enum" in field:
        choices = [json.dumps(value, ensure_ascii=False) for value in field["enum"] if value is not None]
        return "one of " + ", ".join(choices)
    kinds = sorted(schema.types_of(field) - {"null", "string", "array", "object"})
    form = {"date": "a date as YYYY-MM-DD", "date-time": "date and time as ISO 8601"}.get(str(field.get("format")))
    return form or " or ".join(
        {"integer": "a whole number", "number": "a number", "boolean": "true or false"}[k] for k in kinds
    )
