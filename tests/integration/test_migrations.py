"""The migrated database and the models are the same, and the rules that tables can't say hold."""

from __future__ import annotations

import threading

import psycopg
import pytest
from sqlalchemy import CheckConstraint, text

from db import migrate
from db.models import Base
from db.session import make_engine

pytestmark = pytest.mark.services


def test_models_and_migrations_agree(database_url: str) -> None:
    engine = make_engine(database_url)
    with engine.connect() as connection:
        assert migrate.differences(connection) == []
    engine.dispose()


def test_a_difference_would_be_found(database_url: str) -> None:
    """The comparison above sees columns, defaults and partial indexes."""
    engine = make_engine(database_url)
    with engine.connect() as connection:
        connection.execute(text("DROP INDEX quarry.uq_job_item_extracting"))
        connection.execute(text("ALTER TABLE quarry.job_item ALTER COLUMN failures DROP DEFAULT"))
        connection.execute(text("ALTER TABLE quarry.chunk ADD COLUMN extra int"))
        found = str(migrate.differences(connection))
        connection.rollback()
    engine.dispose()
    assert "uq_job_item_extracting" in found
    assert "'failures'" in found
    assert "'extra'" in found


def test_constraints_are_those_of_the_models(database_url: str) -> None:
    """Alembic does not compare check constraints: names are compared here."""
    engine = make_engine(database_url)
    with engine.connect() as connection:
        names = connection.execute(
            text("SELECT conname FROM pg_constraint WHERE contype = 'c' AND connamespace = 'quarry'::regnamespace")
        ).scalars()
        present = {name for name in names if not name.endswith("_not_null")}
    engine.dispose()
    named = {
        str(c.name)
        for table in Base.metadata.tables.values()
        for c in table.constraints
        if isinstance(c, CheckConstraint)
    }
    assert present == named


def test_two_processes_may_migrate_at_once(postgres: str) -> None:
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE DATABASE migrate_twice")
    url = postgres.replace("/postgres?", "/migrate_twice?")
    failed: list[Exception] = []

    def run() -> None:
        try:
            migrate.upgrade(url)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert migrate.current(url) == migrate.head()


def _document(connection: psycopg.Connection, body: str) -> int:
    connection.execute("INSERT INTO quarry.blob VALUES (sha256('x'), 'x', 1) ON CONFLICT DO NOTHING")
    row = connection.execute(
        "INSERT INTO quarry.clean_text (blob_sha256, media_type, cleaner, cleaner_version, text)"
        " VALUES (sha256('x'), 'text/plain', 'plain', gen_random_uuid()::text, %s) RETURNING id",
        [body],
    ).fetchone()
    assert row is not None
    return int(row[0])


def _chunk(connection: psycopg.Connection, source: int, pieces: list[tuple[int, int, str]]) -> None:
    with (
        connection.cursor() as cursor,
        cursor.copy(
            'COPY quarry.chunk (clean_text_id, chunker, ordinal, start, "end", text, text_hash, token_count) FROM STDIN'
        ) as copy,
    ):
        for ordinal, (start, end, body) in enumerate(pieces):
            copy.write_row((source, "t", ordinal, start, end, body, b"", 1))


def test_a_chunk_is_a_slice_of_its_text_in_code_points(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        body = "naïve 🙂 Straße\n" * 20_000  # several windows of the trigger, characters of one to four bytes
        source = _document(connection, body)
        _chunk(connection, source, [(at, at + 700, body[at : at + 700]) for at in range(0, len(body) - 700, 700)])
        connection.commit()
        for start, end, wrong in [(7, 8, "x"), (0, 5, "naïv"), (299_990, 299_995, body[299_989:299_994])]:
            with pytest.raises(psycopg.errors.CheckViolation, match="not that slice"):
                _chunk(connection, _document(connection, body), [(start, end, wrong)])
            connection.rollback()
        with pytest.raises(psycopg.errors.CheckViolation, match="not that slice"):
            connection.execute("UPDATE quarry.chunk SET text = 'other' WHERE ordinal = 3")


def test_clean_text_is_final(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        _document(connection, "abc")
        with pytest.raises(psycopg.errors.CheckViolation, match="final"):
            connection.execute("UPDATE quarry.clean_text SET text = 'abd'")


def test_the_reader_sees_views_and_nothing_else(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("CREATE VIEW entities.probe AS SELECT count(*) FROM quarry.blob")
        connection.commit()
        connection.execute("SET ROLE quarry_reader")
        assert connection.execute("SELECT * FROM entities.probe").fetchone() == (0,)
        for statement in (
            "SELECT * FROM quarry.blob",
            "SELECT * FROM quarry.entity",
            "CREATE TABLE entities.mine (x int)",
            "CREATE TABLE public.mine (x int)",
            "INSERT INTO entities.probe VALUES (1)",
            "DROP VIEW entities.probe",
        ):
            with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.ObjectNotInPrerequisiteState)):
                connection.execute(statement)
            connection.rollback()
            connection.execute("SET ROLE quarry_reader")
        tables = connection.execute(
            "SELECT table_schema, table_name FROM information_schema.tables"
            " WHERE table_schema NOT IN ('pg_catalog', 'information_schema')"
        ).fetchall()
        assert tables == [("entities", "probe")]
