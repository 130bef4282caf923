from datetime import date

import pytest

from pipeline.values import find_dates, find_numbers, parse_date, parse_minutes


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("10 mins", 10), ("1 hour 20 minutes", 80), ("1 h 5 min", 65), ("1½ hours", 90), ("½ h", 30), ("1h20m", 80),
        ("15 to 20 minutes", 20), ("2-3 min", 3), ("60 minutes + cooling", 60), ("PT1H30M", 90), ("P1DT2H", 1560),
        ("1:20", 80), ("45", 45), (45, 45), ("1 uur en 5 minuten", 65), ("2 Stunden", 120), ("20 min de cuisson", 20),
        ("0 minutes", 0), ("1.5 hours", 90), ("90 seconds", 1.5), ("30分", 30),
        ("Serves 4", None), ("", None), ("a while", None), (None, None), (True, None),
    ],
)  # fmt: skip
def test_durations_in_minutes(text, minutes):
    assert parse_minutes(text) == minutes


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,234.5", {1234.5}),
        ("1.234,5", {1234.5}),
        ("1.234", {1.234, 1234.0}),
        ("1 234", {1234.0}),
        ("-5", {-5.0, 5.0}),
        ("2½", {2.5}),
        ("¾", {0.75}),
        ("2 million", {2e6}),
        ("3.5bn", {3.5e9}),
        ("three", {3.0}),
        ("007", {7.0}),
    ],
)
def test_numbers_by_value(text, values):
    found, start, end = next(iter(find_numbers(f"x {text} y", 0, len(text) + 4)))
    assert found == values
    assert (start, end) == (2, 2 + len(text))


def test_numbers_inside_words_are_none():
    assert list(find_numbers("B2B v1.2.3x abc123", 0, 18)) == []


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("29 October 2016", {date(2016, 10, 29)}),
        ("October 3rd, 2017", {date(2017, 10, 3)}),
        ("1er mars 2020", {date(2020, 3, 1)}),
        ("3/4/2020", {date(2020, 4, 3), date(2020, 3, 4)}),
        ("31.12.99", {date(1999, 12, 31)}),
        ("2020-02-29", {date(2020, 2, 29)}),
        ("5 de maio de 2021", {date(2021, 5, 5)}),
    ],
)
def test_dates_by_day(text, days):
    assert list(find_dates(f"on {text}.", 0, 30)) == [(days, 3, 3 + len(text))]


def test_impossible_days_are_none():
    assert list(find_dates("30 February 2020, 2020-13-40", 0, 30)) == []
    assert parse_date("2020-02-30") is None
    assert parse_date("soon") is None
    assert parse_date("2020-03-01T10:00:00Z") == date(2020, 3, 1)
