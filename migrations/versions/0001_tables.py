"""The tables, their constraints and indexes.

Revision: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.execute("CREATE EXTENSION IF NOT EXISTS vector")
    op.create_table(
        "blob",
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.Column("bytes", sa.LargeBinary(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("octet_length(sha256) = 32", name=op.f("ck_blob_sha256")),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_blob")),
        schema="quarry",
    )
    op.create_table(
        "embedding_model",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("dim", sa.BigInteger(), nullable=False),
        sa.Column("table_name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("dim BETWEEN 1 AND 4000", name=op.f("ck_embedding_model_dim")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_embedding_model")),
        sa.UniqueConstraint("table_name", name=op.f("uq_embedding_model_table_name")),
        schema="quarry",
    )
    op.create_table(
        "extraction_schema",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("json_schema", sa.JSON(), nullable=False),
        sa.Column("instructions", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("examples", sa.JSON(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("columns", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("dropped_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("version >= 1", name=op.f("ck_extraction_schema_version")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_extraction_schema")),
        sa.UniqueConstraint("name", "version", name=op.f("uq_extraction_schema_name_version")),
        schema="quarry",
    )
    op.create_table(
        "span",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("trace_id", sa.Text(), nullable=False),
        sa.Column("parent_id", sa.Text(), nullable=True),
        sa.Column("item_id", sa.BigInteger(), nullable=True),
        sa.Column("document_id", sa.BigInteger(), nullable=True),
        sa.Column("job_id", sa.BigInteger(), nullable=True),
        sa.Column("schema_id", sa.BigInteger(), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("input_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("device_seconds", sa.Double(), nullable=True),
        sa.Column("cost_usd", sa.Numeric(), server_default=sa.text("0"), nullable=False),
        sa.Column("status", sa.Text(), server_default=sa.text("'ok'"), nullable=False),
        sa.Column(
            "attributes", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'"), nullable=False
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_span")),
        schema="quarry",
    )
    op.create_index("ix_span_item_id", "span", ["item_id"], unique=False, schema="quarry")
    op.create_index("ix_span_job_id_name", "span", ["job_id", "name"], unique=False, schema="quarry")
    op.create_index("ix_span_started_at", "span", ["started_at"], unique=False, schema="quarry")
    op.create_index("ix_span_trace_id", "span", ["trace_id"], unique=False, schema="quarry")
    op.create_table(
        "clean_text",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("blob_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("media_type", sa.Text(), nullable=False),
        sa.Column("cleaner", sa.Text(), nullable=False),
        sa.Column("cleaner_version", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=True),
        sa.Column("language", sa.Text(), nullable=True),
        sa.Column("metadata", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["blob_sha256"], ["quarry.blob.sha256"], name=op.f("fk_clean_text_blob_sha256")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_clean_text")),
        sa.UniqueConstraint(
            "blob_sha256",
            "cleaner_version",
            "media_type",
            name=op.f("uq_clean_text_blob_sha256_cleaner_version_media_type"),
        ),
        schema="quarry",
    )
    op.create_index("ix_clean_text_language", "clean_text", ["language"], unique=False, schema="quarry")
    op.create_table(
        "document",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("source_uri", sa.Text(), nullable=False),
        sa.Column("blob_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("media_type", sa.Text(), nullable=False),
        sa.Column("fetched_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("metadata", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("octet_length(source_uri) BETWEEN 1 AND 2048", name=op.f("ck_document_source_uri")),
        sa.ForeignKeyConstraint(["blob_sha256"], ["quarry.blob.sha256"], name=op.f("fk_document_blob_sha256")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_document")),
        sa.UniqueConstraint("source_uri", "blob_sha256", name=op.f("uq_document_source_uri_blob_sha256")),
        schema="quarry",
    )
    op.create_index("ix_document_blob_sha256", "document", ["blob_sha256"], unique=False, schema="quarry")
    op.create_index("ix_document_media_type", "document", ["media_type"], unique=False, schema="quarry")
    op.create_index(
        "ix_document_source_uri",
        "document",
        ["source_uri"],
        unique=False,
        schema="quarry",
        postgresql_ops={"source_uri": "text_pattern_ops"},
    )
    op.create_table(
        "job",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("schema_id", sa.BigInteger(), nullable=False),
        sa.Column("settings", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("settings_digest", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default=sa.text("'running'"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("state IN ('running', 'done', 'cancelled')", name=op.f("ck_job_state")),
        sa.ForeignKeyConstraint(["schema_id"], ["quarry.extraction_schema.id"], name=op.f("fk_job_schema_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job")),
        schema="quarry",
    )
    op.create_index(
        "ix_job_running", "job", ["id"], unique=False, schema="quarry", postgresql_where=sa.text("state = 'running'")
    )
    op.create_index("ix_job_schema_id", "job", ["schema_id"], unique=False, schema="quarry")
    op.create_table(
        "chunk",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("clean_text_id", sa.BigInteger(), nullable=False),
        sa.Column("chunker", sa.Text(), nullable=False),
        sa.Column("ordinal", sa.BigInteger(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("end", sa.BigInteger(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("text_hash", sa.LargeBinary(), nullable=False),
        sa.Column("heading_path", sa.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("token_count", sa.BigInteger(), nullable=False),
        sa.Column(
            "text_config",
            postgresql.REGCONFIG(),
            server_default=sa.text("'pg_catalog.simple'::regconfig"),
            nullable=False,
        ),
        sa.Column(
            "tsv", postgresql.TSVECTOR(), sa.Computed("to_tsvector(text_config, text)", persisted=True), nullable=False
        ),
        sa.CheckConstraint('start >= 0 AND "end" > start', name=op.f("ck_chunk_range")),
        sa.ForeignKeyConstraint(["clean_text_id"], ["quarry.clean_text.id"], name=op.f("fk_chunk_clean_text_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_chunk")),
        sa.UniqueConstraint("clean_text_id", "chunker", "ordinal", name=op.f("uq_chunk_clean_text_id_chunker_ordinal")),
        schema="quarry",
    )
    op.create_index("ix_chunk_text_hash", "chunk", ["text_hash"], unique=False, schema="quarry")
    op.create_index("ix_chunk_tsv", "chunk", ["tsv"], unique=False, schema="quarry", postgresql_using="gin")
    op.create_table(
        "job_item",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("document_id", sa.BigInteger(), nullable=True),
        sa.Column("source_uri", sa.Text(), nullable=True),
        sa.Column("step", sa.Text(), server_default=sa.text("'submit'"), nullable=False),
        sa.Column("state", sa.Text(), server_default=sa.text("'stored'"), nullable=False),
        sa.Column("attempt", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("failures", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("work_key", sa.LargeBinary(), nullable=True),
        sa.Column("clean_text_id", sa.BigInteger(), nullable=True),
        sa.Column("chunker", sa.Text(), nullable=True),
        sa.Column("reused_from", sa.BigInteger(), nullable=True),
        sa.Column("rows_item_id", sa.BigInteger(), nullable=True),
        sa.Column("priority", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "document_id IS NOT NULL OR (source_uri IS NOT NULL AND state = 'failed')",
            name=op.f("ck_job_item_document"),
        ),
        sa.CheckConstraint(
            "state IN ('stored', 'cleaned', 'chunked', 'embedded', 'extracting', 'done', 'failed', 'cancelled')",
            name=op.f("ck_job_item_state"),
        ),
        sa.CheckConstraint("priority BETWEEN 0 AND 9", name=op.f("ck_job_item_priority")),
        sa.ForeignKeyConstraint(["clean_text_id"], ["quarry.clean_text.id"], name=op.f("fk_job_item_clean_text_id")),
        sa.ForeignKeyConstraint(["document_id"], ["quarry.document.id"], name=op.f("fk_job_item_document_id")),
        sa.ForeignKeyConstraint(["job_id"], ["quarry.job.id"], name=op.f("fk_job_item_job_id")),
        sa.ForeignKeyConstraint(["reused_from"], ["quarry.job_item.id"], name=op.f("fk_job_item_reused_from")),
        sa.ForeignKeyConstraint(["rows_item_id"], ["quarry.job_item.id"], name=op.f("fk_job_item_rows_item_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job_item")),
        sa.UniqueConstraint("job_id", "document_id", name=op.f("uq_job_item_job_id_document_id")),
        schema="quarry",
    )
    op.create_index("ix_job_item_document_id", "job_item", ["document_id"], unique=False, schema="quarry")
    op.create_index(
        "ix_job_item_done",
        "job_item",
        ["work_key", "document_id"],
        unique=False,
        schema="quarry",
        postgresql_where=sa.text("state = 'done'"),
    )
    op.create_index("ix_job_item_job_id_state", "job_item", ["job_id", "state"], unique=False, schema="quarry")
    op.create_index(
        "ix_job_item_lease_until",
        "job_item",
        ["lease_until"],
        unique=False,
        schema="quarry",
        postgresql_where=sa.text("lease_until IS NOT NULL"),
    )
    op.create_index(
        "ix_job_item_open",
        "job_item",
        ["job_id", "id"],
        unique=False,
        schema="quarry",
        postgresql_where=sa.text("state IN ('stored', 'cleaned', 'chunked', 'embedded', 'extracting')"),
    )
    op.create_index(
        "uq_job_item_extracting",
        "job_item",
        ["work_key"],
        unique=True,
        schema="quarry",
        postgresql_where=sa.text("state = 'extracting'"),
    )
    op.create_table(
        "dead_letter",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("item_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["item_id"], ["quarry.job_item.id"], name=op.f("fk_dead_letter_item_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dead_letter")),
        schema="quarry",
    )
    op.create_index("ix_dead_letter_created_at", "dead_letter", ["created_at"], unique=False, schema="quarry")
    op.create_index("ix_dead_letter_item_id", "dead_letter", ["item_id"], unique=False, schema="quarry")
    op.create_table(
        "entity",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("schema_id", sa.BigInteger(), nullable=False),
        sa.Column("document_id", sa.BigInteger(), nullable=False),
        sa.Column("item_id", sa.BigInteger(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("ordinal", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("data", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("confidence", sa.Double(), nullable=True),
        sa.Column("grounded", sa.Double(), nullable=False),
        sa.Column("current", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("merged_into", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["document_id"], ["quarry.document.id"], name=op.f("fk_entity_document_id")),
        sa.ForeignKeyConstraint(["item_id"], ["quarry.job_item.id"], name=op.f("fk_entity_item_id")),
        sa.ForeignKeyConstraint(["job_id"], ["quarry.job.id"], name=op.f("fk_entity_job_id")),
        sa.ForeignKeyConstraint(["merged_into"], ["quarry.entity.id"], name=op.f("fk_entity_merged_into")),
        sa.ForeignKeyConstraint(["schema_id"], ["quarry.extraction_schema.id"], name=op.f("fk_entity_schema_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_entity")),
        sa.UniqueConstraint("item_id", "ordinal", name=op.f("uq_entity_item_id_ordinal")),
        schema="quarry",
    )
    op.create_index(
        "ix_entity_current",
        "entity",
        ["schema_id", "key"],
        unique=False,
        schema="quarry",
        postgresql_where=sa.text("current AND merged_into IS NULL"),
    )
    op.create_index(
        "ix_entity_document_id_schema_id", "entity", ["document_id", "schema_id"], unique=False, schema="quarry"
    )
    op.create_index("ix_entity_job_id", "entity", ["job_id"], unique=False, schema="quarry")
    op.create_index(
        "ix_entity_merged_into",
        "entity",
        ["merged_into"],
        unique=False,
        schema="quarry",
        postgresql_where=sa.text("merged_into IS NOT NULL"),
    )
    op.create_table(
        "outbox",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("item_id", sa.BigInteger(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("sent_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("task IN ('ingest', 'extract')", name=op.f("ck_outbox_task")),
        sa.ForeignKeyConstraint(["item_id"], ["quarry.job_item.id"], name=op.f("fk_outbox_item_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outbox")),
        schema="quarry",
    )
    op.create_index("ix_outbox_item_id", "outbox", ["item_id"], unique=False, schema="quarry")
    op.create_index(
        "ix_outbox_sent_at",
        "outbox",
        ["sent_at"],
        unique=False,
        schema="quarry",
        postgresql_where=sa.text("sent_at IS NOT NULL"),
    )
    op.create_index(
        "ix_outbox_unsent",
        "outbox",
        ["due_at", "id"],
        unique=False,
        schema="quarry",
        postgresql_where=sa.text("sent_at IS NULL"),
    )
    op.create_table(
        "run",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("item_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("prompt_sha256", sa.Text(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("device_seconds", sa.Double(), nullable=True),
        sa.Column("cost_usd", sa.Numeric(), nullable=False),
        sa.Column("finish_reason", sa.Text(), nullable=False),
        sa.Column("logprob", sa.Double(), nullable=True),
        sa.Column("chunk_ids", sa.ARRAY(sa.BigInteger()), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["item_id"], ["quarry.job_item.id"], name=op.f("fk_run_item_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run")),
        schema="quarry",
    )
    op.create_index("ix_run_item_id", "run", ["item_id"], unique=False, schema="quarry")
    op.create_table(
        "entity_merge",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("winner_id", sa.BigInteger(), nullable=False),
        sa.Column("loser_id", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("undone_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("winner_id <> loser_id", name=op.f("ck_entity_merge_distinct")),
        sa.ForeignKeyConstraint(["loser_id"], ["quarry.entity.id"], name=op.f("fk_entity_merge_loser_id")),
        sa.ForeignKeyConstraint(["winner_id"], ["quarry.entity.id"], name=op.f("fk_entity_merge_winner_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_entity_merge")),
        schema="quarry",
    )
    op.create_index("ix_entity_merge_loser_id", "entity_merge", ["loser_id"], unique=False, schema="quarry")
    op.create_index("ix_entity_merge_winner_id", "entity_merge", ["winner_id"], unique=False, schema="quarry")
    op.create_table(
        "mention",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("item_id", sa.BigInteger(), nullable=False),
        sa.Column("entity_id", sa.BigInteger(), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=True),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("value", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("chunk_id", sa.BigInteger(), nullable=True),
        sa.Column("start", sa.BigInteger(), nullable=True),
        sa.Column("end", sa.BigInteger(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("confidence", sa.Double(), nullable=True),
        sa.Column("current", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.CheckConstraint("status IN ('exact', 'normalised', 'fuzzy', 'none')", name=op.f("ck_mention_status")),
        sa.CheckConstraint(
            '(status = \'none\') = (start IS NULL) AND (start IS NULL) = ("end" IS NULL) AND "end" > start',
            name=op.f("ck_mention_range"),
        ),
        sa.ForeignKeyConstraint(["chunk_id"], ["quarry.chunk.id"], name=op.f("fk_mention_chunk_id")),
        sa.ForeignKeyConstraint(["entity_id"], ["quarry.entity.id"], name=op.f("fk_mention_entity_id")),
        sa.ForeignKeyConstraint(["item_id"], ["quarry.job_item.id"], name=op.f("fk_mention_item_id")),
        sa.ForeignKeyConstraint(["run_id"], ["quarry.run.id"], name=op.f("fk_mention_run_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_mention")),
        schema="quarry",
    )
    op.create_index("ix_mention_chunk_id", "mention", ["chunk_id"], unique=False, schema="quarry")
    op.create_index("ix_mention_entity_id", "mention", ["entity_id"], unique=False, schema="quarry")
    op.create_index("ix_mention_item_id", "mention", ["item_id"], unique=False, schema="quarry")
    op.create_index("ix_mention_run_id", "mention", ["run_id"], unique=False, schema="quarry")


def downgrade() -> None:
    for table in (
        "mention",
        "entity_merge",
        "run",
        "outbox",
        "entity",
        "dead_letter",
        "job_item",
        "chunk",
        "job",
        "document",
        "clean_text",
        "span",
        "extraction_schema",
        "embedding_model",
        "blob",
    ):
        op.drop_table(table, schema="quarry")
