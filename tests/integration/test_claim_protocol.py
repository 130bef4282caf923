"""Whatever workers, sweeper and user do, in whatever order: rows are written once, by the attempt that holds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from db.models import TERMINAL, Step
from db.reuse import reuse
from db.session import make_engine
from pipeline.client import Client
from pipeline.engine_client import EngineUsage
from pipeline.errors import DocumentError, TransientError
from pipeline.extract import EngineRun, Entity, Extraction, Grounding, Mention
from pipeline.flow.extraction import write
from pipeline.flow.item import Item, claim, fail, finish, finish_job, hand_over, release
from pipeline.flow.lease import LeaseLost
from pipeline.load import SourceDocument
from pipeline.settings import Settings
from workers.sweeper import Sweeper

pytestmark = pytest.mark.services
SOURCES = {"a": b"one", "b": b"one", "c": b"two"}  # two documents with the same content, and one more
NOW = datetime(2024, 1, 1, tzinfo=UTC)
EXTRACTION = Extraction(
    [Entity(0, "", {"name": "x"}, [Mention("/name", "x", Grounding.NONE)], None, 0.0)],
    [EngineRun("m", "0" * 64, EngineUsage(), "stop", None, NOW, NOW)],
)

# Events and how often they come, with the ranges of their arguments. Of the items those of both jobs are meant.
ITEMS, HELD, FLAG = 2 * len(SOURCES), 3, 2
EVENTS: list[tuple[int, str, int | None]] = [
    (12, "task", ITEMS),
    (7, "complete", HELD),
    (2, "transient", HELD),
    (1, "refuse", HELD),
    (2, "vanish", HELD),
    (2, "expire", ITEMS),
    (2, "take_back", ITEMS),
    (1, "sweep", None),
    (3, "wake", None),
    (1, "cancel", None),
    (2, "retry", None),
    (1, "submit_again", FLAG),
]
LENGTH = 60

ATTEMPTS = "SELECT id, attempt, state FROM quarry.job_item"
FAULTS = """
SELECT 'the same work twice at once', min(id) FROM quarry.job_item WHERE state = 'extracting'
GROUP BY work_key HAVING count(*) > 1
UNION ALL
SELECT 'rows of an item that is not done', i.id FROM quarry.job_item i JOIN quarry.entity e ON e.item_id = i.id
WHERE i.state <> 'done'
UNION ALL
SELECT 'a done item without its one row', i.id FROM quarry.job_item i
WHERE i.state = 'done' AND 1 <> (
    SELECT count(*) FROM quarry.entity e WHERE e.item_id = i.rows_item_id AND e.document_id = i.document_id)
