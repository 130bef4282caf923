"""The command line at its boundary: what goes to standard output, what to standard error, and the exit status."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from cli.main import app
from db.readonly import QueryError
from pipeline.client import NotFound, Unavailable
from pipeline.records import (
    CostRow,
    EntityRow,
    Failure,
    JobInfo,
    Progress,
    RejectedSource,
    SchemaInfo,
    SpanRef,
    SqlResult,
    SubmitResult,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
INFO = SchemaInfo(
    id=1,
    name="dish",
    version=2,
    json_schema={"type": "object", "properties": {"name": {"type": "string"}}},
    instructions="",
    examples=(),
    digest="d",
    columns=(
        {"name": "name", "path": ["name"], "type": "text"},
        {"name": "parts", "path": ["parts"], "type": "text[]"},
    ),
    view="entities.dish",
    created_at=NOW,
)
SPAN = SpanRef("/name", "Brød, dark", 4, 14, "exact", 0.9, "Brød, dark")
ENTITY = EntityRow(
    7, 3, "file:///pages/a.html", "A", {"name": "Brød, dark", "parts": ["flour", "salt"]}, (SPAN,), 1.0, 0.9, 5, NOW
)


class FakeClient:
    """Answers from fixed records; a test sets what `submit` and the like give."""

    rejected: tuple[RejectedSource, ...] = ()
    failed = 0
    error: Exception | None = None

    def __init__(self, *_: Any, **__: Any) -> None:
        if FakeClient.error is not None:
            raise FakeClient.error

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None: ...

    def get_schema(self, name: str, version: int | None = None) -> SchemaInfo:
        if name != "dish":
            raise NotFound(f"no schema {name!r}; there are dish")
        return INFO

    def list_schemas(self) -> list[SchemaInfo]:
        return [INFO]

    def submit(self, sources: Any, schema: str, **options: Any) -> SubmitResult:
        self.get_schema(schema)
        count = len(list(sources))
        return SubmitResult(12, count, 1, FakeClient.rejected)

    def job(self, job_id: int) -> JobInfo:
        return JobInfo(job_id, "nightly", "dish", 2, "done", NOW, NOW, 3, 3, 0, 0, 1)

    def jobs(self, limit: int = 50) -> list[JobInfo]:
        return [self.job(12)][:limit]

    def progress(self, job_id: int) -> Progress:
        counts = {"done": 3 - FakeClient.failed, "failed": FakeClient.failed}
        return Progress(job_id, "done", 3, counts, 1, 0, 100, 20, 30, 0.01, 95.0, 1.0, None)

    def failures(self, job_id: int | None = None, limit: int | None = None) -> list[Failure]:
        return [Failure(12, 4, "file:///b.html", "clean", "empty", "it has no bytes", 1, NOW)]

    def entities(self, schema: str, **_: Any) -> Iterator[EntityRow]:
        self.get_schema(schema)
        return iter([ENTITY])

    def costs(self, by: str = "step", **_: Any) -> list[CostRow]:
        return [CostRow("generation", 2, 1, 3.5, 100, 20, 30, 0.00123, 1.0)]

    def cancel(self, job_id: int) -> int:
        return 2

    def retry(self, job_id: int) -> int:
        return 1

    @contextmanager
    def sql(self, query: str, **_: Any) -> Iterator[SqlResult]:
        if "broken" in query:
            raise QueryError('relation "broken" does not exist')
        yield SqlResult(("n", "n"), iter([(1, 2)]))


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[FakeClient]:
    monkeypatch.setattr("pipeline.client.Client", FakeClient)
    monkeypatch.setenv("QUARRY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(FakeClient, "rejected", ())
    monkeypatch.setattr(FakeClient, "failed", 0)
    monkeypatch.setattr(FakeClient, "error", None)
    return FakeClient


def run(*words: str, **options: Any) -> Any:
    return CliRunner().invoke(app, list(words), **options)


def all_commands() -> Iterator[tuple[str, Any]]:
    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        if hasattr(command, "commands"):
            for name, below in command.commands.items():
                yield from walk(below, (*path, name))
        else:
            yield " ".join(path), command

    return walk(typer.main.get_command(app), ())


@pytest.mark.parametrize(("name", "command"), list(all_commands()))
def test_every_command_has_a_worked_example(name: str, command: Any) -> None:
    assert f"quarry {name}" in (command.help or "")
    assert "Example:" in (command.help or "")


def test_the_designed_commands_are_there() -> None:
    names = {name for name, _ in all_commands()}
    wanted = (
        "demo up down status doctor submit jobs watch cancel retry failures entities search sql dsn costs serve eval"
    )
    assert set(wanted.split()) <= names
    assert {"schema add", "schema list", "schema show", "schema drop"} <= names
    assert {"model list", "model pull", "model inspect", "bench engine", "bench pipeline"} <= names


def test_submit_prints_the_job_on_stdout_and_the_rest_on_stderr(tmp_path: Path, fake: type[FakeClient]) -> None:
    (tmp_path / "a.txt").write_text("some words about a dish")
    done = run("submit", str(tmp_path), "--schema", "dish")
    assert (done.stdout, done.exit_code) == ("12\n", 0)
    assert "1 processed before" in done.stderr
    fake.rejected = (RejectedSource("file:///x", "empty", "it has no bytes"),)
    refused = run("submit", str(tmp_path / "gone.html"), "--schema", "dish")
    assert refused.exit_code == 1
    assert "it has no bytes" in refused.stderr


def test_standard_input_and_field_names(fake: type[FakeClient]) -> None:
    line = json.dumps({"link": "http://x/1", "body": "text of it"}) + "\n"
    assert run("submit", "-", "--schema", "dish", "--field", "text=body", input=line).exit_code == 0
    wrong = run("submit", "-", "--schema", "dish", "--field", "title=t", input=line)
    assert wrong.exit_code == 2
    assert "url=NAME" in wrong.stderr


def test_watching_ends_with_1_when_something_failed(fake: type[FakeClient]) -> None:
    assert run("watch", "12").exit_code == 0
    fake.failed = 2
    failed = run("watch", "12")
    assert failed.exit_code == 1
    assert "2 failed (quarry failures 12)" in failed.stderr
    assert failed.stdout == ""


def test_entities_in_each_format() -> None:
    table = run("entities", "dish")
    assert "Brød, dark" in table.stdout
    assert "flour; salt" in table.stdout
    rows = list(csv.DictReader(io.StringIO(run("entities", "dish", "--format", "csv").stdout)))
    assert rows[0]["name"] == "Brød, dark"
    assert json.loads(rows[0]["parts"]) == ["flour", "salt"]
    (line,) = run("entities", "dish", "--format", "jsonl").stdout.splitlines()
    found = json.loads(line)
    assert found["_spans"] == [{"path": "/name", "start": 4, "end": 14, "status": "exact", "text": "Brød, dark"}]
    spans = [json.loads(row) for row in run("entities", "dish", "--spans", "--format", "jsonl").stdout.splitlines()]
    assert spans[0]["value"] == "Brød, dark"
    assert (spans[0]["start"], spans[0]["end"], spans[0]["status"]) == (4, 14, "exact")


@pytest.mark.parametrize("words", [("jobs",), ("failures",), ("costs",), ("schema", "list"), ("sql", "SELECT 1")])
def test_rows_are_the_same_in_csv_and_jsonl(words: tuple[str, ...]) -> None:
    as_csv = list(csv.DictReader(io.StringIO(run(*words, "--format", "csv").stdout)))
    as_json = [json.loads(line) for line in run(*words, "--format", "jsonl").stdout.splitlines()]
    assert len(as_csv) == len(as_json) == 1
    assert list(as_csv[0]) == list(as_json[0])
    assert run(*words).exit_code == 0


def test_a_repeated_column_of_a_query_loses_no_value() -> None:
    assert json.loads(run("sql", "SELECT 1 AS n, 2 AS n", "--format", "jsonl").stdout) == {"n": 1, "n_2": 2}


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("entities", "absent"), 2, "no schema 'absent'"),
        (("sql", "SELECT * FROM broken"), 2, "does not exist"),
        (("costs", "--by", "moon"), 2, "moon"),
        (("schema", "add", "absent.json"), 2, "no such file"),
        (("eval", "12", "--gold", "absent.json"), 2, "can't be read"),
        (("dsn",), 1, "run `quarry up`, or set QUARRY_DATABASE_URL"),
        (("model", "inspect", "absent"), 2, "neither a file or folder"),
        (("nonsense",), 2, "nonsense"),
    ],
)
def test_wrong_use_ends_in_words(words: tuple[str, ...], status: int, message: str) -> None:
    from pipeline.settings import get_settings

    get_settings.cache_clear()
    done = run(*words)
    assert done.exit_code == status
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_database_that_is_down_is_1_and_debug_shows_the_traceback(fake: type[FakeClient]) -> None:
    fake.error = Unavailable("the database does not answer")
    down = run("jobs")
    assert down.exit_code == 1
    assert down.stderr.strip() == "quarry: the database does not answer"
    assert isinstance(run("--debug", "jobs").exception, Unavailable)


def test_eval_scores_a_job(tmp_path: Path) -> None:
    gold = tmp_path / "gold.json"
    gold.write_text(json.dumps({"documents": {"pages/a.html": {"name": "brød dark", "parts": ["flour", "water"]}}}))
    rows = {
        r["field"]: r
        for r in map(json.loads, run("eval", "12", "--gold", str(gold), "--format", "jsonl").stdout.splitlines())
    }
    assert (rows["name"]["right"], rows["name"]["exact"]) == (1, 0)
    assert rows["parts"]["recall"] == 0.5
    assert rows["all"]["expected"] == 3
