"""Bytes, the documents they came from, and what was made of them: clean text, chunks, embedders."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ARRAY, CheckConstraint, Computed, ForeignKey, Index, LargeBinary, Text, UniqueConstraint
from sqlalchemy import text as literal
from sqlalchemy.dialects.postgresql import JSONB, REGCONFIG, TSVECTOR
from sqlalchemy.orm import Mapped, mapped_column

from db.models.base import Base, CreatedAt, Id


class Blob(Base):
    """Content by its hash: the same page fetched twice is stored once."""

    __tablename__ = "blob"
    __table_args__ = (CheckConstraint("octet_length(sha256) = 32", name="sha256"),)

    sha256: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True)
    bytes: Mapped[bytes] = mapped_column(LargeBinary)
    size: Mapped[int]
    created_at: Mapped[CreatedAt]


class Document(Base):
    """A source that had this content. New content at the same address is another document."""

    __tablename__ = "document"
    __table_args__ = (
        UniqueConstraint("source_uri", "blob_sha256"),
        # A B-tree entry holds 2,704 bytes at most; the limit gives an error in words instead of PostgreSQL's.
        CheckConstraint("octet_length(source_uri) BETWEEN 1 AND 2048", name="source_uri"),
        Index("ix_document_blob_sha256", "blob_sha256"),
        Index("ix_document_source_uri", "source_uri", postgresql_ops={"source_uri": "text_pattern_ops"}),
        Index("ix_document_media_type", "media_type"),
    )

    id: Mapped[Id]
    source_uri: Mapped[str]
    blob_sha256: Mapped[bytes] = mapped_column(ForeignKey("quarry.blob.sha256"))
    media_type: Mapped[str]
    fetched_at: Mapped[datetime | None]
    meta: Mapped[dict[str, Any]] = mapped_column("metadata", JSONB, server_default=literal("'{}'"))
    created_at: Mapped[CreatedAt]


class CleanText(Base):
    """The text every offset counts in, in code points. It never changes: a new cleaner makes a new row."""

    __tablename__ = "clean_text"
    __table_args__ = (
        UniqueConstraint("blob_sha256", "cleaner_version", "media_type"),
        Index("ix_clean_text_language", "language"),
    )

    id: Mapped[Id]
    blob_sha256: Mapped[bytes] = mapped_column(ForeignKey("quarry.blob.sha256"))
    media_type: Mapped[str]
    cleaner: Mapped[str]
    cleaner_version: Mapped[str]
    text: Mapped[str]
    title: Mapped[str | None]
    language: Mapped[str | None]
    meta: Mapped[dict[str, Any]] = mapped_column("metadata", JSONB, server_default=literal("'{}'"))
    created_at: Mapped[CreatedAt]


class Chunk(Base):
    """A slice: `substr(clean_text.text, start + 1, "end" - start) = chunk.text`, which a trigger enforces."""

    __tablename__ = "chunk"
    __table_args__ = (
        UniqueConstraint("clean_text_id", "chunker", "ordinal"),
        CheckConstraint('start >= 0 AND "end" > start', name="range"),
        Index("ix_chunk_tsv", "tsv", postgresql_using="gin"),
        Index("ix_chunk_text_hash", "text_hash"),
    )

    id: Mapped[Id]
    clean_text_id: Mapped[int] = mapped_column(ForeignKey("quarry.clean_text.id"))
    chunker: Mapped[str]  # version, tokenizer and size: what a cut depends on
    ordinal: Mapped[int]
    start: Mapped[int]
    end: Mapped[int]
    text: Mapped[str]
    text_hash: Mapped[bytes] = mapped_column(LargeBinary)  # sha256 of the UTF-8 text
    heading_path: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default=literal("'{}'"))
    token_count: Mapped[int]
    text_config: Mapped[str] = mapped_column(REGCONFIG, server_default=literal("'pg_catalog.simple'::regconfig"))
    tsv: Mapped[Any] = mapped_column(TSVECTOR, Computed("to_tsvector(text_config, text)", persisted=True))


class EmbeddingModel(Base):
    """An embedder and its own narrow table of vectors: `<table_name>(chunk_id, embedding halfvec(dim))`."""

    __tablename__ = "embedding_model"
    __table_args__ = (UniqueConstraint("table_name"), CheckConstraint("dim BETWEEN 1 AND 4000", name="dim"))

    name: Mapped[str] = mapped_column(primary_key=True)
    dim: Mapped[int]
    table_name: Mapped[str]
    created_at: Mapped[CreatedAt]
