"""Texts folded for comparison, with a map back to the characters they came from.

Two texts fold to the same when they differ in case, blanks, Unicode form (NFKC: ligatures, full-width letters, vulgar
fractions), quotes, dashes, accents of Latin and Greek letters, points of Hebrew and Arabic, characters without width
(soft hyphens, zero-width spaces and joiners, direction marks) or Markdown's own marks. Folding goes cluster by cluster,
a cluster being a character with the marks that follow it, so that each folded character knows its cluster.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import lru_cache

REGION_BORDER = "\n"  # between regions in a folded text; no folded value contains it

# Folds to its own lower case, character by character: most of a text, so it goes in one step.
_PLAIN = re.compile(r"""[0-9A-Za-z,.;:!?()\[\]{}/'"&%$+=_@-]+(?: [0-9A-Za-z,.;:!?()\[\]{}/'"&%$+=_@-]+)*""")
_NO_WIDTH = (
    "\u00ad\u0640\u061c\u200b\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff"
)
_FOLD = str.maketrans(
    {
        **dict.fromkeys("‘’‚‛′`´ʼ", "'"),
        **dict.fromkeys("“”„‟″«»", '"'),
        **dict.fromkeys("‐‑‒–—―−﹘﹣－", "-"),
        **dict.fromkeys(_NO_WIDTH, ""),
        **dict.fromkeys("|*#>", " "),
        "⁄": "/",
    }
)
_VOICED = "\uff9e\uff9f"  # half-width marks of kana: NFKC composes them with the kana before


class Folded:
    """Regions of a text folded, one after the other. `text` is the folded text; positions count in it, offsets in the
    raw text."""

    def __init__(self, text: str, regions: Sequence[tuple[int, int]]) -> None:
        pieces: list[str] = []
        self._starts: list[int] = []
        self._ends: list[int] = []
        for first, last in regions:
            if self._starts:
                pieces.append(REGION_BORDER)
                self._starts.append(first)
                self._ends.append(first)
            self._add(text, first, last, pieces)
        self.text = "".join(pieces)

    def _add(self, text: str, first: int, last: int, pieces: list[str]) -> None:
        blank = True  # a blank would follow another one, or begin the region
        at = first
        while at < last:
            plain = _PLAIN.match(text, at, last)
            if plain:
                end = plain.end()
                if end < last and _continues(text[end]):
                    end -= 1  # a mark follows: the last letter belongs to its cluster
                if end > at:
                    pieces.append(text[at:end].lower())
                    self._starts.extend(range(at, end))
                    self._ends.extend(range(at + 1, end + 1))
                    blank = text[end - 1] == " "
                    at = end
                    continue
            end = at + 1
            while end < last and _continues(text[end]):
                end += 1
            piece = _fold_cluster(text[at:end])
            if piece and not (piece == " " and blank):
                pieces.append(piece)
                self._starts.extend([at] * len(piece))
                self._ends.extend([end] * len(piece))
                blank = piece == " "
            at = end

    def occurrences(self, wanted: str) -> Iterator[tuple[int, int]]:
        """Offsets of each place where the folded `wanted` stands between borders of words."""
        at = self.text.find(wanted) if wanted else -1
        while at >= 0:
            end = at + len(wanted)
            if on_borders(self.text, at, end):
                yield self.span(at, end)
            at = self.text.find(wanted, at + 1)

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Folded positions as raw offsets."""
        return self._starts[start], self._ends[end - 1]

    def offset(self, position: int) -> int:
        """The raw offset at which a folded character's cluster begins."""
        return self._starts[position]

    def position(self, offset: int) -> int:
        """The first folded position whose cluster begins at or behind a raw offset."""
        return bisect_left(self._starts, offset)


def fold(value: str) -> str:
    """A value as it would stand in a folded text."""
    return Folded(value, [(0, len(value))]).text.strip()


def on_borders(text: str, start: int, end: int) -> bool:
    """Not inside a longer word or number: `4` is not in `24`, nor `cat` in `catalogue`. Scripts without blanks
    between words have no such borders."""
    if start > 0 and joined(text[start - 1], text[start]):
        return False
    return not (end < len(text) and joined(text[end - 1], text[end]))


def joined(left: str, right: str) -> bool:
    """Whether two neighbouring characters belong to one word or number."""
    if left.isdigit() or right.isdigit():
        return left.isdigit() and right.isdigit()
    return left.isalpha() and right.isalpha() and left < "\u0e00" and right < "\u0e00"


def _continues(character: str) -> bool:
    """Whether it belongs to the character before: a combining mark, a vowel or final of conjoining Hangul."""
    if character < "\u0300":
        return False
    return unicodedata.category(character)[0] == "M" or "\u1160" <= character <= "\u11ff" or character in _VOICED


@lru_cache(maxsize=8192)
def _fold_cluster(piece: str) -> str:
    folded = unicodedata.normalize("NFKC", piece.translate(_FOLD)).translate(_FOLD).casefold()
    folded = unicodedata.normalize("NFC", _bare(unicodedata.normalize("NFD", folded)))
    return " " if folded.isspace() else folded.replace(" ", "")


def _bare(decomposed: str) -> str:
    """Without the marks that readers of the script leave out or that typists do."""
    kept: list[str] = []
    for character in decomposed:
        if unicodedata.combining(character) and (_is_pointed(character) or (kept and _is_accented(kept[-1]))):
            continue
        kept.append(character)
    return "".join(kept)


def _is_pointed(mark: str) -> bool:
    return (
        "\u0591" <= mark <= "\u05c7" or "\u0610" <= mark <= "\u061a" or "\u064b" <= mark <= "\u065f" or mark == "\u0670"
    )


def _is_accented(base: str) -> bool:
    return base < "\u0250" or "\u0370" <= base <= "\u03ff" or "\u1e00" <= base <= "\u1fff"
