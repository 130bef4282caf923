"""Submitting and reading: what the command line, tests and a program use. Writes no results; workers do that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from pipeline.load import Rejected, SourceDocument
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
    SqlResult,
    SubmitResult,
)
from pipeline.settings import Settings


class NotFound(LookupError):
    """No such schema or job. The message names what there is."""


class QueryError(ValueError):
    """The user's SQL was refused, failed or took too long. The message is PostgreSQL's, with the place in the query."""


class Unavailable(RuntimeError):
    """The database does not answer. The message names its address (no password) and what to do."""


class Client:
    """Thread-safe. Opens connections when first used; `close()` or `with` gives them back.

    Every method raises `pipeline.settings.NotConfigured` when an address is missing and `Unavailable` when the
    database is down.
    """

    def __init__(self, settings: Settings | None = None, *, database_url: str | None = None) -> None:
        raise NotImplementedError

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        raise NotImplementedError

    # Schemas

    def add_schema(
        self,
        name: str,
        json_schema: Mapping[str, Any] | str,
        instructions: str = "",
        examples: Sequence[Mapping[str, Any]] = (),
    ) -> SchemaInfo:
        """Register a schema and build its view. The same content again gives the version that is there; other content
        gives the next version. Raises `pipeline.schema.SchemaError`."""
        raise NotImplementedError

    def list_schemas(self) -> list[SchemaInfo]:
        """The newest version of each schema, by name."""
        raise NotImplementedError

    def get_schema(self, name: str, version: int | None = None) -> SchemaInfo:
        """Raises NotFound."""
        raise NotImplementedError

    def drop_schema(self, name: str) -> None:
        """Take the schema and its view out of use. Rows already extracted stay in `quarry.entity`. Raises NotFound,
        or ValueError when a job still runs under it."""
        raise NotImplementedError

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
        raise NotImplementedError

    def jobs(self, limit: int = 50) -> list[JobInfo]:
        """Newest first."""
        raise NotImplementedError

    def job(self, job_id: int) -> JobInfo:
        """Raises NotFound."""
        raise NotImplementedError

    def progress(self, job_id: int) -> Progress:
        """Raises NotFound."""
        raise NotImplementedError

    def watch(self, job_id: int, *, interval: float = 0.5, timeout: float | None = None) -> Iterator[Progress]:
        """`progress` every `interval` seconds; the last one has `ended` set. Raises TimeoutError, NotFound."""
        raise NotImplementedError

    def cancel(self, job_id: int) -> int:
        """Stop what is not finished; what workers still hold is dropped when it arrives. Returns how many items."""
        raise NotImplementedError

    def retry(self, job_id: int) -> int:
        """Queue the failed and cancelled items again (rejected sources have nothing to retry). Returns how many."""
        raise NotImplementedError

    # Reading

    def failures(self, job_id: int | None = None, limit: int | None = None) -> list[Failure]:
        """Newest first."""
        raise NotImplementedError

    def entities(self, schema: str, *, job_id: int | None = None, limit: int | None = None) -> Iterator[EntityRow]:
        """Stream current entities with their spans, in the order of documents. With `job_id`, what that job gave,
        reused results included. Raises NotFound."""
        raise NotImplementedError

    def search(self, text: str, k: int = 10, filters: SearchFilters | None = None) -> list[SearchHit]:
        """Chunks by meaning and by words, fused. Needs the embedder; raises `pipeline.errors.TransientError` when it
        is down."""
        raise NotImplementedError

    def sql(self, query: str, *, timeout_seconds: float = 60.0) -> AbstractContextManager[SqlResult]:
        """Run one statement as `quarry_reader` in a read-only transaction: `with client.sql("SELECT …") as result`.

        Raises QueryError.
        """
        raise NotImplementedError

    def costs(self, by: CostGroup = "step", *, job_id: int | None = None) -> list[CostRow]:
        """Dearest first."""
        raise NotImplementedError
