"""The steps of ingest: clean, chunk, embed. Each looks first whether its result is there, from another job or an
earlier try, and commits its result with the item's new state."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from sqlalchemy import Connection, Engine, Select, select
from sqlalchemy.dialects.postgresql import insert

from db import embeddings
from db.languages import text_config
from db.models import Blob, CleanText, ItemState
from db.models import Chunk as ChunkRow
from db.session import reading
from pipeline.chunk import CHUNKER, Chunk, chunk
from pipeline.clean import cleaner_version
from pipeline.engine_client import EngineClient
from pipeline.errors import DocumentError
from pipeline.flow.item import Item, advance, hand_over
from pipeline.flow.lease import Lease
from pipeline.flow.spans import store_spans
from pipeline.gate import clean_string
from pipeline.parsing import ParserPool
from pipeline.tokens import TokenCounter
from pipeline.tracing import Trace

EMBED_BATCH = 256  # chunks per commit: a long document that is interrupted keeps what it has


def ingest(
    engine: Engine,
    item: Item,
    lease: Lease,
    trace: Trace,
    *,
    parsers: ParserPool,
    client: EngineClient,
    counter: Callable[[], TokenCounter],
) -> None:
    """From where the item stands to embedded. `counter` is called when there is something to chunk."""
    if item.state is ItemState.STORED:
        item = clean_step(engine, item, trace, parsers)
        lease.check()
    if item.state is ItemState.CLEANED:
        item = chunk_step(engine, item, trace, counter)
        lease.check()
    embed_step(engine, item, lease, trace, client)


def clean_step(engine: Engine, item: Item, trace: Trace, parsers: ParserPool) -> Item:
    """stored → cleaned."""
    with trace.span("clean", media_type=item.media_type) as span:
        with reading(engine) as connection:
            found = connection.execute(_find_clean_text(item)).scalar_one_or_none()
            blob = select(Blob.bytes).where(Blob.sha256 == item.blob_sha256)
            data = b"" if found else connection.execute(blob).scalar_one()
        span.set(reused=found is not None)
        if found is None:
            charset, url = item.metadata.get("charset"), item.metadata.get("url") or item.source_uri
            cleaned = parsers.clean(bytes(data), item.media_type, charset=charset, url=url)
            span.set(cleaner=cleaned.cleaner, characters=len(cleaned.text), bytes=len(data))
    with engine.begin() as connection:
        if found is None:
            row = insert(CleanText).values(
                blob_sha256=item.blob_sha256,
                media_type=item.media_type,
                cleaner=cleaned.cleaner,
                cleaner_version=cleaned.cleaner_version,
                text=cleaned.text,
                title=cleaned.title,
                language=clean_string(cleaned.language) if cleaned.language else None,
                meta=dict(cleaned.metadata),
            )
            found = connection.execute(row.on_conflict_do_nothing().returning(CleanText.id)).scalar_one_or_none()
            if found is None:  # another worker was faster
                found = connection.execute(_find_clean_text(item)).scalar_one()
        item = advance(connection, item, ItemState.CLEANED, clean_text_id=found)
        store_spans(connection, item, trace)
    return item


def chunk_step(engine: Engine, item: Item, trace: Trace, counter: Callable[[], TokenCounter]) -> Item:
    """cleaned → chunked."""
    assert item.clean_text_id is not None
    tokens = counter()
    chunker = f"{CHUNKER}/{tokens.name}/{item.settings.chunk_tokens}"
    chunks: Sequence[Chunk] = ()
    with trace.span("chunk", chunker=chunker) as span:
        with reading(engine) as connection:
            of_text = select(ChunkRow.id).where(
                ChunkRow.clean_text_id == item.clean_text_id, ChunkRow.chunker == chunker
            )
            there = connection.execute(of_text.limit(1)).first() is not None
            source = select(CleanText.text, CleanText.language).where(CleanText.id == item.clean_text_id)
            text, language = connection.execute(source).one()
        span.set(reused=there)
        if not there:
            chunks = chunk(text, tokens, item.settings.chunk_tokens)
            if not chunks:
                raise DocumentError("empty", "the text is blank: there is nothing to cut into chunks")
            span.set(chunks=len(chunks), tokens=sum(piece.token_count for piece in chunks))
    with engine.begin() as connection:
        if chunks:
            rows = [_chunk_row(item.clean_text_id, chunker, piece, text_config(language)) for piece in chunks]
            connection.execute(insert(ChunkRow).on_conflict_do_nothing(), rows)
        item = advance(connection, item, ItemState.CHUNKED, clean_text_id=item.clean_text_id, chunker=chunker)
        store_spans(connection, item, trace)
    return item


def embed_step(engine: Engine, item: Item, lease: Lease, trace: Trace, client: EngineClient) -> None:
    """chunked → embedded, and the message for extraction."""
    embedder = item.settings.embedder
    with reading(engine) as connection:
        missing = _missing_vectors(connection, item, embedder)
    batches = [missing[first : first + EMBED_BATCH] for first in range(0, len(missing), EMBED_BATCH)] or [[]]
    for number, batch in enumerate(batches, 1):
        vectors: Sequence[Sequence[float]] = ()
        if batch:
            with trace.span("embed", model=embedder, chunks=len(batch)) as span:
                result = client.embed([text for _, text in batch])
                span.usage(result.usage)
                vectors = result.vectors
            lease.check()
        with engine.begin() as connection:
            if batch:
                _store_vectors(connection, embedder, [id_ for id_, _ in batch], vectors)
            if number == len(batches):
                hand_over(connection, item)
            store_spans(connection, item, trace)


def _find_clean_text(item: Item) -> Select[int]:
    return select(CleanText.id).where(
        CleanText.blob_sha256 == item.blob_sha256,
        CleanText.media_type == item.media_type,
        CleanText.cleaner_version == cleaner_version(item.media_type),
    )


def _chunk_row(clean_text_id: int, chunker: str, piece: Chunk, config: str) -> dict[str, object]:
    return {
        "clean_text_id": clean_text_id,
        "chunker": chunker,
        "ordinal": piece.ordinal,
        "start": piece.start,
        "end": piece.end,
        "text": piece.text,
        "text_hash": hashlib.sha256(piece.text.encode()).digest(),
        "heading_path": list(piece.heading_path),
        "token_count": piece.token_count,
        "text_config": config,
    }


def _missing_vectors(connection: Connection, item: Item, embedder: str) -> list[tuple[int, str]]:
    of_item = select(ChunkRow.id, ChunkRow.text).where(
        ChunkRow.clean_text_id == item.clean_text_id, ChunkRow.chunker == item.chunker
    )
    texts = {id_: text for id_, text in connection.execute(of_item.order_by(ChunkRow.ordinal))}
    table = embeddings.find_table(connection, embedder)
    return [(id_, texts[id_]) for id_ in embeddings.missing(connection, table, list(texts))]


def _store_vectors(
    connection: Connection, embedder: str, chunk_ids: Sequence[int], vectors: Sequence[Sequence[float]]
) -> None:
    try:
        table = embeddings.ensure_table(connection, embedder, len(vectors[0]))
        embeddings.insert(connection, table, chunk_ids, vectors)
    except embeddings.EmbeddingError as error:
        raise DocumentError("bad_embedding", str(error)) from error
