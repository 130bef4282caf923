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


def place(text, slot, values, **options):
    """The spans of a list's values, as (start, text)."""
    leaves = [Leaf(slot.replace("*", str(i)), slot, value, False) for i, value in enumerate(values)]
    (spans,) = Grounder(text).place([leaves], **options)
    return [span.start if span.start is None else (span.start, text[span.start : span.end]) for span in spans]


def starts(text, *values, slot="/items/*"):
    return [found and found[0] for found in place(text, slot, values)]


def entities(text, *rows):
    """The start of each field of each entity of a list."""
    asked = [[Leaf(f"/{name}", f"/{name}", value, False) for name, value in row.items()] for row in rows]
    return [[span.start for span in spans] for spans in Grounder(text).place(asked, many=True)]


def test_repeated_values_take_places_of_their_own_in_the_models_order():
    text = "1 egg, 2 eggs, 1 egg"
    assert starts(text, "1 egg", "2 eggs", "1 egg") == [0, 7, 15]
    assert sorted(starts(text, "2 eggs", "1 egg", "1 egg")) == [0, 7, 15]
    assert starts(text, "1 egg", "1 egg", "1 egg")[:2] == [0, 15]  # the third has none left
    assert starts("Ann. ANN. ann.", "Ann", "Ann", "Ann") == [0, 5, 10]  # other spellings when the exact one is used up


def test_nested_values_are_found_beside_what_they_are_nested_in():
    text = "Rome. The University of Rome in Rome."
    assert starts(text, "The University of Rome", "Rome", "Rome") == [6, 24, 32]
    assert starts(text, "Rome", "The University of Rome") == [0, 6]
    assert starts("Rome, Old Rome. Rome", "Old Rome", "Rome") == [6, 16]  # not the place inside the longer value's


def test_an_unsure_value_stands_between_its_neighbours_in_the_list():
    filler = "words " * 60
    text = f"Bob {filler} Ann {filler} Bob {filler} Cid {filler} Bob"
    at = [i for i in range(len(text)) if text.startswith("Bob", i)]
    assert starts(text, "Ann", "Bob", "Cid")[1] == at[1]
    assert starts(text, "Ann", "Cid", "Bob")[2] == at[2]
    assert starts(text, "Bob", "Ann", "Cid")[0] == at[0]


def test_neighbouring_fields_tell_equal_values_apart():
    filler = "words " * 60
    text = f"Lee, cook, 40 {filler} Lee, pilot, 41 {filler} Kim, cook, 42"
    second = text.index("Lee, pilot")
    assert entities(text, {"name": "Lee", "role": "pilot"}) == [[second, second + 5]]
    assert entities(text, {"name": "Lee", "age": 41}, {"name": "Lee", "age": 40}) == [[second, second + 12], [0, 11]]
    third = text.index("Kim")
    assert entities(text, {"name": "Kim", "role": "cook"}, {"name": "Lee", "role": "cook"}) == [
        [third, third + 5],
        [0, 5],
    ]
    nested = [Leaf("/who/name", "/who/name", "Lee", False), Leaf("/who/role", "/who/role", "pilot", False)]
    assert [span.start for span in Grounder(text).place([nested])[0]] == [second, second + 5]


def test_lists_inside_entities_stay_with_their_entity():
    filler = "words " * 60
    text = f"Soup: salt, egg. {filler} Cake: egg, salt. {filler}"
    cake = text.index("Cake")
    asked = [
        [Leaf("/n", "/n", name, False), *(Leaf(f"/p/{i}", "/p/*", part, False) for i, part in enumerate(parts))]
        for name, parts in (("Cake", ["egg", "salt"]), ("Soup", ["salt", "egg"]))
    ]
    found = [[span.start for span in spans] for spans in Grounder(text).place(asked, many=True)]
    assert found == [[cake, cake + 6, cake + 11], [0, 6, 12]]


def test_hundreds_of_equal_values_each_get_their_own():
    rows = "\n".join(f"row {i}: yes" for i in range(300))
    found = starts(rows, *(["yes"] * 300))
    assert len(set(found)) == 300
    assert found == sorted(found)


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
    assert find("It was opened by Col. John Carter in May.", "Col. John Cartes") == (FUZZY, "Col. John Carter")
    assert find(text, "Town hall of Shelbyville") == (NONE, None)


