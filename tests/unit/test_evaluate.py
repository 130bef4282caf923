import pytest

from pipeline.evaluate import Comparison, FieldScore, same, score_fields


@pytest.mark.parametrize(
    ("given", "gold", "comparison", "agree"),
    [
        ("CHILLI  con carne!", "Chilli con carne", "text", True),
        ("Chilli con carne recipe", "Chilli con carne", "text", True),  # four fifths of the words
        ("Chilli", "Chilli con carne", "text", False),
        ("½ cup", "1⁄2 cup", "text", True),
        ("", "x", "text", False),
        ("1 hour 20 mins", 80, "minutes", True),
        ("PT1H20M", "80 minutes", "minutes", True),
        ("quick", 80, "minutes", False),
        ("Serves 4", "4 servings", "count", True),
        ("24 Bars", "24 servings", "count", True),
        ("Serves four", "4 servings", "count", False),
        (4, 4, "value", True),
        (4, 5, "value", False),
    ],
)
def test_values_agree_by_their_comparison(given, gold, comparison, agree):
    assert same(given, gold, comparison) is agree


def test_lists_are_scored_by_element_each_gold_once():
    (score,) = score_fields([({"i": ["2 Eggs", "salt", "2 eggs", "milk"]}, {"i": ["2 eggs", "Salt", "flour"]})], ["i"])
    assert score == FieldScore("i", expected=3, found=4, correct=2, exact=1)
    assert (score.precision, score.recall) == (0.5, pytest.approx(2 / 3))
    assert score.f1 == pytest.approx(4 / 7)


def test_missing_rows_and_surplus_values_count():
    pairs = [(None, {"a": "x"}), ({"a": "y"}, {}), ({"a": None}, {"a": ""})]
    assert score_fields(pairs, ["a"]) == [FieldScore("a", expected=1, found=1, correct=0, exact=0)]
    assert score_fields([], ["a"])[0].f1 == 0.0


def test_a_total_left_to_the_reader_is_the_sum_of_its_parts():
    row = {"prep": "10 min", "cook": "25 min", "total": None}
    scores = score_fields([(row, {"total": 35})], ["total"], {"total": Comparison.MINUTES}, {"total": ["prep", "cook"]})
    assert scores == [FieldScore("total", 1, 1, 1, 1)]
    assert score_fields([({"total": "1 h"}, {"total": 35})], ["total"], {"total": "minutes"})[0].correct == 0
