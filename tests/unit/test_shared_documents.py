"""Eight schemas over one document: with the document first in the prompt, the engine computes it once."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.config import EngineConfig
from inference.executor import Executor
from inference.request import Request, SamplingParams
from pipeline.prompt import Prompt
from pipeline.schema import ExtractionSchema
from tests.tiny_models import byte_tokenizer, generate, make_model, save

PAGE = 16
DOCUMENT = "Rye bread. " + "Mix the flour with water and let it rest. " * 3
SCHEMAS = [
    ExtractionSchema.parse(
        f"schema_{number}",
        {"type": "object", "properties": {f"field_{number}": {"type": "string"}}},
        f"Part {number} only.",
    )
    for number in range(7)
]
SCHEMAS.append(
    ExtractionSchema.parse(
        "many", {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "string"}}}}
    )
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(make_model("llama", max_position_embeddings=1024), tmp_path_factory.mktemp("llama"))


def cached(checkpoint: Path, *, document_first: bool) -> list[tuple[int, int]]:
    """(cached tokens, tokens before the document) of one request per schema, all handed in at once."""
    tokenizer = byte_tokenizer()  # a token for each character here
    requests, before = [], []
    for schema in SCHEMAS:
        messages = Prompt.of(schema, document_first=document_first).messages(DOCUMENT)
        text = "\n".join(message["content"] for message in messages)
        requests.append(Request(schema.name, tuple(tokenizer.encode(text)), SamplingParams(max_tokens=2)))
        before.append(text.index(DOCUMENT))
    executor = Executor(EngineConfig(checkpoint, dtype="float32", page_size=PAGE, num_threads=1), tokenizer)
    try:
        results = generate(executor, *requests)
    finally:
        executor.shutdown()
    return [(last.usage.cached_tokens, start) for (_, last), start in zip(results, before, strict=True)]


def test_an_eight_schema_job_computes_the_document_once_when_it_comes_first(checkpoint: Path) -> None:
    (tokens, _), *others = cached(checkpoint, document_first=True)
    assert tokens == 0
    assert len(others) == 7
    for tokens, before in others:
        assert tokens >= (before + len(DOCUMENT)) // PAGE * PAGE


def test_behind_its_schema_a_document_is_computed_for_each(checkpoint: Path) -> None:
    for tokens, before in cached(checkpoint, document_first=False):
        assert tokens <= before
