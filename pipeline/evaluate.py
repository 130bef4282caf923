"""Rows beside a gold file: per field precision, recall and F1, exact and normalised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


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
    pairs: Sequence[tuple[Mapping[str, Any] | None, Mapping[str, Any]]], fields: Sequence[str]
) -> list[FieldScore]:
    """`pairs` are (extracted or None, gold) per document; lists are compared element by element."""
    raise NotImplementedError
