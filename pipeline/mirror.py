"""Langfuse, as a mirror of the spans: it may be down, slow or absent, and nothing waits for it.

A document is a trace (its id made from the item's, so that a second try adds to it), its steps are observations with
their own times, the job is a session, the schema a tag. The figures are those of `quarry.span`.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import queue
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from db.session import sqlalchemy_url
from pipeline.settings import Settings
from pipeline.tracing import SpanRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.id_generator import IdGenerator

EXPORT_SECONDS = 5  # for one batch to be taken by the server
FLUSH_SECONDS = 3.0  # at the end of a process
QUEUED_DOCUMENTS = 512  # beyond that, spans are dropped and counted: the database has them
BATCH_SPANS = 128
_NOISY = ("opentelemetry", "langfuse", "urllib3", "requests")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DocumentContext:
    """Whose spans these are."""

    job_id: int
    item_id: int
    document_id: int
    source_uri: str
    schema: str


_Batch = tuple[DocumentContext, Sequence[SpanRecord]]


class Mirror:
    """One per process, made after the fork. Thread-safe.

    `send` puts spans into a bounded queue; one thread turns them into observations and waits for the server.
    """

    def __init__(self, *, public_key: str, secret_key: str, host: str, installation: str) -> None:
        """`installation` sets apart the traces of two databases that share a Langfuse project."""
        # Imported here: without keys no process pays for it.
        from langfuse import Langfuse
        from opentelemetry.sdk.trace import TracerProvider

        _say_once()
        self.dropped = 0  # spans that found the queue full, or were still in it at the end
        self._installation = installation
        self._ids = _GivenIds()
        self._provider = TracerProvider(id_generator=cast("IdGenerator", self._ids), shutdown_on_exit=False)
        self._client = Langfuse(
            public_key=public_key,
            secret_key=secret_key,
            base_url=host,
            timeout=EXPORT_SECONDS,
            tracer_provider=self._provider,
            should_export_span=lambda _: True,
        )
        # The SDK waits at exit until everything is sent, half a minute for a dead server; `close` has a deadline.
        if resources := getattr(self._client, "_resources", None):
            atexit.unregister(resources.shutdown)
        self._tracer = self._provider.get_tracer("quarry")
        self._lock = threading.Lock()
        self._queue: queue.Queue[_Batch | None] = queue.Queue(QUEUED_DOCUMENTS)
        self._thread = threading.Thread(target=self._work, name="langfuse", daemon=True)
        self._thread.start()

    @classmethod
    def from_settings(cls, settings: Settings) -> Mirror | None:
        """None without keys. A mirror that can't be made is reported once and left out."""
        if not (settings.langfuse_public_key and settings.langfuse_secret_key):
            return None
        try:
            return cls(
                public_key=settings.langfuse_public_key,
                secret_key=settings.langfuse_secret_key.get_secret_value(),
                host=settings.langfuse_host or "https://cloud.langfuse.com",
                installation=_installation(settings.endpoint("database_url")),
            )
        except Exception as error:  # whatever the SDK objects to: documents go on without it
            log.warning("Langfuse is left out: %s", error)
            return None

    def send(self, context: DocumentContext, records: Sequence[SpanRecord]) -> None:
        """Queue finished spans, or drop and count them when the server is too far behind. Returns at once."""
        try:
            self._queue.put_nowait((context, records))
        except queue.Full:
            self._drop(len(records))

    def close(self) -> None:
        """Send what is queued, for at most `FLUSH_SECONDS`; the rest is dropped."""
        deadline = time.monotonic() + FLUSH_SECONDS
        with suppress(queue.Full):  # then the thread is behind, and the deadline ends it
            self._queue.put(None, timeout=FLUSH_SECONDS)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        while True:
            try:
                left = self._queue.get_nowait()
            except queue.Empty:
                return
            if left is not None:
                self._drop(len(left[1]))

    def _drop(self, spans: int) -> None:
        with self._lock:
            first, self.dropped = self.dropped == 0, self.dropped + spans
        if first:
            _once.warn("Langfuse is behind or away: spans are dropped there (the database has them)")

    def _work(self) -> None:
        """Batches, each handed over and waited for: so the queue is the only place where spans gather."""
        more = True
        while more:
            batch = [self._queue.get()]
            while batch[-1] is not None and sum(len(entry[1]) for entry in batch if entry) < BATCH_SPANS:
                try:
                    batch.append(self._queue.get_nowait())
                except queue.Empty:
                    break
            more = batch[-1] is not None
            try:
                for entry in filter(None, batch):
                    for record in entry[1]:
                        self._observe(entry[0], record)
                self._provider.force_flush()
            except Exception as error:  # a record the SDK objects to must not end the thread
                _once.warn(f"spans could not be handed to Langfuse: {error}")

    def trace_id(self, context: DocumentContext) -> int:
        seed = f"{self._installation}:{context.job_id}:{context.item_id}".encode()
        return int.from_bytes(hashlib.sha256(seed).digest()[:16])

    def _observe(self, context: DocumentContext, record: SpanRecord) -> None:
        from opentelemetry import trace
        from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

        trace_id = self.trace_id(context)
        parent = int(record.parent_id, 16) if record.parent_id else 0
        where = trace.set_span_in_context(trace.INVALID_SPAN)
        if parent:
            above = SpanContext(trace_id, parent, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
            where = trace.set_span_in_context(NonRecordingSpan(above))
        self._ids.give(trace_id, int(record.id, 16))
        span = self._tracer.start_span(
            record.name,
            context=where,
            start_time=_nanoseconds(record.started_at),
            attributes=_attributes(context, record, self._installation),
        )
        span.end(_nanoseconds(record.ended_at))


class _GivenIds:
    """The ids that the next span is to have: those it has in the database. Used by the mirror's thread alone."""

    def __init__(self) -> None:
        self._next = (0, 0)

    def give(self, trace_id: int, span_id: int) -> None:
        self._next = (trace_id, span_id)

    def generate_trace_id(self) -> int:
        return self._next[0]

    def generate_span_id(self) -> int:
        return self._next[1]

    def is_trace_id_random(self) -> bool:
        return False


def _installation(database_url: str) -> str:
    """The same for all workers of a database, whatever role and password they use."""
    url = sqlalchemy_url(database_url)
    place = f"{url.host}:{url.port}/{url.database}?{url.query.get('host', '')}"
    return hashlib.sha256(place.encode()).hexdigest()[:8]


def _attributes(context: DocumentContext, record: SpanRecord, installation: str) -> dict[str, Any]:
    """Langfuse's names for what a record holds. Disjoint token buckets; the cost is the step's own."""
    is_generation = record.name == "generation"
    is_embedding = record.name == "embed"
    attributes: dict[str, Any] = {
        "langfuse.trace.name": context.source_uri,
        "session.id": f"job {context.job_id} ({installation})",
        "langfuse.trace.tags": [context.schema],
        "langfuse.trace.metadata.document_id": str(context.document_id),
        "langfuse.observation.type": "generation" if is_generation else "embedding" if is_embedding else "span",
        "langfuse.observation.cost_details": json.dumps({"total": record.cost_usd}),
        "langfuse.observation.metadata": json.dumps(record.attributes, ensure_ascii=False, default=str),
        "langfuse.observation.level": "ERROR" if record.status == "error" else "DEFAULT",
    }
    if record.model:
        attributes["langfuse.observation.model.name"] = record.model
    usage = {
        "input": record.input_tokens,
        "input_cached_tokens": record.cached_tokens,
        "output": record.output_tokens,
    }
    if any(usage.values()):
        attributes["langfuse.observation.usage_details"] = json.dumps(usage)
    if record.status == "error":
        attributes["langfuse.observation.status_message"] = str(record.attributes.get("error", "error"))
    return attributes


def _nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000) * 1000


class _Once(logging.Filter):
    """Lets one warning through and no more: a server that is down is down, once."""

    def __init__(self) -> None:
        super().__init__()
        self._said = False
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """For the loggers of the libraries below."""
        return record.levelno >= logging.WARNING and self._first()

    def warn(self, message: str) -> None:
        """Our own warning, unless something has been said."""
        if self._first():
            log.warning(message)

    def _first(self) -> bool:
        with self._lock:
            said, self._said = self._said, True
        return not said


_once = _Once()


def _say_once() -> None:
    """One warning in all from the libraries below, whichever of their loggers it comes from."""
    import opentelemetry.exporter.otlp.proto.http.trace_exporter
    import opentelemetry.sdk.trace.export  # noqa: F401 - so that their loggers exist

    # A filter sits on the logger that is called, not on its parents.
    names = [name for name in logging.root.manager.loggerDict if name.split(".")[0] in _NOISY]
    for name in {*names, *_NOISY}:
        logger = logging.getLogger(name)
        if _once not in logger.filters:
            logger.addFilter(_once)
