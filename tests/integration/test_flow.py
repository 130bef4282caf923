"""An item's way through the database: claims, steps, leases, reuse, failures. In this process, with a fake engine.

Celery is left out here: a task is a call, so that each order of events can be written down.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Engine, text

from pipeline.chunk import Chunk
from pipeline.client import Client, NotFound
from pipeline.engine_client import EngineUsage
from pipeline.errors import DocumentError, TransientError
from pipeline.extract import DocumentText, EngineRun, Entity, Extraction, Grounding, Mention
from pipeline.flow import Outcome, WorkerFlow
from pipeline.load import Rejected, SourceDocument
from pipeline.settings import Settings
from tests.fake_engine import FakeEngine, serve
from workers.sweeper import Sweeper, Swept

pytestmark = pytest.mark.services
DONE, FAILED, NOTHING = Outcome.DONE, Outcome.FAILED, Outcome.NOTHING
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "founded": {"type": "integer"}},
    "required": ["name"],
}


def fake_extract(document: DocumentText, *_: Any) -> Extraction:
    """One entity: the document's first line as its name, with a mention and a run."""
    name = document.text.splitlines()[0]
    now = datetime.now(UTC)
    mention = Mention("/name", name, Grounding.EXACT, 0, len(name), 0, 0.9)
    lost = Mention("/founded", 1998, Grounding.NONE)
    run = EngineRun("fake", "0" * 64, EngineUsage(10, 5, 3, 0.5), "stop", -0.1, now, now, (0,))
    return Extraction([Entity(0, name.lower(), {"name": name, "founded": 1998}, [mention, lost], 0.9, 0.5)], [run])


@dataclass
class Bench:
    """A client, a worker and a sweeper on one database; `extract` is what extraction does."""

    client: Client
    worker: WorkerFlow
    sweeper: Sweeper
    engine: FakeEngine
    extract: Callable[..., Extraction] = fake_extract

    @property
    def db(self) -> Engine:
        return self.worker.engine

    def rows(self, query: str, **values: Any) -> list[tuple[Any, ...]]:
        with self.db.begin() as connection:
            result = connection.execute(text(query), values)
            return [tuple(row) for row in result] if result.returns_rows else []

    def item(self, item_id: int) -> Any:
        with self.db.begin() as connection:
            return connection.execute(text("SELECT * FROM quarry.job_item WHERE id = :i"), {"i": item_id}).one()

    def items(self, job_id: int) -> list[int]:
        return [row[0] for row in self.rows("SELECT id FROM quarry.job_item WHERE job_id = :j ORDER BY id", j=job_id)]

    def submit(self, *texts: str, uri: str = "doc", **options: Any) -> int:
        sources = [SourceDocument(f"{uri}{n}", body.encode(), "text/plain") for n, body in enumerate(texts)]
        return self.client.submit(sources, "firm", **options).job_id

    def work(self, job_id: int) -> list[Outcome]:
        """Each item's two tasks, one after the other."""
        return [step(item) for item in self.items(job_id) for step in (self.worker.ingest, self.worker.extract)]

    def firms(self) -> list[tuple[Any, ...]]:
        return self.rows("SELECT name, founded, _source_uri, _job_id FROM entities.firm ORDER BY _source_uri, name")

    def expire(self, item_id: int) -> None:
        self.rows("UPDATE quarry.job_item SET lease_until = now() - interval '1 s' WHERE id = :i", i=item_id)

    def wake(self) -> None:
        """What rests is due now."""
        self.rows("UPDATE quarry.job_item SET not_before = now() WHERE not_before IS NOT NULL")
        self.rows("UPDATE quarry.outbox SET due_at = now() WHERE sent_at IS NULL")


@pytest.fixture(scope="module")
def engine() -> Iterator[FakeEngine]:
    with serve() as engine:
        yield engine


