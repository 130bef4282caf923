"""A user's JSON Schema: checked, explained, and turned into the columns of a typed view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


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
        """Check and digest. Raises SchemaError in words, with the path of the fault."""
        raise NotImplementedError

    def columns(self) -> list[Column]:
        """The typed view's columns, in the schema's order."""
        raise NotImplementedError
