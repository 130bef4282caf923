"""The grounding benchmark on gold made here: what it counts, and what it says to a folder without gold."""

import json

import pytest

from bench import ground

TEXT = "Ann Lee met Bob in Rome. Bob left Rome."


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "documents.jsonl").write_text(json.dumps({"_id": "d", "text": TEXT}), encoding="utf-8-sig")
    places = [(25, 28), (0, 7), (0, 3), (12, 15), (19, 23), (19, 23)]
    rows = [{"documentId": "d", "begin": b, "end": e, "value": TEXT[b:e], "type": "x"} for b, e in places]
    (tmp_path / "a" / "entities.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def test_gold_is_in_document_order_longest_first_and_each_span_once(folder):
    (gold,) = ground.read_gold(folder)
    assert gold.values == ["Ann Lee", "Ann", "Bob", "Rome", "Bob"]
    assert gold.places[1] == (0, 3)


def test_own_place_and_as_a_set_differ_where_equal_strings_trade_places(folder):
    gold = ground.read_gold(folder)

    def swapped(text, values):
        return [(0, 7), None, (25, 28), (0, 1), (12, 15)]

    score = ground.measure("x", swapped, "in order", gold)
    assert (score.values, score.own_place, score.as_a_set, score.unplaced) == (5, 0.2, 0.6, 0.2)


def test_the_variants(folder):
    gold = ground.read_gold(folder)
    ((shuffled, values),) = ground.varied("shuffled", gold)
    assert sorted(values) == sorted(gold[0].values)
    assert [TEXT[start:end] for start, end in shuffled.places] == values == shuffled.values
    ((_, values),) = ground.varied("misspelt", gold)
    assert values == ["Ann Lef", "Ano", "Boc", "Romf", "Boc"]
    assert ground.misspell("U.S. (5)") == "U.T. (5)"
    assert ground.misspell("42") == "42"


def test_a_run_prints_each_variant(folder, capsys):
    scores = ground.run(folder, as_json=True)
    printed = json.loads(capsys.readouterr().out)["scores"]
    assert [score["variant"] for score in printed if score["contestant"] == "quarry"] == list(ground.AIMS)
    assert scores[0].own_place == 1.0
    assert all(score["microseconds"] > 0 for score in printed)


def test_a_folder_without_gold_is_refused_in_words(tmp_path):
    with pytest.raises(ground.BadGold, match=r"no \*/documents.jsonl"):
        ground.run(tmp_path)
