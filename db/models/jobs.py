"""Work: jobs, their items, the messages that carry an item's id, and what became of items that failed."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, LargeBinary, SmallInteger, UniqueConstraint, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from db.models.base import Base, CreatedAt, Id


class JobState(StrEnum):
    RUNNING = "running"  # → done when no item is open, → cancelled by the user
    DONE = "done"  # → running by retry
    CANCELLED = "cancelled"  # → running by retry


class ItemState(StrEnum):
    """How far an item has come. Who is at it says the lease, who may still write says the attempt."""

    STORED = "stored"  # → cleaned
    CLEANED = "cleaned"  # → chunked
    CHUNKED = "chunked"  # → embedded
    EMBEDDED = "embedded"  # → extracting when claimed, → done when the same work is done elsewhere
    EXTRACTING = "extracting"  # → done with its rows, → embedded when released or taken back
    DONE = "done"  # an end
    FAILED = "failed"  # an end; → stored by retry
    CANCELLED = "cancelled"  # an end; → stored by retry


class Step(StrEnum):
    """The two kinds of task, each with its own queue. Also the task's name in the outbox."""

    INGEST = "ingest"
    EXTRACT = "extract"


TERMINAL = (ItemState.DONE, ItemState.FAILED, ItemState.CANCELLED)
INGESTING = (ItemState.STORED, ItemState.CLEANED, ItemState.CHUNKED)
OPEN = (*INGESTING, ItemState.EMBEDDED, ItemState.EXTRACTING)


def _in(states: tuple[ItemState, ...]) -> str:
    return "state IN (" + ", ".join(f"'{state}'" for state in states) + ")"


class Job(Base):
    """Documents submitted together under one version of a schema. `settings` are those its results depend on."""

    __tablename__ = "job"
    __table_args__ = (
        CheckConstraint("state IN ('running', 'done', 'cancelled')", name="state"),
        Index("ix_job_schema_id", "schema_id"),
        Index("ix_job_running", "id", postgresql_where=text("state = 'running'")),
    )

    id: Mapped[Id]
    name: Mapped[str]
    schema_id: Mapped[int] = mapped_column(ForeignKey("quarry.extraction_schema.id"))
    settings: Mapped[dict[str, Any]] = mapped_column(JSONB)
    settings_digest: Mapped[str]
    state: Mapped[str] = mapped_column(server_default=text("'running'"))
    created_at: Mapped[CreatedAt]
    finished_at: Mapped[datetime | None]


class JobItem(Base):
    """One document under one job: the row that tasks claim.

    `failures` counts the tries that went wrong since the last step that worked; `attempt` counts claims and only grows.
    `rows_item_id` is the item whose entities are this item's: itself, or an earlier one of the same document.
    `source_uri` stands for the document where a source was rejected before it became one.
    """

    __tablename__ = "job_item"
    __table_args__ = (
        UniqueConstraint("job_id", "document_id"),
        CheckConstraint(_in((*OPEN, *TERMINAL)), name="state"),
        CheckConstraint("document_id IS NOT NULL OR (source_uri IS NOT NULL AND state = 'failed')", name="document"),
        CheckConstraint("priority BETWEEN 0 AND 9", name="priority"),
        Index("ix_job_item_job_id_state", "job_id", "state"),
        Index("ix_job_item_document_id", "document_id"),
        Index("ix_job_item_done", "work_key", "document_id", postgresql_where=text("state = 'done'")),
        # The guarantee that the same work is under way once only; a second claim runs into it and waits.
        Index("uq_job_item_extracting", "work_key", unique=True, postgresql_where=text("state = 'extracting'")),
        Index("ix_job_item_lease_until", "lease_until", postgresql_where=text("lease_until IS NOT NULL")),
        Index("ix_job_item_open", "job_id", "id", postgresql_where=text(_in(OPEN))),
    )

    id: Mapped[Id]
    job_id: Mapped[int] = mapped_column(ForeignKey("quarry.job.id"))
    document_id: Mapped[int | None] = mapped_column(ForeignKey("quarry.document.id"))
    source_uri: Mapped[str | None]
    step: Mapped[str] = mapped_column(server_default=text("'submit'"))
    state: Mapped[str] = mapped_column(server_default=text("'stored'"))
    attempt: Mapped[int] = mapped_column(server_default=text("0"))
    failures: Mapped[int] = mapped_column(server_default=text("0"))
    lease_until: Mapped[datetime | None]
    worker: Mapped[str | None]
    not_before: Mapped[datetime | None]
    error: Mapped[str | None]
    work_key: Mapped[bytes | None] = mapped_column(LargeBinary)
    clean_text_id: Mapped[int | None] = mapped_column(ForeignKey("quarry.clean_text.id"))
    chunker: Mapped[str | None]  # which of the text's cuts is this item's
    reused_from: Mapped[int | None] = mapped_column(ForeignKey("quarry.job_item.id"))
    rows_item_id: Mapped[int | None] = mapped_column(ForeignKey("quarry.job_item.id"))
    priority: Mapped[int] = mapped_column(SmallInteger, server_default=text("0"))
    created_at: Mapped[CreatedAt]
    finished_at: Mapped[datetime | None]


class Outbox(Base):
    """A message to be sent, written in the transaction that makes it true. `due_at` delays a retry."""

    __tablename__ = "outbox"
    __table_args__ = (
        CheckConstraint("task IN ('ingest', 'extract')", name="task"),
        Index("ix_outbox_unsent", "due_at", "id", postgresql_where=text("sent_at IS NULL")),
        Index("ix_outbox_item_id", "item_id"),
        Index("ix_outbox_sent_at", "sent_at", postgresql_where=text("sent_at IS NOT NULL")),
    )

    id: Mapped[Id]
    task: Mapped[str]
    item_id: Mapped[int] = mapped_column(ForeignKey("quarry.job_item.id"))
    priority: Mapped[int] = mapped_column(SmallInteger, server_default=text("0"))
    created_at: Mapped[CreatedAt]
    due_at: Mapped[CreatedAt]
    sent_at: Mapped[datetime | None]


class DeadLetter(Base):
    """Each time an item failed for good, and why. History: a retry leaves its rows here."""

    __tablename__ = "dead_letter"
    __table_args__ = (Index("ix_dead_letter_item_id", "item_id"), Index("ix_dead_letter_created_at", "created_at"))

    id: Mapped[Id]
    item_id: Mapped[int] = mapped_column(ForeignKey("quarry.job_item.id"))
    attempt: Mapped[int]
    step: Mapped[str]
    reason: Mapped[str]
    detail: Mapped[str]
    created_at: Mapped[CreatedAt]
