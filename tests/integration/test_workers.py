"""Real Celery workers and the sweeper as processes: whatever happens to them, the finished tables are the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import text

from bench.pipeline import as_figures, measure, show
from db.models import Step
from db.session import make_engine
from pipeline.client import Client
from pipeline.load import SourceDocument
from pipeline.messages import Sender
from pipeline.settings import Settings
from tests.fake_engine import FakeEngine, serve

pytestmark = pytest.mark.services
ROOT = Path(__file__).parents[2]
TIMEOUT = 60.0  # a bound for what should take a second or two; nothing is measured
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "founded": {"type": "integer"}},
    "required": ["name", "founded"],
}
DOCUMENTS = [f"# Firm {n}\n\nname: Firm {n}\nfounded: {1900 + n}\n" for n in range(8)]
SWEEPER = [sys.executable, "-m", "workers.sweeper"]


def celery(queue: str, pool: str, concurrency: int) -> list[str]:
    options = [
        "-Q",
        queue,
        "--pool",
        pool,
        "-c",
        str(concurrency),
        "--without-gossip",
        "--without-mingle",
        "-l",
        "INFO",
    ]
    return [sys.executable, "-m", "celery", "-A", "workers.app", "worker", *options]


INGEST, EXTRACT = celery("ingest", "prefork", 1), celery("extract", "threads", 4)


class House:
    """The processes of one service, started and ended by a test."""

    def __init__(self, settings: Settings, engine: FakeEngine, folder: Path) -> None:
        self.settings, self.engine = settings, engine
        self.client = Client(settings)
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._db = make_engine(settings.database_url or "")
        set_ = settings.model_dump(exclude_none=True, exclude={"home"}, include=set(settings.model_fields_set))
        self._env = os.environ | {f"QUARRY_{name.upper()}": str(value) for name, value in set_.items()}
        self._env |= {"QUARRY_HOME": str(folder), "PYTHONWARNINGS": "ignore"}

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        log = (self._folder / f"{len(self._processes)}.log").open("wb")
        process = subprocess.Popen(command, cwd=ROOT, env=self._env, stdout=log, stderr=log, start_new_session=True)
        self._processes.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                self.kill(process)
        self.client.close()
        self._db.dispose()

    def cut_connections(self) -> None:
        """What a restart of PostgreSQL does to those who use it."""
        others = "datname = current_database() AND pid <> pg_backend_pid()"
        self.rows(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(self._folder.glob("*.log")))

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come about\n{self.logs()}"
            time.sleep(0.05)

    def submit(self) -> int:
        sources = [SourceDocument(f"doc{n}", body.encode(), "text/plain") for n, body in enumerate(DOCUMENTS)]
        return self.client.submit(sources, "firm").job_id

    def finish(self, job: int) -> None:
        self.wait(lambda: self.client.progress(job).ended, "the end of the job")

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self._db.connect() as connection:
            return [tuple(row) for row in connection.execute(text(query))]

    def result(self) -> dict[str, list[tuple[Any, ...]]]:
        """What the job left, without ids and times."""
        return {
            "view": self.rows("SELECT name, founded, _source_uri, _grounded FROM entities.firm ORDER BY 1"),
            "entities": self.rows("SELECT ordinal, data::text, current FROM quarry.entity ORDER BY 2"),
            "mentions": self.rows(
                'SELECT path, value::text, start, "end", status, current FROM quarry.mention ORDER BY 1, 2, 3'
            ),
            "runs": self.rows("SELECT prompt_sha256, finish_reason FROM quarry.run ORDER BY 1"),
            "texts": self.rows("SELECT text FROM quarry.clean_text ORDER BY 1"),
            "chunks": self.rows('SELECT text, start, "end" FROM quarry.chunk ORDER BY 1'),
            "vectors": self.rows("SELECT count(*) FROM quarry.embedding_fake_embedder"),
            "failures": self.rows("SELECT * FROM quarry.dead_letter"),
            "states": self.rows("SELECT state, count(*) FROM quarry.job_item GROUP BY 1"),
        }


@pytest.fixture
def house(database_url: str, broker_url: str, tmp_path: Path) -> Iterator[House]:
    with serve() as engine:
        settings = Settings(
            home=tmp_path,
            database_url=database_url,
            broker_url=broker_url,
            engine_url=engine.url,
            model="fake",
            embedder="fake-embedder",
            lease_seconds=1.5,
            sweep_seconds=0.1,
            resend_seconds=0.5,
            max_attempts=10,
        )
        house = House(settings, engine, tmp_path)
        house.client.add_schema("firm", SCHEMA)
        yield house
        house.close()


def check_undisturbed(result: dict[str, list[tuple[Any, ...]]]) -> None:
    """The tables of a run in which nothing happened."""
    assert [row[:3] for row in result["view"]] == [(f"Firm {n}", 1900 + n, f"doc{n}") for n in range(len(DOCUMENTS))]
    assert len(result["entities"]) == len(result["texts"]) == len(DOCUMENTS)
    assert len(result["runs"]) == len(set(result["runs"])) == len(DOCUMENTS)
    assert len(result["mentions"]) == 2 * len(DOCUMENTS)
    assert all(status != "none" and current for *_, status, current in result["mentions"])
    assert result["vectors"] == [(len(result["chunks"]),)]
    assert result["failures"] == []
    assert result["states"] == [("done", len(DOCUMENTS))]


def check_benchmark(house: House) -> None:
    """`quarry bench pipeline` on what is running: its figures account for the job, and nothing is reused."""
    folder = house.settings.home / "pages"
    folder.mkdir()
    for n, body in enumerate(DOCUMENTS[:3]):
        (folder / f"{n}.md").write_text(body)
    result = measure(house.client, [str(folder)], "firm")
    assert (result.documents, result.failed) == (3, 0)
    assert (result.in_pipeline.calls, result.alone.calls) == (3, 3)
    assert result.in_pipeline.output_tokens == result.alone.output_tokens > 0
    assert {"ingest", "extract", "generation", "write"} <= {step.group for step in result.steps}
    assert 0 < result.overhead_seconds < result.seconds
    show(result)
    assert json.loads(json.dumps(as_figures(result)))["documents_per_second"] == result.documents_per_second


def test_duplicate_messages_do_no_harm(house: House) -> None:
    job = house.submit()
    sender = Sender(house.settings.broker_url or "")
    items = [row[0] for row in house.rows("SELECT id FROM quarry.job_item")]
    sender._send([(task, item, 0) for task in ("ingest", "extract", "ingest") for item in items])
    house.start(INGEST)
    house.start(EXTRACT)
    house.start(EXTRACT)
    sweeper = house.start(SWEEPER)
    house.finish(job)
    house.wait(lambda: not any(sender.depth(step) for step in Step), "an empty queue")
    check_undisturbed(house.result())
    check_benchmark(house)
    sweeper.terminate()
    assert sweeper.wait(timeout=TIMEOUT) == 0, "the sweeper ends in good order"


def test_killed_workers_an_empty_redis_and_cut_connections_change_nothing(house: House) -> None:
    job = house.submit()
    house.engine.hold.clear()
    house.start(SWEEPER)
    ingest = house.start(INGEST)
    extract = house.start(EXTRACT)
    house.wait(lambda: house.engine.calls["chat"] >= 4, "four documents at the engine")
    house.kill(extract)
    house.kill(ingest)
    redis.Redis.from_url(house.settings.broker_url or "").flushall()
    house.engine.hold.set()
    house.start(INGEST)
    extract = house.start(EXTRACT)
    house.wait(lambda: house.client.job(job).done >= 2, "two documents done")
    house.kill(extract)
    redis.Redis.from_url(house.settings.broker_url or "").flushall()
    house.start(EXTRACT)
    house.cut_connections()
    house.finish(job)
    check_undisturbed(house.result())
