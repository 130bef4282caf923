"""What a schema becomes before it is enforced: bounds, patterns and formats, the report, limits and refusals."""

from __future__ import annotations

import json
import re
import threading
from functools import cache
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from inference.grammar import GrammarCompiler, compiler, schema
from inference.grammar.deadline import Busy, TooSlow, Workshop
from inference.grammar.numbers import INTEGER_BOUND, WIDEST, bounded
from inference.grammar.patterns import for_grammar
from inference.grammar.schema import Prepared, SchemaRefused, unenforced
from inference.request import GrammarKind, GrammarSpec, RequestRejected
from tests.tiny_models import HEAD_SIZE, byte_tokenizer

TOKENIZER = byte_tokenizer()


@cache
def grammars() -> GrammarCompiler:
    return GrammarCompiler(TOKENIZER, HEAD_SIZE)


def spec_of(schema: Any, strict: bool = False) -> GrammarSpec:
    return GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(schema), strict)


def allows(schema: Any, text: str) -> bool:
    """Whether `text` is a whole answer under the schema."""
    tokens = [*TOKENIZER.encode(text), *TOKENIZER.eos_token_ids]
    return grammars().matcher(spec_of(schema)).validate(tokens) == len(tokens)


# Nothing runs away


@pytest.mark.parametrize("schema", [{}, {"type": "object"}, {"properties": {"a": {}}}, {"type": "array"}])
def test_values_without_a_schema_have_bounded_numbers(schema: dict[str, Any]) -> None:
    wrap = '[{"b": %s}]' if schema.get("type") == "array" else '{"a": {"b": [%s]}}'
    for number in ("0", "-12.5", "123456789012345678", "0.12345678"):
        assert allows(schema, wrap % number)
    for number in ("1" * 20, "0.123456789", "1e5", "1E-3", "1.0e400"):
        assert not allows(schema, wrap % number)


@pytest.mark.parametrize(
    "schema", [{"type": "number"}, {"type": "number", "minimum": 0.5}, {"type": ["number", "null"]}]
)
def test_numbers_end(schema: dict[str, Any]) -> None:
    assert allows(schema, "999999999999999.12345678")
    assert not allows(schema, "9" * 16)
    assert not allows(schema, "1.123456789")
    assert not allows(schema, "1e1")


def test_integers_end() -> None:
    assert allows({"type": "integer"}, "-123456789012345678")
    assert not allows({"type": "integer"}, "1" * 19)
    assert allows({"type": "integer", "minimum": 10**18}, "1" + "0" * 18)
    assert not allows({"type": "integer", "minimum": 10**18}, "1" + "0" * 19)


def test_no_whitespace_beside_the_separators() -> None:
    schema = {"type": "object", "x-guidance": {"whitespace_pattern": "[ \\n]+", "item_separator": "\\s*,"}}
    assert allows(schema, '{"a": [1, 2], "b": {}}')
    for text in ('{"a":1}', '{ "a": 1}', '{"a": 1 }', '{"a": [1,2]}', '{"a": [1, 2\n]}', '{"a":  1}', ' {"a": 1}'):
        assert not allows(schema, text)


