"""The role `clean`: one document's bytes to its text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeline.clean import clean


def handle(request: dict[str, Any], data: bytes, send: Callable[..., None]) -> None:
    """Answers `cleaned` with the text as body. Raises DocumentError."""
    cleaned = clean(
        data,
        request["media_type"],
        charset=request["charset"],
        url=request["url"],
        deadline_seconds=request["deadline_seconds"],
    )
    send(
        "cleaned",
        cleaned.text.encode(),
        title=cleaned.title,
        language=cleaned.language,
        metadata=cleaned.metadata,
        cleaner=cleaned.cleaner,
        cleaner_version=cleaned.cleaner_version,
    )
