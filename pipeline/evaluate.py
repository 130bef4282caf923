"""Rows beside a gold file: per field precision, recall and F1, exact and normalised.

How two values are compared is named per field:

    text      the same letters and digits in the same order, or at least four fifths of the words in common (Dice)
    list      element by element as text, each gold element once, order ignored
    minutes   the same duration, however written (`1 h 20 min`, `80 minutes`, 80, PT1H20M)
    count     the same first number (`Serves 4`, `4 servings`, 4)
    value     equal JSON values
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pipeline.values import parse_minutes

SAME_WORDS = 0.8  # share of words in common from which two texts say the same

_WORD = re.compile(r"\w+")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)?")


class Comparison(StrEnum):
    """See the module's head."""

    TEXT = "text"
    LIST = "list"
    MINUTES = "minutes"
    COUNT = "count"
    VALUE = "value"


@dataclass(frozen=True)
class FieldScore:
    """Counts of values. `correct` is after normalisation, `exact` before it."""

    field: str
    expected: int
    found: int
    correct: int
    exact: int

    @property
    def precision(self) -> float:
        return self.correct / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        return self.correct / self.expected if self.expected else 0.0

    @property
    def f1(self) -> float:
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0


def score_fields(
    pairs: Sequence[tuple[Mapping[str, Any] | None, Mapping[str, Any]]],
    fields: Sequence[str],
    comparisons: Mapping[str, Comparison | str] | None = None,
    sums: Mapping[str, Sequence[str]] | None = None,
) -> list[FieldScore]:
    """`pairs` are (extracted or None, gold) per document. A field without a named comparison is compared by what its
    gold value is: a list as `list`, text as `text`, anything else as `value`. `sums` names fields that stand for the
    sum of others where the document leaves the adding to its reader: `{"total_time": ["prep_time", "cook_time"]}`."""
    scores = []
    for name in fields:
        expected = found = correct = exact = 0
        for extracted, gold in pairs:
            wanted = _values(gold.get(name))
            given = _values(_field(extracted or {}, name, sums or {}))
            kind = Comparison((comparisons or {}).get(name) or _kind(gold.get(name)))
            expected += len(wanted)
            found += len(given)
            correct += _matches(wanted, given, kind)
            exact += _matches(wanted, given, Comparison.VALUE)
        scores.append(FieldScore(name, expected, found, correct, exact))
    return scores


def same(given: Any, gold: Any, comparison: Comparison | str) -> bool:
    """Whether two single values agree."""
    match Comparison(comparison):
        case Comparison.MINUTES:
            ours, theirs = parse_minutes(given), parse_minutes(gold)
            return ours is not None and ours == theirs
        case Comparison.COUNT:
            ours, theirs = _first_number(given), _first_number(gold)
            return ours is not None and ours == theirs
        case Comparison.VALUE:
            return bool(given == gold)
        case _:
            return _same_text(str(given), str(gold))


def _field(row: Mapping[str, Any], name: str, sums: Mapping[str, Sequence[str]]) -> Any:
    value = row.get(name)
    if value in (None, "") and name in sums:
        parts = [minutes for part in sums[name] if (minutes := parse_minutes(row.get(part))) is not None]
        return sum(parts) if parts else None
    return value


def _values(value: Any) -> list[Any]:
    if value is None or value == "":
        return []
    return [item for item in value if item is not None] if isinstance(value, list) else [value]


def _kind(gold: Any) -> Comparison:
    if isinstance(gold, list):
        return Comparison.LIST
    return Comparison.TEXT if isinstance(gold, str) or gold is None else Comparison.VALUE


def _matches(wanted: Sequence[Any], given: Sequence[Any], kind: Comparison) -> int:
    """How many gold values have a partner; each given value is one's partner at most. Equal ones pair up first."""
    left = list(given)
    open_ = []
    count = 0
    for gold in wanted:
        if gold in left:
            left.remove(gold)
            count += 1
        else:
            open_.append(gold)
    if kind is Comparison.VALUE:
        return count
    for gold in open_:
        partner = next((index for index, value in enumerate(left) if same(value, gold, kind)), None)
        if partner is not None:
            del left[partner]
            count += 1
    return count


def _same_text(given: str, gold: str) -> bool:
    ours, theirs = _words(given), _words(gold)
    if "".join(ours) == "".join(theirs):
        return bool(ours)
    first, second = set(ours), set(theirs)
    return bool(first and second) and 2 * len(first & second) / (len(first) + len(second)) >= SAME_WORDS


def _words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFKC", text).replace("⁄", "/").casefold())


def _first_number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    match = _NUMBER.search(str(value))
    return float(match[0].replace(",", ".")) if match else None
