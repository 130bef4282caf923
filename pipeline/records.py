"""What `pipeline.Client` hands back: plain frozen records, one per noun. Times are aware datetimes, costs USD."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

CostGroup = Literal["step", "job", "schema", "model"]


@dataclass(frozen=True)
class SchemaInfo:
    """A registered extraction schema. `version` counts from 1 per name; the newest is the one that is used."""

    id: int
    name: str
    version: int
    json_schema: Mapping[str, Any]
    instructions: str
    examples: Sequence[Mapping[str, Any]]
    digest: str
    columns: Sequence[Mapping[str, Any]]  # {"name", "path", "type"} of the typed view, in order
    view: str  # entities.<name>, quoted as SQL needs it
    created_at: datetime


@dataclass(frozen=True)
class RejectedSource:
    """A source that never became a document. It is a failed item of the job, listed by `failures` as well."""

    source_uri: str
    reason: str
    detail: str


@dataclass(frozen=True)
class SubmitResult:
    """`items` counts all items of the job: to be done, `reused` (done at once) and rejected."""

    job_id: int
    items: int
    reused: int
    rejected: Sequence[RejectedSource]


@dataclass(frozen=True)
class JobInfo:
    """`state`: running, done or cancelled. `counts` maps item state to number; `failed` is one of those states."""

    id: int
    name: str
    schema: str
    schema_version: int
    state: str
    created_at: datetime
    finished_at: datetime | None
    items: int
    done: int
    failed: int
    cancelled: int
    reused: int

    @property
    def open(self) -> int:
        """Items that still have a way to go."""
        return self.items - self.done - self.failed - self.cancelled


@dataclass(frozen=True)
class Progress:
    """A job at one moment. `rate` is documents per second and `eta_seconds` the estimate from it; None: not known yet.

    Token buckets are disjoint: cached tokens are not input tokens.
    """

    job_id: int
    state: str
    items: int
    counts: Mapping[str, int]  # item state → number: stored cleaned chunked embedded extracting done failed cancelled
    reused: int
    retrying: int  # items that wait after a failed try
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    cost_usd: float
    elapsed_seconds: float
    rate: float | None
    eta_seconds: float | None
    left_out: int = 0  # values that the schema wants a source for and that the text does not have

    @property
    def finished(self) -> int:
        """Items in a terminal state."""
        return sum(self.counts.get(state, 0) for state in ("done", "failed", "cancelled"))

    @property
    def ended(self) -> bool:
        return self.state != "running"


@dataclass(frozen=True)
class Failure:
    """An item that ended as failed. `reason` is a short code for grouping, `detail` says it in words."""

    job_id: int
    item_id: int
    source_uri: str
    step: str
    reason: str
    detail: str
    attempt: int
    failed_at: datetime


@dataclass(frozen=True)
class SpanRef:
    """Where one value came from: `path` is a JSON pointer into `data`, offsets are code points into the clean text.

    `status`: exact, normalised, fuzzy or none; with none, `start`, `end` and `text` are None.
    """

    path: str
    value: Any
    start: int | None
    end: int | None
    status: str
    confidence: float | None
    text: str | None  # the characters in the document


@dataclass(frozen=True)
class EntityRow:
    """One extracted entity with the places its values came from."""

    entity_id: int
    document_id: int
    source_uri: str
    title: str | None
    data: Mapping[str, Any]
    spans: Sequence[SpanRef]
    grounded: float
    confidence: float | None
    job_id: int
    extracted_at: datetime


@dataclass(frozen=True)
class SearchFilters:
    """All given ones must hold. `source_prefix` matches the start of the source URI."""

    job_id: int | None = None
    document_ids: Sequence[int] | None = None
    source_prefix: str | None = None
    language: str | None = None
    media_type: str | None = None


@dataclass(frozen=True)
class SearchHit:
    """A chunk. `score` is the sum of 1/(60 + rank) over the two rankings; a rank is None where one didn't find it."""

    chunk_id: int
    document_id: int
    source_uri: str
    title: str | None
    start: int
    end: int
    text: str
    heading_path: Sequence[str]
    score: float
    dense_rank: int | None
    text_rank: int | None


@dataclass(frozen=True)
class SqlResult:
    """A query's columns and its rows. `rows` streams and can be read once; close the result when done."""

    columns: Sequence[str]
    rows: Iterator[Sequence[Any]]


@dataclass(frozen=True)
class CostRow:
    """Spend of one group. Seconds are wall clock summed over spans; `share` is of the total cost."""

    group: str
    spans: int
    documents: int
    seconds: float
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    cost_usd: float
    share: float = field(default=0.0)
