"""Where a value stands in the text: exactly, after normalisation, nearly, or nowhere.

An exact match has the value's characters. A normalised one differs in what `pipeline.folding` evens out, or writes the
same date, duration, time, quantity or number another way (`pipeline.values`, `.dates`, `.quantities`). A fuzzy one lies
inside one sentence and is alike, with the same numbers (`pipeline.fuzzy`). Values of an enumeration and booleans are
the model's words, not the text's: they have no source. Which of several places a value takes is decided for all values
of an answer together (`pipeline.places`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

from pipeline import dates, quantities, values
from pipeline.folding import Folded, fold, on_borders
from pipeline.fuzzy import Words
from pipeline.places import Options, Value, place
from pipeline.schema import ExtractionSchema

SHORT_CHARS = 4  # up to this length the words around a value tell which of several places is meant
CUT_CHARS = 8  # of this length, or of several words, a value may begin or end inside a word of the text
HINTED = -3.0  # cost of a place on whose line the field's name stands
SECOND_CHOICE = 1.5  # cost of a normalised place where an exact one is not enough for all equal values


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

    @property
    def steps(self) -> tuple[str | int, ...]:
        """The pointer's steps, list positions as integers."""
        pairs = zip(self.path.split("/")[1:], self.slot.split("/")[1:], strict=True)
        return tuple(int(step) if slot == "*" and step.isdigit() else step for step, slot in pairs)


NOWHERE = Span(Grounding.NONE)


class _Place(NamedTuple):
    start: int
    end: int
    status: Grounding
    cost: float = 0.0


@dataclass(frozen=True)
class _Found:
    """The places of one value, by start. `hinted`: it is short, or was matched by value, so that the field's name on
    the line tells it from its equals."""

    places: Sequence[_Place] = ()
    hinted: bool = False


