"""Within one document: the answers of several windows become one list of entities, each fact once."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.ground import Leaf, Span
from pipeline.schema import ExtractionSchema

_BLANKS = re.compile(r"\s+")


@dataclass(frozen=True)
class GroundedLeaf:
    """A value with its place, how sure the model was, and the engine call it came from (an index)."""

    leaf: Leaf
    span: Span
    confidence: float | None
    run: int


@dataclass(frozen=True)
class Candidate:
    """One entity as one window gave it."""

    data: Mapping[str, Any]
    leaves: Sequence[GroundedLeaf]


def entity_key(data: Mapping[str, Any], schema: ExtractionSchema) -> str:
    """The normalised values of the key fields, joined; "" when the schema has none or all are missing."""
    parts = [_normal(data.get(name)) for name in schema.key_fields]
    return "\x1f".join(parts) if any(parts) else ""


def resolve(candidates: Sequence[Candidate], schema: ExtractionSchema) -> list[Candidate]:
    """Merge candidates with the same key (without key fields: with the same data), in order of first appearance."""
    merged: dict[str, Candidate] = {}
    for number, candidate in enumerate(candidates):
        if schema.key_fields:
            key = entity_key(candidate.data, schema) or f"\x00{number}"
        else:
            key = _normal(candidate.data)
        merged[key] = merge(merged[key], candidate) if key in merged else candidate
    return list(merged.values())


def merge(first: Candidate, second: Candidate) -> Candidate:
    """`first` completed by `second`: a missing field is taken over, a list gets the items it does not have, and a field
    that both have keeps the first value. Mentions of what both say are kept from both."""
    data = dict(first.data)
    leaves = list(first.leaves)
    for name, value in second.data.items():
        ours = [entry for entry in second.leaves if _field(entry.leaf.path) == name]
        present = data.get(name)
        if present is None or present == []:
            data[name] = value
            leaves.extend(ours)
        elif isinstance(present, list) and isinstance(value, list):
            data[name], moved = _join_lists(name, present, value, ours)
            leaves.extend(moved)
        elif _normal(present) == _normal(value):
            leaves.extend(ours)
    return Candidate(data, leaves)


def _join_lists(
    name: str, first: list[Any], second: list[Any], leaves: Sequence[GroundedLeaf]
) -> tuple[list[Any], list[GroundedLeaf]]:
    joined = list(first)
    places = {_normal(item): index for index, item in reversed(list(enumerate(first)))}
    targets: dict[str, int] = {}
    for index, item in enumerate(second):
        key = _normal(item)
        if key not in places:
            places[key] = len(joined)
            joined.append(item)
        targets[str(index)] = places[key]
    prefix = "/" + name.replace("~", "~0").replace("/", "~1") + "/"
    moved = []
    for entry in leaves:
        position, slash, rest = entry.leaf.path[len(prefix) :].partition("/")
        path = f"{prefix}{targets[position]}{slash}{rest}"
        moved.append(replace(entry, leaf=replace(entry.leaf, path=path)))
    return joined, moved


def _field(path: str) -> str:
    return path.split("/", 2)[1].replace("~1", "/").replace("~0", "~")


def _normal(value: Any) -> str:
    """Values that differ in case, blanks or Unicode form alone are the same."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
    return _BLANKS.sub(" ", unicodedata.normalize("NFKC", text)).strip().casefold()
