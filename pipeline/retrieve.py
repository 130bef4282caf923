"""Which chunks go into the prompt: the whole document when it fits, else those that bear on the schema's fields."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from pipeline.chunk import Chunk
from pipeline.schema import ExtractionSchema

RRF_K = 60  # of reciprocal rank fusion, as its authors chose it
PER_QUERY = 20  # chunks asked for each query
MAX_QUERIES = 32

# queries, limit → for each query the ordinals of this document's chunks, best first (dense and full text fused).
Search = Callable[[Sequence[str], int], Sequence[Sequence[int]]]


def queries(schema: ExtractionSchema) -> list[str]:
    """What to search for: the schema as a whole, then each field by name and description."""
    about = schema.name.replace("_", " ")
    whole = " ".join(
        part for part in (about, str(schema.entity_schema.get("description", "")), schema.instructions) if part
    )
    found = [whole[:500]]
    for name in schema.fields[: MAX_QUERIES - 1]:
        words = name.replace("_", " ")
        described = str(schema.field_schema(name).get("description", ""))
        found.append(f"{words}: {described}"[:300] if described else f"{about} {words}")
    return found


def pick(
    chunks: Sequence[Chunk], schema: ExtractionSchema, budget_tokens: int, search: Search | None = None
) -> list[Chunk]:
    """Chunks in document order whose tokens sum to at most `budget_tokens` (one chunk goes in whatever its size).

    Best-ranked first, each followed by its neighbours while there is room, since a value and its label may be parted
    by a cut. Without `search` the beginning of the document is taken."""
    if sum(chunk.token_count for chunk in chunks) <= budget_tokens:
        return list(chunks)
    ranked = _fuse(search(queries(schema), PER_QUERY)) if search else []
    by_ordinal = {chunk.ordinal: chunk for chunk in chunks}
    order = [ordinal for ordinal in ranked if ordinal in by_ordinal]
    order += [chunk.ordinal for chunk in chunks if chunk.ordinal not in set(order)]
    chosen: set[int] = set()
    room = budget_tokens
    for ordinal in order:
        for neighbour in (ordinal, ordinal + 1, ordinal - 1):
            chunk = by_ordinal.get(neighbour)
            if chunk and neighbour not in chosen and (chunk.token_count <= room or not chosen):
                chosen.add(neighbour)
                room -= chunk.token_count
        if room <= 0:
            break
    return [chunk for chunk in chunks if chunk.ordinal in chosen]


def windows(chunks: Sequence[Chunk], budget_tokens: int) -> list[list[Chunk]]:
    """All chunks, in order, in groups of at most `budget_tokens` (a single larger chunk is a group)."""
    found: list[list[Chunk]] = []
    room = 0
    for chunk in chunks:
        if not found or chunk.token_count > room:
            found.append([])
            room = budget_tokens
        found[-1].append(chunk)
        room -= chunk.token_count
    return found


def _fuse(rankings: Sequence[Sequence[int]]) -> list[int]:
    """Reciprocal rank fusion; ties go to the earlier chunk."""
    scores: dict[int, float] = defaultdict(float)
    for ranking in rankings:
        for rank, ordinal in enumerate(ranking):
            scores[ordinal] += 1.0 / (RRF_K + rank + 1)
    return sorted(scores, key=lambda ordinal: (-scores[ordinal], ordinal))
