"""From a document's chunks to grounded entities: prompt, engine, JSON gate, grounding, resolution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from pipeline.chunk import Chunk
from pipeline.engine_client import EngineClient, EngineUsage
from pipeline.retrieve import Search
from pipeline.schema import ExtractionSchema
from pipeline.settings import Settings


class Grounding(StrEnum):
    """How a value was found in the text."""

    EXACT = "exact"
    NORMALISED = "normalised"
    FUZZY = "fuzzy"
    NONE = "none"


@dataclass(frozen=True)
class DocumentText:
    """A cleaned document as the extraction sees it. `chunks` are in order; their offsets count in `text`."""

    text: str
    chunks: Sequence[Chunk]
    title: str | None = None
    source_uri: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Mention:
    """One value at one place. `path` is a JSON pointer into the entity's data; `start`/`end` are None when `none`."""

    path: str
    value: Any
    status: Grounding
    start: int | None = None
    end: int | None = None
    chunk_ordinal: int | None = None
    confidence: float | None = None  # geometric mean probability of the value's tokens, 0 to 1
    run: int = 0  # index into Extraction.runs


@dataclass(frozen=True)
class Entity:
    """`key` is the normalised key of its `x-key` fields, "" when it has none. `grounded` is the share of its values
    that have a source."""

    ordinal: int
    key: str
    data: Mapping[str, Any]
    mentions: Sequence[Mention]
    confidence: float | None
    grounded: float


@dataclass(frozen=True)
class EngineRun:
    """One engine call, as `run` stores it."""

    model: str
    prompt_sha256: str
    usage: EngineUsage
    finish_reason: str
    logprob: float | None  # mean per token
    started_at: datetime
    ended_at: datetime
    chunk_ordinals: tuple[int, ...] = ()


@dataclass(frozen=True)
class Extraction:
    """`notes` say in words what was left out and why (a refusal, a value that failed the schema)."""

    entities: Sequence[Entity]
    runs: Sequence[EngineRun]
    notes: Sequence[str] = ()


def extract(
    document: DocumentText,
    schema: ExtractionSchema,
    engine: EngineClient,
    settings: Settings,
    search: Search | None = None,
    trace: Any = None,
) -> Extraction:
    """Fill `schema` from `document`. Raises DocumentError (no valid JSON, too long) or TransientError (engine)."""
    raise NotImplementedError