class Grounder:
    """Grounds the values of an answer in the regions that the model saw."""

    def __init__(self, text: str, regions: Sequence[tuple[int, int]] | None = None) -> None:
        self._text = text
        self._regions = _merged(regions if regions is not None else [(0, len(text))], text)

    def find(self, leaf: Leaf) -> Span:
        """The span of a value that stands alone."""
        return self.place([[leaf]])[0][0]

    def place(self, entities: Sequence[Sequence[Leaf]], *, many: bool = False) -> list[list[Span]]:
        """A span for each leaf of each entity, in the order given. `many`: the entities are a list from one text, in
        the order in which the model read them."""
        wanted: list[Leaf] = [leaf for leaves in entities for leaf in leaves]
        kinds = [(leaf.slot, type(leaf.value), leaf.value) for leaf in wanted]
        needed = Counter(kinds)
        found: dict[object, _Found] = {}
        options: dict[object, Options] = {}
        asked: list[Value] = []
        owners = [number for number, leaves in enumerate(entities) for _ in leaves]
        for owner, leaf, kind in zip(owners, wanted, kinds, strict=True):
            if kind not in found:
                found[kind] = self._find(leaf, needed[kind])
                options[kind] = self._options(leaf, found[kind])
            asked.append(Value(owner, leaf.steps, kind, options[kind]))
        chosen = place(asked, many=many)
        spans = iter([_span(found[kind], option) for kind, option in zip(kinds, chosen, strict=True)])
        return [list(islice(spans, len(leaves))) for leaves in entities]

    def _options(self, leaf: Leaf, found: _Found) -> Options:
        hints = _hints(leaf) if found.hinted and len(found.places) > 1 else ()
        return Options.of(
            [
                (place.start, place.end, place.cost + (HINTED if hints and self._line_has(place.start, hints) else 0.0))
                for place in found.places
            ]
        )

    def _find(self, leaf: Leaf, needed: int) -> _Found:
        """Where the value may stand, by the first way of looking that finds it. `needed`: how many values are equal."""
        value = leaf.value
        if leaf.derived or isinstance(value, bool) or not str(value).strip():
            return _Found()
        if isinstance(value, int | float):
            found = self._number(value, leaf)
            if found.places:
                return found
        return self._string(str(value).strip(), needed)

    def _string(self, value: str, needed: int) -> _Found:
        short = len(value) <= SHORT_CHARS
        literal = list(self._occurrences(value))
        exact = [span for span in literal if on_borders(self._text, *span)]
        if len(exact) >= needed:
            return _Found([_Place(*span, Grounding.EXACT) for span in exact], short)
        wanted = fold(value)
        folded = set(self._folded.occurrences(wanted)).difference(exact)
        if exact or folded:
            places = [_Place(*span, Grounding.EXACT) for span in exact]
            places += [_Place(*span, Grounding.NORMALISED, SECOND_CHOICE) for span in folded]
            return _Found(sorted(places), short)
        if same := self._by_value(value):
            return _Found([_Place(*span, Grounding.NORMALISED) for span in sorted(set(same))], hinted=True)
        if literal and (len(value) >= CUT_CHARS or " " in value):
            return _Found([_Place(*span, Grounding.EXACT) for span in literal])
        near = self._words.find(value, wanted)
        best = max((score for _, _, score in near), default=0.0)
        costs = {self._folded.span(start, end): best - score for start, end, score in near}
        return _Found([_Place(*span, Grounding.FUZZY, cost) for span, cost in sorted(costs.items())])

    def _number(self, value: float, leaf: Leaf) -> _Found:
        spans = {(start, end) for readings, start, end in self._numbers if value in readings}
        if not spans and (minutes := values.in_minutes(value, _hints(leaf))) is not None:
            spans = {(start, end) for found, start, end in self._durations if values.alike(found, minutes)}
        return _Found([_Place(*span, self._number_status(span, value)) for span in sorted(spans)], hinted=True)

    def _number_status(self, span: tuple[int, int], value: float) -> Grounding:
        return Grounding.EXACT if self._text[slice(*span)] == str(value) else Grounding.NORMALISED

    def _by_value(self, value: str) -> list[tuple[int, int]]:
        """Where the same date, month, time, duration, quantity or number stands, written another way."""
        if not any(character.isnumeric() for character in value):
            return []
        if days := dates.read_date(value):
            of_year = {(day.month, day.day) for day in days}
            return [(start, end) for found, start, end in self._dates if found & days] or [
                (start, end) for found, start, end in self._days_of_year if found & of_year
            ]
        if month := dates.read_month(value):
            return [(start, end) for found, start, end in self._months if month in found]
        same: list[tuple[int, int]] = []
        if clock := dates.read_time(value):
            same += [(start, end) for found, start, end in self._times if found == clock]
        minutes = values.parse_minutes(value)
        if minutes is not None and not value.isdigit():
            same += [(start, end) for found, start, end in self._durations if values.alike(found, minutes)]
        if amounts := quantities.read_quantity(value):
            same += [(start, end) for found, start, end in self._quantities if quantities.alike(found, amounts)]
        if not same and (numbers := values.read_number(value)):
            same = [(start, end) for found, start, end in self._numbers if found & numbers]
        return same

    def _occurrences(self, value: str) -> Iterator[tuple[int, int]]:
        for start, end in self._regions:
            at = self._text.find(value, start, end)
            while at >= 0:
                yield at, at + len(value)
                at = self._text.find(value, at + 1, end)

    def _line_has(self, offset: int, words: Sequence[str]) -> bool:
        start = self._text.rfind("\n", 0, offset) + 1
        end = self._text.find("\n", offset)
        line = self._text[start : end if end >= 0 else len(self._text)].casefold()
        return any(word in line for word in words)

    @cached_property
    def _folded(self) -> Folded:
        return Folded(self._text, self._regions)

    @cached_property
    def _words(self) -> Words:
        return Words(self._text, self._regions, self._folded)

    @cached_property
    def _numbers(self) -> list[tuple[set[float], int, int]]:
        return [found for start, end in self._regions for found in values.find_numbers(self._text, start, end)]

    @cached_property
    def _durations(self) -> list[tuple[float, int, int]]:
        return [found for start, end in self._regions for found in values.find_durations(self._text, start, end)]

    @cached_property
    def _quantities(self) -> list[tuple[set[quantities.Amount], int, int]]:
        return [found for start, end in self._regions for found in quantities.find_quantities(self._text, start, end)]

    @cached_property
    def _dates(self) -> list[tuple[set[dates.date], int, int]]:
        return [found for start, end in self._regions for found in dates.find_dates(self._text, start, end)]

    @cached_property
    def _days_of_year(self) -> list[tuple[set[tuple[int, int]], int, int]]:
        return [found for start, end in self._regions for found in dates.find_days_of_year(self._text, start, end)]

    @cached_property
    def _months(self) -> list[tuple[set[tuple[int, int]], int, int]]:
        return [found for start, end in self._regions for found in dates.find_months(self._text, start, end)]

    @cached_property
    def _times(self) -> list[tuple[tuple[int, int], int, int]]:
        return [found for start, end in self._regions for found in dates.find_times(self._text, start, end)]


def _span(found: _Found, option: int | None) -> Span:
    if option is None:
        return NOWHERE
    place = found.places[option]
    return Span(place.status, place.start, place.end)


def _hints(leaf: Leaf) -> tuple[str, ...]:
    """Words of the field's name, by which the right one of several equal short values is known."""
    name = leaf.slot.rstrip("/*").rpartition("/")[2]
    return tuple(word[:5] for word in name.replace("-", "_").lower().split("_") if len(word) > 2)


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
