"""A draft: tokens that may come next, and who says so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum


class Source(StrEnum):
    FORCED = "forced"  # the grammar leaves nothing else
    LOOKUP = "lookup"  # the request itself had the last tokens before, and this is what followed
    MODEL = "model"  # a smaller model's choice


@dataclass
class Draft:
    """`sources[i]` proposed `tokens[i]`."""

    tokens: list[int] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, source: Source, tokens: Iterable[int]) -> None:
        before = len(self.tokens)
        self.tokens += tokens
        self.sources += [source] * (len(self.tokens) - before)

    def cut(self, length: int) -> None:
        """Keep the first `length` tokens."""
        del self.tokens[length:], self.sources[length:]
