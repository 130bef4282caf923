"""Registering schemas and reading: versions, search, read-only SQL, costs, and errors in words."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, text

from db.models import Span
from pipeline.client import Client, NotFound, QueryError, Unavailable
from pipeline.load import Rejected
from pipeline.records import SearchFilters
from pipeline.settings import NotConfigured, Settings
from tests.fake_engine import serve
from tests.integration.test_search import add_document

pytestmark = pytest.mark.services
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"zeta": {"type": "string"}, "alpha": {"type": "integer"}},
    "required": ["zeta"],
}


@pytest.fixture
def client(database_url: str, tmp_path: Path) -> Iterator[Client]:
    settings = Settings(home=tmp_path, database_url=database_url, broker_url="redis://127.0.0.1:1/0", embedder="fake")
    with Client(settings) as client:
        yield client


def run(client: Client, query: str, **options: Any) -> tuple[list[str], list[Any]]:
    with client.sql(query, **options) as result:
        return list(result.columns), [tuple(row) for row in result.rows]


# ---- schemas -----------------------------------------------------------------------------------------------------


def test_the_same_schema_is_one_version_and_a_changed_one_the_next(client: Client) -> None:
    first = client.add_schema("firm", SCHEMA)
    assert (first.version, first.view) == (1, "entities.firm")
    assert client.add_schema("firm", SCHEMA) == first
    changed = client.add_schema("firm", SCHEMA, "Name the firm.")
    assert changed.version == 2
    assert client.get_schema("firm") == changed
    assert client.get_schema("firm", 1) == first
    assert client.list_schemas() == [changed]
    with pytest.raises(NotFound, match="there are firm"):
        client.get_schema("frim")
    with pytest.raises(NotFound, match="version 9"):
        client.get_schema("firm", 9)


def test_fields_keep_their_order(client: Client) -> None:
    info = client.add_schema("firm", SCHEMA)
    assert list(info.json_schema["properties"]) == ["zeta", "alpha"]
    assert [column["name"] for column in info.columns] == ["zeta", "alpha"]
    assert run(client, "SELECT * FROM entities.firm")[0][:2] == ["zeta", "alpha"]


def test_a_bad_schema_leaves_nothing(client: Client) -> None:
    for bad in ({"type": "nonsense"}, "not json"):
        with pytest.raises(ValueError):
            client.add_schema("firm", bad)  # type: ignore[arg-type]
    assert client.list_schemas() == []


def test_a_dropped_schema_is_out_of_use_and_can_come_back(client: Client) -> None:
    client.add_schema("firm", SCHEMA)
    client.drop_schema("firm")
    assert client.list_schemas() == []
    with pytest.raises(NotFound, match="there is none yet"):
        client.drop_schema("firm")
    with pytest.raises(QueryError, match="does not exist"):
        run(client, "SELECT * FROM entities.firm")
    assert client.add_schema("firm", SCHEMA).version == 2
    assert run(client, "SELECT * FROM firm")[1] == []


# ---- SQL ---------------------------------------------------------------------------------------------------------


def test_sql_reads_views_as_the_reader(client: Client) -> None:
    client.add_schema("firm", SCHEMA)
    assert run(client, "SELECT count(*) AS n FROM firm;") == (["n"], [(0,)])
    assert run(client, "-- note\n (SELECT '%s :x 100%' AS v) ") == (["v"], [("%s :x 100%",)])
    assert run(client, "WITH x AS (VALUES (1), (2)) SELECT * FROM x") == (["column1"], [(1,), (2,)])
    assert run(client, "SHOW transaction_read_only") == (["transaction_read_only"], [("on",)])
    assert "Result" in run(client, "EXPLAIN SELECT 1")[1][0][0]
    assert run(client, "SELECT 1 AS a, 2 AS a WHERE false") == (["a", "a"], [])


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("SELECT * FROM quarry.blob", "permission denied"),
        ("DELETE FROM entities.firm", "only statements that read"),
        ("WITH x AS (DELETE FROM entities.firm RETURNING 1) SELECT * FROM x", "must not contain data-modifying"),
        ("SELECT 1; DROP SCHEMA quarry CASCADE", "multiple commands"),
        ("SELECT 1; RESET ROLE; SELECT * FROM quarry.blob", "multiple commands"),
        ("DO $$ BEGIN RESET ROLE; END $$", "only statements that read"),
        ("SHOW role; RESET ROLE", "multiple commands"),
        ("/* x */ COMMIT", "only statements that read"),
        ("SELECT set_config('transaction_read_only', 'off', true)", "read-write mode"),
        ("SELECT lo_create(0)", "read-only|permission denied"),
        ("SELECT pg_read_file('/etc/hostname')", "permission denied"),
        ("SELECT nope", r"column \"nope\" does not exist \(at character 8\)"),
        ("EXPLAIN SELECT nope", r"\(at character 16\)"),
        ("SELECT 1/0", "division by zero"),
        ("", "only statements that read"),
        ("SELECT '\x00'", "NUL"),
        ("SELECT pg_sleep(30)", "longer than 0.2 s"),
    ],
)
def test_sql_that_is_refused_says_why(client: Client, query: str, words: str) -> None:
    client.add_schema("firm", SCHEMA)
    with pytest.raises(QueryError, match=words):
        run(client, query, timeout_seconds=0.2)
    assert len(client.list_schemas()) == 1


def test_a_large_result_streams(client: Client) -> None:
    with client.sql("SELECT generate_series(1, 1000000000000) AS n") as result:
        assert [next(result.rows)[0] for _ in range(3)] == [1, 2, 3]


# ---- search ------------------------------------------------------------------------------------------------------


def test_search_names_the_document_and_the_place(client: Client) -> None:
    from tests.fake_engine import vector

    pieces = ["The harbour lies in the north.", "A mill stands in the south."]
    with client._engine.begin() as database:
        add_document(database, "file:a", pieces, [vector(piece) for piece in pieces], model="fake")
        add_document(database, "file:b", ["A mill burned down."], [vector("A mill burned down.")], "de", model="fake")
    with serve() as engine:
        client.settings = client.settings.model_copy(update={"engine_url": engine.url})
        hits = client.search("mill in the south", 2)
        (german,) = client.search("mill", filters=SearchFilters(language="de"))
        (prefix,) = client.search("mill", 1, SearchFilters(source_prefix="file:a"))
        assert client.search("mill", filters=SearchFilters(job_id=1)) == []
    assert [(hit.source_uri, hit.text) for hit in hits] == [("file:a", pieces[1]), ("file:b", "A mill burned down.")]
    assert (hits[0].start, hits[0].end, hits[0].dense_rank, hits[0].text_rank) == (31, 58, 1, 1)
    assert german.source_uri == "file:b"
    assert prefix.source_uri == "file:a"


# ---- costs -------------------------------------------------------------------------------------------------------


def test_costs_count_nothing_twice(client: Client) -> None:
    """A root of ten seconds, of which six are its child's and one its grandchild's."""
    trace = uuid.uuid4().hex

    def span(name: str, first: int, last: int, parent: str | None, **values: Any) -> dict[str, Any]:
        at = "2024-01-01T00:00:{:02}Z"
        base = {"id": name, "trace_id": trace, "parent_id": parent, "name": name, "document_id": 1, "job_id": 7}
        base |= {"input_tokens": 0, "output_tokens": 0, "cost_usd": 0, "model": None}
        return base | {"started_at": at.format(first), "ended_at": at.format(last)} | values

    with client._engine.begin() as database:
        for row in (
            span("item", 0, 10, None),
            span("extract", 2, 8, "item", cost_usd=0.25),
            span("generation", 3, 4, "extract", model="m", input_tokens=100, output_tokens=7, cost_usd=0.75),
        ):
            database.execute(insert(Span), row)
    steps = {row.group: row for row in client.costs("step")}
    assert {name: row.seconds for name, row in steps.items()} == {"item": 4.0, "extract": 5.0, "generation": 1.0}
    assert [row.group for row in client.costs("step")] == ["generation", "extract", "item"]
    assert steps["generation"].share == 0.75
    (model,) = client.costs("model")
    assert (model.group, model.input_tokens, model.output_tokens, model.cost_usd) == ("m", 100, 7, 0.75)
    assert client.costs("step", job_id=8) == []


def test_progress_counts_the_values_left_out_of_what_was_written(client: Client) -> None:
    client.add_schema("firm", SCHEMA)
    job_id = client.submit([Rejected("file:x", "empty", "it has no bytes")], "firm").job_id
    at = "2024-01-01T00:00:00Z"
    row = {"trace_id": "t", "job_id": job_id, "started_at": at, "ended_at": at, "cost_usd": 0}
    row |= {"input_tokens": 0, "output_tokens": 0}
    with client._engine.begin() as database:
        for number, (name, attributes) in enumerate(
            [("write", {"left_out": 2}), ("write", {"left_out": 3}), ("ground", {"left_out": 3}), ("write", {})]
        ):
            database.execute(insert(Span), row | {"id": str(number), "name": name, "attributes": attributes})
    assert client.progress(job_id).left_out == 5
    with pytest.raises(ValueError, match="step, job, schema, model"):
        client.costs("weekday")  # type: ignore[arg-type]


# ---- words -------------------------------------------------------------------------------------------------------


def test_a_database_that_is_down_is_named_without_its_password(tmp_path: Path) -> None:
    url = "postgresql://user:secret@127.0.0.1:1/db"
    with Client(Settings(home=tmp_path, database_url=url)) as client, pytest.raises(Unavailable) as caught:
        client.jobs()
    assert "127.0.0.1:1/db" in str(caught.value)
    assert "quarry up" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_database_without_tables_says_so(postgres: str, tmp_path: Path) -> None:
    with Client(Settings(home=tmp_path, database_url=postgres)) as client, pytest.raises(Unavailable, match="migrates"):
        client.jobs()


def test_without_an_address_nothing_is_tried(tmp_path: Path) -> None:
    with Client(Settings(home=tmp_path)) as client, pytest.raises(NotConfigured, match="quarry up"):
        client.jobs()


def test_a_job_of_rejected_sources_alone_is_over_at_once(client: Client) -> None:
    client.add_schema("firm", SCHEMA)
    result = client.submit([Rejected("x", "missing", "there is no such file")], "firm")
    assert client.job(result.job_id).state == "done"
    assert [progress.ended for progress in client.watch(result.job_id)] == [True]
    with pytest.raises(NotFound, match="no job 99"):
        client.progress(99)
    with pytest.raises(ValueError, match="0 \\(first\\) to 9"):
        client.submit([], "firm", priority=10)


def test_a_schema_in_use_is_not_dropped(client: Client) -> None:
    client.add_schema("firm", SCHEMA)
    with client._engine.begin() as database:
        database.execute(
            text("INSERT INTO quarry.job (name, schema_id, settings, settings_digest) SELECT 'j', 1, '{}', ''")
        )
    with pytest.raises(ValueError, match="running jobs"):
        client.drop_schema("firm")
