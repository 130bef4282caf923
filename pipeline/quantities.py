"""Amounts with a unit as texts write them: `1.5 kg`, `1500 grams`, `€1,200`, `1200 EUR`, `25 %`.

An amount is a number of a dimension's base unit, so that units of one dimension compare. A word that stands for units
of two dimensions (`pounds`) gives one amount of each. Only what is exact by definition is converted: temperatures and
currencies keep their own units.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Set

from pipeline.values import find_numbers

Amount = tuple[str, float]  # dimension, number of its base unit

# dimension → unit → (size in base units, how texts write it). Names that differ in case only by accident are written
# in lower case here and compared so; those in `_CASED` mean what they say.
_UNITS: dict[str, dict[float, str]] = {
    "mass": {
        1e-3: "mg milligram milligrams milligramm",
        1.0: "g gr gm gram grams gramme grammes gramm grammi gramos",
        1e3: "kg kgs kilo kilos kilogram kilograms kilogramme kilogrammes kilogramm",
        1e6: "t tonne tonnes tonnen",
        28.349523125: "oz ounce ounces",
        453.59237: "lb lbs pound pounds",
    },
    "length": {
        1e-3: "mm millimetre millimetres millimeter millimeters",
        1e-2: "cm centimetre centimetres centimeter centimeters",
        1.0: "m metre metres meter meters mètre mètres metros metri",
        1e3: "km kms kilometre kilometres kilometer kilometers kilomètres kilómetros chilometri",
        0.0254: 'in inch inches "',
        0.3048: "ft foot feet",
        0.9144: "yd yds yard yards",
        1609.344: "mi mile miles",
    },
    "area": {
        1.0: "m² m2 sqm sq.m qm square_metres square_meters square_metre square_meter",
        1e4: "ha hectare hectares hektar",
        1e6: "km² km2 sq_km square_kilometres square_kilometers square_kilometre square_kilometer",
        4046.8564224: "acre acres",
        0.09290304: "ft² ft2 sq_ft sqft square_feet square_foot",
        2589988.110336: "mi² mi2 sq_mi square_miles square_mile",
    },
    "volume": {
        1e-3: "ml millilitre millilitres milliliter milliliters",
        1e-2: "cl centilitre centilitres centiliter centiliters",
        1e-1: "dl decilitre decilitres deciliter deciliters",
        1.0: "l ltr litre litres liter liters",
    },
    "teaspoons": {1.0: "tsp teaspoon teaspoons", 3.0: "tbsp tbs tablespoon tablespoons"},
    "cups": {1.0: "cup cups"},
    "speed": {1.0: "km/h kph kmh kmph", 1.609344: "mph", 3.6: "m/s", 1.852: "kn knots knot"},
    "celsius": {1.0: "°c ℃ degrees_celsius"},
    "fahrenheit": {1.0: "°f ℉ degrees_fahrenheit"},
    "energy": {1.0: "j joule joules", 1e3: "kj kilojoules", 4184.0: "kcal", 3.6e6: "kwh", 3.6e9: "mwh", 3.6e12: "gwh"},
    "power": {1.0: "w watt watts", 1e3: "kw kilowatts kilowatt", 1e6: "mw megawatts megawatt", 1e9: "gw gigawatts"},
    "frequency": {1.0: "hz", 1e3: "khz", 1e6: "mhz", 1e9: "ghz"},
    "data": {1.0: "b byte bytes", 1e3: "kb", 1e6: "mb megabytes", 1e9: "gb gigabytes", 1e12: "tb terabytes"},
    "share": {0.01: "% percent pct per_cent prozent ％", 0.001: "‰"},
    "USD": {1.0: "$ us$ usd dollar dollars us_dollars"},
    "EUR": {1.0: "€ eur euro euros"},
    "GBP": {1.0: "£ gbp pound pounds pounds_sterling"},
    "JPY": {1.0: "¥ jpy yen 円"},
    "CNY": {1.0: "¥ cny rmb yuan 元"},
    "INR": {1.0: "₹ inr rs rupees rupee"},
    "KRW": {1.0: "₩ krw won"},
    "CHF": {1.0: "chf fr. francs"},
    "RUB": {1.0: "₽ rub rubles roubles"},
    "AUD": {1.0: "a$ aud"},
    "CAD": {1.0: "c$ cad"},
    "SEK": {1.0: "sek"},
    "NOK": {1.0: "nok"},
    "DKK": {1.0: "dkk"},
    "PLN": {1.0: "pln zł"},
    "TRY": {1.0: "₺ try"},
}
_CASED = {"mW": ("power", 1e-3), "MW": ("power", 1e6), "Mb": ("bits", 1e6), "MB": ("data", 1e6)}
_MONEY = re.compile(r"^[A-Z]{3}$")

_BY_NAME: dict[str, list[tuple[str, float]]] = defaultdict(list)
for _dimension, _sizes in _UNITS.items():
    for _size, _names in _sizes.items():
        for _name in _names.split():
            _BY_NAME[_name.replace("_", " ")].append((_dimension, _size))


def _any_of(names: Iterator[str] | list[str]) -> str:
    return "|".join(re.escape(name).replace(r"\ ", r"\s+") for name in sorted(names, key=len, reverse=True))


_AFTER = re.compile(rf"[ \u00a0\u202f-]?(?P<unit>{_any_of(list(_BY_NAME))})(?![^\W\d_\u0e00-\uffff])", re.IGNORECASE)
_BEFORE = re.compile(
    rf"(?<![^\W\d_])(?P<unit>{_any_of([n for n, of in _BY_NAME.items() if any(_MONEY.match(d) for d, _ in of)])})"
    r"[ \u00a0\u202f]?$",
    re.IGNORECASE,
)
_LONGEST_BEFORE = 16


def find_quantities(text: str, start: int, end: int) -> Iterator[tuple[set[Amount], int, int]]:
    """Each number with its unit in `text[start:end]`: the amounts it may mean, and the offsets of both."""
    for readings, first, last in find_numbers(text, start, end):
        after = _AFTER.match(text, last, end)
        if after:
            yield _amounts(readings, after["unit"]), first, after.end()
        before = _BEFORE.search(text[max(start, first - _LONGEST_BEFORE) : first])
        if before:
            yield _amounts(readings, before["unit"]), first - (len(before[0])), last


def read_quantity(value: str) -> set[Amount]:
    """The amounts that a value may mean which is a number with its unit and nothing else."""
    whole = value.strip()
    return {
        amount
        for amounts, start, end in find_quantities(whole, 0, len(whole))
        if end - start == len(whole)
        for amount in amounts
    }


def alike(first: Set[Amount], second: Set[Amount]) -> bool:
    """Whether two readings share an amount, rounding of the conversion aside."""
    return any(
        ours == theirs and math.isclose(amount, other, rel_tol=1e-9)
        for ours, amount in first
        for theirs, other in second
    )


def _amounts(readings: Set[float], unit: str) -> set[Amount]:
    meant = [_CASED[unit]] if unit in _CASED else _BY_NAME[re.sub(r"\s+", " ", unit.lower())]
    return {(dimension, reading * size) for dimension, size in meant for reading in readings}