@pytest.fixture
def bench(
    database_url: str, broker_url: str, engine: FakeEngine, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bench]:
    settings = Settings(
        home=tmp_path,
        database_url=database_url,
        broker_url=broker_url,
        engine_url=engine.url,
        model="fake",
        embedder="fake-embedder",
        max_document_bytes=1000,
        resend_seconds=0.001,
    )
    client = Client(settings)
    client.add_schema("firm", SCHEMA)
    worker, sweeper = WorkerFlow(settings, threads=4), Sweeper(settings)
    bench = Bench(client, worker, sweeper, engine)
    monkeypatch.setattr("pipeline.flow.extraction.extract", lambda *given: bench.extract(*given))  # noqa: PLW0108
    engine.calls.clear()
    yield bench
    worker.close()
    sweeper.close()
    client.close()


# ---- the main way ------------------------------------------------------------------------------------------------


def test_a_document_becomes_rows_with_their_provenance(bench: Bench) -> None:
    job = bench.submit("Miller Ltd\nis a mill.", "Smith Ltd\nis a smithy.")
    assert bench.work(job) == [DONE] * 4
    assert bench.firms() == [("Miller Ltd", 1998, "doc0", job), ("Smith Ltd", 1998, "doc1", job)]

    info, progress = bench.client.job(job), bench.client.progress(job)
    assert (info.state, info.items, info.done, info.open) == ("done", 2, 2, 0)
    assert progress.ended
    assert progress.counts == {"done": 2}
    assert progress.finished == 2
    first = next(bench.client.entities("firm"))
    assert first.source_uri == "doc0"
    assert [(s.path, s.text, s.start, s.end, s.status) for s in first.spans] == [
        ("/name", "Miller Ltd", 0, 10, "exact"),
        ("/founded", None, None, None, "none"),
    ]
    assert (
        bench.rows("SELECT model, input_tokens, cached_tokens, output_tokens FROM quarry.run")
        == [("fake", 10, 5, 3)] * 2
    )
    assert {row[0] for row in bench.rows("SELECT name FROM quarry.span WHERE job_id = :j", j=job)} >= {
        "ingest",
        "extract",
        "clean",
        "chunk",
        "embed",
        "load",
        "write",
    }
    assert bench.rows("SELECT count(*) FROM quarry.embedding_fake_embedder") == [(2,)]
    sliced = """SELECT bool_and(substr(t.text, c.start::int + 1, (c."end" - c.start)::int) = c.text)
                FROM quarry.chunk c JOIN quarry.clean_text t ON t.id = c.clean_text_id"""
    assert bench.rows(sliced) == [(True,)]


def test_a_rate_is_estimated_from_work_done_and_only_then(bench: Bench) -> None:
    bench.work(bench.submit("Miller Ltd"))
    job = bench.submit("Miller Ltd", "Smith Ltd", "Potter Ltd")
    before = bench.client.progress(job)
    assert (before.reused, before.finished) == (1, 1)
    assert (before.rate, before.eta_seconds) == (None, None)
    for step in (bench.worker.ingest, bench.worker.extract):
        step(bench.items(job)[1])
    after = bench.client.progress(job)
    assert after.rate is not None
    assert after.eta_seconds == 1 / after.rate, "one document is left"


def test_a_late_duplicate_finds_nothing_to_do(bench: Bench) -> None:
    job = bench.submit("Miller Ltd")
    bench.work(job)
    before = bench.rows("SELECT * FROM quarry.job_item"), bench.engine.calls.copy()
    assert bench.work(job) == [NOTHING, NOTHING]
    assert (bench.rows("SELECT * FROM quarry.job_item"), bench.engine.calls) == before


def test_two_workers_and_one_item(bench: Bench) -> None:
    """Of many that want an item at once, one gets it."""
    (item,) = bench.items(bench.submit("Miller Ltd"))
    for step in (bench.worker.ingest, bench.worker.extract):
        outcomes: list[Outcome] = []
        start = threading.Barrier(4)

        def run() -> None:
            start.wait()
            outcomes.append(step(item))

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == [DONE] + [NOTHING] * 3
    assert len(bench.firms()) == 1
    assert bench.item(item).attempt == 2


