"""Prompt lookup (Saxena 2023): values are copied from the page, so what followed there may follow here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

# Of all places where the last two tokens stood, the latest few are compared further back.
PLACES = 16
FURTHER = 8


class Lookup:
    """An index of one request's tokens by pairs, extended as they grow: constant work for each token."""

    def __init__(self) -> None:
        self._behind: defaultdict[tuple[int, int], list[int]] = defaultdict(list)  # pair -> positions that follow it
        self._indexed = 2

    def follow(self, tokens: Sequence[int], ahead: Sequence[int], count: int) -> list[int]:
        """At most `count` tokens that may come behind `tokens` and `ahead`, a draft that continues them: those behind
        the place where most of the last tokens stood before, the latest of such places."""
        for position in range(self._indexed, len(tokens)):
            self._behind[tokens[position - 2], tokens[position - 1]].append(position)
        self._indexed = max(self._indexed, len(tokens))
        tail = [*tokens[-(FURTHER + 2) :], *ahead][-(FURTHER + 2) :]
        if len(tail) < 2 or count <= 0:
            return []
        places = self._behind.get((tail[-2], tail[-1]), [])[-PLACES:]
        best = max(places, key=lambda place: (_common(tokens, place, tail), place), default=None)
        return [] if best is None else list(tokens[best : best + count])


def _common(tokens: Sequence[int], place: int, tail: Sequence[int]) -> int:
    """How many tokens before `place` are those at the end of `tail`."""
    length = 2
    while length < min(place, len(tail)) and tokens[place - 1 - length] == tail[-1 - length]:
        length += 1
    return length
