"""The embedded servers: safe beginnings, long paths, crashes, and who may come in."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis
from sqlalchemy import text

from db import migrate
from db.session import make_engine
from tests.conftest import running, wait_for
from workers.embedded import SOCKET_PATH_BYTES, SUPERUSER, EmbeddedError, Postgres, Redis, free_port
from workers.processes import ended

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def server(services_folder: Path) -> Iterator[Postgres]:
    """Prepared by four threads at once, in a folder whose path is too long for a socket and hard to quote."""
    folder = services_folder / "a 'folder'" / ("x" * 100) / "postgres"
    server = Postgres(folder)
    failed: list[Exception] = []

    def prepare() -> None:
        try:
            server.prepare()
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=prepare) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    yield server
    shutil.rmtree(server.socket_folder)


def test_a_long_path_gets_a_short_socket_of_its_own(server: Postgres, tmp_path: Path) -> None:
    assert len(os.fsencode(server.folder)) > SOCKET_PATH_BYTES
    assert len(os.fsencode(server.socket_folder)) < 60
    assert stat.S_IMODE(server.socket_folder.stat().st_mode) == 0o700
    assert Postgres(tmp_path / "one").socket_folder == tmp_path / "one"
    assert Postgres(tmp_path / "a,b").socket_folder != tmp_path / "a,b"  # libpq would take it for two hosts


def test_it_survives_kill_9_and_a_pid_that_is_someone_elses(server: Postgres, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running(server, log):
        server.provision()
        server.provision()  # nothing to do the second time
        with psycopg.connect(server.url("quarry"), autocommit=True) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 7 AS n")

        process = server.process()
        assert process is not None
        family = [process, *process.children(recursive=True)]
        process.kill()
        wait_for(lambda: all(ended(member) for member in family), "its end", log)
    pid_file = server.data / "postmaster.pid"
    assert pid_file.exists()
    lines = pid_file.read_text().splitlines()
    pid_file.write_text("\n".join([str(os.getpid()), *lines[1:]]))  # alive, but no PostgreSQL: after a reboot
    assert server.process() is None
    with running(server, log):
        assert server.process() is not None
        with psycopg.connect(server.url("quarry")) as connection:
            assert connection.execute("SELECT n FROM kept").fetchone() == (7,)


def test_a_second_server_on_the_same_data_does_not_start(server: Postgres, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running(server, log):
        pid = server.process()
        server.prepare()  # leaves the running one alone
        second = subprocess.run(server.command(), capture_output=True, text=True, check=False, timeout=60)
        assert second.returncode != 0
        assert "already exists" in second.stderr
        assert server.process() == pid
        assert server.ready()


def test_a_half_made_folder_is_made_anew(tmp_path: Path) -> None:
    server = Postgres(tmp_path / "postgres", durable=False)
    (server.folder / "data.new" / "base").mkdir(parents=True)
    server.prepare()
    assert (server.data / "PG_VERSION").exists()
    assert not (server.folder / "data.new").exists()


def test_data_of_another_version_is_refused(tmp_path: Path) -> None:
    server = Postgres(tmp_path / "postgres")
    server.data.mkdir(parents=True)
    (server.data / "PG_VERSION").write_text("16\n")
    with pytest.raises(EmbeddedError, match=r"PostgreSQL 16.*18.*QUARRY_HOME"):
        server.prepare()


def test_one_address_works_for_psycopg_sqlalchemy_and_psql(database_url: str, postgres_server: Postgres) -> None:
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT current_user").fetchone() == ("quarry",)
    engine = make_engine(database_url)
    with engine.connect() as through_sqlalchemy:
        assert through_sqlalchemy.execute(text("SELECT 1")).scalar() == 1
    engine.dispose()
    command = [str(postgres_server.bin / "psql"), database_url, "--no-psqlrc", "-Atc", "SELECT 'ä'"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "ä"


def test_the_service_is_no_superuser(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone() == (False,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("COPY (SELECT 1) TO PROGRAM 'true'")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another account")
def test_other_accounts_are_refused(database_url: str, postgres_server: Postgres) -> None:
    """Even when they can reach the socket: the server asks the kernel who is calling."""
    psql = [str(postgres_server.bin / "psql"), database_url, "-c", "SELECT 1"]
    keep = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    command = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", *keep, *psql]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode != 0
    assert "authentication failed" in answer.stderr


def test_a_database_migrates_without_the_right_to_make_roles(postgres_server: Postgres) -> None:
    """As docs/deploying.md has it: an administrator made quarry_reader and the extension."""
    administrator = postgres_server.url("postgres", SUPERUSER)
    with psycopg.connect(administrator, autocommit=True) as connection:
        if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = 'quarry_reader'").fetchone():
            connection.execute("CREATE ROLE quarry_reader NOLOGIN")
        connection.execute("CREATE ROLE modest LOGIN")
        connection.execute("GRANT quarry_reader TO modest WITH ADMIN OPTION")
        connection.execute("CREATE DATABASE modest OWNER modest")
    try:
        migrate.upgrade(postgres_server.url("modest", "modest"))
        assert migrate.current(postgres_server.url("modest", "modest")) == migrate.head()
    finally:
        with psycopg.connect(administrator, autocommit=True) as connection:
            connection.execute("DROP DATABASE modest WITH (FORCE)")
            connection.execute("DROP ROLE modest")


def test_redis_wants_its_password_and_never_drops_messages(redis_server: Redis) -> None:
    with redis.Redis.from_url(redis_server.url(), decode_responses=True) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert int(client.config_get("maxmemory")["maxmemory"]) > 0
    port = (redis_server.folder / "port").read_text().strip()
    with redis.Redis(port=int(port)) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
    assert stat.S_IMODE((redis_server.folder / "password").stat().st_mode) == 0o600
    assert stat.S_IMODE((redis_server.folder / "redis.conf").stat().st_mode) == 0o600


def test_a_port_is_kept_unless_it_is_taken(tmp_path: Path) -> None:
    import socket

    first = free_port(tmp_path)
    assert free_port(tmp_path) == first
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first))
        taken.listen()
        other = free_port(tmp_path)
        assert other != first
    assert free_port(tmp_path) == other


def test_servers_of_a_killed_test_run_end_with_it(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from tests.conftest import running\n"
        "from workers.embedded import Redis\n"
        "with running(Redis(Path(sys.argv[1])), Path(sys.argv[1] + '.log')):\n"
        "    print('up', flush=True); time.sleep(60)"
    )
    folder = tmp_path / "redis"
    root = Path(__file__).parents[2]
    run = subprocess.Popen([sys.executable, "-c", script, str(folder)], cwd=root, stdout=subprocess.PIPE)
    assert run.stdout is not None
    assert run.stdout.readline() == b"up\n"
    assert Redis(folder).ready()
    run.send_signal(signal.SIGKILL)
    run.wait()
    run.stdout.close()
    wait_for(lambda: not Redis(folder).ready(), "its end", tmp_path / "redis.log")