# ---- the same work, once -----------------------------------------------------------------------------------------


def test_the_same_content_is_not_processed_again(bench: Bench) -> None:
    first = bench.submit("Miller Ltd", "Smith Ltd")
    bench.work(first)
    calls = bench.engine.calls.copy()
    result = bench.client.submit([SourceDocument("doc0", b"Miller Ltd", "text/plain")], "firm")
    assert (result.items, result.reused) == (1, 1)
    assert bench.client.job(result.job_id).state == "done"
    assert bench.engine.calls == calls
    assert bench.rows("SELECT reused_from, rows_item_id FROM quarry.job_item WHERE job_id = :j", j=result.job_id) == [
        (bench.items(first)[0], bench.items(first)[0])
    ]
    assert len(bench.firms()) == 2
    assert [row.source_uri for row in bench.client.entities("firm", job_id=result.job_id)] == ["doc0"]


def test_the_same_content_under_another_address_gets_rows_of_its_own(bench: Bench) -> None:
    bench.work(bench.submit("Miller Ltd"))
    copy = bench.submit("Miller Ltd", uri="other")
    again = bench.submit("Miller Ltd", uri="other")
    assert [bench.client.job(job).reused for job in (copy, again)] == [1, 1]
    assert [row[2] for row in bench.firms()] == ["doc0", "other0"]
    (row,) = bench.client.entities("firm", job_id=again)
    assert row.job_id == copy
    assert [(s.path, s.text) for s in row.spans] == [("/name", "Miller Ltd"), ("/founded", None)]
    assert bench.rows("SELECT count(*) FROM quarry.run") == [(1,)]


def test_force_does_the_work_again_and_replaces_the_rows(bench: Bench) -> None:
    first = bench.submit("Miller Ltd")
    bench.work(first)
    forced = bench.submit("Miller Ltd", force=True)
    assert bench.client.job(forced).reused == 0
    assert bench.work(forced) == [DONE, DONE]
    assert bench.firms() == [("Miller Ltd", 1998, "doc0", forced)]
    assert bench.rows("SELECT job_id, current FROM quarry.entity ORDER BY id") == [(first, False), (forced, True)]
    assert bench.rows("SELECT current, count(*) FROM quarry.mention GROUP BY 1 ORDER BY 1") == [(False, 2), (True, 2)]
    assert bench.engine.calls["embed"] == 1, "text, chunks and vectors are the same: they serve again"


def test_reuse_makes_the_reused_rows_current_again(bench: Bench) -> None:
    """Version 1, then 2, then 1 again: the rows of the first extraction are what the user asked for last."""
    first = bench.submit("Miller Ltd")
    bench.work(first)
    bench.client.add_schema("firm", {**SCHEMA, "description": "other"})
    second = bench.submit("Miller Ltd")
    bench.work(second)
    assert [row[3] for row in bench.firms()] == [second]
    assert bench.client.add_schema("firm", SCHEMA).version == 3
    third = bench.submit("Miller Ltd")
    assert bench.client.job(third).reused == 1
    assert [row[3] for row in bench.firms()] == [first]


def test_work_under_way_elsewhere_is_waited_for(bench: Bench) -> None:
    """The same content twice in one job: the second rests while the first is extracted, then takes its rows over."""
    sources = [SourceDocument(uri, b"Miller Ltd", "text/plain") for uri in ("a", "b")]
    job = bench.client.submit(sources, "firm").job_id
    one, two = bench.items(job)
    bench.worker.ingest(one)
    bench.worker.ingest(two)
    during: list[Outcome] = []

    def extract(document: DocumentText, *given: Any) -> Extraction:
        during.append(bench.worker.extract(two))
        return fake_extract(document)

    bench.extract = extract
    assert bench.worker.extract(one) == DONE
    assert during == [NOTHING]
    assert bench.item(two).state == "embedded"
    assert bench.item(two).failures == 0
    assert bench.worker.extract(two) == NOTHING, "it rests"
    bench.wake()
    assert bench.worker.extract(two) == Outcome.REUSED
    assert [row[2] for row in bench.firms()] == ["a", "b"]
    assert bench.client.job(job).state == "done"
    assert bench.rows("SELECT count(*) FROM quarry.run") == [(1,)]


