"""Dates and times as texts write them: the day behind the words, and where the words are.

Month names are those of CLDR (Babel), in the languages listed here; a name that stands for two months in two languages
counts as either.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from datetime import date, datetime
from functools import lru_cache

__all__ = [
    "date", "find_dates", "find_days_of_year", "find_months", "find_times", "parse_date", "read_date", "read_month",
    "read_time",
]  # fmt: skip

LANGUAGES = (
    "en de fr es it pt nl sv da nb fi is pl cs sk sl hr sr hu ro bg ru uk el tr id ms ca lt lv et he ar fa hi".split()
)
MIN_MONTH_CHARS = 3  # shorter abbreviations are words of other languages
MORE_MONTHS = {"sept": 9, "jänner": 1, "feber": 2, "maerz": 3, "fevrier": 2, "aout": 8, "decembre": 12, "okt": 10}

_ISO_DATE = re.compile(r"^(\d{4})-(\d{2})-(\d{2})(?:[T ]\d{2}:\d{2}.*)?$")
_ISO_MONTH = re.compile(r"^(\d{4})-(\d{2})$")
_CLOCK = re.compile(r"^(\d{1,2}):([0-5]\d)(?::[0-5]\d(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?$")
_TIME = re.compile(
    r"(?<![\d:.,])(?P<h>[01]?\d|2[0-4])(?:(?:[:.]|\s?h\s?|時|时|시\s?)(?P<m>[0-5]\d)(?:分|분)?(?::[0-5]\d)?)?"
    r"(?:\s?(?P<half>[ap])\.?\s?m\b\.?)?(?![\d:])",
    re.IGNORECASE,
)
_NUMERIC = (
    re.compile(r"(?<![\d.,/-])(?P<y>\d{4})[-/.](?P<m>\d{1,2})[-/.](?P<d>\d{1,2})(?!\d)"),
    re.compile(r"(?<![\d.,/-])(?P<a>\d{1,2})[-/.](?P<b>\d{1,2})[-/.](?P<y>\d{4}|\d{2})(?!\d)"),
    re.compile(r"(?P<y>\d{4})\s?[年년]\s?(?P<m>\d{1,2})\s?[月월]\s?(?P<d>\d{1,2})\s?[日일]"),
)
_NUMERIC_MONTH = (
    re.compile(r"(?<![\d.,/-])(?P<m>\d{1,2})[/.](?P<y>\d{4})(?![\d/.-])"),
    re.compile(r"(?<![\d.,/-])(?P<y>\d{4})[-/](?P<m>\d{1,2})(?![\d/.-])"),
    re.compile(r"(?P<y>\d{4})\s?[年년]\s?(?P<m>\d{1,2})\s?[月월](?!\s?\d)"),
)
_NUMERIC_DAY = (re.compile(r"(?<!\d)(?P<m>\d{1,2})\s?[月월]\s?(?P<d>\d{1,2})\s?[日일]"),)


# Any word stands in a month's place; `_named` says which of them are months.
_MONTH = re.compile(r"[^\s\d.,;:!?()\[\]/'’\"–—-]{3,15}")
_SUFFIX = r"(?:st|nd|rd|th|\.|º|er|a|-?го)?"
_BEFORE = rf"(?<!\d)(?P<d>\d{{1,2}}){_SUFFIX}(?:\s?[-–—/]\s?(?P<d2>\d{{1,2}}){_SUFFIX})?(?!\d)"
_AFTER = r"(?<!\d)(?P<d>\d{1,2})(?:st|nd|rd|th|º)?(?:\s?[-–—]\s?(?P<d2>\d{1,2})(?:st|nd|rd|th|º)?)?(?!\d)"
_NAME = rf"(?<!\w)(?P<n>{_MONTH.pattern})(?!\w)"
_YEAR = r"(?P<y>\d{4})(?!\d)"
_BETWEEN = r"\.?,?\s{1,3}(?:de\s|del\s)?"
_DAY_MONTH, _MONTH_DAY = rf"{_BEFORE}\s{{0,3}}(?:de\s|of\s|d[’'])?{_NAME}", rf"{_NAME}\.?\s{{0,3}}{_AFTER}"


def _compiled(*patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern, re.IGNORECASE) for pattern in patterns)


_NAMED_DATE = _compiled(
    f"{_DAY_MONTH}{_BETWEEN}{_YEAR}",
    rf"{_MONTH_DAY},?\s{{1,3}}{_YEAR}",
    rf"(?<!\d){_YEAR}\.?,?\s{{1,3}}{_MONTH_DAY}",
)
_NAMED_MONTH = _compiled(f"{_NAME}{_BETWEEN}{_YEAR}", rf"(?<!\d){_YEAR}\.?,?\s{{1,3}}{_NAME}")
_NAMED_DAY = _compiled(_DAY_MONTH, _MONTH_DAY)


def find_dates(text: str, start: int, end: int) -> Iterator[tuple[set[date], int, int]]:
    """Each date in `text[start:end]`: the days it may mean (`3/4/2020` may be two, `3-5 May 2020` names two), and its
    offsets."""
    for pattern in (*_NUMERIC, *_NAMED_DATE):
        for match in pattern.finditer(text, start, end):
            groups = match.groupdict()
            year = int(groups["y"])
            year += 0 if len(groups["y"]) > 2 else 2000 if year < 70 else 1900
            days = {day for month, number in _month_days(groups) if (day := _day(year, month, number))}
            if days:
                yield days, match.start(), match.end()


def find_months(text: str, start: int, end: int) -> Iterator[tuple[set[tuple[int, int]], int, int]]:
    """Each month with its year in `text[start:end]`, as (year, month): `March 2019`, `03/2019`. Dates hold one too."""
    for pattern in (*_NUMERIC_MONTH, *_NAMED_MONTH):
        for match in pattern.finditer(text, start, end):
            groups = match.groupdict()
            months = _named(groups["n"]) if groups.get("n") else {int(groups["m"])}
            found = {(int(groups["y"]), month) for month in months if 1 <= month <= 12}
            if found:
                yield found, match.start(), match.end()


def find_days_of_year(text: str, start: int, end: int) -> Iterator[tuple[set[tuple[int, int]], int, int]]:
    """Each day and month in `text[start:end]`, as (month, day), with or without a year."""
    for pattern in (*_NUMERIC_DAY, *_NAMED_DAY):
        for match in pattern.finditer(text, start, end):
            days = {(month, day) for month, day in _month_days(match.groupdict()) if _day(2000, month, day)}
            if days:
                yield days, match.start(), match.end()


def find_times(text: str, start: int, end: int) -> Iterator[tuple[tuple[int, int], int, int]]:
    """Each time of day in `text[start:end]`, as (hour, minute): `14:30`, `2.30 pm`, `2 p.m.`, `14h30`."""
    for match in _TIME.finditer(text, start, end):
        hour, half = int(match["h"]), (match["half"] or "").lower()
        if match["m"] is None and not half:
            continue
        if half:
            if not 1 <= hour <= 12:
                continue
            hour = hour % 12 + (12 if half == "p" else 0)
        yield (hour % 24, int(match["m"] or 0)), match.start(), match.end()


def parse_date(value: str) -> date | None:
    """The day of an ISO date or date-time; None for anything else."""
    match = _ISO_DATE.match(value.strip())
    if not match:
        return None
    try:
        return datetime.fromisoformat(value.strip().replace("Z", "+00:00")).date()
    except ValueError:
        return _day(int(match[1]), int(match[2]), int(match[3]))


def read_date(value: str) -> set[date]:
    """The days that a value may mean which is a date and nothing else, in ISO form or as texts write it."""
    if (day := parse_date(value)) is not None:
        return {day}
    whole = value.strip()
    return {day for days, start, end in find_dates(whole, 0, len(whole)) if end - start == len(whole) for day in days}


def read_month(value: str) -> tuple[int, int] | None:
    """(year, month) of an ISO month (`2019-03`)."""
    match = _ISO_MONTH.match(value.strip())
    return (int(match[1]), int(match[2])) if match and 1 <= int(match[2]) <= 12 else None


def read_time(value: str) -> tuple[int, int] | None:
    """(hour, minute) of an ISO time (`14:30`, `14:30:00Z`)."""
    match = _CLOCK.match(value.strip())
    return (int(match[1]), int(match[2])) if match and int(match[1]) < 24 else None


def _month_days(groups: dict[str, str | None]) -> set[tuple[int, int]]:
    """(month, day) pairs of a match: by name, in either order, or in the order of the pattern."""
    if name := groups.get("n"):
        numbers = [int(number) for number in (groups["d"], groups.get("d2")) if number]
        return {(month, number) for month in _named(name) for number in numbers}
    if groups.get("a"):
        first, second = int(groups["a"] or 0), int(groups["b"] or 0)
        return {(first, second), (second, first)}
    return {(int(groups["m"] or 0), int(groups["d"] or 0))}


def _named(word: str) -> set[int]:
    """The months that a word names; Hebrew writes its preposition before the name."""
    plain = word.lower()
    return _names().get(plain) or _names().get(plain.removeprefix("ב")) or set()


@lru_cache(maxsize=1)
def _names() -> dict[str, set[int]]:
    """Lower-case name → months, without a full stop at its end. Reads some dozen locales, once per process."""
    from babel.dates import get_month_names

    names: dict[str, set[int]] = defaultdict(set)
    for name, number in MORE_MONTHS.items():
        names[name].add(number)
    for language in LANGUAGES:  # a name is one word: see _MONTH
        for width in ("wide", "abbreviated"):
            for context in ("format", "stand-alone"):
                for number, name in get_month_names(width, context, language).items():
                    plain = name.lower().rstrip(".")
                    if len(plain) >= MIN_MONTH_CHARS and _MONTH.fullmatch(plain):
                        names[plain].add(number)
    return dict(names)


def _day(year: int, month: int, number: int) -> date | None:
    try:
        return date(year, month, number)
    except ValueError:
        return None
