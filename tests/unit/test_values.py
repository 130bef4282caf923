from datetime import date

import pytest

from pipeline.dates import find_dates, find_days_of_year, find_months, find_times, parse_date, read_time
from pipeline.quantities import find_quantities, read_quantity
from pipeline.values import find_durations, find_numbers, parse_minutes, read_number


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("10 mins", 10), ("1 hour 20 minutes", 80), ("1 h 5 min", 65), ("1½ hours", 90), ("½ h", 30), ("1h20m", 80),
        ("15 to 20 minutes", 20), ("2-3 min", 3), ("60 minutes + cooling", 60), ("PT1H30M", 90), ("P1DT2H", 1560),
        ("1:20", 80), ("45", 45), (45, 45), ("1 uur en 5 minuten", 65), ("2 Stunden", 120), ("20 min de cuisson", 20),
        ("PT1.5H", 90), ("P2W", 20160), ("2 weeks", 20160), ("1時間30分", 90), ("2小时", 120), ("12 months", 525960),
        ("1 year", 525960), ("P", None), ("PT", None),
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
        ("120万", {1.2e6}),
        ("٣٬٤٥٦", {3456.0, 3.456}),
        ("5 mio.", {5e6}),
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
        ("12 марта 2019", {date(2019, 3, 12)}),
        ("2019. március 12", {date(2019, 3, 12)}),
        ("3 – 4 May 2020", {date(2020, 5, 3), date(2020, 5, 4)}),
        ("2019年3月12日", {date(2019, 3, 12)}),
    ],
)
def test_dates_by_day(text, days):
    assert list(find_dates(f"on {text}.", 0, 30)) == [(days, 3, 3 + len(text))]


def test_impossible_days_are_none():
    assert list(find_dates("30 February 2020, 2020-13-40", 0, 30)) == []
    assert parse_date("2020-02-30") is None
    assert parse_date("soon") is None
    assert parse_date("2020-03-01T10:00:00Z") == date(2020, 3, 1)


def test_months_days_and_times():
    assert list(find_months("in March 2019, 04/2018", 0, 30)) == [({(2018, 4)}, 15, 22), ({(2019, 3)}, 3, 13)]
    assert list(find_days_of_year("on May 3rd or 30 February", 0, 30)) == [({(5, 3)}, 3, 10)]
    times = {text: list(find_times(f"x {text} y", 0, 20)) for text in ("14:30", "2.30 pm", "12 a.m.", "14h30", "25:10")}
    assert [found and found[0][0] for found in times.values()] == [(14, 30), (14, 30), (0, 0), (14, 30), []]
    assert times["2.30 pm"][0][1:] == (2, 9)
    assert read_time("14:30:00Z") == (14, 30)
    assert read_time("25:00") is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1 kg", "1000 g"),
        ("$5 million", "5,000,000 USD"),
        ("2 lbs", "2 pounds"),
        ("3 mi", "3 miles"),
        ("7 %", "7 percent"),
    ],
)
def test_the_same_quantity_in_another_unit(one, other):
    assert read_quantity(one) & read_quantity(other)


def test_what_is_no_quantity_or_number_as_a_whole():
    assert read_quantity("5 kg flour") == read_quantity("kg") == read_quantity("5 gladioli") == set()
    assert not read_quantity("5 mW") & read_quantity("5 MW")
    assert read_number("1,200") == {1200.0, 1.2}
    assert read_number("about 3") == set()


@pytest.mark.parametrize("text", ["1" * 100_000, "1" + " " * 100_000, "1." * 20_000, "a" * 100_000, "12 " * 6_000])
def test_long_monotonous_texts_are_read_in_linear_time(text):
    for find in (find_numbers, find_durations, find_dates, find_months, find_days_of_year, find_times, find_quantities):
        for _ in find(text, 0, len(text)):
            pass


def test_durations_in_a_text_have_their_offsets():
    assert list(find_durations("煮る：1時間30分。", 0, 20)) == [(90.0, 3, 9)]