# ---- what goes wrong ---------------------------------------------------------------------------------------------


def test_a_deterministic_failure_is_final_at_once(bench: Bench) -> None:
    def refuse(*_: Any) -> Extraction:
        raise DocumentError("bad\x00reason", "words \ud800 with what PostgreSQL refuses")

    bench.extract = refuse
    job = bench.submit("Miller Ltd")
    assert bench.work(job) == [DONE, FAILED]
    (failure,) = bench.client.failures(job)
    assert (failure.source_uri, failure.step, failure.reason) == ("doc0", "extract", "badreason")
    assert failure.detail == "words � with what PostgreSQL refuses"
    info = bench.client.job(job)
    assert (info.state, info.failed) == ("done", 1)
    assert bench.work(job) == [NOTHING, NOTHING]


def test_a_failure_that_may_pass_is_tried_again_and_then_given_up(bench: Bench) -> None:
    def busy(*_: Any) -> Extraction:
        raise TransientError("queue is full", reason="engine_busy", retry_after=40.0)

    bench.extract = busy
    job = bench.submit("Miller Ltd")
    (item,) = bench.items(job)
    bench.worker.ingest(item)
    for tries in (1, 2):
        assert bench.worker.extract(item) == Outcome.RELEASED
        row = bench.item(item)
        assert (row.state, row.failures, row.lease_until) == ("embedded", tries, None)
        assert bench.rows("SELECT not_before > now() + interval '39 s' FROM quarry.job_item") == [(True,)]
        assert bench.worker.extract(item) == NOTHING, "it rests"
        assert bench.sweeper.run_once().resent == 0
        bench.wake()
    assert bench.worker.extract(item) == FAILED
    (failure,) = bench.client.failures(job)
    assert failure.reason == "engine_busy"
    assert failure.detail == "queue is full (given up after 3 tries)"


def test_a_step_that_works_forgets_earlier_failures(bench: Bench) -> None:
    bench.engine.refuse.append((503, 2))
    job = bench.submit("Miller Ltd")
    (item,) = bench.items(job)
    bench.rows("UPDATE quarry.job_item SET failures = 2")
    assert bench.worker.ingest(item) == DONE
    assert bench.item(item).failures == 0
    bench.engine.refuse.clear()


def test_an_unexpected_error_is_tried_again_then_recorded(bench: Bench) -> None:
    def broken(*_: Any) -> Extraction:
        raise KeyError("a bug")

    bench.extract = broken
    job = bench.submit("Miller Ltd")
    (item,) = bench.items(job)
    bench.worker.ingest(item)
    for _ in range(3):
        bench.worker.extract(item)
        bench.wake()
    (failure,) = bench.client.failures(job)
    assert failure.reason == "internal_error"
    assert "KeyError: 'a bug'" in failure.detail


@pytest.mark.parametrize(
    "data", [{"name": float("nan")}, {"name": float("inf")}, {"name": object()}], ids=["nan", "infinity", "object"]
)
def test_what_is_no_json_fails_its_document_alone(bench: Bench, data: Mapping[str, Any]) -> None:
    def odd(document: DocumentText, *_: Any) -> Extraction:
        made = fake_extract(document)
        return replace(made, entities=[replace(made.entities[0], data=data)])

    bench.extract = odd
    job = bench.submit("Miller Ltd")
    assert bench.work(job) == [DONE, FAILED]
    assert bench.client.failures(job)[0].reason == "bad_value"
    assert bench.rows("SELECT count(*) FROM quarry.entity") == [(0,)]
    assert bench.rows("SELECT count(*) FROM quarry.run") == [(0,)]


