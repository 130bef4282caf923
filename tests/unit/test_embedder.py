"""Our encoder beside transformers' BertModel."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, BertModel

from inference.embedder import Embedder
from inference.models.sources import CheckpointError

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def embedder(minilm_dir: Path) -> Embedder:
    return Embedder(minilm_dir)


def test_vectors_are_those_of_transformers_in_any_batch(embedder: Embedder, minilm_dir: Path) -> None:
    rng = random.Random(1)
    words = "quarry stone table recipe flour vector index Größe 日本".split()
    texts = ["", "one", *(" ".join(rng.choices(words, k=rng.randrange(1, 90))) for _ in range(20)), "long " * 600]
    rng.shuffle(texts)
    tokenizer = AutoTokenizer.from_pretrained(minilm_dir)
    model = BertModel.from_pretrained(minilm_dir).eval()
    found, tokens = embedder.embed(texts)
    expected_tokens = 0
    for text, vector in zip(texts, found, strict=True):
        inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=256)
        expected_tokens += inputs["input_ids"].shape[1]
        with torch.inference_mode():
            mean = model(**inputs).last_hidden_state.mean(1)
        expected = torch.nn.functional.normalize(mean, dim=-1)[0]
        assert torch.allclose(torch.tensor(vector), expected, atol=1e-4)
        assert sum(x * x for x in vector) == pytest.approx(1.0, abs=1e-4)
    assert tokens == expected_tokens
    assert embedder.dimension == len(found[0]) == 384


def test_nearer_in_meaning_is_nearer(embedder: Embedder) -> None:
    (cat, kitten, database), _ = embedder.embed(["a cat on the sofa", "a kitten on the couch", "an SQL database"])

    def dot(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True))

    assert dot(cat, kitten) > dot(cat, database) + 0.3


def test_another_kind_of_model_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(CheckpointError, match="known is bert"):
        Embedder(tmp_path)
    with pytest.raises(CheckpointError, match=r"config\.json: not there"):
        Embedder(tmp_path / "absent")