def test_scripts_without_blanks_and_from_right_to_left():
    assert find("会议于2019年3月12日在东京举行。", "2019-03-12") == (NORMALISED, "2019年3月12日")
    assert find("会议在东京举行。", "东京") == (EXACT, "东京")
    assert find("東京都の人口は1400万人です", 14_000_000) == (NORMALISED, "1400万")
    assert find("株式会社トヨタ自動車が発表しました", "株式会社トヨ夕自動車") == (FUZZY, "株式会社トヨタ自動車")
    assert find("ﾄﾖﾀ ｶﾞｽ", "トヨタ ガス") == (NORMALISED, "ﾄﾖﾀ ｶﾞｽ")
    assert find(unicodedata.normalize("NFD", "서울은 수도"), "서울은") == (
        NORMALISED,
        unicodedata.normalize("NFD", "서울은"),
    )
    assert find("نُشِر في ١٢ مارس ٢٠١٩ هنا", "2019-03-12") == (NORMALISED, "١٢ مارس ٢٠١٩")
    assert find("قال مُحَمَّد أمس", "محمد") == (NORMALISED, "مُحَمَّد")
    assert find("ביום \u200f12 במרץ 2019\u200f פורסם", "2019-03-12") == (NORMALISED, "12 במרץ 2019")
    assert find("שָׁלוֹם עולם", "שלום") == (NORMALISED, "שָׁלוֹם")


def test_characters_beyond_the_first_plane_count_as_one():
    text = "👩‍🍳🎂 Café 𝒜lpha"
    span = Grounder(text).find(leaf("alpha"))
    assert (span.status, text[span.start : span.end], span.start) == (NORMALISED, "𝒜lpha", 10)


def test_numbers_and_dates_are_matched_by_value():
    assert find("Population: 1,234,567 people", 1234567) == (NORMALISED, "1,234,567")
    assert find("It cost 2.5 million.", 2500000) == (NORMALISED, "2.5 million")
    assert find("We saw 42 birds", 42) == (EXACT, "42")
    assert find("three birds", 3) == (NORMALISED, "three")
    assert find("no number", 3) == (NONE, None)
    assert find("about 1 200 people", "1200") == (NORMALISED, "1 200")
    assert find("on 29 October 2016 in", "2016-10-29") == (NORMALISED, "29 October 2016")
    assert find("on 29 October 2016 in", "2016-10-28") == (NONE, None)
    assert find("on 29 October 2016 at 2.30 pm", "2016-10-29T14:30:00Z") == (NORMALISED, "29 October 2016")
    assert find("October 29 (a Saturday)", "2016-10-29") == (NORMALISED, "October 29")
    assert find("from 27-29 October 2016", "2016-10-29") == (NORMALISED, "27-29 October 2016")
    assert find("in October 2016", "2016-10") == (NORMALISED, "October 2016")
    assert find("from 2.30 p.m. on", "14:30") == (NORMALISED, "2.30 p.m.")
    assert find("on 29.10.2016", "29 October 2016") == (NORMALISED, "29.10.2016")


def test_quantities_are_matched_by_value():
    assert find("Add 1.5 kg flour", "1500 g") == (NORMALISED, "1.5 kg")
    assert find("Add 500 grams flour", "500g") == (NORMALISED, "500 grams")
    assert find("It costs €1,200 now", "1200 EUR") == (NORMALISED, "€1,200")
    assert find("25 per cent of all", "25%") == (NORMALISED, "25 per cent")
    assert find("at 180°C", "180 degrees Celsius") == (NORMALISED, "180°C")
    assert find("Add 500 grams", "500 ml") == (NONE, None)


