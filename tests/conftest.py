"""PostgreSQL, Redis and small models for the tests: real servers, one each per session, a fresh database per test."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from db import migrate
from workers.embedded import OWNER, SUPERUSER, Postgres, Redis

START_SECONDS = 60.0
PREFIX = "quarry-test-"


@pytest.fixture(scope="session")
def services_folder() -> Iterator[Path]:
    """A folder for the session's servers. Its lock tells a living session's folder from one that a crash left."""
    for old in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        _remove_if_abandoned(old)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    shutil.rmtree(folder, ignore_errors=True)


def _remove_if_abandoned(folder: Path) -> None:
    try:
        with (folder / "lock").open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        pass


@contextmanager
def running(server: Postgres | Redis, log: Path) -> Iterator[None]:
    """The server as a child that the kernel ends with us, even when we are killed."""
    server.prepare()
    command = server.command()
    if shutil.which("setpriv"):
        command = ["setpriv", "--pdeathsig=INT", *_without_setpriv(command)]
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        wait_for(server.ready, f"{command[0]} to answer", log)
        yield
    finally:
        process.send_signal(server.stop_signal)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _without_setpriv(command: list[str]) -> list[str]:
    """Changing the account clears the parent-death signal, so one call must do both, in that order."""
    return command[1:] if command[0] == "setpriv" else command


def wait_for(condition: Callable[[], bool], what: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}\n{log.read_text(errors='replace')[-3000:]}"
        time.sleep(0.02)


@pytest.fixture(scope="session")
def postgres_server(services_folder: Path) -> Iterator[Postgres]:
    """The session's PostgreSQL with pgvector, role and database of the service."""
    server = Postgres(services_folder / "postgres", durable=False)
    with running(server, services_folder / "postgres.log"):
        server.provision()
        yield server


@pytest.fixture(scope="session")
def postgres(postgres_server: Postgres) -> str:
    """URL of its maintenance database, as the service's role."""
    return postgres_server.url("postgres", OWNER)


@pytest.fixture(scope="session")
def template(postgres_server: Postgres) -> str:
    """A migrated database that tests copy."""
    name = "quarry_template"
    with psycopg.connect(postgres_server.url("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    migrate.upgrade(postgres_server.url(name))
    return name


@contextmanager
def database(server: Postgres, template: str) -> Iterator[str]:
    """A copy of `template`, gone afterwards."""
    name = f"t{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    try:
        yield server.url(name)
    finally:
        with psycopg.connect(server.url("postgres", SUPERUSER), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def database_url(postgres_server: Postgres, template: str) -> Iterator[str]:
    """A fresh migrated database for one test, seen as the service's role."""
    with database(postgres_server, template) as url:
        yield url


@pytest.fixture(scope="module")
def module_database_url(postgres_server: Postgres, template: str) -> Iterator[str]:
    """The same for a module whose tests undo what they do."""
    with database(postgres_server, template) as url:
        yield url


@pytest.fixture(scope="session")
def redis_server(services_folder: Path) -> Iterator[Redis]:
    server = Redis(services_folder / "redis")
    with running(server, services_folder / "redis.log"):
        yield server


@pytest.fixture
def broker_url(redis_server: Redis) -> str:
    """The session's Redis, emptied."""
    import redis

    with redis.Redis.from_url(redis_server.url()) as client:
        client.flushall()
    return redis_server.url()


# Models are downloaded once per machine, not once per run. The folder is a QUARRY_HOME of its own: tests never write
# into the user's.
MODELS_HOME = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quarry-tests"


def _pulled(name: str) -> Path:
    from inference.catalogue import CatalogueError, locate
    from inference.pull import pull

    try:
        pull(name, MODELS_HOME)
    except CatalogueError as error:
        pytest.fail(f"{error} (needed by tests with the marker `model`)")
    return locate(name, MODELS_HOME)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, a GGUF file with tokenizer.json beside it."""
    return _pulled("smollm2-135m-instruct")


@pytest.fixture(scope="session")
def smollm2_dir(smollm2_path: Path) -> Path:
    """The folder that holds it."""
    return smollm2_path.parent


@pytest.fixture(scope="session")
def minilm_dir() -> Path:
    """all-MiniLM-L6-v2, a folder with config.json, tokenizer.json and safetensors."""
    return _pulled("all-minilm-l6-v2")