def test_nul_and_surrogates_are_gone_from_every_text(bench: Bench) -> None:
    def odd(document: DocumentText, *_: Any) -> Extraction:
        made = fake_extract(document)
        mention = replace(made.entities[0].mentions[1], value={"k\x00": ["v\x00", "\ud800"]}, path="/f\x00")
        entity = replace(made.entities[0], data={"na\x00me": "Mi\x00ller"}, key="k\x00", mentions=[mention])
        return replace(made, entities=[entity])

    bench.extract = odd
    body = b"Miller\x00 Ltd\n" + b"one NUL among many letters is no binary file. " * 5
    source = SourceDocument("do\x00c", body, "text/plain", {"a\x00": "b\x00", "n": ["\udfff"]})
    job = bench.client.submit([source], "firm", name="jo\x00b").job_id
    assert bench.work(job) == [DONE, DONE]
    assert bench.rows("SELECT data, key FROM quarry.entity") == [({"name": "Miller"}, "k")]
    assert bench.rows("SELECT value, path FROM quarry.mention") == [({"k": ["v", "�"]}, "/f")]
    assert bench.rows("SELECT source_uri, metadata FROM quarry.document") == [("doc", {"a": "b", "n": ["�"]})]


# ---- leases ------------------------------------------------------------------------------------------------------


def test_a_lost_lease_drops_the_result(bench: Bench) -> None:
    """The first worker is thought dead, a second one does the work, then the first comes back."""
    job = bench.submit("Miller Ltd")
    (item,) = bench.items(job)
    bench.worker.ingest(item)

    def slow(document: DocumentText, *_: Any) -> Extraction:
        bench.extract = fake_extract
        bench.expire(item)
        assert bench.sweeper.run_once().taken_back == 1
        assert bench.worker.extract(item) == DONE
        return replace(fake_extract(document), entities=[])

    bench.extract = slow
    assert bench.worker.extract(item) == Outcome.LOST
    assert [row[0] for row in bench.firms()] == ["Miller Ltd"]
    assert bench.rows("SELECT count(*) FROM quarry.run") == [(1,)]


def test_an_expired_lease_can_be_claimed_and_counts_as_a_failed_try(bench: Bench) -> None:
    (item,) = bench.items(bench.submit("Miller Ltd"))
    bench.worker.ingest(item)
    bench.rows("UPDATE quarry.job_item SET state = 'extracting', lease_until = now() - interval '1 s'")
    seen: list[int] = []

    def look(document: DocumentText, *_: Any) -> Extraction:
        seen.append(bench.item(item).failures)
        return fake_extract(document)

    bench.extract = look
    assert bench.worker.extract(item) == DONE
    assert seen == [1]


def test_a_live_lease_is_respected(bench: Bench) -> None:
    (item,) = bench.items(bench.submit("Miller Ltd"))
    bench.rows("UPDATE quarry.job_item SET lease_until = now() + interval '60 s'")
    assert bench.worker.ingest(item) == NOTHING
    assert bench.sweeper.run_once().taken_back == 0


def test_a_document_that_kills_its_worker_ends_as_failed(bench: Bench) -> None:
    job = bench.submit("Miller Ltd")
    (item,) = bench.items(job)
    bench.worker.ingest(item)
    for _ in range(2):
        bench.rows("UPDATE quarry.job_item SET state = 'extracting', step = 'extract', worker = 'host:1'")
        bench.expire(item)
        assert bench.sweeper.run_once().taken_back == 1
        assert bench.item(item).state == "embedded"
    bench.expire(item)
    swept = bench.sweeper.run_once()
    assert (swept.given_up, swept.taken_back) == (1, 0)
    (failure,) = bench.client.failures(job)
    assert failure.reason == "worker_lost"
    assert "3 tries" in failure.detail
    assert bench.worker.extract(item) == NOTHING
    assert bench.client.job(job).state == "done"


