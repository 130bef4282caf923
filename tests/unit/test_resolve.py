from pipeline.ground import Grounding, Leaf, Span
from pipeline.resolve import Candidate, GroundedLeaf, entity_key, merge, resolve
from pipeline.schema import ExtractionSchema

PEOPLE = ExtractionSchema.parse(
    "person",
    {
        "type": "array",
        "items": {
            "type": "object",
            "x-key": ["name"],
            "properties": {
                "name": {"type": "string"},
                "role": {"type": ["string", "null"]},
                "aliases": {"type": "array", "items": {"type": "string"}},
            },
        },
    },
)
KEYLESS = ExtractionSchema.parse(
    "note", {"type": "array", "items": {"type": "object", "properties": {"text": {"type": "string"}}}}
)


def candidate(run, **data):
    leaves = []
    for name, value in data.items():
        items = enumerate(value) if isinstance(value, list) else [(None, value)]
        for number, item in items:
            if item is not None:
                path = f"/{name}" if number is None else f"/{name}/{number}"
                slot = f"/{name}" if number is None else f"/{name}/*"
                leaves.append(
                    GroundedLeaf(Leaf(path, slot, item, False), Span(Grounding.EXACT, run, run + 1), 0.5, run)
                )
    return Candidate(data, leaves)


def paths(found):
    return [(entry.leaf.path, entry.leaf.value, entry.run) for entry in found.leaves]


def test_entities_with_the_same_key_are_one_and_complete_each_other():
    found = resolve(
        [
            candidate(0, name="Ann  Lee", role=None, aliases=["Annie"]),
            candidate(0, name="Bob", role="cook", aliases=[]),
            candidate(1, name="ann lee", role="pilot", aliases=["annie", "A. Lee"]),
        ],
        PEOPLE,
    )
    assert [entity.data for entity in found] == [
        {"name": "Ann  Lee", "role": "pilot", "aliases": ["Annie", "A. Lee"]},
        {"name": "Bob", "role": "cook", "aliases": []},
    ]
    assert paths(found[0]) == [
        ("/name", "Ann  Lee", 0),
        ("/aliases/0", "Annie", 0),
        ("/name", "ann lee", 1),
        ("/role", "pilot", 1),
        ("/aliases/0", "annie", 1),
        ("/aliases/1", "A. Lee", 1),
    ]


def test_the_first_value_stays_and_the_other_leaves_no_mention():
    merged = merge(candidate(0, name="Ann", role="cook"), candidate(1, name="Ann", role="pilot"))
    assert merged.data["role"] == "cook"
    assert ("/role", "pilot", 1) not in paths(merged)


def test_entities_without_a_key_value_stay_apart_and_keyless_ones_merge_when_equal():
    nameless = [candidate(0, name=None, role="cook"), candidate(1, name=None, role="cook")]
    assert len(resolve(nameless, PEOPLE)) == 2
    notes = [candidate(0, text="One"), candidate(1, text="one"), candidate(1, text="Two")]
    assert [found.data["text"] for found in resolve(notes, KEYLESS)] == ["One", "Two"]


def test_keys_ignore_case_blanks_and_unicode_form():
    assert entity_key({"name": " Ａnn\u00a0LEE"}, PEOPLE) == entity_key({"name": "ann lee"}, PEOPLE) == "ann lee"
    assert entity_key({"name": None}, PEOPLE) == ""
    assert entity_key({"text": "x"}, KEYLESS) == ""
