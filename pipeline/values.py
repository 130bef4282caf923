"""Numbers and durations as texts write them: the value behind the words, and where the words are."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

_SCALES = {
    "thousand": 1e3, "k": 1e3, "tsd": 1e3, "mille": 1e3,
    "million": 1e6, "millions": 1e6, "mio": 1e6, "m": 1e6, "mn": 1e6,
    "billion": 1e9, "billions": 1e9, "bn": 1e9, "mrd": 1e9,
    "trillion": 1e12, "trillions": 1e12, "lakh": 1e5, "crore": 1e7,
    "千": 1e3, "万": 1e4, "萬": 1e4, "만": 1e4, "億": 1e8, "亿": 1e8, "억": 1e8, "兆": 1e12,
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
_ARABIC_MARKS = str.maketrans("٬٫", ",.")
# Not inside a word or another number; a script without blanks between words (from U+0E00 on) is no border's want.
_NUMBER = re.compile(
    r"(?<![\d.,])(?<![^\W\u0e00-\uffff])(?P<sign>[-−])?(?:"
    r"(?P<whole>\d{1,15}(?:[.,٬'’\u202f\u00a0 ]\d{3}){0,5}(?!\d))(?P<decimals>[.,٫]\d{1,15})?"
    r"(?:\s?(?P<glyph>[½¼¾⅓⅔⅛⅜⅝⅞]))?"
    r"|(?P<plain>\d{1,18}(?:[.,٫]\d{1,15})?)"
    r"|(?P<lone>[½¼¾⅓⅔⅛⅜⅝⅞])"
    r")(?![\d])(?:[ \u00a0-]?(?P<scale>"
    r"(?:thousand|k|mille|millions?|mn?|billions?|bn|trillions?|lakh|crore|(?:tsd|mio|mrd)\b\.?)(?!\w)|[千万萬만億亿억兆]))?",
    re.IGNORECASE,
)
_NUMBER_WORD = re.compile(r"\b(?:" + "|".join(_NUMBER_WORDS) + r")\b", re.IGNORECASE)

_YEAR = 365.25 * 1440.0  # twelve months, so that a year is one
_UNIT_MINUTES = (
    (re.compile(r"^(?:y|yrs?|years?|jahre?|ans?|années?|años?|anni|anos|jaar|år)$"), _YEAR),
    (re.compile(r"^(?:months?|monate?n?|mois|mes(?:es)?|mesi|maand(?:en)?|måneder)$"), _YEAR / 12),
    (re.compile(r"^(?:wks?|weeks?|wochen?|semaines?|semanas?|settiman[ae]|we(?:ek|ken)|uker?|veckor)$"), 7 * 1440.0),
    (re.compile(r"^(?:d|days?|tage?n?|jours?|días?|dias?|giorn[oi]|dagen|dag|日間?|天|일)$"), 1440.0),
    (
        re.compile(
            r"^(?:h|hrs?|hours?|std?|stunden?|heures?|horas?|or[ae]|uur|uren|tim|timmar|timer?|saat|godz\w*|час\w*|ч"
            r"|時間|小时|小時|시간)$"
        ),
        60.0,
    ),
    (re.compile(r"^(?:m|mins?|minut\w*|minuten|dk|dakika|мин\w*|分|分間|分钟|分鐘|분)$"), 1.0),
    (re.compile(r"^(?:s|secs?|seconds?|sek\w*|secondes?|segundos?|secondi|秒|초)$"), 1 / 60),
)
# Bounded everywhere: a text of a million digits or blanks is read in one go.
_DURATION_PART = re.compile(
    r"(?<!\d)(?=[\d½¼¾⅓⅔])(\d{1,9}(?:[.,]\d{1,6})?)?\s{0,3}([½¼¾⅓⅔])?\s{0,3}(?:[-–]|to)?\s{0,3}"
    r"([^\W\d_\u0e00-\uffff]{1,20}|時間|小时|小時|시간|分間|分钟|分鐘|日間|[分분天일日秒초])"
)
_TOGETHER = re.compile(r"[ \u00a0]*(?:,|and|und|et|en|y|e)?[ \u00a0]*")
_ISO_DURATION = re.compile(
    r"^P(?=.)" + "".join(rf"(?:(\d+(?:[.,]\d+)?){unit})?" for unit in "YMWD")
    + r"(?:T(?=.)" + "".join(rf"(?:(\d+(?:[.,]\d+)?){unit})?" for unit in "HMS") + ")?$"
)  # fmt: skip
_ISO_MINUTES = (_YEAR, _YEAR / 12, 7 * 1440.0, 1440.0, 60.0, 1.0, 1 / 60)
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
    factor = _SCALES.get((match["scale"] or "").lower().rstrip("."), 1.0) if scaled else 1.0
    sign = -1.0 if match["sign"] else 1.0
    return {sign * value * factor for value in values} | (
        {value * factor for value in values} if match["sign"] else set()
    )


def _number_readings(digits: str) -> set[float]:
    plain = re.sub(r"['’\u202f\u00a0 ]", "", digits.translate(_ARABIC_MARKS))
    found = set()
    for thousands, point in ((",", "."), (".", ",")):
        if re.fullmatch(
            rf"\d{{1,3}}(?:{re.escape(thousands)}\d{{3}})*(?:{re.escape(point)}\d+)?|\d+(?:{re.escape(point)}\d+)?",
            plain,
        ):
            found.add(float(plain.replace(thousands, "").replace(point, ".")))
    return found


def read_number(value: str) -> set[float]:
    """The numbers that a value may mean which is one and nothing else: `1,200`, `2½`, `1.2 million`."""
    whole = value.strip()
    return {
        reading
        for readings, start, end in find_numbers(whole, 0, len(whole))
        if end - start == len(whole)
        for reading in readings
    }


def parse_minutes(value: str | float | None) -> float | None:
    """A duration as a text writes it (`1 hour 20 mins`, `1½ h`, `PT1H20M`, `1:20`), in minutes. Of a range the longer
    end counts. None when it names no duration."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    text = value.strip()
    if iso := _ISO_DURATION.match(text.upper()):
        return sum(_amount(part, None) * unit for part, unit in zip(iso.groups(), _ISO_MINUTES, strict=True))
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


def in_minutes(value: float, words: Sequence[str]) -> float | None:
    """A bare number as a duration, by the first letters of a unit's name among `words` (those of its field's name):
    90 of `total_minutes`. None when they name no unit."""
    for word in words:
        for beginning, minutes in (("minut", 1.0), ("hours", 60.0), ("secon", 1 / 60), ("days", 1440.0)):
            if word.startswith(beginning):
                return value * minutes
    return None


def alike(first: float, second: float) -> bool:
    """Whether two durations are the same, rounding of seconds aside."""
    return math.isclose(first, second, rel_tol=1e-9)


def _unit(word: str) -> float | None:
    return next((minutes for pattern, minutes in _UNIT_MINUTES if pattern.match(word.lower())), None)


def _amount(number: str | None, glyph: str | None) -> float:
    return float((number or "0").replace(",", ".")) + _FRACTIONS.get(glyph or "", 0.0)
