"""Submitting and reading: what the command line, tests and a program use. Writes no results; workers do that."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from types import TracebackType
from typing import Any

import structlog
from sqlalchemy import Connection, Row
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from db.embeddings import find_table
from db.languages import SIMPLE, text_config
from db.named import Queries
from db.readonly import QueryError, run_query
from db.search import ChunkFilter, hybrid
from db.session import describe, is_connection_error, make_engine, sqlstate
from db.views import ViewColumn, create_view, drop_view, view_name
from pipeline.engine_client import EngineClient
from pipeline.load import Rejected, SourceDocument
from pipeline.messages import BrokerDown, Sender
from pipeline.records import (
    CostGroup,
    CostRow,
    EntityRow,
    Failure,
    JobInfo,
    Progress,
    SchemaInfo,
    SearchFilters,
    SearchHit,
    SpanRef,
    SqlResult,
    SubmitResult,
)
from pipeline.schema import ExtractionSchema
from pipeline.settings import Settings, get_settings
from pipeline.submit import submit

__all__ = ["Client", "NotFound", "QueryError", "Unavailable"]

log = structlog.get_logger(__name__)
_SCHEMAS = Queries("schemas")
_ITEMS = Queries("items")
_READING = Queries("reading")
_COSTS = Queries("costs")
_STREAM_ROWS = 200


class NotFound(LookupError):
    """No such schema or job. The message names what there is."""


class Unavailable(RuntimeError):
    """The database does not answer. The message names its address (no password) and what to do."""


class Client:
    """Thread-safe. Opens connections when first used; `close()` or `with` gives them back.

    Every method raises `pipeline.settings.NotConfigured` when an address is missing and `Unavailable` when the
    database is down.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or get_settings()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if "_engine" in self.__dict__:
            self._engine.dispose()
        if "_sender" in self.__dict__:
            self._sender.close()

    # Schemas

    def add_schema(
        self,
        name: str,
        json_schema: Mapping[str, Any] | str,
        instructions: str = "",
        examples: Sequence[Mapping[str, Any]] = (),
    ) -> SchemaInfo:
        """Register a schema and build its view. The same content again gives the version that is there; other content
        gives the next version. Raises `pipeline.schema.SchemaError` or `db.views.ViewError`, both ValueErrors."""
        schema = ExtractionSchema.parse(name, json_schema, instructions, examples)
        columns = [ViewColumn(column.name, column.path, column.sql_type) for column in schema.columns()]
        with self._begin() as connection:
            connection.execute(_SCHEMAS.lock)
            newest = connection.execute(_SCHEMAS.newest, {"name": name}).one_or_none()
            if newest is not None and newest.digest == schema.digest:
                return _schema_info(newest)
            row = connection.execute(
                _SCHEMAS.insert,
                {
                    "name": name,
                    "json_schema": json.dumps(schema.json_schema),
                    "instructions": schema.instructions,
                    "examples": json.dumps(list(schema.examples)),
                    "digest": schema.digest,
                    "columns": json.dumps([column.as_json() for column in columns]),
                },
            ).one()
            create_view(connection, name, columns)
        return _schema_info(row)

    def list_schemas(self) -> list[SchemaInfo]:
        """The newest version of each schema, by name."""
        with self._begin() as connection:
            return [_schema_info(row) for row in connection.execute(_SCHEMAS.list_newest)]

    def get_schema(self, name: str, version: int | None = None) -> SchemaInfo:
        """Raises NotFound."""
        with self._begin() as connection:
            return _schema_info(self._schema(connection, name, version))

    def drop_schema(self, name: str) -> None:
        """Take the schema and its view out of use. Rows already extracted stay in `quarry.entity`. Raises NotFound,
        or ValueError when a job still runs under it or another view reads from its view."""
        with self._begin() as connection:
            connection.execute(_SCHEMAS.lock)
            self._schema(connection, name)
            running = connection.execute(_SCHEMAS.running_jobs, {"name": name}).scalars().all()
            if running:
                jobs = ", ".join(map(str, running[:5]))
                raise ValueError(f"schema {name!r} is in use by running jobs ({jobs}): cancel them or wait")
            connection.execute(_SCHEMAS.drop, {"name": name})
            drop_view(connection, name)

    # Jobs

    def submit(
        self,
        sources: Iterable[SourceDocument | Rejected],
        schema: str,
        *,
        name: str | None = None,
        force: bool = False,
        priority: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> SubmitResult:
        """Store the sources and queue them, in one transaction; messages go out after the commit.

        Memory stays bounded whatever the number of sources. `priority` is 0 (first) to 9. `progress` is called with
        (sources, bytes) read so far. A broker that is down delays work and loses nothing. Raises NotFound for an
        unknown schema, ValueError when there are no sources at all.
        """
        if not 0 <= priority <= 9:
            raise ValueError(f"priority {priority} is out of range: 0 (first) to 9")
        sender = self._sender
        with self._begin() as connection:
            row = self._schema(connection, schema)
            salt = secrets.token_hex(8) if force else ""
            result = submit(
                connection, sources, row, self.settings, name=name, salt=salt, priority=priority, progress=progress
            )
        self._dispatch(sender)
        return result

    def jobs(self, limit: int = 50) -> list[JobInfo]:
        """Newest first."""
        with self._begin() as connection:
            return [JobInfo(**row._mapping) for row in connection.execute(_READING.jobs, _page(None, limit))]

    def job(self, job_id: int) -> JobInfo:
        """Raises NotFound."""
        with self._begin() as connection:
            row = connection.execute(_READING.jobs, _page(job_id, 1)).one_or_none()
        if row is None:
            raise NotFound(f"there is no job {job_id}: `quarry jobs` lists them")
        return JobInfo(**row._mapping)

    def progress(self, job_id: int) -> Progress:
        """Raises NotFound."""
        job = self.job(job_id)
        with self._begin() as connection:
            states = connection.execute(_READING.counts, {"job_id": job_id}).all()
            pace = connection.execute(_READING.pace, {"job_id": job_id}).one()
            spent = connection.execute(_READING.spent, {"job_id": job_id}).one()
        rate = pace.finished / float(pace.seconds) if pace.finished and pace.seconds > 0 else None
        left = sum(row.n for row in states if row.state not in ("done", "failed", "cancelled"))
        return Progress(
            job_id=job_id,
            state=job.state,
            items=sum(row.n for row in states),
            counts={row.state: row.n for row in states},
            reused=sum(row.reused for row in states),
            retrying=sum(row.retrying for row in states),
            input_tokens=int(spent.input_tokens),
            cached_tokens=int(spent.cached_tokens),
            output_tokens=int(spent.output_tokens),
            cost_usd=float(spent.cost_usd),
            left_out=int(spent.left_out),
            elapsed_seconds=float(pace.elapsed),
            rate=rate,
            eta_seconds=left / rate if rate else None,
        )

    def watch(self, job_id: int, *, interval: float = 0.5, timeout: float | None = None) -> Iterator[Progress]:
        """`progress` every `interval` seconds; the last one has `ended` set. Raises TimeoutError, NotFound."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            now = self.progress(job_id)
            yield now
            if now.ended:
                return
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"job {job_id} has {now.items - now.finished} open items after {timeout:g} s")
            time.sleep(interval)

    def cancel(self, job_id: int) -> int:
        """Stop what is not finished; what workers still hold is dropped when it arrives. Returns how many items."""
        self.job(job_id)
        with self._begin() as connection:
            cancelled = connection.execute(_ITEMS.cancel, {"job_id": job_id}).rowcount
            if cancelled:
                connection.execute(_ITEMS.cancel_job, {"job_id": job_id})
            else:
                connection.execute(_ITEMS.finish_jobs, {"job_id": job_id})
        return cancelled

    def retry(self, job_id: int) -> int:
        """Queue the failed and cancelled items again (rejected sources have nothing to retry). Returns how many."""
        self.job(job_id)
        sender = self._sender
        with self._begin() as connection:
            queued = connection.execute(_ITEMS.retry, {"job_id": job_id}).rowcount
            connection.execute(_ITEMS.reopen_job, {"job_id": job_id})
        self._dispatch(sender)
        return queued

    # Reading

    def failures(self, job_id: int | None = None, limit: int | None = None) -> list[Failure]:
        """Newest first."""
        with self._begin() as connection:
            return [Failure(**row._mapping) for row in connection.execute(_READING.failures, _page(job_id, limit))]

    def entities(self, schema: str, *, job_id: int | None = None, limit: int | None = None) -> Iterator[EntityRow]:
        """Stream current entities with their spans, in the order of documents. With `job_id`, what that job gave,
        reused results included. Raises NotFound."""
        self.get_schema(schema)
        if job_id is not None:
            self.job(job_id)
        return self._stream_entities(schema, job_id, limit)

    def search(self, text: str, k: int = 10, filters: SearchFilters | None = None) -> list[SearchHit]:
        """Chunks by meaning and by words, fused. Needs the embedder; raises `pipeline.errors.TransientError` when it
        is down."""
        if k < 1:
            raise ValueError(f"k is {k}: ask for at least one hit")
        wanted = filters or SearchFilters()
        where = ChunkFilter(
            job_id=wanted.job_id,
            document_ids=wanted.document_ids,
            source_prefix=wanted.source_prefix,
            language=wanted.language,
            media_type=wanted.media_type,
        )
        vector = EngineClient.from_settings(self.settings).embed([text]).vectors[0]
        with self._begin() as connection:
            languages = connection.execute(_READING.languages).scalars().all()
            configs = [SIMPLE, *(text_config(language) for language in languages)]
            table = find_table(connection, self.settings.embedder)
            # Twice as many: the same text cut in another way, under earlier settings, is dropped below.
            found = hybrid(connection, text, vector=vector, table=table, k=2 * k, where=where, configs=configs)
            details = connection.execute(
                _READING.hits,
                {
                    "chunk_ids": [hit.chunk_id for hit in found],
                    "document_ids": list(wanted.document_ids) if wanted.document_ids is not None else None,
                    "source_prefix": wanted.source_prefix,
                    "job_id": wanted.job_id,
                },
            )
            by_chunk = {row.chunk_id: row for row in details}
        hits: list[SearchHit] = []
        for hit in found:
            row = by_chunk.get(hit.chunk_id)
            if row is None or any(
                h.document_id == row.document_id and h.start < row.end and row.start < h.end for h in hits
            ):
                continue
            hits.append(SearchHit(**row._mapping, score=hit.score, dense_rank=hit.dense_rank, text_rank=hit.text_rank))
        return hits[:k]

    def sql(self, query: str, *, timeout_seconds: float = 60.0) -> AbstractContextManager[SqlResult]:
        """Run one statement as `quarry_reader` in a read-only transaction: `with client.sql("SELECT …") as result`.

        It keeps a query from changing anything or reading more than the views by accident. To give access to others,
        create a login in the role `quarry_reader` and let them connect to the database themselves.
        Raises QueryError.
        """
        return self._sql(query, timeout_seconds)

    def costs(self, by: CostGroup = "step", *, job_id: int | None = None) -> list[CostRow]:
        """Dearest first."""
        queries = {
            "step": _COSTS.by_step,
            "job": _COSTS.by_job,
            "schema": _COSTS.by_schema,
            "model": _COSTS.by_model,
        }
        if by not in queries:
            raise ValueError(f"costs by {by!r} are not kept: by {', '.join(queries)}")
        with self._begin() as connection:
            rows = connection.execute(queries[by], {"job_id": job_id}).all()
        total = sum(float(row.cost_usd) for row in rows)
        return [
            CostRow(
                group=row.label,
                spans=row.spans,
                documents=row.documents,
                seconds=float(row.seconds),
                input_tokens=int(row.input_tokens),
                cached_tokens=int(row.cached_tokens),
                output_tokens=int(row.output_tokens),
                cost_usd=float(row.cost_usd),
                share=float(row.cost_usd) / total if total else 0.0,
            )
            for row in rows
        ]

    # Parts

    @cached_property
    def _engine(self) -> Any:
        return make_engine(self.settings.endpoint("database_url"), application="quarry client")

    @cached_property
    def _sender(self) -> Sender:
        return Sender(self.settings.endpoint("broker_url"))

    @contextmanager
    def _begin(self) -> Iterator[Connection]:
        """A transaction; what the server has to say about itself becomes words."""
        try:
            with self._engine.begin() as connection:
                yield connection
        except (DBAPIError, SQLAlchemyError) as error:
            raise self._in_words(error) from error

    def _in_words(self, error: Exception) -> Exception:
        where = describe(self.settings.endpoint("database_url"))
        if is_connection_error(error):
            first = str(getattr(error, "orig", error)).strip().splitlines()[0]
            return Unavailable(f"the database at {where} does not answer ({first}): run `quarry up`, or check the URL")
        if sqlstate(error) in ("42P01", "3F000", "42703"):  # undefined table, schema or column
            return Unavailable(f"the database at {where} is not up to date: run `quarry up`, which migrates it")
        return error

    def _dispatch(self, sender: Sender) -> None:
        try:
            sender.dispatch(self._engine)
        except BrokerDown as error:
            log.warning("messages wait for the broker; the sweeper sends them", error=str(error))

    def _schema(self, connection: Connection, name: str, version: int | None = None) -> Row[Any]:
        if version is None:
            row = connection.execute(_SCHEMAS.newest, {"name": name}).one_or_none()
        else:
            row = connection.execute(_SCHEMAS.version, {"name": name, "version": version}).one_or_none()
        if row is None:
            known = [schema.name for schema in connection.execute(_SCHEMAS.list_newest)]
            have = f"there are {', '.join(known)}" if known else "there is none yet"
            what = f"schema {name!r}" + (f" in version {version}" if version is not None else "")
            raise NotFound(f"no {what}; {have}: `quarry schema add` registers one")
        return row

    def _stream_entities(self, schema: str, job_id: int | None, limit: int | None) -> Iterator[EntityRow]:
        parameters = {"schema": schema, **_page(job_id, limit)}
        with self._begin() as connection:
            streaming = connection.execution_options(yield_per=_STREAM_ROWS)
            for row in streaming.execute(_READING.entities, parameters):
                values = dict(row._mapping)
                spans = tuple(SpanRef(**span) for span in values.pop("spans") or ())
                yield EntityRow(**values, spans=spans)

    @contextmanager
    def _sql(self, query: str, timeout_seconds: float) -> Iterator[SqlResult]:
        with self._begin() as connection, run_query(connection, query, timeout_seconds) as (columns, rows):
            yield SqlResult(columns, rows)


def _page(job_id: int | None, limit: int | None) -> dict[str, int | None]:
    return {"job_id": job_id, "limit": limit}


def _schema_info(row: Row[Any]) -> SchemaInfo:
    return SchemaInfo(
        id=row.id,
        name=row.name,
        version=row.version,
        json_schema=row.json_schema,
        instructions=row.instructions,
        examples=tuple(row.examples),
        digest=row.digest,
        columns=tuple(row.columns),
        view=view_name(row.name),
        created_at=row.created_at,
    )
