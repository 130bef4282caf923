"""The Langfuse mirror against a receiver that decodes what arrives, and against servers slow, broken or gone."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from pipeline.engine_client import EngineUsage
from pipeline.mirror import FLUSH_SECONDS, DocumentContext, Mirror, _attributes, _installation
from pipeline.settings import Settings
from pipeline.tracing import Trace
from tests.otlp_receiver import receiver

CONTEXT = DocumentContext(job_id=7, item_id=3, document_id=5, source_uri="file:///pages/a.html", schema="recipe")


def mirror(host: str) -> Mirror:
    # The SDK keeps one set of threads per key and process.
    return Mirror(public_key=f"pk-{uuid.uuid4()}", secret_key="sk-test", host=host, installation="test")


def spans(settings: Settings) -> Trace:
    trace = Trace(settings)
    with trace.span("extract"):
        with trace.span("retrieve", chunks=2):
            pass
        with trace.span("generation", model="small") as span:
            span.usage(
                EngineUsage(input_tokens=10, cached_tokens=20, output_tokens=5, device_seconds=3.6), model="small"
            )
    return trace


def test_a_document_arrives_as_a_trace_of_nested_observations_with_the_figures_of_the_database() -> None:
    settings = Settings(device_price_per_hour=1.0, cpu_price_per_hour=0.0)
    records = spans(settings).take()
    with receiver() as server:
        langfuse = mirror(server.url)
        langfuse.send(CONTEXT, records)
        found = {span.name: span for span in server.wait_for(3)}
        langfuse.close()
    assert set(found) == {"extract", "retrieve", "generation"}
    assert len({span.trace_id for span in found.values()}) == 1
    assert found["generation"].parent_id == found["retrieve"].parent_id == found["extract"].span_id
    assert {span.span_id for span in found.values()} == {record.id for record in records}

    generation = found["generation"].attributes
    assert generation["langfuse.observation.type"] == "generation"
    assert generation["langfuse.observation.model.name"] == "small"
    assert json.loads(generation["langfuse.observation.usage_details"]) == {
        "input": 10,
        "input_cached_tokens": 20,
        "output": 5,
    }
    assert json.loads(generation["langfuse.observation.cost_details"]) == {"total": pytest.approx(0.001)}
    assert generation["session.id"] == "job 7 (test)"
    assert generation["langfuse.trace.tags"] == ["recipe"]
    assert generation["langfuse.trace.name"] == "file:///pages/a.html"
    assert json.loads(found["retrieve"].attributes["langfuse.observation.metadata"]) == {"chunks": 2}


def test_times_are_those_of_the_steps_and_a_second_try_lands_in_the_same_trace() -> None:
    started = datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC)
    record = spans(Settings()).take()[0]
    fields = record.__dict__ | {"started_at": started, "ended_at": started + timedelta(seconds=2), "parent_id": None}
    with receiver() as server:
        langfuse = mirror(server.url)
        langfuse.send(CONTEXT, [type(record)(**fields)])
        langfuse.send(CONTEXT, spans(Settings()).take())
        other = DocumentContext(job_id=7, item_id=4, document_id=6, source_uri="b", schema="recipe")
        langfuse.send(other, spans(Settings()).take())
        arrived = server.wait_for(7)
        langfuse.close()
    first = arrived[0]
    assert first.start == 1_767_323_045_678_901_000
    assert first.end - first.start == 2_000_000_000
    assert len(arrived) == 7
    assert len({span.trace_id for span in arrived}) == 2


def test_an_error_is_marked_with_its_words() -> None:
    trace = Trace(Settings())
    with pytest.raises(ValueError), trace.span("ground"):
        raise ValueError("no such span")
    with receiver() as server:
        langfuse = mirror(server.url)
        langfuse.send(CONTEXT, trace.take())
        (span,) = server.wait_for(1)
        langfuse.close()
    assert span.attributes["langfuse.observation.level"] == "ERROR"
    assert "no such span" in span.attributes["langfuse.observation.status_message"]


def test_without_keys_there_is_no_mirror() -> None:
    assert Mirror.from_settings(Settings(database_url="postgresql:///x")) is None


def test_the_names_are_those_of_the_sdk() -> None:
    from langfuse._client.attributes import LangfuseOtelSpanAttributes as Names

    record = spans(Settings()).take()[1]
    known = {value for name, value in vars(Names).items() if name.isupper()}
    for name in _attributes(CONTEXT, record, "test"):
        assert name in known or name.startswith(f"{Names.TRACE_METADATA}.")


def test_the_same_document_has_the_same_trace_whoever_connects_as_whom() -> None:
    first = _installation("postgresql://worker:old@db.example:5432/quarry")
    assert first == _installation("postgresql+psycopg://other:new@db.example:5432/quarry")
    assert first != _installation("postgresql://worker:old@db.example:5432/another")
    assert _installation("postgresql://q@/q?host=/a/postgres") != _installation("postgresql://q@/q?host=/b/postgres")


def test_spans_beyond_the_queue_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.mirror.QUEUED_DOCUMENTS", 2)
    monkeypatch.setattr("pipeline.mirror.FLUSH_SECONDS", 0.2)
    with receiver() as server:
        server.delay_seconds = 30.0
        langfuse = mirror(server.url)
        langfuse.send(CONTEXT, spans(Settings()).take())
        server.wait_for_requests(1)  # the thread waits for the server from here on
        for _ in range(10):
            langfuse.send(CONTEXT, spans(Settings()).take())
        assert langfuse.dropped == 8 * 3
        langfuse.close()
        assert langfuse.dropped == 10 * 3


def test_what_is_queued_is_sent_before_the_end() -> None:
    with receiver() as server:
        langfuse = mirror(server.url)
        for item in range(100):
            context = DocumentContext(job_id=7, item_id=item, document_id=item, source_uri="a", schema="recipe")
            langfuse.send(context, spans(Settings()).take())
        langfuse.close()
        assert len(server.spans) == 300
        assert langfuse.dropped == 0


SCRIPT = """
import sys, time
from tests.unit.test_mirror import CONTEXT, mirror, spans
from pipeline.settings import Settings
langfuse = mirror(sys.argv[1])
start = time.monotonic()
for _ in range(600):
    langfuse.send(CONTEXT, spans(Settings()).take())
sent = time.monotonic() - start
time.sleep(2.5)
start = time.monotonic()
langfuse.close()
print(sent, time.monotonic() - start)
"""


@pytest.mark.parametrize("fault", ["gone", "slow", "refusing"])
def test_a_bad_server_holds_nothing_up_and_is_mentioned_once(fault: str) -> None:
    with receiver() as server:
        server.delay_seconds = 60.0 if fault == "slow" else 0.0
        server.status = 500 if fault == "refusing" else 200
        url = "http://127.0.0.1:9" if fault == "gone" else server.url
        began = time.monotonic()
        run = subprocess.run(
            [sys.executable, "-c", SCRIPT, url], capture_output=True, text=True, timeout=60, check=True
        )
        whole = time.monotonic() - began
    sent, closed = map(float, run.stdout.split())
    # Bounds that tell waiting from not waiting: a batch alone may take the server a minute here.
    assert sent < 10
    assert closed < FLUSH_SECONDS + 2
    assert whole < 40
    assert len([line for line in run.stderr.splitlines() if line.strip()]) <= 1
