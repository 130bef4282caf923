"""Where a folded text has nearly a value: alike words in the same order, inside one sentence, with the same numbers.

Words vote: each word of the value that the text has, or has nearly, votes for the place where the value would begin.
Places with votes of half the words are aligned letter by letter (rapidfuzz) and judged by the ratio of what agrees.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from rapidfuzz import fuzz, process
from rapidfuzz.distance import Levenshtein

from pipeline.folding import Folded, joined

THRESHOLD = 85.0  # rapidfuzz's ratio, 0 to 100
NEARLY_BEST = 3.0  # of several alike places, those within this of the best are given
MIN_CHARS = 8  # from here on the ratio decides
MIN_WORD_CHARS = 5  # a single word of this length may differ in one letter, not in its first
MAX_WORD_PLACES = 400  # words that stand more often say little about the place
MAX_PLACES = 30  # that are aligned, those with most votes first
MAX_SIMILAR_WORDS = 8
SLACK = 2  # words that the text may have more than the value, at either end

# A sentence ends at its mark before a blank, or with its line. `Col. Lee` and `J. Lee` go on: what stands before a
# full stop there is a capital with at most two letters more.
_SENTENCE_END = re.compile(r"\n|[。！？]|[!?]+(?=\s)|(?<!\b[A-Z])(?<!\b[A-Z]\w)(?<!\b[A-Z]\w\w)\.+(?=\s)")
_WORD = re.compile(r"[^\W\u0e00-\U0010ffff]+|\w")  # scripts without blanks go character by character
_DIGITS = re.compile(r"\d+")


class Words:
    """The words of a folded text by place, and the sentence that each is in."""

    def __init__(self, raw: str, regions: Sequence[tuple[int, int]], folded: Folded) -> None:
        self._folded = folded
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._sentences: list[int] = []
        self._places: dict[str, list[int]] = defaultdict(list)
        borders = sorted(
            {start for start, _ in regions}
            | {match.end() for start, end in regions for match in _SENTENCE_END.finditer(raw, start, end)}
        )
        for number, match in enumerate(_WORD.finditer(folded.text)):
            self._starts.append(match.start())
            self._ends.append(match.end())
            self._sentences.append(bisect_right(borders, folded.offset(match.start())))
            self._places[match[0]].append(number)
        self._vocabulary = [word for word in self._places if len(word) >= MIN_WORD_CHARS]

    def find(self, value: str, wanted: str) -> list[tuple[int, int, float]]:
        """Folded positions and ratio of the places that are most alike. `wanted` is `value` folded."""
        words = _WORD.findall(wanted)
        if not words or len(wanted) < MIN_WORD_CHARS:
            return []
        if len(wanted) < MIN_CHARS:
            return self._find_word(wanted) if len(words) == 1 else []
        numbers = sorted(_DIGITS.findall(wanted))
        sentences = 1 + sum(1 for _ in _SENTENCE_END.finditer(value.strip()))
        found: dict[tuple[int, int], float] = {}
        for first, sentence in self._voted(words):
            window = self._window(first, len(words), sentence, sentences)
            if window is None:
                continue
            place = self._align(wanted, *window)
            if place is None:
                continue
            text = self._folded.text[slice(*place)]
            score = fuzz.ratio(wanted, text)
            if score >= THRESHOLD and sorted(_DIGITS.findall(text)) == numbers:
                found[place] = score
        best = max(found.values(), default=0.0)
        return sorted((*place, score) for place, score in found.items() if score >= best - NEARLY_BEST)

    def _find_word(self, wanted: str) -> list[tuple[int, int, float]]:
        if _DIGITS.search(wanted):
            return []
        return sorted(
            (self._starts[place], self._ends[place], fuzz.ratio(wanted, word))
            for word in self._similar(wanted, 1)
            if word[0] == wanted[0] and not _DIGITS.search(word)
            for place in self._places[word]
        )

    def _similar(self, wanted: str, distance: int) -> list[str]:
        found = process.extract(
            wanted,
            self._vocabulary,
            scorer=Levenshtein.distance,
            score_cutoff=distance,
            limit=MAX_SIMILAR_WORDS,
        )
        return [word for word, _, _ in found]

    def _voted(self, words: Sequence[str]) -> Iterator[tuple[int, int]]:
        """(first word, sentence) of places that half of the telling words agree on, most votes first."""
        votes: Counter[tuple[int, int]] = Counter()
        places = [self._word_places(word) for word in words]
        rare = [at for at in places if len(at) <= MAX_WORD_PLACES]
        telling = len(rare) or len(places)
        for number, at in enumerate(places):
            if rare and len(at) > MAX_WORD_PLACES:
                continue
            for place in at[:MAX_WORD_PLACES]:
                votes[place - number, self._sentences[place]] += 1
        total: Counter[tuple[int, int]] = Counter()
        for first, sentence in votes:  # a word more or less in the text moves the votes of those behind it
            total[first, sentence] = sum(votes[first + shift, sentence] for shift in range(-SLACK, SLACK + 1))
        for candidate, count in total.most_common(MAX_PLACES):
            if count * 2 < telling:
                return
            yield candidate

    def _word_places(self, word: str) -> list[int]:
        exact = self._places.get(word)
        if exact is not None or len(word) < MIN_WORD_CHARS:
            return exact or []
        return [place for similar in self._similar(word, 1 + len(word) // 8) for place in self._places[similar]]

    def _window(self, first: int, count: int, sentence: int, sentences: int) -> tuple[int, int] | None:
        """Positions of the words around a place, none from outside as many sentences as the value has."""
        inside = [
            word
            for word in range(max(0, first - SLACK), min(len(self._starts), first + count + SLACK))
            if abs(self._sentences[word] - sentence) < sentences
        ]
        return (self._starts[inside[0]], self._ends[inside[-1]]) if inside else None

    def _align(self, wanted: str, start: int, end: int) -> tuple[int, int] | None:
        window = self._folded.text[start:end]
        if len(window) < len(wanted) * 0.6:
            return None
        found = fuzz.partial_ratio_alignment(wanted, window, score_cutoff=THRESHOLD * 0.8)
        if found is None:
            return None
        first, last = _to_words(window, found.dest_start, found.dest_end)
        return (start + first, start + last) if first < last else None


def _to_words(text: str, start: int, end: int) -> tuple[int, int]:
    """Grown to whole words, blanks at the ends left out."""
    while start > 0 and joined(text[start - 1], text[start]):
        start -= 1
    while end < len(text) and joined(text[end - 1], text[end]):
        end += 1
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end
