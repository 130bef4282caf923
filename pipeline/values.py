"""Numbers, dates and durations as texts write them: the value behind the words, and where the words are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, datetime

_SCALES = {
    "thousand": 1e3, "k": 1e3, "tsd": 1e3, "mille": 1e3,
    "million": 1e6, "millions": 1e6, "mio": 1e6, "m": 1e6, "mn": 1e6,
    "billion": 1e9, "billions": 1e9, "bn": 1e9, "mrd": 1e9,
    "trillion": 1e12, "trillions": 1e12,
}  # fmt: skip
_NUMBER_WORDS = {
    word: number
    for number, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
        "seventeen eighteen nineteen twenty".split()
    )
}
_FRACTIONS = {
    "½": 1 / 2,
    "¼": 1 / 4,
    "¾": 3 / 4,
    "⅓": 1 / 3,
    "⅔": 2 / 3,
    "⅛": 1 / 8,
    "⅜": 3 / 8,
    "⅝": 5 / 8,
    "⅞": 7 / 8,
}
_NUMBER = re.compile(
    r"(?<![\w.,])(?P<sign>[-−])?(?:"
    r"(?P<whole>\d{1,15}(?:[.,'\u202f\u00a0 ]\d{3}){0,5}(?!\d))(?P<decimals>[.,]\d{1,15})?"
    r"(?:\s?(?P<glyph>[½¼¾⅓⅔⅛⅜⅝⅞]))?"
    r"|(?P<plain>\d{1,18}(?:[.,]\d{1,15})?)"
    r"|(?P<lone>[½¼¾⅓⅔⅛⅜⅝⅞])"
    r")(?![\d])(?:[ \u00a0-]?(?P<scale>thousand|k|tsd|mille|millions?|mio|mn?|billions?|bn|mrd|trillions?)\b\.?)?",
    re.IGNORECASE,
)
_NUMBER_WORD = re.compile(r"\b(?:" + "|".join(_NUMBER_WORDS) + r")\b", re.IGNORECASE)

_MONTHS = {
    name: number
    for number, names in enumerate(
        (
            "january jan januar janvier enero gennaio januari janeiro jänner",
            "february feb februar février fevrier febrero febbraio februari fevereiro",
            "march mar märz maerz mars marzo maart março",
            "april apr avril abril aprile",
            "may mai mayo maggio mei maio maj",
            "june jun juni juin junio giugno junho",
            "july jul juli juillet julio luglio julho",
            "august aug août aout agosto augustus augusti",
            "september sep sept septembre septiembre settembre setembro",
            "october oct oktober okt octobre octubre ottobre outubro",
            "november nov novembre noviembre novembro",
            "december dec dezember dez décembre decembre diciembre dicembre dezembro",
        ),
        1,
    )
    for name in names.split()
}
_MONTH = "|".join(sorted(_MONTHS, key=len, reverse=True))
_DATES = (
    re.compile(r"\b(?P<y>\d{4})[-/.](?P<m>\d{1,2})[-/.](?P<d>\d{1,2})(?!\d)"),
    re.compile(r"\b(?P<a>\d{1,2})[-/.](?P<b>\d{1,2})[-/.](?P<y>\d{4}|\d{2})(?!\d)"),
    re.compile(
        rf"\b(?P<d>\d{{1,2}})(?:st|nd|rd|th|\.|º|er)?\s+(?:de\s+|of\s+)?(?P<n>{_MONTH})\.?,?"
        r"\s+(?:de\s+)?(?P<y>\d{4})\b",
        re.I,
    ),
    re.compile(rf"\b(?P<n>{_MONTH})\.?\s+(?P<d>\d{{1,2}})(?:st|nd|rd|th)?,?\s+(?P<y>\d{{4}})\b", re.I),
)  # fmt: skip
_ISO_DATE = re.compile(r"^(\d{4})-(\d{2})-(\d{2})(?:[T ]\d{2}:\d{2}.*)?$")

_UNIT_MINUTES = (
    (re.compile(r"^(?:d|days?|tage?|jours?|días?|giorn[oi]|dagen|dag)$"), 1440.0),
    (
        re.compile(r"^(?:h|hrs?|hours?|std?|stunden?|heures?|horas?|or[ae]|uur|uren|tim|timmar|timer?|saat|godz\w*)$"),
        60.0,
    ),
    (re.compile(r"^(?:m|mins?|minut\w*|minuten|dk|dakika|мин\w*|分|分钟)$"), 1.0),
    (re.compile(r"^(?:s|secs?|seconds?|sek\w*|secondes?|segundos?|secondi)$"), 1 / 60),
)
_DURATION_PART = re.compile(r"(\d+(?:[.,]\d+)?)?\s*([½¼¾⅓⅔])?\s*(?:[-–]|to)?\s*([^\W\d_]+|分)")
_TOGETHER = re.compile(r"[ \u00a0]*(?:,|and|und|et|en|y|e)?[ \u00a0]*")
_ISO_DURATION = re.compile(r"^P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?$")
_CLOCK = re.compile(r"^(\d{1,2}):([0-5]\d)(?::[0-5]\d)?$")


def find_numbers(text: str, start: int, end: int) -> Iterator[tuple[set[float], int, int]]:
    """Each number in `text[start:end]`: the values it may mean (`1.234` may be either), and its offsets."""
    for match in _NUMBER.finditer(text, start, end):
        readings = _readings(match)
        if readings:
            bare = match.end("scale") if match["scale"] else match.end()
            yield readings, match.start(), bare
            if match["scale"]:  # "5 m" may be metres: the digits alone are a number too
                digits = (
                    match.end("glyph") if match["glyph"] else match.end("decimals" if match["decimals"] else "whole")
                )
                if digits > match.start():
                    yield _readings(match, scaled=False), match.start(), digits
    for match in _NUMBER_WORD.finditer(text, start, end):
        yield {float(_NUMBER_WORDS[match[0].lower()])}, match.start(), match.end()


def _readings(match: re.Match[str], *, scaled: bool = True) -> set[float]:
    if match["lone"]:
        values = {_FRACTIONS[match["lone"]]}
    else:
        values = _number_readings(match["plain"] or match["whole"] + (match["decimals"] or ""))
        if match["glyph"]:
            values = {value + _FRACTIONS[match["glyph"]] for value in values}
    factor = _SCALES.get((match["scale"] or "").lower(), 1.0) if scaled else 1.0
    sign = -1.0 if match["sign"] else 1.0
    return {sign * value * factor for value in values} | (
        {value * factor for value in values} if match["sign"] else set()
    )


def _number_readings(digits: str) -> set[float]:
    plain = re.sub(r"['\u202f\u00a0 ]", "", digits)
    found = set()
    for thousands, point in ((",", "."), (".", ",")):
        if re.fullmatch(
            rf"\d{{1,3}}(?:{re.escape(thousands)}\d{{3}})*(?:{re.escape(point)}\d+)?|\d+(?:{re.escape(point)}\d+)?",
            plain,
        ):
            found.add(float(plain.replace(thousands, "").replace(point, ".")))
    return found


def find_dates(text: str, start: int, end: int) -> Iterator[tuple[set[date], int, int]]:
    """Each date in `text[start:end]`: the days it may mean (`3/4/2020` may be two), and its offsets."""
    for pattern in _DATES:
        for match in pattern.finditer(text, start, end):
            groups = match.groupdict()
            year = int(groups["y"])
            year += 0 if year > 99 else 2000 if year < 70 else 1900
            if groups.get("n"):
                pairs = {(_MONTHS[groups["n"].lower()], int(groups["d"]))}
            elif groups.get("a"):
                first, second = int(groups["a"]), int(groups["b"])
                pairs = {(first, second), (second, first)}
            else:
                pairs = {(int(groups["m"]), int(groups["d"]))}
            days = {day for month, number in pairs if (day := _day(year, month, number))}
            if days:
                yield days, match.start(), match.end()


def parse_date(value: str) -> date | None:
    """The day of an ISO date or date-time; None for anything else."""
    match = _ISO_DATE.match(value.strip())
    if not match:
        return None
    try:
        return datetime.fromisoformat(value.strip().replace("Z", "+00:00")).date()
    except ValueError:
        return _day(int(match[1]), int(match[2]), int(match[3]))


def parse_minutes(value: str | float | None) -> float | None:
    """A duration as a text writes it (`1 hour 20 mins`, `1½ h`, `PT1H20M`, `1:20`), in minutes. Of a range the longer
    end counts. None when it names no duration."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    text = value.strip()
    if iso := _ISO_DURATION.match(text.upper()):
        days, hours, minutes, seconds = (int(part or 0) for part in iso.groups())
        return days * 1440 + hours * 60 + minutes + seconds / 60
    if clock := _CLOCK.match(text):
        return int(clock[1]) * 60 + int(clock[2])
    total, found = 0.0, False
    for number, glyph, word in _DURATION_PART.findall(text.lower()):
        unit = _unit(word)
        if unit is None or not (number or glyph):
            continue
        total += _amount(number, glyph) * unit
        found = True
    if not found and re.fullmatch(r"\d+", text):
        return float(text)
    return total if found else None


def find_durations(text: str, start: int, end: int) -> Iterator[tuple[float, int, int]]:
    """Each duration in `text[start:end]` in minutes, with its offsets. `1 h 20 min` is one duration."""
    total, first, last = 0.0, -1, -1
    for match in _DURATION_PART.finditer(text, start, end):
        unit = _unit(match[3])
        if unit is None or not (match[1] or match[2]):
            continue
        if first >= 0 and not _TOGETHER.fullmatch(text, last, match.start()):
            yield total, first, last
            total, first = 0.0, -1
        first = match.start() if first < 0 else first
        last = match.end()
        total += _amount(match[1], match[2]) * unit
    if first >= 0:
        yield total, first, last


def _unit(word: str) -> float | None:
    return next((minutes for pattern, minutes in _UNIT_MINUTES if pattern.match(word.lower())), None)


def _amount(number: str | None, glyph: str | None) -> float:
    return float((number or "0").replace(",", ".")) + _FRACTIONS.get(glyph or "", 0.0)


def _day(year: int, month: int, number: int) -> date | None:
    try:
        return date(year, month, number)
    except ValueError:
        return None
