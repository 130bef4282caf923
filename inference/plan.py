"""One step on paper: which tokens of which sequence stand in which row. No other place decides that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from inference.sequence import Sequence


@dataclass(frozen=True)
class Scheduled:
    """`count` tokens of a sequence from position `start` on, in rows `row .. row + count` of the step.

    The last of them may be `draft`: tokens that are proposed and not yet the sequence's own.
    """

    sequence: Sequence
    epoch: int
    start: int
    count: int
    row: int
    draft: tuple[int, ...] = ()

    @property
    def stop(self) -> int:
        return self.start + self.count

    @property
    def tokens(self) -> list[int]:
        own = self.sequence.tokens[self.start : self.stop - len(self.draft)]
        return [*own, *self.draft]

    @property
    def samples(self) -> bool:
        """True when this step reaches the sequence's last token, so that its logits give the next one."""
        return self.stop - len(self.draft) == len(self.sequence.tokens)


@dataclass(frozen=True)
class LogitsRow:
    """Row `index` of the logits is of this item's token at `position`, which stands in row `row` of the step.

    `ahead` tokens of the item's draft lie between the sequence's last token and the one that the row chooses.
    """

    index: int
    row: int
    position: int
    scheduled: Scheduled
    ahead: int = 0


@dataclass(frozen=True)
class Plan:
    scheduled: tuple[Scheduled, ...]

    @property
    def tokens(self) -> int:
        return sum(item.count for item in self.scheduled)

    @cached_property
    def logits(self) -> tuple[LogitsRow, ...]:
        """One row for each item that samples and one for each token of its draft, an item's rows side by side in order.

        Computed once, before the step: sampling appends tokens and would change what `samples` says.
        """
        rows: list[LogitsRow] = []
        for item in self.scheduled:
            if item.samples:
                first = item.count - 1 - len(item.draft)
                for ahead in range(len(item.draft) + 1):
                    at = first + ahead
                    rows.append(LogitsRow(len(rows), item.row + at, item.start + at, item, ahead))
        return tuple(rows)

    def __bool__(self) -> bool:
        return bool(self.scheduled)

    def __iter__(self) -> Iterator[Scheduled]:
        return iter(self.scheduled)
