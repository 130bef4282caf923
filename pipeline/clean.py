"""From a document's bytes to its text: boilerplate gone, headings, lists and tables kept, metadata aside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Cleaned:
    """Text that every later offset counts in, and which rung of the ladder (`cleaner`) gave it."""

    text: str
    title: str | None
    language: str | None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    cleaner: str = ""
    cleaner_version: str = ""


def clean(
    data: bytes, media_type: str, *, charset: str | None = None, url: str | None = None, deadline_seconds: float = 30.0
) -> Cleaned:
    """Clean one document. `charset` is what the server declared. Raises DocumentError (`empty`, `unreadable`) when
    there is no text at all; never returns an empty text."""
    raise NotImplementedError


def cleaner_version(media_type: str) -> str:
    """What identifies the cleaning of this media type; a change means that stored text may differ."""
    raise NotImplementedError