@given(
    low=st.none() | st.integers(-(10**19), 10**19) | st.floats(-1e9, 1e9),
    width=st.none() | st.integers(0, 10**6) | st.floats(0, 1e3),
    excluded=st.tuples(st.booleans(), st.booleans()),
    integer=st.booleans(),
    value=st.integers(-(10**19), 10**19) | st.decimals(-(10**9), 10**9, places=6).map(float),
)
@example(low=2**53 + 1, width=0, excluded=(False, False), integer=True, value=2**53 + 1)
@settings(max_examples=300, deadline=None)
def test_bounded_schemas_only_allow_less(low: Any, width: Any, excluded: Any, integer: bool, value: Any) -> None:
    given_bounds: dict[str, Any] = {}
    if low is not None:
        given_bounds["exclusiveMinimum" if excluded[0] else "minimum"] = low
    if width is not None:
        given_bounds["exclusiveMaximum" if excluded[1] else "maximum"] = (low or 0) + width
    assume(all(abs(bound) < WIDEST // 10 for bound in given_bounds.values()))
    assume(not integer or isinstance(value, int))
    made = bounded({"type": "integer" if integer else "number", **given_bounds}, integer=integer, decimals=8)
    now = {key: bound for key, bound in made.items() if key in ("minimum", "maximum") or key.startswith("exclusive")}
    assert len(now) == 2
    assert all(float(bound) == bound for bound in now.values()), "a float cannot hold the bound"
    ours, theirs = Draft202012Validator(now), Draft202012Validator(given_bounds)
    assert theirs.is_valid(value) or not ours.is_valid(value)
    if integer and theirs.is_valid(value) and abs(value) < 2**53:
        assert ours.is_valid(value), "less than it could be"


def test_an_excluded_bound_is_not_reached_by_rounding() -> None:
    schema = {"type": "number", "minimum": 0, "exclusiveMaximum": 1e8}
    assert allows(schema, "99999999.9999")
    assert float("99999999.999999999") == 1e8
    assert not allows(schema, "99999999.999999999")
    assert int(float(INTEGER_BOUND)) == INTEGER_BOUND


# Patterns, formats, keys


PATTERNS = [
    r'^[^"]{1,5}$', r"^[^\\]{1,3}$", r'[^"]{2}', r'^[^"\\a]+$', r'^([^"]|[^"][^"])$', r"^\D{1,3}$", r"^\W{1,2}$",
    r"^[^\d]$", r"^[^\w]$", r"^[\D]$", r"^[[a]$", r"^[]a]$", r"^[^]a]$", r"^[^-a]$", r"^[a&&b]$", r"^[~~a]$", r"\[x\]",
    r"^\S+$", r"^.{1,3}$", r"^[^\s\"]{1,5}$", r"^[\W\d]$", r"^a|b$", r"^[^\n]*$",
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Possible:FutureWarning")
@given(pattern=st.sampled_from(PATTERNS), text=st.text('a"\\xé٣²日1 \n\t[]&~^-_!', max_size=4))
@settings(max_examples=400, deadline=None)
def test_a_pattern_allows_what_the_checker_finds(pattern: str, text: str) -> None:
    allowed = allows({"type": "string", "pattern": pattern}, json.dumps(text, ensure_ascii=False))
    found = re.search(pattern, text) is not None
    assert found or not allowed
    if text.isascii() and re.search(pattern.replace("$", r"\Z"), text):  # Python's $ also stands before a last newline
        assert allowed


def test_patterns_are_kept_where_nothing_is_to_be_done() -> None:
    assert for_grammar(r"^(a|b)[c-e]\d+\.\[$") == r"^(a|b)[c-e]\d+\.\[$"
    assert for_grammar("[^]") == r"[^\x00\]"
    assert for_grammar("\\") == "\\"


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("date", ["2024-02-29", "2000-02-29", "0001-01-01"], ["2023-02-29", "1900-02-29", "0000-01-01", "2024-13-01"]),
        ("time", ["23:59:59Z", "00:00:00.5+02:00"], ["23:59:60Z", "24:00:00Z", "12:00:00", "12:00:00.1234567890Z"]),
        ("date-time", ["2024-02-29T00:00:00Z"], ["2023-02-29T00:00:00Z", "2024-02-29 00:00:00Z"]),
        ("duration", ["P1Y2M", "PT1H", "P3W", "P1DT5M"], ["P", "PT", "P1H", "P1234567D"]),
        ("email", ["a.b@c.de"], ["@c", "a@", "a b@c"]),
        ("hostname", ["a-b.example"], ["-a", "a-", "a..b"]),
        ("ipv4", ["255.0.0.1"], ["256.0.0.1", "01.0.0.1"]),
        ("ipv6", ["::", "1::2", "1:2:3:4:5:6:7:8", "2001:db8::ff"], [":::", "1:2", "1::2::3", "1:2:3:4:5:6:7:8:9"]),
        ("uuid", ["12345678-1234-1234-1234-123456789abc"], ["12345678123412341234123456789abc"]),
        ("uri", ["https://a.b/c?d=e#f", "mailto:a@b", "urn:x:y"], ["a", "//a", "http://a b", "http://é"]),
    ],
)
def test_formats(name: str, right: list[str], wrong: list[str]) -> None:
    schema = {"type": "string", "format": name}
    check = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    for text in right:
        assert allows(schema, json.dumps(text)), text
        assert check.is_valid(text), text
    for text in wrong:
        assert not allows(schema, json.dumps(text, ensure_ascii=False)), text
    narrowed = {"type": "string", "format": name, "pattern": f"^{re.escape(right[0][:1])}"}
    assert allows(narrowed, json.dumps(right[0]))


def test_a_key_cannot_pass_for_another_by_an_escape() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}}
    assert allows(schema, '{"a": 1, "b": "x"}')
    assert not allows(schema, '{"a": 1, "a": "x"}')
    assert not allows(schema, '{"a": 1, "\\u0061": "x"}')


