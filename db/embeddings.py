"""Vectors: one narrow table per embedder, `halfvec(dim)` with an HNSW index, apart from every mutable column."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql
from sqlalchemy import Connection, text

from db.models import SCHEMA
from db.session import driver

LOCK = 0x5155_4156  # advisory lock key: one registration at a time
MAX_DIM = 4000  # what an HNSW index over halfvec holds
MAX_HALF = 65504.0  # the largest finite half-precision number


class EmbeddingError(ValueError):
    """A vector or an embedder that can't be stored. The message names value and limit."""


@dataclass(frozen=True)
class EmbeddingTable:
    """Where one embedder's vectors are."""

    model: str
    dim: int
    table: str

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(SCHEMA, self.table)


def find_table(connection: Connection, model: str) -> EmbeddingTable | None:
    """The embedder's table; None before its first vector."""
    row = connection.execute(
        text("SELECT dim, table_name FROM quarry.embedding_model WHERE name = :name"), {"name": model}
    ).one_or_none()
    return EmbeddingTable(model, row.dim, row.table_name) if row else None


def ensure_table(connection: Connection, model: str, dim: int) -> EmbeddingTable:
    """The embedder's table, made with its index when the embedder is new. Raises EmbeddingError when `dim` differs from
    what is stored, or is more than an index holds."""
    found = find_table(connection, model)
    if found is None:
        if not 1 <= dim <= MAX_DIM:
            raise EmbeddingError(
                f"embedder {model!r} gives {dim} dimensions; an HNSW index over halfvec holds {MAX_DIM}"
            )
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
        found = find_table(connection, model) or _create(connection, model, dim)
    if found.dim != dim:
        raise EmbeddingError(
            f"embedder {model!r} gives {dim} dimensions, but its stored vectors have {found.dim}: "
            "another model is served under this name"
        )
    return found


def missing(connection: Connection, table: EmbeddingTable | None, chunk_ids: Sequence[int]) -> list[int]:
    """Those of `chunk_ids` that have no vector yet, in the order given."""
    if table is None:
        return list(chunk_ids)
    query = sql.SQL("SELECT chunk_id FROM {} WHERE chunk_id = ANY(%s)").format(table.identifier)
    present = {row[0] for row in driver(connection).execute(query, [list(chunk_ids)])}
    return [chunk for chunk in chunk_ids if chunk not in present]


def insert(
    connection: Connection, table: EmbeddingTable, chunk_ids: Sequence[int], vectors: Sequence[Sequence[float]]
) -> None:
    """Store one vector per chunk; those already there stay. Raises EmbeddingError for a wrong length, a number that is
    not finite or too large for half precision, or a vector of zeros, which has no direction."""
    rows = [(chunk, literal(vector, table.dim)) for chunk, vector in zip(chunk_ids, vectors, strict=True)]
    query = sql.SQL("INSERT INTO {} (chunk_id, embedding) VALUES (%s, %s::halfvec) ON CONFLICT DO NOTHING")
    with driver(connection).cursor() as cursor:
        cursor.executemany(query.format(table.identifier), rows)


def literal(vector: Sequence[float], dim: int) -> str:
    """The vector as pgvector reads it, checked."""
    if len(vector) != dim:
        raise EmbeddingError(f"the embedder gave a vector of {len(vector)} numbers; expected {dim}")
    if not all(math.isfinite(x) and abs(x) <= MAX_HALF for x in vector):
        raise EmbeddingError(f"the embedder gave a number that half precision can't hold (finite, at most {MAX_HALF})")
    if not any(vector):
        raise EmbeddingError("the embedder gave a vector of zeros, which has no direction")
    return "[" + ",".join(f"{x:.7g}" for x in vector) + "]"


def _create(connection: Connection, model: str, dim: int) -> EmbeddingTable:
    slug = re.sub(r"[^a-z0-9]+", "_", model.lower()).strip("_")[:30] or "model"
    taken = text("SELECT 1 FROM quarry.embedding_model WHERE table_name = :table")
    name = f"embedding_{slug}"
    if slug == "model" or connection.execute(taken, {"table": name}).first():
        name += "_" + hashlib.sha256(model.encode()).hexdigest()[:8]
    table = EmbeddingTable(model, dim, name)
    raw = driver(connection)
    raw.execute(
        sql.SQL(
            "CREATE TABLE {table} (chunk_id bigint PRIMARY KEY REFERENCES quarry.chunk (id), "
            "embedding halfvec({dim}) NOT NULL)"
        ).format(table=table.identifier, dim=sql.Literal(dim))
    )
    raw.execute(
        sql.SQL("CREATE INDEX ON {table} USING hnsw (embedding halfvec_cosine_ops)").format(table=table.identifier)
    )
    connection.execute(
        text("INSERT INTO quarry.embedding_model (name, dim, table_name) VALUES (:name, :dim, :table)"),
        {"name": model, "dim": dim, "table": name},
    )
    return table
