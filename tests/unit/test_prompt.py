from pipeline.prompt import Prompt
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


def test_prompts_of_a_schema_share_their_beginning():
    prompt = Prompt.of(ExtractionSchema.parse("person", FIELDS, "Leave out pets."))
    one, two = prompt.messages("First."), prompt.messages("Second.")
    assert one[0] == two[0]
    assert "Leave out pets." in one[0]["content"]
    assert "First." in one[1]["content"]
    assert prompt.sha256("First.") != prompt.sha256("Second.")
    assert prompt.sha256("First.") == Prompt.of(ExtractionSchema.parse("person", FIELDS, "Leave out pets.")).sha256(
        "First."
    )