def test_leases_are_renewed_while_a_task_works(bench: Bench) -> None:
    settings = bench.worker.settings.model_copy(update={"lease_seconds": 0.3})
    worker = WorkerFlow(settings)
    job = bench.submit("Miller Ltd")
    (item,) = bench.items(job)
    worker.ingest(item)

    def until_renewed(document: DocumentText, *_: Any) -> Extraction:
        first = bench.item(item).lease_until
        while bench.item(item).lease_until == first:
            threading.Event().wait(0.02)
        return fake_extract(document)

    bench.extract = until_renewed
    assert worker.extract(item) == DONE
    worker.close()


# ---- cancel, retry, rejected -------------------------------------------------------------------------------------


def test_cancel_drops_what_workers_still_hold(bench: Bench) -> None:
    job = bench.submit("Miller Ltd", "Smith Ltd")
    item, other = bench.items(job)
    bench.worker.ingest(item)

    def cancelled(document: DocumentText, *_: Any) -> Extraction:
        assert bench.client.cancel(job) == 2
        return fake_extract(document)

    bench.extract = cancelled
    assert bench.worker.extract(item) == Outcome.LOST
    assert bench.worker.ingest(other) == NOTHING
    assert bench.firms() == []
    info = bench.client.job(job)
    assert (info.state, info.cancelled) == ("cancelled", 2)
    assert bench.client.cancel(job) == 0
    assert bench.sweeper.run_once() == Swept()

    bench.extract = fake_extract
    assert bench.client.retry(job) == 2
    assert bench.work(job) == [DONE] * 4
    assert bench.client.job(job).state == "done"


def test_retry_queues_what_failed_and_only_that(bench: Bench) -> None:
    bench.extract = lambda document, *_: (_ for _ in ()).throw(DocumentError("odd", document.text))
    sources = [
        SourceDocument("a", b"Miller Ltd", "text/plain"),
        Rejected("b", "missing", "there is no such file"),
    ]
    job = bench.client.submit(sources, "firm").job_id
    bench.work(job)
    assert [failure.reason for failure in bench.client.failures(job)] == ["odd", "missing"]
    bench.extract = fake_extract
    assert bench.client.retry(job) == 1
    assert bench.client.job(job).state == "running"
    assert bench.work(job)[:2] == [DONE, DONE]
    assert [failure.reason for failure in bench.client.failures(job)] == ["missing"]
    assert bench.client.job(job).state == "done"


def test_bad_sources_end_in_words_and_the_rest_goes_on(bench: Bench) -> None:
    sources = [
        SourceDocument("good", b"Miller Ltd", "text/plain"),
        SourceDocument("empty", b"", "text/plain"),
        SourceDocument("big", b"x" * 1001, "text/plain"),
        SourceDocument("u" * 3000, b"x", "text/plain"),
        SourceDocument("nan", b"x", "text/plain", {"n": float("nan")}),
        SourceDocument("bytes", b"x", "text/plain", {"n": b"x"}),
        SourceDocument("binary", bytes(range(256)), "text/plain"),
        SourceDocument("good", b"Miller Ltd", "text/plain"),
        Rejected("gone", "missing", "there is: no such file"),
    ]
    seen: list[tuple[int, int]] = []
    result = bench.client.submit(iter(sources), "firm", progress=lambda *n: seen.append(n))
    assert [rejected.reason for rejected in result.rejected] == [
        "empty",
        "too_big",
        "bad_uri",
        "bad_metadata",
        "bad_metadata",
        "missing",
    ]
    assert result.items == 8, "a document named twice is one item"
    assert seen[-1][0] == len(sources)
    bench.work(result.job_id)
    failures = {failure.source_uri: failure for failure in bench.client.failures(result.job_id)}
    assert len(failures) == 7
    assert (failures["gone"].reason, failures["gone"].detail) == ("missing", "there is: no such file")
    assert failures["binary"].reason == "binary"
    assert "1,000" in failures["big"].detail
    info = bench.client.job(result.job_id)
    assert (info.state, info.done, info.failed) == ("done", 1, 7)


