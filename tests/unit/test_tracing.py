"""Spans: nesting, errors, and who pays for what."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable

import pytest

from pipeline import tracing
from pipeline.cost import cpu_cost, engine_cost
from pipeline.engine_client import EngineUsage
from pipeline.settings import Settings
from pipeline.tracing import SpanRecord, Trace


class Clock:
    """CPU seconds of each thread, moved by hand."""

    def __init__(self) -> None:
        self._spent = threading.local()

    def spend(self, seconds: float) -> None:
        self._spent.seconds = self() + seconds

    def __call__(self) -> float:
        return getattr(self._spent, "seconds", 0.0)


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(tracing.time, "thread_time", clock)
    return clock


@pytest.fixture
def settings() -> Settings:
    """A second of CPU costs a dollar, one of the device ten."""
    return Settings(cpu_price_per_hour=3600.0, device_price_per_hour=36000.0)


def by_name(records: list[SpanRecord]) -> dict[str, SpanRecord]:
    return {record.name: record for record in records}


def in_thread(work: Callable[[], None]) -> None:
    """As the extraction's fan-out does it: in a copy of the caller's context."""
    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,))
    thread.start()
    thread.join()


def test_spans_nest_in_time_and_are_taken_once() -> None:
    trace = Trace(Settings())
    with trace.span("extract", attempt=1) as root:
        with trace.span("retrieve"):
            pass
        with trace.span("ground") as ground:
            ground.set(values=3)
            with trace.span("match"):
                pass
        root.set(outcome="done")
    records = trace.take()
    found = by_name(records)
    assert [record.name for record in records] == ["retrieve", "match", "ground", "extract"]
    assert found["extract"].parent_id is None
    assert found["retrieve"].parent_id == found["ground"].parent_id == found["extract"].id
    assert found["match"].parent_id == found["ground"].id
    assert {record.trace_id for record in records} == {trace.id}
    assert found["extract"].attributes == {"attempt": 1, "outcome": "done"}
    assert all(found["extract"].started_at <= record.started_at <= record.ended_at for record in records)
    assert trace.take() == []
    assert trace.taken == records


def test_an_error_is_recorded_and_goes_on() -> None:
    trace = Trace(Settings())
    with pytest.raises(KeyError), trace.span("extract"), trace.span("load"):
        raise KeyError("gone")
    found = by_name(trace.take())
    assert (found["load"].status, found["extract"].status) == ("error", "error")
    assert found["load"].attributes["error"] == "KeyError: 'gone'"
    with trace.span("extract"):
        pass
    (after,) = trace.take()
    assert (after.status, after.parent_id) == ("ok", None)


def test_each_span_pays_for_its_own_cpu_time(cpu: Clock, settings: Settings) -> None:
    trace = Trace(settings)
    with trace.span("extract"):
        cpu.spend(1)
        with trace.span("ground"):
            cpu.spend(2)
            with trace.span("match"):
                cpu.spend(4)
    costs = {record.name: record.cost_usd for record in trace.take()}
    assert costs == pytest.approx({"extract": 1, "ground": 2, "match": 4})


def test_what_another_thread_spends_is_not_taken_from_the_one_that_waits(cpu: Clock, settings: Settings) -> None:
    trace = Trace(settings)

    def window() -> None:
        cpu.spend(5)
        with trace.span("generation"):
            cpu.spend(3)
            with trace.span("parse"):
                cpu.spend(2)

    with trace.span("extract"):
        cpu.spend(4)
        in_thread(window)
    found = by_name(trace.take())
    assert found["generation"].parent_id == found["extract"].id
    costs = {name: record.cost_usd for name, record in found.items()}
    assert costs == pytest.approx({"extract": 4, "generation": 3, "parse": 2})


def test_many_threads_lose_no_span() -> None:
    trace = Trace(Settings())

    def window() -> None:
        for _ in range(50):
            with trace.span("generation"):
                time.sleep(0)

    with trace.span("extract"):
        threads = [threading.Thread(target=contextvars.copy_context().run, args=(window,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    records = trace.take()
    assert len(records) == 401
    assert len({record.id for record in records}) == 401
    assert {record.parent_id for record in records if record.name == "generation"} == {records[-1].id}


def test_usage_adds_up_and_is_paid_by_device_time(cpu: Clock, settings: Settings) -> None:
    trace = Trace(settings)
    with trace.span("generation", model="asked") as span:
        span.usage(EngineUsage(10, 20, 5, 0.5), model="served")
        span.usage(EngineUsage(1, 2, 3, 0.25))
        cpu.spend(1)
    (record,) = trace.take()
    assert (record.input_tokens, record.cached_tokens, record.output_tokens) == (11, 22, 8)
    assert record.device_seconds == pytest.approx(0.75)
    assert record.model == "served"
    assert record.cost_usd == pytest.approx(0.75 * 10 + 1)


def test_a_null_trace_records_nothing() -> None:
    trace = Trace.null()
    with trace.span("extract") as span:
        span.usage(EngineUsage(1, 2, 3, None))
    assert trace.take() == []


PRICES = {"input_token_price": 2.0, "output_token_price": 8.0}
USAGE = EngineUsage(input_tokens=1_000_000, cached_tokens=500_000, output_tokens=100_000, device_seconds=3600.0)


@pytest.mark.parametrize(
    ("prices", "cost"),
    [
        ({"device_price_per_hour": 0.5}, 0.5),
        (PRICES | {"cached_token_price": 0.2}, 2.0 + 0.1 + 0.8),
        (PRICES | {"cached_token_price": 0.0}, 2.0 + 0.8),
        (PRICES, 2.0 + 1.0 + 0.8),  # cached tokens cost what input costs unless they have a price
        ({"output_token_price": 8.0}, 0.8),
    ],
)
def test_an_engine_is_paid_by_device_time_or_by_tokens(prices: dict[str, float], cost: float) -> None:
    assert engine_cost(USAGE, Settings(**prices)) == pytest.approx(cost)


def test_cpu_is_paid_by_the_second_of_a_core() -> None:
    assert cpu_cost(1800.0, Settings(cpu_price_per_hour=0.04)) == pytest.approx(0.02)
    assert engine_cost(EngineUsage(5, 5, 5, None), Settings()) == 0.0
