"""What a task runs: claim an item, do its step, and settle how the try ended.

claimed ──▶ done | handed over      results, spans and state in one commit
    ├─ DocumentError ─────────▶ failed, with a dead letter
    ├─ TransientError ────────▶ released to rest, or failed when it was the last try
    ├─ anything unexpected ───▶ the same, logged with its traceback
    └─ lease lost ────────────▶ dropped: someone else has the item, or nobody wants it
"""

from __future__ import annotations

import os
import socket
import threading
from enum import StrEnum
from functools import cached_property

import structlog
from sqlalchemy.exc import SQLAlchemyError

from db.models import Step
from db.reuse import reuse
from db.session import is_transient, make_engine, set_local, sqlstate
from pipeline.engine_client import EngineClient
from pipeline.errors import DocumentError, PipelineError, TransientError
from pipeline.flow.extraction import extract_item
from pipeline.flow.ingest import ingest
from pipeline.flow.item import Item, backoff, claim, fail, finish_job, release
from pipeline.flow.lease import Lease, LeaseKeeper, LeaseLost
from pipeline.flow.spans import store_spans
from pipeline.messages import BrokerDown, Sender
from pipeline.mirror import DocumentContext, Mirror
from pipeline.parsing import ParserLimits, ParserPool
from pipeline.settings import Settings
from pipeline.tokens import TokenCounter, token_counter
from pipeline.tracing import Trace

log = structlog.get_logger(__name__)


class Outcome(StrEnum):
    """How a task ended. Only the item's row counts; this is for logs and tests."""

    NOTHING = "nothing"  # nothing to claim: a late duplicate, or the same work is under way elsewhere
    DONE = "done"
    REUSED = "reused"
    FAILED = "failed"
    RELEASED = "released"
    LOST = "lost"


class WorkerFlow:
    """One per process, made after the fork. Thread-safe: `threads` is how many tasks run in it at once."""

    def __init__(self, settings: Settings, *, threads: int = 1) -> None:
        self.settings = settings
        self.worker = f"{socket.gethostname()}:{os.getpid()}"
        # Tasks need a connection in short moments only, the lease keeper one of its own.
        self.engine = make_engine(
            settings.endpoint("database_url"), pool_size=min(threads, 16) + 2, application="quarry worker"
        )
        self.leases = LeaseKeeper(self.engine, settings.lease_seconds, settings.item_seconds)
        self.mirror = Mirror.from_settings(settings)
        limits = ParserLimits(settings.parse_seconds, settings.parse_memory_bytes)
        self.parsers = ParserPool("pipeline.parsing.cleaning", limits)
        self._lock = threading.Lock()
        self._counters: dict[str, TokenCounter] = {}

    def ingest(self, item_id: int) -> Outcome:
        """stored → embedded, and the message for extraction."""
        return self._run(Step.INGEST, item_id)

    def extract(self, item_id: int) -> Outcome:
        """embedded → done."""
        return self._run(Step.EXTRACT, item_id)

    def close(self) -> None:
        if self.mirror is not None:
            self.mirror.close()
        self.parsers.close()
        self.leases.close()
        self.engine.dispose()

    @cached_property
    def sender(self) -> Sender:
        return Sender(self.settings.endpoint("broker_url"))

    def _run(self, step: Step, item_id: int) -> Outcome:
        trace = Trace(self.settings)
        # The root's own time, without its steps', is what claiming, committing and sending take.
        with trace.span(step.value) as root:
            item = claim(self.engine, self.settings, step, item_id, self.worker)
            if item is None:
                self._dispatch(item_id)
                return Outcome.NOTHING
            with structlog.contextvars.bound_contextvars(job=item.job_id, item=item.id, attempt=item.attempt):
                with self.leases.hold(item.id, item.attempt) as lease:
                    outcome = self._try(item, lease, trace)
                if outcome is Outcome.DONE and step is Step.INGEST:
                    self._dispatch(item_id)
                log.info(step.value, outcome=outcome.value, source=item.source_uri)
            root.set(outcome=outcome.value, attempt=item.attempt)
        self._store_rest(item, trace)
        self._reflect(item, trace)
        return outcome

    def _try(self, item: Item, lease: Lease, trace: Trace) -> Outcome:
        try:
            if item.done_before:
                with self.engine.begin() as connection:
                    if reuse(connection, [item.id]):
                        finish_job(connection, item)
                        return Outcome.REUSED
            client = EngineClient.from_settings(item.settings)
            if item.step is Step.INGEST:
                ingest(
                    self.engine,
                    item,
                    lease,
                    trace,
                    parsers=self.parsers,
                    client=client,
                    counter=lambda: self._counter(client, item.settings),
                )
            else:
                extract_item(self.engine, item, lease, trace, client)
            return Outcome.DONE
        except LeaseLost as lost:
            log.warning("the attempt no longer holds; its results are dropped", lost=str(lost))
            return Outcome.LOST
        except PipelineError as error:
            return self._settle(item, trace, error)
        except SQLAlchemyError as error:
            return self._settle(item, trace, _database_error(error))
        except Exception as error:
            log.exception("unexpected error")
            words = f"{type(error).__name__}: {error}"
            return self._settle(item, trace, TransientError(words, reason="internal_error"))

    def _settle(self, item: Item, trace: Trace, error: PipelineError) -> Outcome:
        """Record a failed try with what it spent. When even that fails, the lease runs out and the sweeper counts."""
        failures = item.failures + 1
        try:
            with self.engine.begin() as connection:
                store_spans(connection, item, trace)
                if isinstance(error, TransientError) and failures < self.settings.max_attempts:
                    release(connection, item, error, backoff(failures, error.retry_after))
                    return Outcome.RELEASED
                if isinstance(error, TransientError):
                    error = DocumentError(error.reason, f"{error.detail} (given up after {failures} tries)")
                fail(connection, item, error)
                return Outcome.FAILED
        except LeaseLost:
            return Outcome.LOST
        except SQLAlchemyError as second:
            log.error("a failed try could not be recorded", error=str(second).splitlines()[0], reason=error.reason)
            return Outcome.LOST

    def _store_rest(self, item: Item, trace: Trace) -> None:
        """The root span, and those of a lost try. Rows do not depend on it, so nothing waits for the disk."""
        try:
            with self.engine.begin() as connection:
                set_local(connection, synchronous_commit="off")
                store_spans(connection, item, trace)
        except SQLAlchemyError as error:
            log.warning("spans could not be stored", error=str(error).splitlines()[0])

    def _reflect(self, item: Item, trace: Trace) -> None:
        """After the commits, so that Langfuse shows what the database has."""
        if self.mirror is not None:
            document = DocumentContext(item.job_id, item.id, item.document_id, item.source_uri, item.schema.name)
            self.mirror.send(document, trace.taken)

    def _counter(self, client: EngineClient, settings: Settings) -> TokenCounter:
        with self._lock:
            if settings.model not in self._counters:
                self._counters[settings.model] = token_counter(client, settings)
            return self._counters[settings.model]

    def _dispatch(self, item_id: int) -> None:
        try:
            self.sender.dispatch(self.engine, item_id=item_id)
        except (BrokerDown, SQLAlchemyError) as error:
            log.warning("a message waits for the sweeper", error=str(error).splitlines()[0])


def _database_error(error: SQLAlchemyError) -> PipelineError:
    words = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
    if is_transient(error):
        return TransientError(words, reason="database_unavailable")
    if (sqlstate(error) or "").startswith("22"):  # data exception: the same values fail again
        return DocumentError("unstorable", f"PostgreSQL refused a value: {words}")
    return TransientError(words, reason="database_error")