def test_nothing_is_kept_of_a_submission_that_breaks_off(bench: Bench) -> None:
    def sources() -> Iterator[SourceDocument]:
        yield SourceDocument("a", b"Miller Ltd", "text/plain")
        raise OSError("the disk went away")

    with pytest.raises(OSError, match="went away"):
        bench.client.submit(sources(), "firm")
    with pytest.raises(ValueError, match="nothing to submit"):
        bench.client.submit([], "firm")
    with pytest.raises(NotFound, match="there are firm"):
        bench.client.submit([SourceDocument("a", b"x", "text/plain")], "frim")
    for table in ("job", "job_item", "blob", "document", "outbox"):
        assert bench.rows(f"SELECT count(*) FROM quarry.{table}") == [(0,)]


# ---- the sweeper -------------------------------------------------------------------------------------------------


def test_what_a_crash_left_unsent_is_sent(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "_dispatch", lambda *_: None)
    bench.submit("Miller Ltd", "Smith Ltd")
    assert bench.sweeper.run_once().sent == 2
    assert bench.sweeper.run_once().sent == 0


def test_messages_lost_with_the_broker_are_sent_again(bench: Bench) -> None:
    import redis

    job = bench.submit("Miller Ltd", "Smith Ltd")
    one, _ = bench.items(job)
    bench.worker.ingest(one)
    assert bench.sweeper.run_once().resent == 0, "the messages are there"
    redis.Redis.from_url(bench.sweeper.settings.broker_url or "").flushall()
    swept = bench.sweeper.run_once()
    assert (swept.resent, swept.sent) == (2, 2)
    assert bench.sweeper.run_once().resent == 0


def test_a_broker_that_is_down_delays_and_loses_nothing(bench: Bench) -> None:
    lost = bench.client.settings.model_copy(update={"broker_url": "redis://127.0.0.1:1/0"})
    with Client(lost) as client:
        job = client.submit([SourceDocument("a", b"Miller Ltd", "text/plain")], "firm").job_id
    assert bench.client.job(job).open == 1
    assert bench.sweeper.run_once().sent == 1


def test_a_job_whose_last_items_ended_together_is_finished(bench: Bench) -> None:
    job = bench.submit("Miller Ltd")
    bench.work(job)
    bench.rows("UPDATE quarry.job SET state = 'running', finished_at = NULL")
    assert bench.sweeper.run_once().finished == 1
    assert bench.client.job(job).state == "done"


def test_chunks_given_to_extraction_are_the_documents(bench: Bench) -> None:
    seen: list[tuple[str, list[Chunk], list[list[int]]]] = []

    def look(document: DocumentText, schema: Any, engine: Any, settings: Any, search: Any, trace: Any) -> Extraction:
        found = [list(ordinals) for ordinals in search(["harbour", "mill"], 1)]
        seen.append((document.text, list(document.chunks), found))
        return fake_extract(document)

    bench.extract = look
    bench.client.settings = bench.client.settings.model_copy(update={"chunk_tokens": 16, "max_document_bytes": 9999})
    body = "# Firms\n\n" + "\n\n".join(f"Paragraph {n} tells about thing number {n}." for n in range(20))
    job = bench.submit(body + "\n\nThe mill stands here.\n\nThe harbour lies there.")
    assert bench.work(job) == [DONE, DONE]
    text_, chunks, found = seen[0]
    assert all(text_[chunk.start : chunk.end] == chunk.text for chunk in chunks)
    assert [chunk.ordinal for chunk in chunks] == list(range(len(chunks)))
    assert "harbour" in chunks[found[0][0]].text
    assert "mill" in chunks[found[1][0]].text
