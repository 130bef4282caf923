"""The embedder in the core's process: the vectors of this process, through messages and HTTP, and over a crash."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest
import torch
from transformers import BertModel

from inference.core.process import CoreProcess
from inference.embedder import Embedder
from tests.tiny_models import EMBEDDER_WORDS, byte_tokenizer, make_model, save_embedder, save_with_tokenizer
from tests.tiny_server import MODEL, Server, serve

NAME = "tiny-bert"


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BertModel]:
    folder = tmp_path_factory.mktemp("embedder") / NAME
    return folder, save_embedder(folder)


@pytest.fixture(scope="module")
def server(reference: tuple[Path, BertModel], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = save_with_tokenizer(make_model("qwen2"), tmp_path_factory.mktemp("model"))
    with serve(model, process=True, embedder=reference[0], num_threads=1) as running:
        yield running


def texts(seed: int, count: int = 30) -> list[str]:
    """Of all lengths, also beyond what the model reads; an empty one among them."""
    rng = random.Random(seed)
    return ["", *(" ".join(rng.choices(EMBEDDER_WORDS, k=rng.randrange(1, 90))) for _ in range(count - 1))]


def embed(server: Server, asked: list[str]) -> tuple[list[list[float]], int]:
    answer = server.client().embeddings.create(model=NAME, input=asked)
    assert [item.index for item in answer.data] == list(range(len(asked)))
    return [item.embedding for item in answer.data], answer.usage.total_tokens


def core_of(server: Server) -> int:
    assert isinstance(server.core.core, CoreProcess)
    return server.core.core.pid


def assert_alike(found: list[list[float]], expected: list[list[float]]) -> None:
    # Threads may add in another order than here.
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), atol=1e-6, rtol=0)


def test_vectors_are_those_of_this_process_and_of_transformers(
    server: Server, reference: tuple[Path, BertModel]
) -> None:
    folder, model = reference
    here = Embedder(folder)
    asked = [texts(seed) for seed in range(6)]
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda some: embed(server, some), asked))
    for some, (found, tokens) in zip(asked, answers, strict=True):
        expected, read = here.embed(some)
        assert tokens == read
        assert_alike(found, expected)
    for text, vector in zip(asked[0], answers[0][0], strict=True):
        ids = here._tokenizer.encode(text).ids
        with torch.inference_mode():
            mean = model(torch.tensor([ids])).last_hidden_state.mean(1)
        assert torch.allclose(torch.tensor(vector), torch.nn.functional.normalize(mean, dim=-1)[0], atol=1e-5)


def test_a_core_that_dies_over_texts_says_so_and_embeds_again_when_it_is_back(
    server: Server, reference: tuple[Path, BertModel]
) -> None:
    asked = texts(9)
    expected, _ = Embedder(reference[0]).embed(asked)
    os.kill(core_of(server), signal.SIGSTOP)  # so that it is at it for as long as this takes
    with ThreadPoolExecutor(1) as pool:
        broken = pool.submit(embed, server, asked)
        while not server.core._embeddings:
            assert not broken.done()
            time.sleep(0.01)
        os.kill(core_of(server), signal.SIGKILL)
        with pytest.raises(
            openai.InternalServerError, match="was ended by SIGKILL; it is being started anew"
        ) as caught:
            broken.result()
    assert caught.value.status_code == 503
    assert caught.value.code == "engine_down"
    assert int(caught.value.response.headers["retry-after"]) >= 1
    stop = time.monotonic() + 60
    while httpx.get(f"{server.url}/health").status_code != 200:
        assert time.monotonic() < stop
        time.sleep(0.05)
    assert_alike(embed(server, asked)[0], expected)
    text = byte_tokenizer().decode([5, 6])
    assert server.client().completions.create(model=MODEL, prompt=text, max_tokens=2).usage is not None
