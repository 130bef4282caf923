"""Connections: one engine per process, with bounds on how many and on how long anything may wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import TimeoutError as PoolTimeout

APPLICATION = "quarry"
CONNECT_TIMEOUT_SECONDS = 10
POOL_TIMEOUT_SECONDS = 30.0
RECYCLE_SECONDS = 1800  # proxies and firewalls drop idle connections, often after an hour


def sqlalchemy_url(url: str) -> URL:
    """`url` with the psycopg 3 driver. Takes `postgresql://`, `postgres://` and SQLAlchemy's own forms."""
    if url.startswith("postgres://"):
        url = "postgresql" + url[len("postgres") :]
    return make_url(url).set(drivername="postgresql+psycopg")


def describe(url: str) -> str:
    """The address without its password, for messages."""
    return sqlalchemy_url(url).set(drivername="postgresql").render_as_string(hide_password=True)


def make_engine(
    url: str,
    *,
    pool_size: int = 5,
    statement_timeout_seconds: float = 60.0,
    lock_timeout_seconds: float = 20.0,
    application: str = APPLICATION,
) -> Engine:
    """An engine whose connections are UTF-8, in UTC and give up on a statement or a lock after the given times.

    At most `pool_size` connections are open at once, so that workers × threads can be added up against the server's
    limit. Create it after a fork, never before.
    """
    options = {
        "statement_timeout": f"{round(statement_timeout_seconds * 1000)}ms",
        "lock_timeout": f"{round(lock_timeout_seconds * 1000)}ms",
        "idle_in_transaction_session_timeout": "300s",
        "timezone": "UTC",
        "search_path": "public",  # the default begins with the role's own name, which may be that of our schema
    }
    connect_args: dict[str, Any] = {
        "application_name": application,
        "connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "client_encoding": "utf8",
        "options": " ".join(f"-c {name}={value}" for name, value in options.items()),
    }
    return create_engine(
        sqlalchemy_url(url),
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=POOL_TIMEOUT_SECONDS,
        pool_recycle=RECYCLE_SECONDS,
        pool_pre_ping=True,
        connect_args=connect_args,
    )


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A connection for single statements that read: without BEGIN and ROLLBACK, two trips to the server less."""
    with engine.connect() as connection:
        yield connection.execution_options(isolation_level="AUTOCOMMIT")


def set_local(connection: Connection, **settings: str | int | float) -> None:
    """Change settings until the transaction ends. A double underscore in a name stands for the dot."""
    for name, value in settings.items():
        connection.exec_driver_sql("SELECT set_config(%s, %s, true)", (name.replace("__", "."), str(value)))


def driver(connection: Connection) -> Any:
    """The psycopg connection behind it, for COPY and composed SQL in the same transaction."""
    return connection.connection.driver_connection


def sqlstate(error: BaseException) -> str | None:
    """PostgreSQL's five-character code of an error from SQLAlchemy or psycopg; None when it has none."""
    return getattr(getattr(error, "orig", error), "sqlstate", None)


def is_connection_error(error: BaseException) -> bool:
    """The server is not there, is starting, or went away."""
    original = getattr(error, "orig", error)
    if isinstance(error, PoolTimeout):
        return True
    if not isinstance(original, psycopg.OperationalError | psycopg.InterfaceError):
        return False
    state = sqlstate(error)
    return state is None or state.startswith(("08", "57P"))


# Serialisation failure, deadlock, lock not available, cancelled by timeout; class 53 is the server short of something.
_PASSING = ("40001", "40P01", "55P03", "57014")


def is_transient(error: BaseException) -> bool:
    """The same transaction may work later."""
    state = sqlstate(error)
    return is_connection_error(error) or (state is not None and (state in _PASSING or state.startswith("53")))
