"""From what the user names (files, folders, globs, dumps, standard input) to source documents.

Content decides what a file is, never its name. What can't be used comes out as a `Rejected` with a reason; it never
stops the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

HTML, XHTML, TEXT = "text/html", "application/xhtml+xml", "text/plain"
MARKDOWN, PDF, JSONL = "text/markdown", "application/pdf", "application/x-ndjson"


@dataclass(frozen=True)
class SourceDocument:
    """One document as it was found. `metadata` may hold `charset` (declared by the server), `url`, `title`, `line`."""

    source_uri: str
    data: bytes
    media_type: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rejected:
    """What could not be loaded. `reason`: missing, empty, binary, too_big, unreadable, bad_line, no_match."""

    source_uri: str
    reason: str
    detail: str


def iter_sources(
    paths: Iterable[str],
    *,
    stdin: BinaryIO | None = None,
    fields: Mapping[str, str] | None = None,
    max_bytes: int = 16 * 2**20,
) -> Iterator[SourceDocument | Rejected]:
    """Each document behind `paths`, in order. `-` reads `stdin`. `fields` renames the JSONL fields, for example
    `{"html": "body", "url": "link"}`. Nothing larger than `max_bytes` is held in memory."""
    raise NotImplementedError
