import pytest

from pipeline.prompt import Prompt, lists_together
from pipeline.schema import ExtractionSchema

FIELDS = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "Full name"},
        "kind": {"enum": ["a", "b", None]},
        "born": {"type": ["string", "null"], "format": "date"},
        "age": {"type": "integer"},
        "jobs": {
            "type": "array",
            "description": "Every job",
            "items": {"type": "object", "properties": {"title": {"type": "string"}, "paid": {"type": "boolean"}}},
        },
    },
}


def test_prompts_of_a_schema_share_all_but_the_document():
    schema = ExtractionSchema.parse(
        "person", FIELDS, "Leave out pets.", [{"text": "Ann is 5.", "output": {"name": "Ann", "age": 5}}]
    )
    one, two = Prompt.of(schema).messages("First."), Prompt.of(schema).messages("Second.")
    assert one[0] == two[0]
    assert "Leave out pets." in one[0]["content"]
    assert one[0]["content"].endswith('Example:\n<document>\nAnn is 5.\n</document>\n{"name": "Ann", "age": 5}')
    assert one[1]["content"].replace("First.", "Second.") == two[1]["content"]
    assert Prompt.of(schema).sha256("First.") != Prompt.of(schema).sha256("Second.")


def test_the_fields_stand_behind_the_document_with_what_they_hold():
    (_, user) = Prompt.of(ExtractionSchema.parse("person", FIELDS)).messages("The text.")
    assert user["content"] == (
        "<document>\nThe text.\n</document>\n\n"
        "Fill in this record of the document:\n"
        "- `name`: Full name\n"
        '- `kind`: one of "a", "b"\n'
        "- `born`: a date as YYYY-MM-DD\n"
        "- `age`: a whole number\n"
        "- `jobs`: Every job\n"
        "  - `title`\n"
        "  - `paid`: true or false"
    )


@pytest.mark.parametrize(
    ("text", "view"),
    [
        (
            "## Parts\n\nFor A:\n\n- a\n\nFor B:\n\n- b\n\n## Steps\n\n- c",
            "## Parts\n\nFor A:\n- a\nFor B:\n- b\n\n## Steps\n\n- c",
        ),
        (
            "## Parts\n\n- a\n\n### More\n\n- b\n\n### Steps\n\nDo it.",
            "## Parts\n\n- a\n### More\n- b\n\n### Steps\n\nDo it.",
        ),
        ("### Parts\n\n- a\n\n### Steps\n\n- b", "### Parts\n\n- a\n\n### Steps\n\n- b"),
        ("- a\n\nA whole sentence.\n\n- b", "- a\n\nA whole sentence.\n\n- b"),
        ("- a\n\nx | y\n\n- b", "- a\n\nx | y\n\n- b"),
        ("- a\n\n" + "long " * 20 + "\n\n- b", "- a\n\n" + "long " * 20 + "\n\n- b"),
        ("One.\n\nTwo.\n\n\n\nThree.", "One.\n\nTwo.\n\nThree."),
        ("", ""),
    ],
)
def test_parts_of_one_list_stand_together_and_everything_else_apart(text, view):
    assert lists_together(text) == view


@pytest.mark.parametrize(
    ("description", "ask"),
    [
        ("The people in a text.", "List the people in a text, each once, with these fields:\n- `name`: Full name"),
        (None, "List the records of the document, each once, with these fields:\n- `name`: Full name"),
    ],
)
def test_an_array_is_asked_for_in_the_schemas_own_words(description, ask):
    item = {"type": "object", "properties": {"name": FIELDS["properties"]["name"]}}
    schema = {"type": "array", "items": item} | ({"description": description} if description else {})
    assert Prompt.of(ExtractionSchema.parse("person", schema)).ask == ask


def test_prompts_of_a_document_share_all_before_the_schema_when_it_comes_first():
    example = [{"text": "Ann is 5.", "output": {"name": "Ann", "age": 5}}]
    one = Prompt.of(ExtractionSchema.parse("person", FIELDS, "Leave out pets.", example), document_first=True)
    many = Prompt.of(ExtractionSchema.parse("people", {"type": "array", "items": FIELDS}), document_first=True)
    (system, user), (other_system, other_user) = one.messages("The text."), many.messages("The text.")
    assert system == other_system
    beginning = "<document>\nThe text.\n</document>\n\n"
    assert user["content"].startswith(beginning)
    assert other_user["content"].startswith(beginning)
    behind = user["content"].removeprefix(beginning)
    places = [behind.index(words) for words in ("word for word", "Leave out pets.", '"age": 5', "- `name`: Full name")]
    assert places == sorted(places)
