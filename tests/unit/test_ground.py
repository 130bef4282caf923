import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from pipeline.ground import Grounder, Grounding, Leaf, leaves
from pipeline.schema import ExtractionSchema

EXACT, NORMALISED, FUZZY, NONE = Grounding.EXACT, Grounding.NORMALISED, Grounding.FUZZY, Grounding.NONE


def leaf(value, slot="/x"):
    return Leaf(slot, slot, value, False)


def find(text, value, **options):
    span = Grounder(text).find(leaf(value), **options)
    return span.status, None if span.start is None else text[span.start : span.end]


def test_an_exact_value_is_found_at_word_borders():
    assert find("24 hours, 4 eggs", "4") == (EXACT, "4")
    assert Grounder("24 hours, 4 eggs").find(leaf("4")).start == 10
    assert find("concatenate a cat", "cat") == (EXACT, "cat")
    assert Grounder("concatenate a cat").find(leaf("cat")).start == 14
    assert find("300g flour", "300") == (EXACT, "300")
    assert find("category", "cat") == (NONE, None)


def test_repeated_values_are_found_in_document_order():
    grounder = Grounder("1 egg, 2 eggs, 1 egg")
    starts = [grounder.find(leaf(value, "/items/*")).start for value in ("1 egg", "2 eggs", "1 egg", "1 egg")]
    assert starts == [0, 7, 15, 0]


def test_normalised_matches_map_back_to_the_raw_text():
    assert find("The “Old\u00a0 Mill” inn", '"old mill"') == (NORMALISED, "“Old\u00a0 Mill”")
    assert find("extra\u00adordi\u200bnary day", "extraordinary") == (NORMALISED, "extra\u00adordi\u200bnary")
    assert find("2000\u20132010 plan", "2000-2010") == (NORMALISED, "2000\u20132010")
    assert find("ﬁne ½ cup", "fine") == (NORMALISED, "ﬁne")
    assert find("in " + unicodedata.normalize("NFD", "Café Rüdi"), "Café Rüdi") == (
        NORMALISED,
        unicodedata.normalize("NFD", "Café Rüdi"),
    )
    assert find("**Bold** name | cell", "bold name cell") == (NORMALISED, "Bold** name | cell")


def test_a_fuzzy_match_stays_in_one_sentence_and_keeps_its_numbers():
    text = "It opened late. The Central Library of Springfield opened in 1931. Nothing else."
    assert find(text, "Central Libary of Springfield") == (FUZZY, "Central Library of Springfield")
    assert find("Bake for 20 minutes in the oven.", "Bake for 30 minutes in the oven") == (NONE, None)
    assert find("One half is here. The other half there.", "half is here the other half") == (NONE, None)
    assert find(text, "Town hall of Shelbyville") == (NONE, None)


def test_numbers_and_dates_are_matched_by_value():
    assert find("Population: 1,234,567 people", 1234567) == (NORMALISED, "1,234,567")
    assert find("It cost 2.5 million.", 2500000) == (NORMALISED, "2.5 million")
    assert find("We saw 42 birds", 42) == (EXACT, "42")
    assert find("three birds", 3) == (NORMALISED, "three")
    assert find("no number", 3) == (NONE, None)
    assert find("on 29 October 2016 in", "2016-10-29") == (NORMALISED, "29 October 2016")
    assert find("on 29 October 2016 in", "2016-10-28") == (NONE, None)


def test_durations_are_matched_by_value():
    assert find("Prep: 10 mins\nCook: 1 h 20 min", "80 minutes") == (NORMALISED, "1 h 20 min")
    assert find("Prep: 10 mins\nCook: 1 h 20 min", "10 minutes") == (NORMALISED, "10 mins")
    assert find("Prep: 10 mins\nRest: 10 min", "10 minutes", hints=["rest"]) == (NORMALISED, "10 min")
    assert find("Prep: 10 mins", "20 minutes") == (NONE, None)


def test_the_right_one_of_equal_short_values_is_near_its_name():
    text = "4 stars\nServes 4\n4 reviews"
    assert Grounder(text).find(leaf("4"), hints=["serve"]).start == 15
    assert Grounder(text).find(leaf("4"), near=16).start == 15


def test_values_outside_the_regions_are_not_found():
    text = "alpha beta gamma"
    assert Grounder(text, [(0, 5), (11, 16)]).find(leaf("beta")).status is NONE
    assert Grounder(text, [(0, 5), (5, 10)]).find(leaf("alpha beta")).status is EXACT


def test_leaves_know_their_pointers_and_what_is_derived():
    schema = ExtractionSchema.parse(
        "t",
        {
            "type": "object",
            "properties": {
                "kind": {"enum": ["a", "b"]},
                "ok": {"type": "boolean"},
                "a/b": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "string"}}}},
            },
        },
    )
    found = leaves({"kind": "a", "ok": True, "a/b": [{"n": "x"}, {"n": None}], "none": None}, schema)
    assert found == [
        Leaf("/kind", "/kind", "a", True),
        Leaf("/ok", "/ok", True, True),
        Leaf("/a~1b/0/n", "/a~1b/*/n", "x", False),
    ]
    assert Grounder("a true x").find(found[0]).status is NONE
    assert Grounder("a true x").find(found[1]).status is NONE


@given(st.text(max_size=60), st.text(min_size=1, max_size=12), st.text(max_size=60))
def test_what_stands_in_the_text_is_found_and_spans_are_valid(before, value, after):
    text = f"{before}\n{value}\n{after}"
    span = Grounder(text).find(leaf(value))
    if value.strip():
        assert span.status is EXACT
        assert text[span.start : span.end] == value.strip()


@given(st.text(max_size=80), st.text(max_size=20))
def test_any_span_lies_in_the_text(text, value):
    span = Grounder(text).find(leaf(value))
    assert (span.start is None) == (span.status is NONE)
    if span.start is not None:
        assert 0 <= span.start < span.end <= len(text)
