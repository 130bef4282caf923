"""What extraction gave: engine calls, mentions with their source, entities, and merges that can be undone."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import ARRAY, BigInteger, CheckConstraint, Double, ForeignKey, Index, Numeric, UniqueConstraint, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from db.models.base import Base, CreatedAt, Id


class Run(Base):
    """One engine call. Token buckets are disjoint: cached tokens are not input tokens."""

    __tablename__ = "run"
    __table_args__ = (Index("ix_run_item_id", "item_id"),)

    id: Mapped[Id]
    item_id: Mapped[int] = mapped_column(ForeignKey("quarry.job_item.id"))
    attempt: Mapped[int]
    model: Mapped[str]
    prompt_sha256: Mapped[str]
    input_tokens: Mapped[int]
    cached_tokens: Mapped[int]
    output_tokens: Mapped[int]
    device_seconds: Mapped[float | None] = mapped_column(Double)
    cost_usd: Mapped[Decimal] = mapped_column(Numeric)
    finish_reason: Mapped[str]
    logprob: Mapped[float | None] = mapped_column(Double)  # mean per generated token, natural log
    chunk_ids: Mapped[list[int]] = mapped_column(ARRAY(BigInteger), server_default=text("'{}'"))
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime]


class Entity(Base):
    """One entity of one document. `current` is false once a newer extraction of the document took its place."""

    __tablename__ = "entity"
    __table_args__ = (
        UniqueConstraint("item_id", "ordinal"),
        Index("ix_entity_document_id_schema_id", "document_id", "schema_id"),
        Index("ix_entity_current", "schema_id", "key", postgresql_where=text("current AND merged_into IS NULL")),
        Index("ix_entity_job_id", "job_id"),
        Index("ix_entity_merged_into", "merged_into", postgresql_where=text("merged_into IS NOT NULL")),
    )

    id: Mapped[Id]
    schema_id: Mapped[int] = mapped_column(ForeignKey("quarry.extraction_schema.id"))
    document_id: Mapped[int] = mapped_column(ForeignKey("quarry.document.id"))
    item_id: Mapped[int] = mapped_column(ForeignKey("quarry.job_item.id"))
    job_id: Mapped[int] = mapped_column(ForeignKey("quarry.job.id"))
    ordinal: Mapped[int]
    key: Mapped[str]
    data: Mapped[dict[str, Any]] = mapped_column(JSONB)
    confidence: Mapped[float | None] = mapped_column(Double)
    grounded: Mapped[float] = mapped_column(Double)  # share of values that have a source
    current: Mapped[bool] = mapped_column(server_default=text("true"))
    merged_into: Mapped[int | None] = mapped_column(ForeignKey("quarry.entity.id"))
    created_at: Mapped[CreatedAt]


class Mention(Base):
    """A value at a place: `path` is a JSON pointer into the entity's data, offsets count in the item's clean text."""

    __tablename__ = "mention"
    __table_args__ = (
        CheckConstraint("status IN ('exact', 'normalised', 'fuzzy', 'none')", name="status"),
        CheckConstraint(
            """(status = 'none') = (start IS NULL) AND (start IS NULL) = ("end" IS NULL) AND "end" > start""",
            name="range",
        ),
        Index("ix_mention_entity_id", "entity_id"),
        Index("ix_mention_item_id", "item_id"),
        Index("ix_mention_run_id", "run_id"),
        Index("ix_mention_chunk_id", "chunk_id"),
    )

    id: Mapped[Id]
    item_id: Mapped[int] = mapped_column(ForeignKey("quarry.job_item.id"))
    entity_id: Mapped[int] = mapped_column(ForeignKey("quarry.entity.id"))
    run_id: Mapped[int | None] = mapped_column(ForeignKey("quarry.run.id"))
    path: Mapped[str]
    value: Mapped[Any] = mapped_column(JSONB)
    chunk_id: Mapped[int | None] = mapped_column(ForeignKey("quarry.chunk.id"))
    start: Mapped[int | None]
    end: Mapped[int | None]
    status: Mapped[str]
    confidence: Mapped[float | None] = mapped_column(Double)
    current: Mapped[bool] = mapped_column(server_default=text("true"))


class EntityMerge(Base):
    """`loser_id` went into `winner_id`. Undone by setting `undone_at` and clearing the loser's `merged_into`."""

    __tablename__ = "entity_merge"
    __table_args__ = (
        CheckConstraint("winner_id <> loser_id", name="distinct"),
        Index("ix_entity_merge_winner_id", "winner_id"),
        Index("ix_entity_merge_loser_id", "loser_id"),
    )

    id: Mapped[Id]
    winner_id: Mapped[int] = mapped_column(ForeignKey("quarry.entity.id"))
    loser_id: Mapped[int] = mapped_column(ForeignKey("quarry.entity.id"))
    reason: Mapped[str]
    created_at: Mapped[CreatedAt]
    undone_at: Mapped[datetime | None]
