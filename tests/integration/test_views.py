"""Typed views: types, values that do not fit, hostile names, versions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Connection, text

from db.session import driver, make_engine
from db.views import SQL_TYPES, ViewColumn, ViewError, create_view, drop_view, view_name

pytestmark = pytest.mark.services


@pytest.fixture
def connection(module_database_url: str) -> Iterator[Connection]:
    engine = make_engine(module_database_url)
    with engine.connect() as connection:
        yield connection
        connection.rollback()
    engine.dispose()


def add_rows(connection: Connection, schema: str, rows: list[dict[str, Any]], version: int = 1) -> None:
    """A document with one entity per row, as extraction leaves them."""
    connection.execute(text("INSERT INTO quarry.blob VALUES (sha256('x'), 'x', 1) ON CONFLICT DO NOTHING"))
    values = {"schema": schema, "version": version, "rows": json.dumps(rows)}
    connection.execute(
        text("""
        WITH s AS (INSERT INTO quarry.extraction_schema (name, version, json_schema, examples, digest, columns)
                   VALUES (:schema, :version, '{}', '[]', '', '[]') RETURNING id),
        d AS (INSERT INTO quarry.document (source_uri, blob_sha256, media_type)
              VALUES ('file:' || :version, sha256('x'), 'text/plain') RETURNING id),
        j AS (INSERT INTO quarry.job (name, schema_id, settings, settings_digest)
              SELECT 'j', id, '{}', '' FROM s RETURNING id),
        i AS (INSERT INTO quarry.job_item (job_id, document_id, state) SELECT j.id, d.id, 'done' FROM j, d RETURNING id)
        INSERT INTO quarry.entity (schema_id, document_id, item_id, job_id, ordinal, key, data, grounded)
        SELECT s.id, d.id, i.id, j.id, r.n, '', r.v, 1
        FROM s, d, j, i, jsonb_array_elements(CAST(:rows AS jsonb)) WITH ORDINALITY r(v, n)
        """),
        values,
    )


def column_values(connection: Connection, sql_type: str, values: list[Any]) -> list[Any]:
    create_view(connection, "thing", [ViewColumn("v", ("v",), sql_type)])
    add_rows(connection, "thing", [{"v": value} for value in values] + [{}])
    found = connection.execute(text("SELECT v FROM entities.thing ORDER BY _entity_id")).scalars().all()
    assert found[-1] is None, "a missing value is NULL"
    return list(found[:-1])


@pytest.mark.parametrize(
    ("sql_type", "given", "expected"),
    [
        ("text", ["a", 1, None, ["x"]], ["a", "1", None, '["x"]']),
        (
            "bigint",
            [7, "8", 9.0, 1.5, 2**63 - 1, 2**63, "many", None, True, [1], 1e300],
            [7, 8, 9, None, 2**63 - 1, None, None, None, None, None, None],
        ),
        (
            "numeric",
            [1.25, "-2.5e3", "1e999999999", "NaN", "Infinity", "", None],
            [Decimal("1.25"), Decimal(-2500), None, None, None, None, None],
        ),
        ("boolean", [True, False, "true", "yes", 1, None], [True, False, True, None, None, None]),
        (
            "date",
            ["2024-02-29", "2023-02-29", "1998", "yesterday", "infinity", "2024-05-01T10:00:00Z", 5, None],
            [date(2024, 2, 29), None, None, None, None, date(2024, 5, 1), None, None],
        ),
        (
            "timestamptz",
            ["2024-05-01T10:00:00+02:00", "2024-05-01 10:00", "2024-05-01", "2024-13-01T00:00:00Z", "now", None],
            [
                datetime(2024, 5, 1, 8, tzinfo=UTC),
                datetime(2024, 5, 1, 10, tzinfo=UTC),
                datetime(2024, 5, 1, tzinfo=UTC),
            ]
            + [None] * 3,
        ),
        ("text[]", [["a", 1, None], [], "lone", None], [["a", "1", None], [], ["lone"], None]),
        ("jsonb", [{"a": [1]}, None, 3], [{"a": [1]}, None, 3]),
    ],
)
def test_values_are_cast_and_what_does_not_fit_is_null(
    connection: Connection, sql_type: str, given: list[Any], expected: list[Any]
) -> None:
    assert column_values(connection, sql_type, given) == expected


HOSTILE = [
    'x"; DROP TABLE quarry.blob; --',
    "x'); DROP TABLE quarry.blob; --",
    "a\\'b",
    "percent %s %(x)s %",
    "$$ :name ::int {brace}",
    "select",
    "Größe in m²",
    "new\nline",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_names(connection: Connection, name: str) -> None:
    """In the schema's name, a column's name and a path."""
    create_view(connection, name, [ViewColumn(name, (name, name), "text")])
    add_rows(connection, name, [{name: {name: "value"}}])
    columns = connection.execute(
        text("SELECT column_name FROM information_schema.columns WHERE table_schema = 'entities' AND table_name = :n"),
        {"n": name},
    )
    assert name in columns.scalars().all()
    cursor = driver(connection).execute(f"SELECT * FROM {view_name(name)}")
    assert cursor.fetchone()[0] == "value"
    assert connection.execute(text("SELECT count(*) FROM quarry.blob")).scalar_one() == 1


@pytest.mark.parametrize(
    ("schema", "columns", "words"),
    [
        ("", [], "non-empty"),
        ("x" * 64, [], "64 bytes"),
        ("ok", [("é" * 32, "text")], "64 bytes"),
        ("ok", [("nul\x00", "text")], "NUL"),
        ("ok", [("lone\ud800", "text")], "surrogates"),
        ("ok", [("a", "text"), ("a", "text")], "there twice"),
        ("ok", [("_entity_id", "text")], "taken by the view"),
        ("ok", [("a", "text; DROP TABLE x")], "known are"),
        ("ok", [(f"c{n}", "text") for n in range(1001)], "1000"),
    ],
)
def test_what_can_not_be_a_view_is_refused_in_words(
    connection: Connection, schema: str, columns: list[tuple[str, str]], words: str
) -> None:
    with pytest.raises(ViewError, match=words):
        create_view(connection, schema, [ViewColumn(name, ("p",), type_) for name, type_ in columns])


def test_a_new_version_replaces_the_columns_and_old_rows_stay_readable(connection: Connection) -> None:
    create_view(connection, "firm", [ViewColumn("year", ("year",), "text"), ViewColumn("old", ("old",), "text")])
    add_rows(connection, "firm", [{"year": "1998", "old": "x"}])
    create_view(connection, "firm", [ViewColumn("year", ("year",), "bigint"), ViewColumn("city", ("city",), "text")])
    add_rows(connection, "firm", [{"year": 2001, "city": "Ulm"}], version=2)
    rows = connection.execute(text("SELECT year, city, _source_uri FROM entities.firm ORDER BY year")).all()
    assert [tuple(row) for row in rows] == [(1998, None, "file:1"), (2001, "Ulm", "file:2")]


def test_only_current_unmerged_rows_are_shown(connection: Connection) -> None:
    create_view(connection, "firm", [ViewColumn("n", ("n",), "bigint")])
    add_rows(connection, "firm", [{"n": 1}, {"n": 2}, {"n": 3}])
    connection.execute(text("UPDATE quarry.entity SET current = false WHERE ordinal = 1"))
    connection.execute(
        text(
            "UPDATE quarry.entity SET merged_into = (SELECT id FROM quarry.entity WHERE ordinal = 3) WHERE ordinal = 2"
        )
    )
    assert connection.execute(text("SELECT n FROM entities.firm")).scalars().all() == [3]


def test_the_reader_reads_every_type(connection: Connection) -> None:
    create_view(connection, "all_types", [ViewColumn(f"c{n}", ("v",), name) for n, name in enumerate(SQL_TYPES)])
    add_rows(connection, "all_types", [{"v": "2024-01-01"}])
    connection.execute(text("SET ROLE quarry_reader"))
    assert len(connection.execute(text("SELECT * FROM entities.all_types")).all()) == 1


def test_a_view_that_others_use_is_not_dropped(connection: Connection) -> None:
    create_view(connection, "firm", [])
    connection.execute(text("CREATE VIEW public.mine AS SELECT * FROM entities.firm"))
    with pytest.raises(ViewError, match="mine"):
        drop_view(connection, "firm")
