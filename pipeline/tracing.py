"""Spans: what each step of a document took in time, tokens and money. The database is the truth.

A trace belongs to one try of one item. Its open span is kept in the context, so threads that run in a copy of the
caller's context nest their spans under the caller's.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pipeline.cost import cpu_cost, engine_cost
from pipeline.engine_client import EngineUsage
from pipeline.settings import Settings

_open: ContextVar[SpanHandle | None] = ContextVar("quarry_span", default=None)


@dataclass(frozen=True)
class SpanRecord:
    """A finished span. Token buckets are disjoint; cost is this span's own, without its children's."""

    id: str  # 16 hex digits
    trace_id: str  # 32 hex digits
    parent_id: str | None
    name: str
    started_at: datetime
    ended_at: datetime
    model: str | None
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    device_seconds: float | None
    cost_usd: float
    status: str  # ok or error
    attributes: dict[str, Any]


@dataclass
class SpanHandle:
    """An open span. Set and used by the thread that opened it."""

    id: str
    parent: SpanHandle | None
    model: str | None
    attributes: dict[str, Any]
    usage_: EngineUsage | None = None
    thread: int = field(default_factory=threading.get_ident)
    children_cpu_seconds: float = 0.0  # of children in the same thread, which this span's own clock has counted too

    def set(self, **attributes: Any) -> None:
        """JSON values that describe what was done."""
        self.attributes.update(attributes)

    def usage(self, usage: EngineUsage, *, model: str | None = None) -> None:
        """What an engine call inside this span used. Several calls add up."""
        self.usage_ = usage if self.usage_ is None else self.usage_ + usage
        self.model = model or self.model


class Trace:
    """Collects spans until they are taken. Thread-safe."""

    def __init__(self, settings: Settings | None) -> None:
        """`settings` has the prices; without them nothing is recorded."""
        self.id = secrets.token_hex(16)
        self._settings = settings
        self._finished: list[SpanRecord] = []
        self._taken: list[SpanRecord] = []
        self._lock = threading.Lock()

    @classmethod
    def null(cls) -> Trace:
        """A trace that records nothing."""
        return cls(None)

    @contextmanager
    def span(self, name: str, *, model: str | None = None, **attributes: Any) -> Iterator[SpanHandle]:
        """A span around the block, below the one that is open. An exception marks it as `error`, with its words."""
        handle = SpanHandle(secrets.token_hex(8), _open.get(), model, attributes)
        token = _open.set(handle)
        started, wall, cpu = datetime.now(UTC), time.perf_counter(), time.thread_time()
        status = "ok"
        try:
            yield handle
        except BaseException as error:
            status = "error"
            handle.set(error=f"{type(error).__name__}: {error}"[:500])
            raise
        finally:
            _open.reset(token)
            spent = time.thread_time() - cpu
            self._finish(handle, name, started, time.perf_counter() - wall, spent, status)

    def take(self) -> list[SpanRecord]:
        """The spans finished since the last call."""
        with self._lock:
            taken, self._finished = self._finished, []
            self._taken += taken
        return taken

    @property
    def taken(self) -> list[SpanRecord]:
        """All spans that have been taken: what a mirror of the database is to show."""
        with self._lock:
            return list(self._taken)

    def _finish(
        self, handle: SpanHandle, name: str, started: datetime, seconds: float, cpu_seconds: float, status: str
    ) -> None:
        if self._settings is None:
            return
        if handle.parent is not None and handle.parent.thread == handle.thread:
            handle.parent.children_cpu_seconds += cpu_seconds
        usage = handle.usage_ or EngineUsage()
        own = max(0.0, cpu_seconds - handle.children_cpu_seconds)
        record = SpanRecord(
            id=handle.id,
            trace_id=self.id,
            parent_id=handle.parent.id if handle.parent else None,
            name=name,
            started_at=started,
            ended_at=datetime.fromtimestamp(started.timestamp() + seconds, UTC),
            model=handle.model,
            input_tokens=usage.input_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            device_seconds=usage.device_seconds,
            cost_usd=engine_cost(usage, self._settings) + cpu_cost(own, self._settings),
            status=status,
            attributes=handle.attributes,
        )
        with self._lock:
            self._finished.append(record)
