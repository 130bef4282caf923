"""A claimed item, and the ways a try can end: each is one guarded statement in the caller's transaction."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine, Row
from sqlalchemy.exc import IntegrityError

from db.models import INGESTING, ItemState, Step
from db.named import Queries
from pipeline.errors import PipelineError
from pipeline.flow.lease import LeaseLost
from pipeline.gate import clean_string
from pipeline.schema import ExtractionSchema
from pipeline.settings import Settings
from pipeline.work import with_job_settings

_ITEMS = Queries("items")
REST_SECONDS = 2.0  # until an item looks again whether the same work, under way elsewhere, is done
BACKOFF_SECONDS = 2.0  # after the first failed try; doubled for each one after it
MAX_BACKOFF_SECONDS = 120.0
MAX_DETAIL = 4000  # characters of an error that are kept

CLAIMABLE = {
    Step.INGEST: [str(state) for state in INGESTING],
    Step.EXTRACT: [str(ItemState.EMBEDDED), str(ItemState.EXTRACTING)],
}


@dataclass(frozen=True)
class Item:
    """What a task knows of its item. `settings` are the worker's with the job's in place."""

    id: int
    job_id: int
    document_id: int
    attempt: int
    failures: int
    state: ItemState
    clean_text_id: int | None
    chunker: str | None
    priority: int
    step: Step
    source_uri: str
    blob_sha256: bytes
    media_type: str
    metadata: Mapping[str, Any]
    schema_id: int
    schema: ExtractionSchema
    settings: Settings
    done_before: bool  # the same work is done in another item


def claim(engine: Engine, settings: Settings, step: Step, item_id: int, worker: str) -> Item | None:
    """Take the item for one try. None when there is nothing to do: done, taken, resting, cancelled, or the same work is
    under way in another item (then this one rests)."""
    wanted = {
        "item_id": item_id,
        "step": step.value,
        "states": CLAIMABLE[step],
        "worker": worker,
        "lease_seconds": settings.lease_seconds,
        "max_attempts": settings.max_attempts,
    }
    try:
        with engine.begin() as connection:
            row = connection.execute(_ITEMS.claim, wanted).one_or_none()
            if row is None:
                return None
            about = connection.execute(_ITEMS.describe, {"item_id": item_id}).one()
    except IntegrityError as error:
        if not isinstance(error.orig, psycopg.errors.UniqueViolation):
            raise
        with engine.begin() as connection:
            connection.execute(_ITEMS.rest, {"item_id": item_id, "delay_seconds": REST_SECONDS})
        return None
    return Item(
        id=row.id,
        job_id=row.job_id,
        document_id=row.document_id,
        attempt=row.attempt,
        failures=row.failures,
        state=ItemState(row.state),
        clean_text_id=row.clean_text_id,
        chunker=row.chunker,
        priority=row.priority,
        step=step,
        source_uri=about.source_uri,
        blob_sha256=about.blob_sha256,
        media_type=about.media_type,
        metadata=about.metadata,
        schema_id=about.schema_id,
        schema=_schema(about),
        settings=with_job_settings(settings, about.settings),
        done_before=about.done_before,
    )


_schemas: dict[tuple[str, str], ExtractionSchema] = {}


def _schema(about: Row[Any]) -> ExtractionSchema:
    """Parsed once per process: checking a schema takes longer than claiming an item."""
    key = (about.schema_name, about.schema_digest)
    if key not in _schemas:
        _schemas[key] = ExtractionSchema.parse(about.schema_name, about.json_schema, about.instructions, about.examples)
    return _schemas[key]


def advance(
    connection: Connection, item: Item, state: ItemState, *, clean_text_id: int, chunker: str | None = None
) -> Item:
    """A step of ingest worked; the lease goes on. Returns the item as it is now. Raises LeaseLost."""
    _guarded(connection, item, "advance", state=state.value, clean_text_id=clean_text_id, chunker=chunker)
    return replace(item, state=state, clean_text_id=clean_text_id, chunker=chunker, failures=0)


def hand_over(connection: Connection, item: Item) -> None:
    """Ingest is done: the item is free for extraction and its message is written. Raises LeaseLost."""
    _guarded(connection, item, "hand_over")
    message = {"task": Step.EXTRACT.value, "item_id": item.id, "priority": item.priority}
    connection.execute(_ITEMS.queue, message)


def finish(connection: Connection, item: Item) -> None:
    """Extraction is done. Raises LeaseLost."""
    _guarded(connection, item, "finish")
    finish_job(connection, item)


def fail(connection: Connection, item: Item, error: PipelineError) -> None:
    """The try failed for good. Raises LeaseLost."""
    reason, detail = clean_string(error.reason), clean_string(error.detail)[:MAX_DETAIL]
    _guarded(connection, item, "fail", step=item.step.value, reason=reason, detail=detail, error=f"{reason}: {detail}")
    finish_job(connection, item)


def release(connection: Connection, item: Item, error: PipelineError, delay_seconds: float) -> None:
    """The try failed for now: the item rests and is tried again. Raises LeaseLost."""
    words = clean_string(f"{error.reason}: {error.detail}")[:MAX_DETAIL]
    _guarded(connection, item, "release", failed=1, error=words, delay_seconds=delay_seconds)


def finish_job(connection: Connection, item: Item) -> None:
    """End the job when nothing of it is open. Two last items may each see the other: then the sweeper ends it."""
    connection.execute(_ITEMS.finish_jobs, {"job_id": item.job_id})


def backoff(failures: int, retry_after: float | None) -> float:
    """Seconds to rest after `failures` failed tries: doubling, at least what the other side asked for, and spread out
    so that items that failed together do not come back together."""
    wait = min(BACKOFF_SECONDS * 2 ** max(failures - 1, 0), MAX_BACKOFF_SECONDS)
    return max(wait, retry_after or 0.0) * random.uniform(1.0, 1.5)  # noqa: S311


def _guarded(connection: Connection, item: Item, query: str, **values: Any) -> None:
    parameters = {"item_id": item.id, "attempt": item.attempt, **values}
    if connection.execute(getattr(_ITEMS, query), parameters).first() is None:
        raise LeaseLost(f"item {item.id}, attempt {item.attempt}")
