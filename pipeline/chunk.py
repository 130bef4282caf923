"""Chunks: slices of the clean text on its own structure, sized in the engine's tokens."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.tokens import TokenCounter

CHUNKER = "structure-1"  # stored with each chunk; changes when the cuts do


@dataclass(frozen=True)
class Chunk:
    """`text == document[start:end]`, always. `heading_path` are the headings above it, outermost first."""

    ordinal: int
    start: int
    end: int
    text: str
    heading_path: tuple[str, ...]
    token_count: int


def chunk(text: str, counter: TokenCounter, max_tokens: int) -> list[Chunk]:
    """Cut `text` into chunks of at most `max_tokens`, in order, without overlap, covering all that is not blank."""
    raise NotImplementedError
