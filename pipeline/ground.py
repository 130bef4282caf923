"""Where a value stands in the text: exactly, after normalisation, nearly, or nowhere.

An exact match has the value's characters. A normalised one differs in case, blanks, Unicode form, quotes, dashes,
soft hyphens, zero-width characters or Markdown's own marks, or writes the same number, date or duration another way.
A fuzzy one lies inside one sentence and is alike for at least `FUZZY_THRESHOLD`, with the same numbers. Values of an
enumeration and booleans are the model's words, not the text's: they have no source.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from rapidfuzz import fuzz

from pipeline.schema import ExtractionSchema
from pipeline.values import find_dates, find_durations, find_numbers, parse_date, parse_minutes

FUZZY_THRESHOLD = 85.0  # rapidfuzz's partial ratio, 0 to 100
MIN_FUZZY_CHARS = 8  # shorter values are alike too easily
MAX_FUZZY_SENTENCES = 200  # that share most words with the value
SHORT_CHARS = 4  # up to this length the right place is chosen by the words around it

_SENTENCE = re.compile(r"[^\n.!?。！？]+(?:[.!?。！？](?!\s)[^\n.!?。！？]*)*[.!?。！？]*")
_WORD = re.compile(r"\w+")
_DIGITS = re.compile(r"\d+")
_FOLD = str.maketrans(
    {
        **dict.fromkeys("‘’‚‛′`´ʼ", "'"),
        **dict.fromkeys("“”„‟″«»", '"'),
        **dict.fromkeys("‐‑‒–—―−﹘﹣－", "-"),
        **dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff\u200e\u200f", ""),
        **dict.fromkeys("|*#>", " "),
        "⁄": "/",
    }
)


class Grounding(StrEnum):
    """How a value was found in the text."""

    EXACT = "exact"
    NORMALISED = "normalised"
    FUZZY = "fuzzy"
    NONE = "none"


@dataclass(frozen=True)
class Span:
    """Code-point offsets into the text; None for both when the status is `none`."""

    status: Grounding
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True)
class Leaf:
    """One scalar of an answer. `path` is a JSON pointer; `slot` the same with list positions starred."""

    path: str
    slot: str
    value: Any
    derived: bool  # from an enumeration, or a boolean


NOWHERE = Span(Grounding.NONE)


class Grounder:
    """Grounds the values of one answer in the regions that the model saw, in document order.

    Each slot (`/items/*/name`) has a cursor behind its last match, so that a value which stands twice is found twice;
    a value that is not found behind it is searched from the start."""

    def __init__(self, text: str, regions: Sequence[tuple[int, int]] | None = None) -> None:
        self._text = text
        self._regions = _merged(regions if regions is not None else [(0, len(text))], text)
        self._cursors: dict[str, int] = {}

    def find(self, leaf: Leaf, *, near: int | None = None, hints: Iterable[str] = ()) -> Span:
        """The span of one value. `near`: prefer the occurrence closest to this offset over the next one in order.
        `hints`: words (of the field's name) that decide between occurrences of a short value."""
        value = leaf.value
        if value is None or leaf.derived or isinstance(value, bool) or not str(value).strip():
            return NOWHERE
        cursor = self._cursors.get(leaf.slot, 0)
        span = self._number(value, cursor, near) if isinstance(value, int | float) else NOWHERE
        if span is NOWHERE:
            span = self._string(str(value), cursor, near, tuple(hints))
        if span.end is not None:
            self._cursors[leaf.slot] = span.end
        return span

    def _string(self, value: str, cursor: int, near: int | None, hints: tuple[str, ...]) -> Span:
        stripped = value.strip()
        exact = [(start, start + len(stripped)) for start in self._occurrences(stripped)]
        if chosen := self._choose(exact, cursor, near, hints if len(stripped) <= SHORT_CHARS else ()):
            return Span(Grounding.EXACT, *chosen)
        folded = [self._normal.span(start, end) for start, end in self._normal.occurrences(stripped)]
        if chosen := self._choose(folded, cursor, near, hints if len(stripped) <= SHORT_CHARS else ()):
            return Span(Grounding.NORMALISED, *chosen)
        if (day := parse_date(stripped)) is not None:
            dates = [(start, end) for found, start, end in self._dates if day in found]
            if chosen := self._choose(dates, cursor, near, ()):
                return Span(Grounding.NORMALISED, *chosen)
        if any(character.isdigit() for character in stripped) and (minutes := parse_minutes(stripped)) is not None:
            durations = [(start, end) for found, start, end in self._durations if found == minutes]
            if not stripped.isdigit() and (chosen := self._choose(durations, cursor, near, hints)):
                return Span(Grounding.NORMALISED, *chosen)
        return self._fuzzy(stripped)

    def _number(self, value: float, cursor: int, near: int | None) -> Span:
        same = [(start, end) for readings, start, end in self._numbers if value in readings]
        chosen = self._choose(same, cursor, near, ())
        if not chosen:
            return NOWHERE
        literal = self._text[chosen[0] : chosen[1]]
        return Span(Grounding.EXACT if literal == str(value) else Grounding.NORMALISED, *chosen)

    def _occurrences(self, value: str) -> Iterator[int]:
        for start, end in self._regions:
            at = self._text.find(value, start, end)
            while at >= 0:
                if _on_borders(self._text, at, at + len(value)):
                    yield at
                at = self._text.find(value, at + 1, end)

    def _choose(
        self, found: Sequence[tuple[int, int]], cursor: int, near: int | None, hints: tuple[str, ...]
    ) -> tuple[int, int] | None:
        if not found:
            return None
        if near is not None:
            return min(found, key=lambda span: abs(span[0] - near))
        if hints and len(found) > 1:
            hinted = [span for span in found if self._line_has(span[0], hints)]
            found = hinted or found
        return next((span for span in found if span[0] >= cursor), found[0])

    def _line_has(self, place: int, words: tuple[str, ...]) -> bool:
        start = self._text.rfind("\n", 0, place) + 1
        end = self._text.find("\n", place)
        line = self._text[start : end if end >= 0 else len(self._text)].casefold()
        return any(word in line for word in words)

    def _fuzzy(self, value: str) -> Span:
        wanted = _fold(value)
        words = set(_WORD.findall(wanted))
        if len(wanted) < MIN_FUZZY_CHARS or not words:
            return NOWHERE
        numbers = sorted(_DIGITS.findall(wanted))
        ranked = sorted(self._sentences, key=lambda item: len(words & item[2]), reverse=True)[:MAX_FUZZY_SENTENCES]
        best, best_score = NOWHERE, FUZZY_THRESHOLD
        for start, end, present in ranked:
            if len(words & present) * 2 < len(words):
                break
            sentence = self._normal.between(start, end)
            if len(sentence) < len(wanted) * 0.6:
                continue
            found = fuzz.partial_ratio_alignment(wanted, sentence, score_cutoff=best_score)
            if found is None or found.score < best_score or (found.score == best_score and best is not NOWHERE):
                continue
            first, last = _to_words(sentence, found.dest_start, found.dest_end)
            if sorted(_DIGITS.findall(sentence[first:last])) != numbers:
                continue
            offset = self._normal.index(start)
            best = Span(Grounding.FUZZY, *self._normal.span(offset + first, offset + last))
            best_score = found.score
        return best

    @cached_property
    def _normal(self) -> _Normalised:
        return _Normalised(self._text, self._regions)

    @cached_property
    def _sentences(self) -> list[tuple[int, int, set[str]]]:
        return [
            (match.start(), match.end(), set(_WORD.findall(self._normal.between(match.start(), match.end()))))
            for start, end in self._regions
            for match in _SENTENCE.finditer(self._text, start, end)
        ]

    @cached_property
    def _numbers(self) -> list[tuple[set[float], int, int]]:
        return [found for start, end in self._regions for found in find_numbers(self._text, start, end)]

    @cached_property
    def _durations(self) -> list[tuple[float, int, int]]:
        return [found for start, end in self._regions for found in find_durations(self._text, start, end)]

    @cached_property
    def _dates(self) -> list[tuple[set[Any], int, int]]:
        return [found for start, end in self._regions for found in find_dates(self._text, start, end)]


class _Normalised:
    """The regions folded (see `_fold`), and for each folded character the offset it came from."""

    def __init__(self, text: str, regions: Sequence[tuple[int, int]]) -> None:
        characters: list[str] = []
        starts: list[int] = []
        ends: list[int] = []
        for first, last in regions:
            if characters:
                characters.append("\n")
                starts.append(first)
                ends.append(first)
            for start, end in _clusters(text, first, last):
                piece = _fold_cluster(text[start:end])
                if piece == " " and characters and characters[-1] in " \n":
                    continue
                for character in piece:
                    characters.append(character)
                    starts.append(start)
                    ends.append(end)
        self._text, self._starts, self._ends = "".join(characters), starts, ends

    def occurrences(self, value: str) -> Iterator[tuple[int, int]]:
        wanted = _fold(value)
        if not wanted:
            return
        at = self._text.find(wanted)
        while at >= 0:
            if _on_borders(self._text, at, at + len(wanted)):
                yield at, at + len(wanted)
            at = self._text.find(wanted, at + 1)

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Folded positions as raw offsets."""
        return self._starts[start], self._ends[end - 1]

    def index(self, raw: int) -> int:
        """The folded position of a raw offset."""
        at = bisect_right(self._starts, raw) - 1
        while at > 0 and self._starts[at - 1] == self._starts[at] == raw:
            at -= 1
        return at if at >= 0 and self._starts[at] == raw else at + 1

    def between(self, start: int, end: int) -> str:
        return self._text[self.index(start) : self.index(end)]


def leaves(value: Any, schema: ExtractionSchema) -> list[Leaf]:
    """Each scalar of one entity's data, in order, nulls left out."""
    return list(_leaves(value, "", "", schema.entity_schema, schema))


def _leaves(value: Any, path: str, slot: str, sub: Mapping[str, Any], schema: ExtractionSchema) -> Iterator[Leaf]:
    sub = schema.resolve(sub)
    if isinstance(value, Mapping):
        for name, item in value.items():
            step = str(name).replace("~", "~0").replace("/", "~1")
            yield from _leaves(
                item, f"{path}/{step}", f"{slot}/{step}", (sub.get("properties") or {}).get(name) or {}, schema
            )
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{path}/{number}", f"{slot}/*", sub.get("items") or {}, schema)
    elif value is not None:
        yield Leaf(path, slot, value, isinstance(value, bool) or "enum" in sub or "const" in sub)


def _merged(regions: Sequence[tuple[int, int]], text: str) -> list[tuple[int, int]]:
    """Neighbouring regions as one, so that a value across a chunk's border is still found."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(regions):
        if found and not text[found[-1][1] : start].strip():
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def _on_borders(text: str, start: int, end: int) -> bool:
    """Not inside a longer word or number: `4` is not in `24`, nor `cat` in `catalogue`. Scripts without blanks
    between words have no such borders."""
    if start > 0 and _joined(text[start - 1], text[start]):
        return False
    return not (end < len(text) and _joined(text[end - 1], text[end]))


def _joined(left: str, right: str) -> bool:
    if left.isdigit() or right.isdigit():
        return left.isdigit() and right.isdigit()
    return left.isalpha() and right.isalpha() and left < "\u0e00" and right < "\u0e00"


def _clusters(text: str, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Characters with the combining marks that follow them, which compose with them."""
    start = first
    while start < last:
        end = start + 1
        while end < last and not text[end].isascii() and unicodedata.combining(text[end]):
            end += 1
        yield start, end
        start = end


def _fold_cluster(piece: str) -> str:
    if piece.isascii():
        folded = piece.translate(_FOLD).lower()
    else:
        folded = unicodedata.normalize("NFKC", piece.translate(_FOLD)).translate(_FOLD).casefold()
    return " " if folded.isspace() else folded.replace(" ", "")


def _fold(value: str) -> str:
    pieces = "".join(_fold_cluster(value[start:end]) for start, end in _clusters(value, 0, len(value)))
    return " ".join(pieces.split())


def _to_words(sentence: str, start: int, end: int) -> tuple[int, int]:
    while start > 0 and sentence[start - 1].isalnum() and sentence[start].isalnum():
        start -= 1
    while end < len(sentence) and sentence[end - 1].isalnum() and sentence[end].isalnum():
        end += 1
    while start < end and sentence[start].isspace():
        start += 1
    while end > start and sentence[end - 1].isspace():
        end -= 1
    return start, end
