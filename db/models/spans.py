"""Time, tokens and cost of each step. A log: it refers to rows by id and outlives them."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Double, Index, Numeric, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from db.models.base import Base


class Span(Base):
    """`id` (16 hex digits) and `trace_id` (32) are OpenTelemetry's. Token buckets are disjoint."""

    __tablename__ = "span"
    __table_args__ = (
        Index("ix_span_item_id", "item_id"),
        Index("ix_span_job_id_name", "job_id", "name"),
        Index("ix_span_trace_id", "trace_id"),
        Index("ix_span_started_at", "started_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    trace_id: Mapped[str]
    parent_id: Mapped[str | None]
    item_id: Mapped[int | None]
    document_id: Mapped[int | None]
    job_id: Mapped[int | None]
    schema_id: Mapped[int | None]
    name: Mapped[str]
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime]
    model: Mapped[str | None]
    input_tokens: Mapped[int] = mapped_column(server_default=text("0"))
    cached_tokens: Mapped[int] = mapped_column(server_default=text("0"))
    output_tokens: Mapped[int] = mapped_column(server_default=text("0"))
    device_seconds: Mapped[float | None] = mapped_column(Double)
    cost_usd: Mapped[Decimal] = mapped_column(Numeric, server_default=text("0"))
    status: Mapped[str] = mapped_column(server_default=text("'ok'"))
    attributes: Mapped[dict[str, Any]] = mapped_column(JSONB, server_default=text("'{}'"))
