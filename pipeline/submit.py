"""One submission: sources stream into the database and become blobs, documents and items in one transaction."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from psycopg.types.json import Jsonb
from sqlalchemy import Connection, Row

from db.named import Queries
from db.reuse import reuse
from db.session import driver, set_local
from pipeline import work
from pipeline.gate import clean_string, clean_value
from pipeline.load import Rejected, SourceDocument
from pipeline.records import RejectedSource, SubmitResult
from pipeline.settings import Settings

MAX_URI_BYTES = 2048  # the table's limit
MAX_REPORTED = 1000  # rejected sources named in the result; `failures` lists them all
REUSE_BATCH = 5000

_SUBMIT = Queries("submit")
_ITEMS = Queries("items")
_COPY = """
COPY incoming (source_uri, sha256, bytes, media_type, metadata, work_key, reason, detail) FROM STDIN (FORMAT binary)
"""
_COPY_TYPES = ("text", "bytea", "bytea", "text", "jsonb", "bytea", "text", "text")


def submit(
    connection: Connection,
    sources: Iterable[SourceDocument | Rejected],
    schema: Row[Any],
    settings: Settings,
    *,
    name: str | None,
    salt: str,
    priority: int,
    progress: Callable[[int, int], None] | None,
) -> SubmitResult:
    """Within the caller's transaction. `salt` keeps work from being reused. Raises ValueError when there is no source.

    Sources are read one at a time, and nothing is locked until the last one is read.
    """
    # Reading may wait for a pipe, and the statements that follow grow with the number of sources.
    set_local(connection, statement_timeout=0, lock_timeout="600s", idle_in_transaction_session_timeout=0)
    stored = work.job_settings(settings)
    settings_digest = work.digest(stored)
    connection.execute(_SUBMIT.create_incoming)
    seen = size = 0
    rejected: list[RejectedSource] = []
    with driver(connection).cursor() as cursor, cursor.copy(_COPY) as copy:
        copy.set_types(_COPY_TYPES)
        for source in sources:
            checked = check(source, settings.max_document_bytes)
            seen += 1
            if isinstance(checked, Rejected):
                uri = clean_string(checked.source_uri)[:MAX_URI_BYTES] or "?"
                reason, detail = clean_string(checked.reason), clean_string(checked.detail)
                copy.write_row((uri, None, None, None, None, None, reason, detail))
                if len(rejected) < MAX_REPORTED:
                    rejected.append(RejectedSource(uri, reason, detail))
            else:
                uri, data, media_type, metadata = checked
                blob = hashlib.sha256(data).digest()
                key = work.work_key(blob, media_type, schema.digest, settings_digest, salt)
                copy.write_row((uri, blob, data, media_type, metadata, key, None, None))
                size += len(data)
            if progress is not None:
                progress(seen, size)
    if not seen:
        raise ValueError("there is nothing to submit: no source was found")

    connection.execute(_SUBMIT.index_incoming)
    connection.execute(_SUBMIT.analyze_incoming)
    job_id = connection.execute(
        _SUBMIT.insert_job,
        {
            "name": clean_string(name) if name else schema.name,
            "schema_id": schema.id,
            "settings": json.dumps(stored),
            "settings_digest": settings_digest,
        },
    ).scalar_one()
    connection.execute(_SUBMIT.insert_blobs)
    connection.execute(_SUBMIT.insert_documents)
    connection.execute(_SUBMIT.insert_items, {"job_id": job_id, "priority": priority})
    connection.execute(_SUBMIT.insert_rejected, {"job_id": job_id, "priority": priority})
    done = connection.execute(_SUBMIT.items_to_reuse, {"job_id": job_id}).scalars().all()
    for first in range(0, len(done), REUSE_BATCH):
        reuse(connection, done[first : first + REUSE_BATCH])
    connection.execute(_SUBMIT.queue_all, {"job_id": job_id})
    connection.execute(_ITEMS.finish_jobs, {"job_id": job_id})
    counts = connection.execute(_SUBMIT.count_items, {"job_id": job_id}).one()
    return SubmitResult(job_id, counts.items, counts.reused, tuple(rejected))


def check(source: SourceDocument | Rejected, max_bytes: int) -> tuple[str, bytes, str, Jsonb] | Rejected:
    """What is stored of a source, or why nothing is: one bad source must not fail a submission of thousands."""
    if isinstance(source, Rejected):
        return source
    uri = clean_string(source.source_uri)
    if not uri or len(uri.encode()) > MAX_URI_BYTES:
        return Rejected(uri[:200], "bad_uri", f"the source's address is empty or longer than {MAX_URI_BYTES} bytes")
    if not source.data:
        return Rejected(uri, "empty", "there is nothing in it")
    if len(source.data) > max_bytes:
        limit = f"{len(source.data):,} bytes; the limit is {max_bytes:,}: split it, or raise QUARRY_MAX_DOCUMENT_BYTES"
        return Rejected(uri, "too_big", limit)
    try:
        metadata = _json(source.metadata)
    except (ValueError, TypeError, RecursionError) as error:
        return Rejected(uri, "bad_metadata", f"its metadata can't be stored as JSON: {error}")
    return uri, source.data, clean_string(source.media_type), metadata


def _json(value: Mapping[str, Any]) -> Jsonb:
    text = json.dumps(clean_value(dict(value)), allow_nan=False, ensure_ascii=False)
    return Jsonb(value, dumps=lambda _: text)
