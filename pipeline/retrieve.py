"""Which chunks go into the prompt: the whole document when it fits, else those that bear on the schema's fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipeline.chunk import Chunk
from pipeline.schema import ExtractionSchema

# queries, limit → for each query the ordinals of this document's chunks, best first (dense and full text fused).
Search = Callable[[Sequence[str], int], Sequence[Sequence[int]]]


def queries(schema: ExtractionSchema) -> list[str]:
    """What to search for: the schema as a whole, then each field by name and description."""
    raise NotImplementedError


def pick(
    chunks: Sequence[Chunk], schema: ExtractionSchema, budget_tokens: int, search: Search | None = None
) -> list[Chunk]:
    """Chunks in document order whose tokens sum to at most `budget_tokens`."""
    raise NotImplementedError
