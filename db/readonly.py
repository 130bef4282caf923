"""A user's own SQL, run as the reader: one statement, a read-only transaction, a time limit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy import Connection

from db.session import driver, is_connection_error, set_local
from db.views import READER

# Blocks and procedures could change the role in the middle, so only what reads is let through.
_READS = ("select", "with", "values", "table", "explain", "show")
_CURSOR = "quarry_sql"
_DECLARE = f'DECLARE "{_CURSOR}" CURSOR FOR '  # what psycopg puts before the query, and positions in errors count
_LEADING = re.compile(r"\A(?:\s+|--[^\n]*(?:\n|\Z)|/\*.*?\*/|\()*", re.DOTALL)


class QueryError(ValueError):
    """The user's SQL was refused, failed or took too long. The message is PostgreSQL's, with the place in the query."""


@contextmanager
def run_query(
    connection: Connection, query: str, timeout_seconds: float
) -> Iterator[tuple[Sequence[str], Iterator[Sequence[Any]]]]:
    """Columns and rows of one statement. Rows come in small batches from the server: a large result needs no
    memory. The time limit is for each batch.

    Within the caller's transaction, which is read-only from here on. Raises QueryError.
    """
    body = query[_LEADING.match(query).end() :]  # type: ignore[union-attr]
    verb = re.match(r"[a-z]*", body.lower()).group()  # type: ignore[union-attr]
    if verb not in _READS:
        raise QueryError(
            f"only statements that read are run ({', '.join(_READS).upper()}); this one begins {body[:30]!r}"
        )
    if "\x00" in query:
        raise QueryError("the query holds a NUL character")
    set_local(connection, statement_timeout=f"{max(1, round(timeout_seconds * 1000))}ms", transaction_read_only="on")
    set_local(connection, search_path="entities, public", role=READER)
    raw = driver(connection)
    # Both ways use the extended protocol, which takes one statement only.
    plain = verb in ("explain", "show")
    with raw.cursor() if plain else raw.cursor(name=_CURSOR) as cursor:
        try:
            if plain:
                cursor.execute(query, prepare=True)
            else:
                cursor.execute(query.rstrip().rstrip(";"))
            columns = [column.name for column in cursor.description or ()]
            yield columns, _rows(cursor, timeout_seconds)
        except psycopg.Error as error:
            raise _in_words(error, timeout_seconds, 0 if plain else len(_DECLARE)) from error


def _rows(cursor: Any, timeout_seconds: float) -> Iterator[Sequence[Any]]:
    try:
        yield from cursor
    except psycopg.Error as error:
        raise _in_words(error, timeout_seconds) from error


def _in_words(error: psycopg.Error, timeout_seconds: float, declared: int = 0) -> Exception:
    if is_connection_error(error):
        return error
    if isinstance(error, psycopg.errors.QueryCanceled):
        return QueryError(f"the query took longer than {timeout_seconds:g} s and was stopped")
    diagnosis = error.diag
    words = diagnosis.message_primary or str(error)
    if diagnosis.statement_position:
        position = int(diagnosis.statement_position) - declared
        words += f" (at character {position})"
    if diagnosis.message_hint:
        words += f"; {diagnosis.message_hint}"
    return QueryError(words)
