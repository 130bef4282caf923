import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.json_gate import BadAnswer, check_entity, parse_answer
from pipeline.schema import ExtractionSchema

SCHEMA = ExtractionSchema.parse(
    "thing",
    {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string"},
            "day": {"type": "string", "format": "date"},
            "when": {"type": ["string", "null"], "format": "date-time"},
            "count": {"type": "integer"},
            "counts": {"type": "array", "items": {"type": "integer"}},
            "note": {"type": ["string", "null"]},
            "kind": {"enum": ["a", "b"]},
        },
    },
)


@pytest.mark.parametrize(
    ("answer", "reason", "words"),
    [
        ("", "not_json", "empty"),
        ("I'm sorry, but I can't help with that.", "not_json", "prose"),
        ('{"a": "cut off in the mid', "truncated", "ends in the middle"),
        ('{"a": [1, 2', "truncated", "ends in the middle"),
        ('{"a": 1,', "truncated", "ends in the middle"),
        ('{"a": NaN}', "number", "NaN"),
        ('{"a": -Infinity}', "number", "-Infinity"),
        ('{"a": 1e999}', "number", "1e999"),
        ('{"a": ' + "9" * 5000 + "}", "number", "5,000 digits"),
        ('{"a": 1, "a": 2}', "duplicate_key", "'a'"),
        ("[" * 100_000 + "]" * 100_000, "too_deep", "64 levels"),
        ('{"a": "line\nbreak"}', "not_json", "control character"),
        ('{"a": 1} and more', "not_json", "Extra data"),
        ("{'a': 1}", "not_json", "property name"),
    ],
)
def test_what_is_no_storable_json_is_refused_in_words(answer, reason, words):
    with pytest.raises(BadAnswer, match=words) as caught:
        parse_answer(answer)
    assert caught.value.reason == reason


def test_large_integers_stay_exact_and_strings_come_out_clean():
    value = parse_answer('{"n": 123456789012345678901234567890, "s": "a\\u0000b\\ud800c\\ud83d\\ude00"}')
    assert value == {"n": 123456789012345678901234567890, "s": "ab\ufffdc😀"}


def test_brackets_inside_strings_are_no_depth():
    assert parse_answer('{"a": "' + "[" * 1000 + '\\"["}')["a"].startswith("[[[")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(JSON)
def test_good_json_is_read_as_it_is(value):
    assert parse_answer(json.dumps(value, ensure_ascii=False)) == value


def test_an_entity_is_made_to_fit():
    entity, notes = check_entity(
        {"name": " Ann ", "count": 5.0, "counts": [1.0, 2], "day": None, "note": "", "extra": 1}, SCHEMA
    )
    assert entity == {"name": "Ann", "count": 5, "counts": [1, 2], "note": None}
    assert notes == ["/extra: not in the schema, left out"]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("day", "2021-02-30", "date"),
        ("when", "yesterday", "date-time"),
        ("count", 2**63, "64-bit"),
        ("count", 1.5, "integer"),
        ("kind", "c", "one of"),
        ("counts", [1, "x"], "integer"),
    ],
)
def test_an_optional_field_that_does_not_fit_is_left_out_with_a_note(field, value, words):
    entity, notes = check_entity({"name": "Ann", field: value}, SCHEMA)
    assert entity == {"name": "Ann"}
    assert len(notes) == 1
    assert f"/{field}" in notes[0]
    assert words in notes[0]


@pytest.mark.parametrize("value", [{"name": None}, {"name": 5}, {}, "Ann", ["Ann"]])
def test_an_entity_without_its_required_field_is_refused(value):
    with pytest.raises(BadAnswer):
        check_entity(value, SCHEMA)