# References and combinations


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": {"type": "integer"}}}, "1", '"x"'),
        ({"$ref": "#here", "$defs": {"x": {"$anchor": "here", "type": "null"}}}, "null", "1"),
        ({"$id": "urn:s", "$ref": "urn:s#/$defs/x", "$defs": {"x": {"type": "null"}}}, "null", "1"),
        (
            {"properties": {"v": {"type": "integer"}, "c": {"$ref": "#"}}},
            '{"v": 1, "c": {"c": {"v": 2}}}',
            '{"c": {"v": "x"}}',
        ),
        (
            {
                "allOf": [
                    {"properties": {"a": {"type": "integer"}}},
                    {"properties": {"b": {"const": 2}}, "required": ["b"]},
                ]
            },
            '{"a": 1, "b": 2, "c": [3]}',
            '{"a": 1}',
        ),
        ({"type": "number", "anyOf": [{"const": 258.9}, {"minimum": 1e6}]}, "258.9", "258.8"),
        (
            {"type": "string", "anyOf": [{"minLength": 9}], "oneOf": [{"maxLength": 9}, False]},
            '"abcdefghi"',
            '"abcdefghij"',
        ),
        ({"items": [{"type": "integer"}], "additionalItems": {"type": "null"}, "type": "array"}, "[1, null]", "[1, 2]"),
        ({"type": "integer", "minimum": 3, "exclusiveMinimum": True}, "4", "3"),
    ],
)
def test_references_and_combinations(schema: Any, right: str, wrong: str) -> None:
    assert unenforced(schema) == []
    assert allows(schema, right)
    assert not allows(schema, wrong)


def test_branches_that_exclude_each_other_are_told_from_those_that_do_not() -> None:
    def branch(kind: str) -> dict[str, Any]:
        return {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]}

    tagged = {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {"a": branch("a"), "b": branch("b")}}
    assert unenforced(tagged) == []
    overlapping = {"properties": {"x": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}}
    assert unenforced(overlapping) == [
        "#/properties/x/oneOf: the answer may match more than one branch until it is checked"
    ]


# The report


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"type": "array", "uniqueItems": True}, "#/uniqueItems"),
        ({"properties": {"a/b": {"not": {"type": "null"}}}}, "#/properties/a~1b/not"),
        ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, "#/if"),
        ({"type": "array", "contains": {"const": 1}}, "#/contains"),
        ({"propertyNames": {"maxLength": 3}}, "#/propertyNames"),
        ({"dependentRequired": {"a": ["b"]}}, "#/dependentRequired"),
        ({"type": "object", "unevaluatedProperties": False}, "#/unevaluatedProperties"),
        ({"items": {"type": "string", "format": "postcode"}}, "#/items/format"),
        ({"type": "string", "pattern": "^(?=a)[ab]+$"}, "#/pattern"),
        ({"type": "integer", "multipleOf": 1_999_993}, "#/multipleOf"),
        ({"type": "number", "multipleOf": 0.01}, "#/multipleOf"),
        ({"minProperties": 2, "type": "object"}, "#/minProperties"),
        ({"type": "object", "properties": {"a": {}, "b": {}}, "maxProperties": 1}, "#/maxProperties"),
        ({"patternProperties": {"^a": {"type": "null"}, "b$": {"type": "string"}}}, "#/patternProperties"),
        ({"enum": [2**53 + 1]}, "#/enum"),
        ({"properties": {"n": {"$ref": "#", "minProperties": 1}}}, "#/properties/n"),
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_is_left_out_and_reported(schema: dict[str, Any], pointer: str) -> None:
    report = unenforced(schema)
    assert any(line.startswith(pointer) for line in report), report
    assert all(re.fullmatch(r"#[^:]*: \S.*", line) for line in report)
    assert grammars().unenforced(spec_of(schema)) == tuple(report)
    grammars().matcher(spec_of(schema))
    with pytest.raises(RequestRejected, match=f"strict is asked for.*{re.escape(pointer)}"):
        grammars().matcher(spec_of(schema, strict=True))


@pytest.mark.parametrize(
    "schema",
    [
        {
            "uniqueItems": False,
            "title": "t",
            "x-key": ["a"],
            "default": 3,
            "unknown": {"not": 1},
            "unevaluatedItems": True,
        },
        {"properties": {"not": {"type": "null"}, "if": {"const": 1}}, "if": {"const": 1}},
        {"type": "integer", "multipleOf": 5},
    ],
)
def test_nothing_is_reported_without_need(schema: dict[str, Any]) -> None:
    assert unenforced(schema) == []
    grammars().matcher(spec_of(schema, strict=True))


