import json

import pytest

from pipeline.schema import Column, ExtractionSchema, SchemaError

PERSON = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "x-key": True, "x-grounded": "required"},
        "bornOn": {"type": "string", "format": "date"},
        "seen": {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]},
        "age": {"type": ["integer", "null"]},
        "height": {"type": "number"},
        "alive": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "address": {"$ref": "#/$defs/address"},
        "role": {"enum": ["author", "editor"]},
        "either": {"type": ["string", "integer"]},
        "Born On": {"type": "string"},
        "2nd": {"type": "array", "items": {"type": "integer"}},
    },
    "$defs": {"address": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def parse(schema, **options):
    return ExtractionSchema.parse("person", schema, **options)


def test_columns_are_typed_snake_cased_and_unique():
    assert parse(PERSON).columns() == [
        Column("name", ("name",), "text"),
        Column("born_on", ("bornOn",), "date"),
        Column("seen", ("seen",), "timestamptz"),
        Column("age", ("age",), "bigint"),
        Column("height", ("height",), "numeric"),
        Column("alive", ("alive",), "boolean"),
        Column("tags", ("tags",), "text[]"),
        Column("address", ("address",), "jsonb"),
        Column("role", ("role",), "text"),
        Column("either", ("either",), "jsonb"),
        Column("born_on_2", ("Born On",), "text"),
        Column("field_2nd", ("2nd",), "jsonb"),
    ]


def test_keys_grounding_and_root_are_read():
    schema = parse(PERSON)
    assert (schema.key_fields, schema.grounded_required, schema.many) == (("name",), {"name"}, False)
    many = parse({"type": "array", "items": PERSON | {"x-key": ["name", "bornOn"]}, "$defs": PERSON["$defs"]})
    assert (many.key_fields, many.many, many.fields) == (("name", "bornOn"), True, tuple(PERSON["properties"]))


def test_the_grammar_is_closed_complete_and_nullable_where_optional():
    grammar = parse(PERSON).grammar_schema
    assert grammar["required"] == list(PERSON["properties"])
    assert grammar["additionalProperties"] is False
    properties = grammar["properties"]
    assert properties["name"] == {"type": "string"}  # required: null is no answer
    assert properties["bornOn"] == {"type": ["string", "null"], "format": "date"}
    assert properties["tags"] == {"type": "array", "items": {"type": "string"}}
    assert properties["role"] == {"enum": ["author", "editor", None]}
    assert properties["address"] == {"anyOf": [{"$ref": "#/$defs/address"}, {"type": "null"}]}
    assert grammar["$defs"]["address"]["additionalProperties"] is False


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("{", "not JSON"),
        ("[1]", "must be a JSON object"),
        ({"type": "objekt"}, r"\$\.type"),
        ({"type": "object", "properties": {"a": {"type": "string", "minLength": -1}}}, r"\$\.properties\.a\.minLength"),
        ({"type": "string"}, "wrap the value"),
        ({"type": "array", "items": {"type": "string"}}, r"\$\.items must be an object"),
        ({"type": "object", "properties": {}}, "with `properties`"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/no"}}}, "leads nowhere"),
        ({"type": "object", "properties": {"a": {"$ref": "https://a.example/s"}}}, "leads nowhere"),
        ({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}, "not a 'regex'"),
        ({"type": "object", "x-key": ["b"], "properties": {"a": {"type": "string"}}}, "names 'b'"),
        ({"type": "object", "properties": {f"f{n}": {"type": "string"} for n in range(300)}}, "300 fields"),
    ],
)
def test_what_is_wrong_is_said_in_words_with_its_place(schema, words):
    with pytest.raises(SchemaError, match=words):
        parse(schema)


def test_a_schema_nested_without_end_is_refused():
    schema: dict = {"type": "string"}
    for _ in range(200):
        schema = {"type": "object", "properties": {"a": schema}}
    with pytest.raises(SchemaError, match="nested too deeply"):
        parse(schema)


@pytest.mark.parametrize("name", ["", "Person", "2people", "a-b", "a" * 49, 'x"; DROP TABLE y'])
def test_names_must_fit_a_view(name):
    with pytest.raises(SchemaError, match="view's name"):
        ExtractionSchema.parse(name, PERSON)


def test_what_the_grammar_cannot_enforce_is_listed():
    schema = parse(
        {
            "type": "object",
            "properties": {
                "a": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
                "b": {"type": "string", "format": "postcode", "not": {"const": "x"}},
            },
        }
    )
    assert [warning.split(":")[0] for warning in schema.warnings] == [
        "$.properties.a.uniqueItems",
        "$.properties.b.not",
        "$.properties.b.format 'postcode'",
    ]
    assert schema.grammar_schema["properties"]["b"] == {"type": ["string", "null"]}


def test_the_digest_follows_content_and_order():
    digest = parse(PERSON).digest
    assert digest == parse(json.dumps(PERSON)).digest
    assert digest != parse(PERSON, instructions="Be brief.").digest
    assert digest != parse(PERSON | {"properties": dict(reversed(PERSON["properties"].items()))}).digest


def test_examples_must_fit_the_schema():
    parse(PERSON, examples=[{"text": "Ann", "output": {"name": "Ann"}}])
    with pytest.raises(SchemaError, match=r"example 1 does not fit the schema at \$\.name"):
        parse(PERSON, examples=[{"text": "Ann", "output": {"name": 5}}])
    with pytest.raises(SchemaError, match="example 1 must be"):
        parse(PERSON, examples=[{"output": {}}])


def test_a_schema_may_carry_its_instructions_and_examples():
    own = [{"text": "Ann", "output": {"name": "Ann"}}]
    schema = parse(PERSON | {"x-instructions": "No pets.", "x-examples": own})
    assert (schema.instructions, schema.examples) == ("No pets.", tuple(own))
    assert parse(PERSON | {"x-instructions": "No pets."}, instructions="Other.").instructions == "Other."
