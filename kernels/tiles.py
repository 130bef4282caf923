"""How the new tokens of a step are cut for prefill attention: on the host, once per step, for all layers."""

from __future__ import annotations

from collections.abc import Sequence


def cut(lengths: Sequence[int], counts: Sequence[int], tokens: int, first_request: int = 0) -> list[tuple[int, int]]:
    """Tiles of `tokens` new tokens for requests first_request, first_request + 1, …, as (request, first of its new
    tokens), the most work first, so that what is started last is done soon.

    `lengths` are tokens of the contexts, the new ones included; `counts` are the new ones.
    """
    made = [
        (length - count + first, request, first)
        for request, (length, count) in enumerate(zip(lengths, counts, strict=True), first_request)
        for first in range(0, count, tokens)
    ]
    made.sort(key=lambda tile: -tile[0])
    return [(request, first) for _, request, first in made]