UNION ALL
SELECT 'a document shown not once', e.document_id FROM quarry.entity e
GROUP BY e.document_id HAVING count(*) FILTER (WHERE e.current) <> 1
UNION ALL
SELECT 'mention and entity disagree', m.id FROM quarry.mention m JOIN quarry.entity e ON e.id = m.entity_id
WHERE m.current <> e.current
UNION ALL
SELECT 'a lease on an item at its end', id FROM quarry.job_item
WHERE lease_until IS NOT NULL AND state IN ('done', 'failed', 'cancelled')
"""


class World:
    """One job, and what workers hold of it. Claims stay held until an event completes, fails or forgets them."""

    def __init__(self, client: Client, database: Engine, sweeper: Sweeper) -> None:
        self.client, self.database, self.sweeper = client, database, sweeper
        self.held: list[Item] = []
        self.jobs = [self.submit()]
        self.seen: dict[int, tuple[int, str]] = {}

    def rows(self, query: str, **values: object) -> list[tuple]:  # type: ignore[type-arg]
        with self.database.begin() as connection:
            result = connection.execute(text(query), values)
            return [tuple(row) for row in result] if result.returns_rows else []

    def submit(self, force: bool = False) -> int:
        sources = [SourceDocument(uri, data, "text/plain") for uri, data in SOURCES.items()]
        return self.client.submit(sources, "firm", force=force).job_id

    def items(self) -> list[int]:
        return [row[0] for row in self.rows("SELECT id FROM quarry.job_item ORDER BY id")]

    def item(self, index: int) -> int:
        items = self.items()
        return items[index % len(items)]

    def play(self, name: str, *which: object) -> None:
        getattr(self, name)(*which)
        self.check(may_reopen=name == "retry")

    def task(self, index: int) -> None:
        """A message of either kind arrives; what has nothing to do finds nothing."""
        for step in Step:
            self.claim(index, step)

    def take_back(self, index: int) -> None:
        self.expire(index)
        self.sweep()

    def claim(self, index: int, step: Step) -> None:
        item = claim(self.database, self.client.settings, step, self.item(index), "w")
        if item is None:
            return
        with self.database.begin() as connection:
            if reuse(connection, [item.id]):
                finish_job(connection, item)
                return
        self.held.append(item)

    def _settle(self, index: int, end) -> None:  # type: ignore[no-untyped-def]
        if not self.held:
            return
        item = self.held.pop(index % len(self.held))
        current = self.rows("SELECT attempt = :a FROM quarry.job_item WHERE id = :i", a=item.attempt, i=item.id)[0][0]
        try:
            with self.database.begin() as connection:
                end(connection, item)
        except LeaseLost:
            assert not current, "the attempt held, so its result must be taken"
        else:
            assert current, "a result was taken though the attempt no longer held"

    def complete(self, index: int) -> None:
        def end(connection, item: Item) -> None:  # type: ignore[no-untyped-def]
            if item.step is Step.INGEST:
                hand_over(connection, item)
            else:
                finish(connection, item)
                write(connection, item, EXTRACTION, {})

        self._settle(index, end)

    def transient(self, index: int) -> None:
        self._settle(index, lambda connection, item: release(connection, item, TransientError("later"), 60.0))

    def refuse(self, index: int) -> None:
        self._settle(index, lambda connection, item: fail(connection, item, DocumentError("bad", "never")))

    def vanish(self, index: int) -> None:
        """The worker is killed: nobody will ever hear of this claim again."""
        if self.held:
            self.held.pop(index % len(self.held))

    def expire(self, index: int) -> None:
        self.rows(
            "UPDATE quarry.job_item SET lease_until = now() - interval '1 s' WHERE id = :i AND lease_until IS NOT NULL",
            i=self.item(index),
        )

    def sweep(self) -> None:
        self.sweeper.run_once()

    def wake(self) -> None:
        self.rows("UPDATE quarry.job_item SET not_before = now() WHERE not_before IS NOT NULL")

    def cancel(self) -> None:
        self.client.cancel(self.jobs[0])

    def retry(self) -> None:
        self.client.retry(self.jobs[0])

    def submit_again(self, force: int) -> None:
        if len(self.jobs) == 1:
            self.jobs.append(self.submit(bool(force)))

    def check(self, may_reopen: bool = False) -> None:
        """What must hold at every moment."""
        assert self.rows(FAULTS) == []
        now = {item: (attempt, state) for item, attempt, state in self.rows(ATTEMPTS)}
        for item, (attempt, state) in self.seen.items():
            assert now[item][0] >= attempt
            assert may_reopen or state not in TERMINAL or now[item] == (attempt, state), "an end that was none"
        self.seen = now

    def drain(self) -> None:
        """No more faults: the workers and the sweeper bring everything to an end."""
        self.held.clear()
        self.rows("UPDATE quarry.job_item SET lease_until = now() - interval '1 s' WHERE lease_until IS NOT NULL")
        for _ in range(4):
            self.sweep()
            self.wake()
            for index in range(len(self.items())):
                for step in Step:
                    self.claim(index, step)
                    self.complete(0)
            self.check()
        self.sweep()
        open_items = "SELECT id, state FROM quarry.job_item WHERE state NOT IN ('done', 'failed', 'cancelled')"
        assert self.rows(open_items) == []
        assert self.rows("SELECT id FROM quarry.job WHERE state = 'running'") == []
        letters = """SELECT i.id FROM quarry.job_item i WHERE i.state = 'failed'
                     AND NOT EXISTS (SELECT FROM quarry.dead_letter d WHERE d.item_id = i.id)"""
        assert self.rows(letters) == [], "a failure without a reason"


@pytest.fixture(scope="module")
def parts(module_database_url: str, redis_server, tmp_path_factory) -> Iterator[tuple[Client, Engine, Sweeper]]:  # type: ignore[no-untyped-def]
    home: Path = tmp_path_factory.mktemp("home")
    options = Settings(
        home=home,
        database_url=module_database_url,
        broker_url=redis_server.url(),
        engine_url="http://127.0.0.1:1",
        lease_seconds=3600,
    )
    client, database, sweeper = Client(options), make_engine(module_database_url), Sweeper(options)
    client.add_schema("firm", {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]})
    yield client, database, sweeper
    client.close()
    database.dispose()
    sweeper.close()


@pytest.mark.parametrize("seed", range(10))
def test_any_order_of_events_ends_well(parts: tuple[Client, Engine, Sweeper], seed: int) -> None:
    client, database, sweeper = parts
    with database.begin() as connection:
        connection.execute(text("TRUNCATE quarry.job, quarry.blob CASCADE"))
    world, rng = World(client, database, sweeper), random.Random(seed)
    weights = [weight for weight, *_ in EVENTS]
    for _ in range(LENGTH):
        _, name, bound = rng.choices(EVENTS, weights)[0]
        world.play(name, *(() if bound is None else (rng.randrange(bound),)))
    world.drain()
