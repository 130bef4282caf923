"""What to extract: a JSON Schema with instructions and examples, in versions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, CheckConstraint, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from db.models.base import Base, CreatedAt, Id


class ExtractionSchema(Base):
    """JSON columns are `json`, not `jsonb`: the order of fields is the order of the prompt and of the view."""

    __tablename__ = "extraction_schema"
    __table_args__ = (UniqueConstraint("name", "version"), CheckConstraint("version >= 1", name="version"))

    id: Mapped[Id]
    name: Mapped[str]
    version: Mapped[int]
    json_schema: Mapped[Any] = mapped_column(JSON)
    instructions: Mapped[str] = mapped_column(server_default=text("''"))
    examples: Mapped[Any] = mapped_column(JSON)
    digest: Mapped[str]
    columns: Mapped[Any] = mapped_column(JSON)  # [{"name", "path", "type"}] of the typed view
    created_at: Mapped[CreatedAt]
    dropped_at: Mapped[datetime | None]
