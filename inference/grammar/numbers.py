"""Bounds and steps for number schemas, so that no digit string runs on for ever and none rounds out of its bounds.

llguidance reads bounds as floats and writes what they allow as a regular expression over decimal digits: unbounded
above, it allows any number of digits, and numbers any number of decimals. A `multipleOf` of 10⁻ᵏ allows k decimals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

INTEGER_BOUND = 10**18 - 128  # the largest float of 18 digits
NUMBER_BOUND = 10**15
# Of the steps 10⁻ᵏ, this one loses no integer constant to the floats in which llguidance looks for multiples in a range
# (10⁻⁹ loses 1, 2, 4, ...).
DECIMALS = 8
DECIMALS_BESIDE_STEPS = 6  # in a schema with a multipleOf of its own; see MAX_STEP
# Of multipleOf, itself and with its decimals shifted away: the automaton has a state for each remainder, 2,000,000
# took 20 s to build, and llguidance's common multiple with 10⁻⁶ overflows unseen above 4,294.
MAX_STEP = 4_000
WIDEST = 2**63 - 2**10  # the largest float that llguidance's integers hold
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


class BadNumber(ValueError):
    """A bound or step that no grammar can be made of. The message names the keyword, the value and the limit."""


def bounded(schema: Mapping[str, Any], *, integer: bool, decimals: int) -> dict[str, Any]:
    """The schema with both bounds and, for numbers, a step. What it allows is allowed by the schema as given.

    Bounds beyond what floats count exactly move inwards; open sides end at 18 digits for integers, 15 for numbers.
    Raises BadNumber.
    """
    given = {key: _finite(key, schema[key]) for key in _BOUNDS if type(schema.get(key)) in (int, float)}
    low, above = _tighter(given, "minimum", "exclusiveMinimum", schema.get("exclusiveMinimum") is True, max)
    high, below = _tighter(given, "maximum", "exclusiveMaximum", schema.get("exclusiveMaximum") is True, min)
    if integer:
        low = None if low is None else (math.floor(low) + 1 if above else math.ceil(low))
        high = None if high is None else (math.ceil(high) - 1 if below else math.floor(high))
        above = below = False
    limit = INTEGER_BOUND if integer else NUMBER_BOUND
    if low is None or low < -limit <= (limit if high is None else high):
        low, above = (-limit if high is None or high >= -limit else max(10 * high, -WIDEST)), False
    if high is None or high > limit >= low:
        high, below = (limit if low <= limit else min(10 * low, WIDEST)), False
    if max(abs(low), abs(high)) > WIDEST:
        raise BadNumber(f"bounds {low} to {high}: beyond ±{WIDEST} there is no grammar for numbers")
    out = {key: value for key, value in schema.items() if key not in _BOUNDS}
    out["exclusiveMinimum" if above else "minimum"] = _inside(low, math.inf)
    out["exclusiveMaximum" if below else "maximum"] = _inside(high, -math.inf)
    if "multipleOf" not in out and not integer and low != high:
        # A number that differs from an excluded bound must still differ when it is rounded to a float.
        edge = max([1.0, *(abs(bound) for bound, out_of in ((low, above), (high, below)) if out_of)])
        kept = max(0, min(decimals, math.floor(math.log10(2**52 / edge))))
        out["multipleOf"] = 10.0**-kept if kept else 1
    return out


def step_fault(step: Any) -> str:
    """Why no grammar enforces this `multipleOf`; empty when one does. Raises BadNumber for what is no step at all."""
    if type(step) not in (int, float) or not 0 < step < math.inf:
        raise BadNumber(f"multipleOf {step!r}: a step is a number above 0")
    _, digits, exponent = Decimal(repr(step)).normalize().as_tuple()
    shifted = int("".join(map(str, digits))) * 10 ** max(0, int(exponent))
    if max(step, shifted) > MAX_STEP or int(exponent) < -DECIMALS:
        return (
            f"steps above {MAX_STEP}, decimals shifted away, or finer than {DECIMALS} decimals are checked afterwards"
        )
    return ""


def exact(value: Any) -> bool:
    """Whether a constant survives being read as floats."""
    if isinstance(value, list):
        return all(map(exact, value))
    if isinstance(value, Mapping):
        return all(map(exact, value.values()))
    return type(value) is not int or (abs(value) < 10**300 and int(float(value)) == value)


def has_fraction(value: Any) -> bool:
    """Whether a constant is or contains a number with decimals."""
    if isinstance(value, list):
        return any(map(has_fraction, value))
    if isinstance(value, Mapping):
        return any(map(has_fraction, value.values()))
    return isinstance(value, float) and not value.is_integer()


def _finite(key: str, value: float) -> float:
    if not math.isfinite(value):
        raise BadNumber(f"{key} {value}: a bound is finite")
    return value


def _tighter(given: Mapping[str, float], key: str, strict_key: str, strict: bool, pick: Any) -> tuple[Any, bool]:
    """The bound that counts and whether it is excluded. `strict`: the old form, a flag beside the bound."""
    plain, excluded = given.get(key), given.get(strict_key)
    if plain is None or excluded is None:
        return (plain, strict) if excluded is None else (excluded, True)
    if plain == excluded:
        return excluded, True
    return (plain, strict) if pick(plain, excluded) == plain else (excluded, True)


def _inside(bound: float, towards: float) -> float:
    """The float at the bound, or the next one on the inner side."""
    rounded = float(bound)
    if rounded < bound if towards > 0 else rounded > bound:
        rounded = math.nextafter(rounded, towards)
    return int(rounded) if rounded.is_integer() else rounded
