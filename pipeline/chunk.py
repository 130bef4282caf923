"""Chunks: slices of the clean text on its own structure, sized in the engine's tokens."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.tokens import TokenCounter

CHUNKER = "structure-1"  # stored with each chunk; changes when the cuts do

# A cut at a weaker place must not leave less than this share of the budget, else chunks become crumbs.
HEADING_FILL = 0.5
FILL = 0.25

_FENCE = re.compile(r"^(?:```|~~~)", re.MULTILINE)
_HEADING = re.compile(r"^(#{1,6})[ \t]+(\S.*)$", re.MULTILINE)
_PARAGRAPH = re.compile(r"\n[ \t]*\n\s*")
_LINE = re.compile(r"\n")
_SENTENCE = re.compile(r"[.!?…][\"'”’»)\]]*\s+|[。！？]+")
_WORD = re.compile(r"\s+")
_NOT_BLANK = re.compile(r"\S")


@dataclass(frozen=True)
class Chunk:
    """`text == document[start:end]`, always. `heading_path` are the headings above it, outermost first."""

    ordinal: int
    start: int
    end: int
    text: str
    heading_path: tuple[str, ...]
    token_count: int


@dataclass(frozen=True)
class _Heading:
    start: int
    level: int
    text: str


def chunk(text: str, counter: TokenCounter, max_tokens: int) -> list[Chunk]:
    """Cut `text` into chunks of at most `max_tokens`, in order, without overlap, covering all that is not blank.

    Tokens are counted in the text as a whole; a chunk tokenised alone may differ by a token at either end. Time is
    linear in the text (and in n log n for looking up the cuts)."""
    if max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens}; a chunk needs at least 1")
    ends = counter.ends(text)
    headings = _headings(text)
    classes = (
        (HEADING_FILL, [heading.start for heading in headings]),
        (FILL, [match.end() for match in _PARAGRAPH.finditer(text)]),
        (FILL, [match.end() for match in _LINE.finditer(text)]),
        (FILL, [match.end() for match in _SENTENCE.finditer(text)]),
        (FILL, [match.end() for match in _WORD.finditer(text)]),
    )
    found: list[Chunk] = []
    path = _PathWalk(headings)
    position = _next_text(text, 0)
    while position < len(text):
        cut = _cut(position, len(text), ends, max_tokens, classes)
        end = position + len(text[position:cut].rstrip())
        tokens = max(1, bisect_right(ends, end) - bisect_right(ends, position))
        found.append(Chunk(len(found), position, end, text[position:end], path.at(position), tokens))
        position = _next_text(text, cut)
    return found


def _cut(start: int, length: int, ends: Sequence[int], budget: int, classes: Sequence[tuple[float, list[int]]]) -> int:
    """Where the chunk that begins at `start` ends: the last place of the strongest class within reach."""
    first = bisect_right(ends, start)
    if len(ends) - first <= budget:
        return length
    last = first + budget - 1
    if ends[last + 1] == ends[last]:  # the budget runs out within a character: stop before it
        last = max(first, bisect_left(ends, ends[last]) - 1)
    reach = max(ends[last], start + 1)
    for fill, places in classes:
        least = max(ends[first + int(budget * fill)] if int(budget * fill) < budget else reach, start + 1)
        at = bisect_right(places, reach) - 1
        if at >= 0 and places[at] >= least:
            return places[at]
    return reach


def _headings(text: str) -> list[_Heading]:
    """Markdown headings, those inside fenced code left out."""
    fences = [match.start() for match in _FENCE.finditer(text)]
    return [
        _Heading(match.start(), len(match[1]), match[2].strip(" #")[:200])
        for match in _HEADING.finditer(text)
        if bisect_left(fences, match.start()) % 2 == 0
    ]


class _PathWalk:
    """The headings above a place, for places asked in ascending order."""

    def __init__(self, headings: list[_Heading]) -> None:
        self._headings, self._next, self._open = headings, 0, list[_Heading]()

    def at(self, place: int) -> tuple[str, ...]:
        while self._next < len(self._headings) and self._headings[self._next].start < place:
            heading = self._headings[self._next]
            while self._open and self._open[-1].level >= heading.level:
                self._open.pop()
            self._open.append(heading)
            self._next += 1
        own = self._headings[self._next] if self._next < len(self._headings) else None
        below = own.level if own and own.start == place else 7  # a heading that begins here closes its equals
        return tuple(heading.text for heading in self._open if heading.level < below)


def _next_text(text: str, start: int) -> int:
    match = _NOT_BLANK.search(text, start)
    return match.start() if match else len(text)
