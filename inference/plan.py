"""One step on paper: which tokens of which sequence stand in which row. No other place decides that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from inference.sequence import Sequence


@dataclass(frozen=True)
class Scheduled:
    """`count` tokens of a sequence from position `start` on, in rows `row .. row + count` of the step."""

    sequence: Sequence
    epoch: int
    start: int
    count: int
    row: int

    @property
    def stop(self) -> int:
        return self.start + self.count

    @property
    def samples(self) -> bool:
        """True when this step reaches the sequence's last token, so that its logits give the next one."""
        return self.stop == len(self.sequence.tokens)


@dataclass(frozen=True)
class LogitsRow:
    """Row `index` of the logits is of this sequence's token at `position`, which stands in row `row` of the step."""

    index: int
    row: int
    position: int
    scheduled: Scheduled


@dataclass(frozen=True)
class Plan:
    scheduled: tuple[Scheduled, ...]

    @property
    def tokens(self) -> int:
        return sum(item.count for item in self.scheduled)

    @cached_property
    def logits(self) -> tuple[LogitsRow, ...]:
        """Computed once, before the step: sampling appends tokens and would change what `samples` says."""
        wanted = [item for item in self.scheduled if item.samples]
        return tuple(
            LogitsRow(index, item.row + item.count - 1, item.stop - 1, item) for index, item in enumerate(wanted)
        )

    def __bool__(self) -> bool:
        return bool(self.scheduled)

    def __iter__(self) -> Iterator[Scheduled]:
        return iter(self.scheduled)
