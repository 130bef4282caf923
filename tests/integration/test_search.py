"""Embeddings are stored checked, and the two rankings are fused with filters first."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Sequence

import pytest
from sqlalchemy import Connection, insert, text

from db import embeddings
from db.languages import text_config
from db.models import Blob, Chunk, CleanText, Document
from db.search import RRF_K, ChunkFilter, hybrid
from db.session import make_engine

pytestmark = pytest.mark.services
MODEL = "test/embedder-v1.0"


@pytest.fixture
def connection(module_database_url: str) -> Iterator[Connection]:
    engine = make_engine(module_database_url)
    with engine.connect() as connection:
        yield connection
        connection.rollback()
    engine.dispose()


def add_document(
    connection: Connection,
    uri: str,
    chunks: Sequence[str],
    vectors: Sequence[Sequence[float]],
    language: str = "en",
    model: str = MODEL,
) -> tuple[int, list[int]]:
    """A document in the given chunks; gives the ids of its clean text and chunks."""
    body = "\n".join(chunks)
    sha = hashlib.sha256(body.encode()).digest()
    connection.execute(insert(Blob).values(sha256=sha, bytes=body.encode(), size=len(body)))
    connection.execute(insert(Document).values(source_uri=uri, blob_sha256=sha, media_type="text/plain"))
    source = connection.execute(
        insert(CleanText)
        .values(
            blob_sha256=sha, media_type="text/plain", cleaner="t", cleaner_version="1", text=body, language=language
        )
        .returning(CleanText.id)
    ).scalar_one()
    rows, at = [], 0
    for ordinal, piece in enumerate(chunks):
        rows.append(
            {
                "clean_text_id": source,
                "chunker": "t",
                "ordinal": ordinal,
                "start": at,
                "end": at + len(piece),
                "text": piece,
                "text_hash": b"",
                "token_count": 1,
                "text_config": text_config(language),
            }
        )
        at += len(piece) + 1
    ids = list(connection.execute(insert(Chunk).returning(Chunk.id, sort_by_parameter_order=True), rows).scalars())
    table = embeddings.ensure_table(connection, model, len(vectors[0]))
    embeddings.insert(connection, table, ids, vectors)
    return source, ids


def test_rankings_are_fused_by_reciprocal_rank(connection: Connection) -> None:
    _, ids = add_document(
        connection,
        "a",
        ["the mill was built in 1850", "a windmill stands here", "nothing of note"],
        [[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]],
    )
    table = embeddings.find_table(connection, MODEL)
    hits = hybrid(
        connection, "mills built", vector=[1.0, 0.05], table=table, k=3, where=ChunkFilter(), configs=["english"]
    )
    assert [hit.chunk_id for hit in hits] == ids
    assert (hits[0].dense_rank, hits[0].text_rank) == (1, 1)
    assert hits[0].score == pytest.approx(2 / (RRF_K + 1))
    assert (hits[1].dense_rank, hits[1].text_rank) == (2, None)
    assert hits[1].score == pytest.approx(1 / (RRF_K + 2))


def test_full_text_alone_when_there_is_no_vector(connection: Connection) -> None:
    _, ids = add_document(connection, "a", ["red apples", "green pears"], [[1.0], [1.0]])
    hits = hybrid(connection, "pears", vector=None, table=None, k=5, where=ChunkFilter(), configs=["english"])
    assert [hit.chunk_id for hit in hits] == [ids[1]]
    assert hybrid(connection, "pears", vector=None, table=None, k=5, where=ChunkFilter(), configs=["simple"]) == []


@pytest.mark.parametrize(
    "query", ["", "   ", "'", "a & | ! b:*", "\\", "C:\\path\\x", "it's 'quoted'", "🙂", "\x00nul"]
)
def test_any_text_is_a_query(connection: Connection, query: str) -> None:
    add_document(connection, "a", ["it's a 'quoted' C:\\path\\x word"], [[1.0, 1.0]])
    table = embeddings.find_table(connection, MODEL)
    hits = hybrid(
        connection, query, vector=[1.0, 0.0], table=table, k=5, where=ChunkFilter(), configs=["simple", "english"]
    )
    assert len(hits) == 1


def test_a_narrow_filter_does_not_starve_the_result(connection: Connection) -> None:
    """3,000 chunks are nearer to the query than the five of the wanted document: without iterative scans the index
    would hand out its nearest 100 and the filter would leave none of them."""
    rng = random.Random(5)
    near = [[1.0, rng.uniform(-0.1, 0.1), rng.uniform(-0.1, 0.1)] for _ in range(3000)]
    add_document(connection, "crowd", [f"filler {n}" for n in range(3000)], near)
    wanted = [[-1.0, rng.uniform(-1, 1), rng.uniform(-1, 1)] for _ in range(5)]
    _, ids = add_document(connection, "dir/wanted", [f"other {n}" for n in range(5)], wanted, language="de")
    connection.execute(text("ANALYZE quarry.chunk"))
    connection.execute(text("SET LOCAL enable_seqscan = off"))
    connection.execute(text("SET LOCAL enable_sort = off"))
    table = embeddings.find_table(connection, MODEL)
    found = connection.execute(text("SELECT id FROM quarry.document WHERE source_uri = 'dir/wanted'")).scalar_one()
    for where in (
        ChunkFilter(source_prefix="dir/"),
        ChunkFilter(language="de"),
        ChunkFilter(document_ids=[found]),
    ):
        hits = hybrid(connection, "zzz", vector=[1.0, 0.0, 0.0], table=table, k=5, where=where)
        assert sorted(hit.chunk_id for hit in hits) == ids


@pytest.mark.parametrize(
    ("vector", "words"),
    [
        ([1.0, 2.0], "2 numbers; expected 3"),
        ([1.0, math.nan, 0.0], "finite"),
        ([1.0, math.inf, 0.0], "finite"),
        ([70000.0, 0.0, 0.0], "65504"),
        ([0.0, 0.0, 0.0], "zeros"),
    ],
)
def test_a_vector_that_can_not_be_stored_is_refused(connection: Connection, vector: list[float], words: str) -> None:
    table = embeddings.ensure_table(connection, MODEL, 3)
    with pytest.raises(embeddings.EmbeddingError, match=words):
        embeddings.insert(connection, table, [1], [vector])


def test_an_embedder_keeps_its_dimension(connection: Connection) -> None:
    embeddings.ensure_table(connection, MODEL, 3)
    with pytest.raises(embeddings.EmbeddingError, match="stored vectors have 3"):
        embeddings.ensure_table(connection, MODEL, 4)
    with pytest.raises(embeddings.EmbeddingError, match="4000"):
        embeddings.ensure_table(connection, "wide", 4001)


def test_names_that_look_alike_get_tables_of_their_own(connection: Connection) -> None:
    names = ["a/b", "a-b", "Ä", "", "x" * 200, "x" * 201, "model"]
    tables = [embeddings.ensure_table(connection, name, 2).table for name in names]
    assert len(set(tables)) == len(names)
    assert embeddings.ensure_table(connection, "a/b", 2).table == tables[0]
    found = connection.execute(text("SELECT count(*) FROM pg_indexes WHERE indexdef LIKE '%hnsw%halfvec_cosine_ops%'"))
    assert found.scalar_one() == len(names)
