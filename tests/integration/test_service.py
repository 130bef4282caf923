"""`quarry up` to `quarry down` with real servers and workers; the engine is a fake one behind QUARRY_ENGINE_URL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from pipeline.client import Client
from pipeline.load import SourceDocument
from pipeline.settings import Settings
from tests.fake_engine import serve
from workers.control import running
from workers.processes import end, marked
from workers.state import State, read_state

pytestmark = pytest.mark.services
ROOT = Path(__file__).parents[2]
TIMEOUT = 90.0  # a bound for what takes seconds; nothing is measured
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@dataclass
class Installation:
    """A home of its own, and the command line for it."""

    home: Path
    engine_url: str

    def quarry(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """The command's end; `more` are environment variables."""
        own = {"QUARRY_HOME": str(self.home), "QUARRY_ENGINE_URL": self.engine_url}
        own |= {"QUARRY_MODEL": "fake", "QUARRY_EMBEDDER": "fake-embedder", "QUARRY_SWEEP_SECONDS": "0.2"}
        command = [sys.executable, "-m", "cli.main", *arguments]
        return subprocess.run(
            command, cwd=ROOT, env=os.environ | own | more, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )

    @property
    def settings(self) -> Settings:
        return Settings(home=self.home, engine_url=self.engine_url, model="fake", embedder="fake-embedder")

    def state(self) -> State:
        state = read_state(self.settings)
        assert state is not None
        return state

    def pid(self, name: str) -> int:
        return next(unit.pid or 0 for unit in self.state().units if unit.name == name)

    def log(self, name: str) -> str:
        return (self.home / "logs" / f"{name}.log").read_text(errors="replace")[-3000:]

    def extract(self, name: str) -> None:
        """One document from submission to its row."""
        body = f"name: {name}\n".encode()
        with Client(self.settings) as client:
            client.add_schema("firm", SCHEMA)
            job = client.submit([SourceDocument(f"{name}.txt", body, "text/plain")], "firm").job_id
            wait(lambda: client.progress(job).ended, f"the job\n{self.log('extract')}")
        with psycopg.connect(self.settings.endpoint("database_url")) as connection:
            rows = connection.execute("SELECT name FROM entities.firm").fetchall()
        assert (name,) in rows


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    with serve() as engine:
        yield Installation(tmp_path, engine.url)
    end(marked(tmp_path), number=signal.SIGKILL, seconds=5)


def wait(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.1)


def test_the_service_from_up_to_down(installation: Installation) -> None:
    up = installation.quarry("up")
    assert up.returncode == 0, up.stderr
    assert up.stdout == ""
    assert installation.state().complete
    installation.extract("Alpha")

    again = installation.quarry("up")
    assert again.returncode == 0
    assert "up already" in again.stderr
    assert "other settings" not in again.stderr
    assert "sweeper: started with other settings" in installation.quarry("up", QUARRY_CHUNK_TOKENS="99").stderr

    doctor = installation.quarry("doctor", "--format", "jsonl")
    checks = [json.loads(line) for line in doctor.stdout.splitlines()]
    assert [check for check in checks if check["status"] == "fail"] == []
    assert doctor.returncode == 0
    password = (installation.home / "redis" / "password").read_text()
    assert password not in doctor.stdout

    # The supervisor and a worker are killed: the next `up` adopts the rest, and nothing is there twice.
    before = {unit.name: unit.pid for unit in installation.state().units}
    os.kill(installation.state().pid, signal.SIGKILL)
    wait(lambda: not running(installation.settings), "the supervisor's end")
    os.killpg(installation.pid("ingest"), signal.SIGKILL)
    status = installation.quarry("status", "--format", "jsonl")
    assert status.returncode == 1
    states = {row["service"]: row["state"] for row in map(json.loads, status.stdout.splitlines())}
    assert states["ingest"] == "dead"
    assert states["extract"] == "ready"
    assert "supervisor was killed" in status.stderr
    up = installation.quarry("up")
    assert up.returncode == 0, up.stderr
    after = {unit.name: unit.pid for unit in installation.state().units}
    assert {name for name in before if before[name] != after[name]} == {"ingest"}
    installation.extract("Beta")

    # PostgreSQL is killed under everyone's feet.
    os.kill(installation.pid("postgres"), signal.SIGKILL)
    wait(lambda: installation.state().complete and installation.pid("postgres") != after["postgres"], "its restart")
    installation.extract("Gamma")

    down = installation.quarry("down")
    assert down.returncode == 0, down.stderr
    assert marked(installation.home) == []
    assert not running(installation.settings)
    status = installation.quarry("status")
    assert status.returncode == 1
    assert "quarry up" in status.stderr
    assert "not up" in installation.quarry("down").stderr


def test_up_says_why_it_can_not(installation: Installation) -> None:
    """A folder of another PostgreSQL version: an error in words, at once, and `down` ends the attempts."""
    data = installation.home / "postgres" / "data"
    data.mkdir(parents=True)
    (data / "PG_VERSION").write_text("16\n")
    up = installation.quarry("up", "--timeout", "60")
    assert up.returncode == 1
    assert "was made by PostgreSQL 16" in up.stderr
    assert installation.quarry("down").returncode == 0
    assert marked(installation.home) == []
