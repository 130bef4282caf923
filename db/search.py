"""Hybrid search over chunks: vectors and full text, each with the filters first, fused by reciprocal rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql
from psycopg.rows import namedtuple_row
from sqlalchemy import Connection

from db.embeddings import EmbeddingTable, literal
from db.languages import SIMPLE
from db.session import driver, set_local

RRF_K = 60  # Cormack, Clarke and Büttcher 2009: rewards agreement of the rankings over a high place in one
CANDIDATES = 4  # each ranking gives this many times k before they are fused
MIN_CANDIDATES = 40
EF_SEARCH_MAX = 1000  # pgvector's limit


@dataclass(frozen=True)
class ChunkFilter:
    """All given ones must hold. `clean_text_id` with `chunker` means the chunks of one document."""

    clean_text_id: int | None = None
    chunker: str | None = None
    job_id: int | None = None
    document_ids: Sequence[int] | None = None
    source_prefix: str | None = None
    language: str | None = None
    media_type: str | None = None


@dataclass(frozen=True)
class ChunkHit:
    """A chunk and its places (from 1) in the two rankings, None where it is in one only."""

    chunk_id: int
    ordinal: int
    score: float
    dense_rank: int | None
    text_rank: int | None


def hybrid(
    connection: Connection,
    text: str,
    *,
    vector: Sequence[float] | None,
    table: EmbeddingTable | None,
    k: int,
    where: ChunkFilter,
    configs: Sequence[str] = (SIMPLE,),
) -> list[ChunkHit]:
    """The `k` best chunks for `text` and its `vector` (from the embedder of `table`), best first.

    Filters are part of both rankings, and the index scan goes on until enough rows pass them (`hnsw.iterative_scan`),
    so a narrow filter never starves the result. `configs` are the text search configurations that chunks may have.
    Without a vector, or before the embedder has stored any, full text alone ranks. Runs in the caller's transaction.
    """
    candidates = max(k * CANDIDATES, MIN_CANDIDATES)
    conditions, parameters = _conditions(where)
    dense: sql.Composable = sql.SQL(
        "SELECT NULL::bigint AS id, NULL::bigint AS ordinal, NULL::bigint AS rank WHERE false"
    )
    if vector is not None and table is not None:
        set_local(
            connection,
            hnsw__iterative_scan="strict_order",
            hnsw__ef_search=min(max(candidates, 100), EF_SEARCH_MAX),
        )
        dense = _DENSE.format(table=table.identifier, conditions=conditions)
        parameters["vector"] = literal(vector, table.dim)
    query = _HYBRID.format(
        dense=dense,
        conditions=conditions,
        tsquery=sql.SQL(" || ").join(
            sql.SQL("{}(CAST({} AS regconfig), %(text)s)").format(sql.SQL("quarry.any_word"), sql.Literal(config))
            for config in dict.fromkeys(configs or (SIMPLE,))
        ),
    )
    parameters |= {"text": text.replace("\x00", " "), "k": k, "candidates": candidates, "rrf": RRF_K}
    with driver(connection).cursor(row_factory=namedtuple_row) as cursor:
        rows = cursor.execute(query, parameters).fetchall()
    return [ChunkHit(r.id, r.ordinal, float(r.score), r.dense_rank, r.text_rank) for r in rows]


_DENSE = sql.SQL("""
    SELECT n.id, n.ordinal, row_number() OVER (ORDER BY n.distance, n.id) AS rank
    FROM (
        SELECT c.id, c.ordinal, v.embedding <=> %(vector)s::halfvec AS distance
        FROM {table} v
        JOIN quarry.chunk c ON c.id = v.chunk_id
        WHERE {conditions}
        ORDER BY v.embedding <=> %(vector)s::halfvec
        LIMIT %(candidates)s
    ) n
""")

_HYBRID = sql.SQL("""
WITH query AS (SELECT {tsquery} AS q),
dense AS ({dense}),
lexical AS (
    SELECT n.id, n.ordinal, row_number() OVER (ORDER BY n.weight DESC, n.id) AS rank
    FROM (
        SELECT c.id, c.ordinal, ts_rank_cd(c.tsv, query.q, 1) AS weight
        FROM query, quarry.chunk c
        WHERE c.tsv @@ query.q AND {conditions}
        ORDER BY weight DESC, c.id
        LIMIT %(candidates)s
    ) n
)
SELECT id, ordinal, coalesce(1.0 / (%(rrf)s + dense.rank), 0) + coalesce(1.0 / (%(rrf)s + lexical.rank), 0) AS score,
       dense.rank AS dense_rank, lexical.rank AS text_rank
FROM dense FULL JOIN lexical USING (id, ordinal)
ORDER BY score DESC, id
LIMIT %(k)s
""")

_SOURCE = {
    "job_id": "EXISTS (SELECT FROM quarry.job_item i WHERE i.document_id = d.id AND i.job_id = %(job_id)s)",
    "document_ids": "d.id = ANY(%(document_ids)s)",
    "source_prefix": "starts_with(d.source_uri, %(source_prefix)s)",
}


def _conditions(where: ChunkFilter) -> tuple[sql.Composable, dict[str, Any]]:
    """The filters as SQL over chunk `c`, and their parameters."""
    parts = [sql.SQL("true")]
    parameters: dict[str, Any] = {}

    def add(condition: str, name: str, value: Any) -> None:
        parts.append(sql.SQL(condition))
        parameters[name] = value

    if where.clean_text_id is not None:
        add("c.clean_text_id = %(clean_text_id)s", "clean_text_id", where.clean_text_id)
    if where.chunker is not None:
        add("c.chunker = %(chunker)s", "chunker", where.chunker)
    texts = {
        "language": ("t.language = %(language)s", where.language),
        "media_type": ("t.media_type = %(media_type)s", where.media_type),
    }
    inner = [condition for condition, value in texts.values() if value is not None]
    parameters |= {name: value for name, (_, value) in texts.items() if value is not None}
    source = {name: getattr(where, name) for name in _SOURCE if getattr(where, name) is not None}
    if source:
        parameters |= {name: list(value) if name == "document_ids" else value for name, value in source.items()}
        about = " AND ".join(_SOURCE[name] for name in source)
        inner.append(
            "EXISTS (SELECT FROM quarry.document d WHERE d.blob_sha256 = t.blob_sha256"
            f" AND d.media_type = t.media_type AND {about})"
        )
    if inner:
        condition = " AND ".join(inner)
        parts.append(sql.SQL(f"EXISTS (SELECT FROM quarry.clean_text t WHERE t.id = c.clean_text_id AND {condition})"))
    return sql.SQL(" AND ").join(parts), parameters
