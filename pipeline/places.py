"""Which of several places each value of an answer stands at: a choice for all of them together.

A model writes what it reads in the order it reads it, and what belongs together stands together. So of all ways to
place an answer's values the cheapest is taken:

- The items of a list, or the entities of a document, go forward in the text. Each item is placed by its head, the first
  of its values that has a place; the step from one head to the next costs little, the more so the shorter it is, and a
  step back costs much (`_chain`, the Viterbi algorithm).
- Values of one object are neighbours: a head's place costs by its distance to the nearest places of the others, and the
  others then take the place nearest to it.
- A place inside that of a longer value costs a little. Equal values that each stand for an item of their own take
  places of their own while there are any.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

SOFT = 100.0  # characters up to which a distance hardly counts
STEP_BACK = 4.0
COVERED = 1.0  # inside a longer value's place
NEIGHBOUR = 2.0  # weight of the distance to another value of the same object
BEFORE_HEAD = 0.5
TAKEN = 1.0  # by an equal value of another field
EARLY = 0.05  # weight of the distance from the beginning, for values that nothing else places
SAME_AGAIN = 20.0
MAX_OPTIONS = 64  # a value with more places says little about its neighbours; it is placed after them
MAX_NEIGHBOURS = 8  # of a head that are looked at

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Options:
    """The places where one value may stand, in their order: code-point offsets and what each costs."""

    starts: Floats
    ends: Floats
    costs: Floats

    @classmethod
    def of(cls, places: Sequence[tuple[int, int, float]]) -> Options:
        """From (start, end, cost)."""
        columns = np.array(places, float).reshape(-1, 3)
        return cls(columns[:, 0], columns[:, 1], columns[:, 2])

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def informative(self) -> bool:
        return 0 < len(self) <= MAX_OPTIONS


@dataclass(frozen=True, eq=False)
class Value:
    """A value that looks for its place. `path` are the steps of its JSON pointer, list positions as integers, below the
    entity with this number. Equal values of one `kind` (a field and what it says) share their options."""

    entity: int
    path: tuple[str | int, ...]
    kind: object
    options: Options


@dataclass(eq=False)
class _Item:
    """An object, or a scalar in a list, with the values directly in it."""

    key: tuple[str | int, ...]  # entity, then steps
    values: list[int] = field(default_factory=list)  # positions in the list of values
    below: list[int] = field(default_factory=list)  # of values deeper down
    place: float | None = None  # of its head

    @property
    def listed(self) -> bool:
        return isinstance(self.key[-1], int)


def place(values: Sequence[Value], *, many: bool) -> list[int | None]:
    """For each value the position of its place among its options, None without any. `many`: the entities are a list
    that one text holds; otherwise each value right below the root goes by itself."""
    return _Placing(values, many).run()


class _Placing:
    def __init__(self, values: Sequence[Value], many: bool) -> None:
        self._many = many
        covers = _Covers([value.options for value in values])
        known: dict[int, Options] = {}
        self._values = []
        for value in values:
            options = known.setdefault(id(value.options), covers.applied(value.options))
            self._values.append(replace(value, options=options))
        self._chosen: list[int | None] = [None] * len(values)
        self._used: dict[object, set[int]] = defaultdict(set)  # by kind: options taken
        self._taken: set[tuple[float, float]] = set()

    def run(self) -> list[int | None]:
        items = self._items()
        sequences: dict[tuple[Any, ...], list[_Item]] = defaultdict(list)
        for item in items.values():
            sequences[item.key[:-1] if item.listed else item.key].append(item)
        for sequence in sorted(sequences.values(), key=lambda members: len(members[0].key)):
            head = sequence[0]
            if not self._many and head.key == (0,):
                self._place_alone(head)
            else:
                self._place_list(sequence, self._origin(head, items))
        return self._chosen

    def _items(self) -> dict[tuple[str | int, ...], _Item]:
        items: dict[tuple[str | int, ...], _Item] = {}
        for number, value in enumerate(self._values):
            steps = (value.entity, *value.path)
            own = steps if isinstance(steps[-1], int) else steps[:-1]
            for end in range(1, len(own) + 1):
                key = own[:end]
                if end > 1 and end < len(own) and not isinstance(key[-1], int) and isinstance(own[end], int):
                    continue  # the list itself: its items are the objects
                item = items.setdefault(key, _Item(key))
                (item.values if key == own else item.below).append(number)
        return items

    def _origin(self, item: _Item, items: Mapping[tuple[str | int, ...], _Item]) -> float | None:
        """Where the nearest object around it stands."""
        for end in range(len(item.key) - 1, 0, -1):
            parent = items.get(item.key[:end])
            if parent is not None and parent.place is not None:
                return parent.place
        return None

    def _place_alone(self, item: _Item) -> None:
        for number in item.values:
            options = self._values[number].options
            if len(options):
                cost = options.costs + EARLY * _far(options.starts) + self._taken_cost(options)
                self._take(number, int(np.argmin(cost)))

    def _place_list(self, sequence: Sequence[_Item], origin: float | None) -> None:
        heads = {id(item): self._head(item) for item in sequence}
        chained = [item for item in sequence if heads[id(item)] is not None]
        numbers = [number for item in chained if (number := heads[id(item)]) is not None]
        chain = _chain(
            [self._values[number].options for number in numbers],
            [self._head_cost(item, number) for item, number in zip(chained, numbers, strict=True)],
            origin,
        )
        for item, number, option in zip(chained, numbers, chain, strict=True):
            kind, options = self._values[number].kind, self._values[number].options
            own = option if option not in self._used[kind] else self._free(number, options.starts[option])
            self._take(number, own)
            item.place = float(options.starts[own])
        before = origin
        for position, item in enumerate(sequence):
            after = next((later.place for later in sequence[position + 1 :] if later.place is not None), None)
            self._place_rest(item, heads[id(item)], before, after)
            before = item.place if item.place is not None else before

    def _head(self, item: _Item) -> int | None:
        return next((number for number in item.values if self._values[number].options.informative), None)

    def _head_cost(self, item: _Item, head: int) -> Floats:
        options = self._values[head].options
        cost = options.costs.copy()
        others = [n for n in (*item.values, *item.below) if n != head and self._values[n].options.informative]
        for number in others[:MAX_NEIGHBOURS]:
            distances = np.abs(options.starts[:, None] - self._values[number].options.starts[None, :])
            cost += NEIGHBOUR * _far(distances.min(axis=1))
        return cost

    def _place_rest(self, item: _Item, head: int | None, before: float | None, after: float | None) -> None:
        for number in item.values:
            value = self._values[number]
            if number == head or not len(value.options):
                continue
            starts = value.options.starts
            if item.place is None:  # no head: all its values are frequent ones
                option = self._free(number, before if before is not None else 0.0, forward=True)
                item.place = float(starts[option])
            else:
                cost = value.options.costs + _far(np.abs(starts - item.place)) + BEFORE_HEAD * (starts < item.place)
                if after is not None and after > item.place:
                    cost = cost + (starts >= after)
                option = int(np.argmin(cost + self._taken_cost(value.options)))
            self._take(number, option)

    def _free(self, number: int, near: float, *, forward: bool = False) -> int:
        """The option nearest to `near` that no equal value has; the nearest of all when there is none."""
        value = self._values[number]
        distances = np.abs(value.options.starts - near) + value.options.costs
        if forward:
            distances = np.where(value.options.starts < near, distances + 1e9, distances)
        used = self._used[value.kind]
        if used and len(used) < len(distances):
            distances = distances.copy()
            distances[list(used)] = np.inf
        return int(np.argmin(distances))

    def _taken_cost(self, options: Options) -> Floats:
        places = zip(options.starts, options.ends, strict=True)
        return np.array([TAKEN * (span in self._taken) for span in places], float)

    def _take(self, number: int, option: int) -> None:
        options = self._values[number].options
        self._chosen[number] = option
        self._used[self._values[number].kind].add(option)
        self._taken.add((options.starts[option], options.ends[option]))


class _Covers:
    """Which places lie inside a longer place of another value."""

    def __init__(self, options: Iterable[Options]) -> None:
        distinct = {id(option): option for option in options if len(option)}.values()
        starts = np.concatenate([option.starts for option in distinct]) if distinct else np.empty(0)
        ends = np.concatenate([option.ends for option in distinct]) if distinct else np.empty(0)
        order = np.argsort(starts, kind="stable")
        self._starts = starts[order]
        self._reach = np.maximum.accumulate(ends[order]) if len(order) else ends

    def applied(self, options: Options) -> Options:
        if not len(options) or not len(self._starts):
            return options
        reach = np.concatenate([[-1.0], self._reach])
        earlier = reach[np.searchsorted(self._starts, options.starts, "left")]
        together = reach[np.searchsorted(self._starts, options.starts, "right")]
        covered = (earlier >= options.ends) | (together > options.ends)
        return replace(options, costs=options.costs + COVERED * covered)


def _chain(options: Sequence[Options], costs: Sequence[Floats], origin: float | None) -> list[int]:
    """One option for each, so that their costs and those of the steps between them are least together."""
    if not options:
        return []
    total = costs[0] + (_far(np.abs(options[0].starts - origin)) if origin is not None else 0.0)
    ways: list[NDArray[np.intp]] = []
    for before, after, cost in zip(options, options[1:], costs[1:], strict=False):
        sums = total[:, None] + _step(before, after)
        way = sums.argmin(axis=0)
        ways.append(way)
        total = sums[way, np.arange(len(after))] + cost
    chosen = [int(np.argmin(total))]
    for way in reversed(ways):
        chosen.append(int(way[chosen[-1]]))
    return chosen[::-1]


def _step(before: Options, after: Options) -> Floats:
    distance = after.starts[None, :] - before.starts[:, None]
    cost = _far(np.abs(distance)) + STEP_BACK * (distance < 0)
    again = (distance == 0) & (after.ends[None, :] == before.ends[:, None])
    return cost + SAME_AGAIN * again


def _far(distance: Floats) -> Floats:
    return np.log1p(distance / SOFT)
