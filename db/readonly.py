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
_LEADING = re.compile(r"\A(?:\s+|--[^\n]*(?:\n|\Z)|/\*.*?\*/|\()*", re.DOTALL)


class QueryError(ValueError):
    """The user's SQL was refused, failed or took too long. The message is PostgreSQL's, with the place in the query."""


@contextmanager
def run_query(
    connection: Connection, query: str, timeout_seconds: float
) -> Iterator[tuple[Sequence[str], Iterator[Sequence[Any]]]]:
    """Columns and rows of one statement. Rows come one at a time from the server: a large result needs no memory.

    Within the caller's transaction, which is read-only from here on. Raises QueryError.
    """
    body = query[_LEADING.match(query).end() :]  # type: ignore[union-attr]
    verb = re.match(r"[a-z]*", body, re.IGNORECASE)
    if not verb or verb.group().lower() not in _READS:
        raise QueryError(
            f"only statements that read are run ({', '.join(_READS).upper()}); this one begins {body[:30]!r}"
        )
    if "\x00" in query:
        raise QueryError("the query holds a NUL character")
    set_local(connection, statement_timeout=f"{max(1, round(timeout_seconds * 1000))}ms", transaction_read_only="on")
    set_local(connection, search_path="entities, public", role=READER)
    with driver(connection).cursor() as cursor:
        stream = cursor.stream(query.rstrip().rstrip(";"))
        try:
            first = next(stream, None)
            columns = [column.name for column in cursor.description or ()]
            yield columns, _rows(first, stream, timeout_seconds)
        except psycopg.Error as error:
            raise _in_words(error, timeout_seconds) from error
        finally:
            stream.close()


def _rows(
    first: Sequence[Any] | None, rest: Iterator[Sequence[Any]], timeout_seconds: float
) -> Iterator[Sequence[Any]]:
    if first is None:
        return
    yield first
    try:
        yield from rest
    except psycopg.Error as error:
        raise _in_words(error, timeout_seconds) from error


def _in_words(error: psycopg.Error, timeout_seconds: float) -> Exception:
    if is_connection_error(error):
        return error
    if isinstance(error, psycopg.errors.QueryCanceled):
        return QueryError(f"the query took longer than {timeout_seconds:g} s and was stopped")
    diagnosis = error.diag
    words = diagnosis.message_primary or str(error)
    if diagnosis.statement_position:
        words += f" (at character {diagnosis.statement_position})"
    if diagnosis.message_hint:
        words += f"; {diagnosis.message_hint}"
    return QueryError(words)