def test_durations_are_matched_by_value():
    assert find("Prep: 10 mins\nCook: 1 h 20 min", "80 minutes") == (NORMALISED, "1 h 20 min")
    assert find("Prep: 10 mins\nCook: 1 hr 30 min", "PT1H30M") == (NORMALISED, "1 hr 30 min")
    assert find("Prep: 10 mins\nCook: 1 h 20 min", "10 minutes") == (NORMALISED, "10 mins")
    assert find("Prep: 10 mins", "20 minutes") == (NONE, None)
    assert find("Valid for 3 months", "P3M") == (NORMALISED, "3 months")
    text = "Cook for 1 h 20 min"
    span = Grounder(text).find(leaf(80, "/total_minutes"))
    assert (span.status, text[span.start : span.end]) == (NORMALISED, "1 h 20 min")


def test_the_fields_name_on_the_line_tells_short_values_apart():
    text = "4 stars\nServes 4\n4 reviews"
    assert Grounder(text).find(leaf("4", "/serves")).start == 15
    assert Grounder(text).find(leaf(4, "/serves")).start == 15
    text = "Prep: 10 mins\nRest: 10 min"
    assert Grounder(text).find(leaf("10 minutes", "/rest_time")).start == 20
    prep, rest = Grounder(text).place([[leaf("10 minutes", "/a"), leaf("10 minutes", "/b")]])[0]
    assert (prep.start, rest.start) == (6, 20)


def test_a_value_of_several_words_may_be_cut_out_of_a_word():
    assert find("They fight against Daesh.", "st Daesh") == (EXACT, "st Daesh")
    assert find("They fight against Daesh.", "aesh") == (NONE, None)


def test_a_short_word_may_differ_in_one_letter_but_not_in_its_first():
    assert find("They came to Basra.", "Basrb") == (FUZZY, "Basra")
    assert find("They came to Iraq.", "Iran") == (NONE, None)
    assert find("They came to Basra.", "Sasra") == (NONE, None)


def test_fuzzy_places_are_chosen_by_order_too():
    text = "Central Library. Then the River Inn. Central Library again."
    assert starts(text, "River Inb", "Central Librart") == [26, 37]


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


_ALPHABET = st.characters(codec="utf-8") | st.sampled_from("aéß½ﬁ 12.,-–\u00ad\u200b\u0301\n分年月日אם١")
_DISGUISES = (  # in an order in which no mark is parted from its letter
    str.upper,
    "\u200b".join,
    lambda value: value.replace("-", "–"),
    lambda value: value.replace(" ", "\u00a0 "),
    lambda value: unicodedata.normalize("NFD", value),
)


@given(
    st.text("abcdeéüñ-", min_size=2, max_size=9),
    st.text("xyz 12.\n👩", max_size=30),
    st.sets(st.sampled_from(range(len(_DISGUISES))), min_size=1),
)
def test_a_disguised_value_is_found_where_it_was_put(value, around, disguises):
    disguised = value
    for number in sorted(disguises):
        disguised = _DISGUISES[number](disguised)
    text = f"{around} {disguised} {around}"
    span = Grounder(text).find(leaf(value))
    assert text[span.start : span.end] == disguised
    assert span.status is (EXACT if disguised == value else NORMALISED)


@given(st.text(_ALPHABET, max_size=80), st.lists(st.text(_ALPHABET, max_size=20), max_size=6), st.booleans())
def test_any_span_lies_in_the_text(text, values, many):
    leaves = [Leaf(f"/x/{i}", "/x/*", value, False) for i, value in enumerate(values)]
    spans = Grounder(text).place([leaves], many=many)[0]
    assert len(spans) == len(values)
    for value, span in zip(values, spans, strict=True):
        assert (span.start is None) == (span.status is NONE)
        if span.start is not None:
            assert 0 <= span.start < span.end <= len(text)
        if span.status is EXACT:
            assert text[span.start : span.end] == value.strip()


@given(st.lists(st.sampled_from(["Ann", "Bob", "Rome", "Old Rome"]), min_size=1, max_size=8))
def test_values_in_document_order_each_find_their_own_place(values):
    text = ". ".join(values)
    places = [sum(len(value) + 2 for value in values[:i]) for i in range(len(values))]
    if "Old Rome" not in values:
        assert starts(text, *values) == places
    assert sorted(set(starts(text, *values))) == sorted(starts(text, *values))
