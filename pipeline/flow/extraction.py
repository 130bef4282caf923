"""Extraction of one item: its document from the database, what `pipeline.extract` makes of it, and one commit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Engine, insert, select

from db.embeddings import find_table
from db.languages import text_config
from db.models import Chunk as ChunkRow
from db.models import CleanText, Entity, Mention, Run
from db.named import Queries
from db.search import ChunkFilter, hybrid
from db.session import reading
from pipeline.chunk import Chunk
from pipeline.cost import engine_cost
from pipeline.engine_client import EngineClient
from pipeline.errors import DocumentError
from pipeline.extract import DocumentText, EngineRun, Extraction, extract
from pipeline.flow.item import Item, finish
from pipeline.flow.lease import Lease
from pipeline.flow.spans import store_spans
from pipeline.gate import clean_string, clean_value
from pipeline.retrieve import Search
from pipeline.tracing import Trace

_RESULTS = Queries("results")


def extract_item(engine: Engine, item: Item, lease: Lease, trace: Trace, client: EngineClient) -> None:
    """extracting → done, with its rows."""
    with trace.span("load") as span, reading(engine) as connection:
        document, chunk_ids, language = load(connection, item)
        span.set(characters=len(document.text), chunks=len(document.chunks))
    search = document_search(engine, item, client, language)
    extraction = extract(document, item.schema, client, item.settings, search, trace)
    lease.check()
    with engine.begin() as connection:
        with trace.span("write", entities=len(extraction.entities), left_out=extraction.left_out):
            finish(connection, item)
            write(connection, item, extraction, chunk_ids)
        store_spans(connection, item, trace)


def load(connection: Connection, item: Item) -> tuple[DocumentText, dict[int, int], str | None]:
    """The document with its chunks, the chunks' ids by ordinal, and its language."""
    source = select(CleanText.text, CleanText.title, CleanText.language, CleanText.meta)
    text = connection.execute(source.where(CleanText.id == item.clean_text_id)).one()
    rows = connection.execute(
        select(ChunkRow)
        .with_only_columns(
            ChunkRow.id,
            ChunkRow.ordinal,
            ChunkRow.start,
            ChunkRow.end,
            ChunkRow.text,
            ChunkRow.heading_path,
            ChunkRow.token_count,
        )
        .where(ChunkRow.clean_text_id == item.clean_text_id, ChunkRow.chunker == item.chunker)
        .order_by(ChunkRow.ordinal)
    ).all()
    chunks = [Chunk(r.ordinal, r.start, r.end, r.text, tuple(r.heading_path), r.token_count) for r in rows]
    document = DocumentText(text.text, chunks, text.title, item.source_uri, text.metadata)
    return document, {row.ordinal: row.id for row in rows}, text.language


def document_search(engine: Engine, item: Item, client: EngineClient, language: str | None) -> Search:
    """Hybrid search within the item's document, as `pipeline.retrieve` calls it."""
    where = ChunkFilter(clean_text_id=item.clean_text_id, chunker=item.chunker)

    def search(queries: Sequence[str], limit: int) -> list[list[int]]:
        vectors = _query_vectors(client, item.settings.embedder, tuple(queries))
        with engine.begin() as connection:
            table = find_table(connection, item.settings.embedder)
            return [
                [
                    hit.ordinal
                    for hit in hybrid(
                        connection,
                        query,
                        vector=vector,
                        table=table,
                        k=limit,
                        where=where,
                        configs=[text_config(language)],
                    )
                ]
                for query, vector in zip(queries, vectors, strict=True)
            ]

    return search


@lru_cache(maxsize=64)
def _query_vectors(client: EngineClient, embedder: str, queries: tuple[str, ...]) -> tuple[tuple[float, ...], ...]:
    """A schema's queries are the same for each document, so they are embedded once per process."""
    return tuple(tuple(vector) for vector in client.embed(queries).vectors)


def write(connection: Connection, item: Item, extraction: Extraction, chunk_ids: dict[int, int]) -> None:
    """Runs, entities and mentions; what an earlier extraction of the document gave is no longer current."""
    connection.execute(_RESULTS.lock_document, {"document_id": item.document_id})
    run_ids: list[int] = []
    if extraction.runs:
        runs = [_run_row(item, run, chunk_ids) for run in extraction.runs]
        run_ids = list(connection.execute(insert(Run).returning(Run.id, sort_by_parameter_order=True), runs).scalars())
    if extraction.entities:
        entities = [
            {
                "schema_id": item.schema_id,
                "document_id": item.document_id,
                "item_id": item.id,
                "job_id": item.job_id,
                "ordinal": entity.ordinal,
                "key": clean_string(entity.key),
                "data": _storable(dict(entity.data)),
                "confidence": entity.confidence,
                "grounded": entity.grounded,
            }
            for entity in extraction.entities
        ]
        ids = connection.execute(insert(Entity).returning(Entity.id, sort_by_parameter_order=True), entities).scalars()
        mentions = [
            {
                "item_id": item.id,
                "entity_id": entity_id,
                "run_id": run_ids[mention.run] if mention.run < len(run_ids) else None,
                "path": clean_string(mention.path),
                "value": _storable(mention.value),
                "chunk_id": None if mention.chunk_ordinal is None else chunk_ids[mention.chunk_ordinal],
                "start": mention.start,
                "end": mention.end,
                "status": mention.status.value,
                "confidence": mention.confidence,
            }
            for entity_id, entity in zip(ids, extraction.entities, strict=True)
            for mention in entity.mentions
        ]
        if mentions:
            connection.execute(insert(Mention), mentions)
    connection.execute(
        _RESULTS.supersede,
        {"document_id": item.document_id, "schema_name": item.schema.name, "keep_item_id": item.id},
    )


def _storable(value: Any) -> Any:
    """The gate before JSON columns. Raises DocumentError for what is no JSON."""
    try:
        cleaned = clean_value(value)
        json.dumps(cleaned, allow_nan=False)
        return cleaned
    except (ValueError, TypeError, RecursionError) as error:
        raise DocumentError("bad_value", f"an extracted value can't be stored as JSON: {error}") from error


def _run_row(item: Item, run: EngineRun, chunk_ids: dict[int, int]) -> dict[str, Any]:
    return {
        "item_id": item.id,
        "attempt": item.attempt,
        "model": clean_string(run.model),
        "prompt_sha256": run.prompt_sha256,
        "input_tokens": run.usage.input_tokens,
        "cached_tokens": run.usage.cached_tokens,
        "output_tokens": run.usage.output_tokens,
        "device_seconds": run.usage.device_seconds,
        "cost_usd": engine_cost(run.usage, item.settings),
        "finish_reason": run.finish_reason,
        "logprob": run.logprob,
        "chunk_ids": [chunk_ids[ordinal] for ordinal in run.chunk_ordinals if ordinal in chunk_ids],
        "started_at": run.started_at,
        "ended_at": run.ended_at,
    }