# Limits


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (False, "nothing fits"),
        ({"properties": {f"p{i}": {} for i in range(1001)}}, "1001 entries; the limit is 1000"),
        ({"properties": {f"p{i}": {} for i in range(451)}}, "451 optional properties; the limit is 450"),
        ({"type": "string", "pattern": "a" * 20_001}, "20001 characters; the limit is 20000"),
        ({"type": "array", "minItems": 10**9}, "minItems is 1000000000; the limit is 1000000"),
        ({"type": "integer", "minimum": 1e30}, "beyond"),
        ({"type": "integer", "multipleOf": 0}, "above 0"),
        ({"type": "string", "pattern": "("}, "no regular expression"),
        ({"$ref": "https://example.com/schema"}, "leads out"),
        ({"$ref": "#/$defs/none"}, "leads nowhere"),
        ({"properties": {"a": 3}}, "#/properties/a is 3; a schema is"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "Unsatisfiable"),
    ],
)
def test_a_schema_that_cannot_be_is_refused_in_words(schema: Any, words: str) -> None:
    with pytest.raises(SchemaRefused, match=re.escape(words)):
        unenforced(schema)
    with pytest.raises(RequestRejected, match=f"cannot be enforced: .*{re.escape(words)}"):
        grammars().matcher(spec_of(schema))


JUNK = st.sampled_from(
    [None, True, False, 0, -1, 2.5, 1e400, "", "x", "#", [], [1], ["a"], {}, {"a": 1}, {"": []}, [{}]]
)
KEYWORDS = sorted(
    {*schema._ASSERTIONS, *schema._APPLICATORS, *schema._UNENFORCED, "$defs", "then", "$id", "$anchor", "x-guidance"}
)


@given(schema_=st.recursive(JUNK, lambda inner: st.dictionaries(st.sampled_from(KEYWORDS), inner | JUNK, max_size=4)))
@settings(max_examples=400, deadline=None)
def test_whatever_comes_is_compiled_or_refused_in_words(schema_: Any) -> None:
    try:
        made = grammars().matcher(spec_of(schema_))
    except RequestRejected:
        return
    assert not made.error


def test_depth_and_number_of_subschemas_are_limited() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(65):
        deep = {"type": "array", "items": deep}
    with pytest.raises(SchemaRefused, match="more than 64 levels"):
        unenforced(deep)
    wide = {"anyOf": [{"anyOf": [{"const": i} for i in range(101)]} for _ in range(100)]}
    with pytest.raises(SchemaRefused, match="more than 10000 sub-schemas"):
        unenforced(wide)


def test_a_grammar_whose_first_mask_is_too_much_is_refused_before_it_reaches_the_loop() -> None:
    choices = [{"properties": {f"p{i}-{j}": {"type": "null"} for i in range(400)}} for j in range(9)]
    with pytest.raises(RequestRejected, match="items; max is"):
        grammars().matcher(spec_of({"type": "object", "anyOf": choices}))


def test_a_bad_schema_does_not_stall_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one compiles for ever, others go on; it is refused by its deadline, and at once when it comes again."""
    release, calls = threading.Event(), []
    prepare = compiler.prepare

    def slow(schema: Any) -> Prepared:
        calls.append(schema)
        if schema == {"title": "slow"}:
            release.wait()
        return prepare(schema)

    monkeypatch.setattr(compiler, "prepare", slow)
    made, bad = GrammarCompiler(TOKENIZER, HEAD_SIZE, seconds=0.3), spec_of({"title": "slow"})
    refusals: list[str] = []

    def ask() -> None:
        try:
            made.matcher(bad)
        except RequestRejected as error:
            refusals.append(str(error))

    askers = [threading.Thread(target=ask) for _ in range(3)]
    try:
        for asker in askers:
            asker.start()
        for number in range(5):
            made.matcher(spec_of({"const": number}))
        for asker in askers:
            asker.join()
        with pytest.raises(RequestRejected, match=r"limit is 0\.3 s"):
            made.matcher(bad)
        assert calls.count({"title": "slow"}) == 1, "asked again, it was compiled again"
        assert len(refusals) == 3
        assert all("more than 0.3 s to compile" in words for words in refusals)
    finally:
        release.set()


def test_work_past_its_time_gives_up_its_slot_and_is_limited_in_number() -> None:
    release = threading.Event()
    workshop = Workshop(slots=1, seconds=0.05, overdue=2)
    try:
        with pytest.raises(TooSlow):
            workshop.run(release.wait)
        assert workshop.run(lambda: 7) == 7
        with pytest.raises(TooSlow):
            workshop.run(release.wait)
        with pytest.raises(Busy):
            workshop.run(lambda: 7)
    finally:
        release.set()
    with pytest.raises(ZeroDivisionError):
        Workshop(slots=1, seconds=1).run(lambda: 1 // 0)
