"""Every model family through the whole engine: greedy text as transformers makes it, whatever the schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from inference.config import EngineConfig
from inference.core.process import CoreThread
from inference.executor import Executor
from inference.models.hf_config import from_hf
from inference.request import FinishReason, Request, SamplingParams
from inference.speculation.policy import Policy
from inference.stats import EngineStats
from tests.tiny_models import END, FAMILIES, byte_tokenizer, generate, greedy, make_model, save_with_tokenizer

PAGE_SIZE = 8
TOKENS = 14
COMMON = [(7 * i) % 200 for i in range(60)]
# Mixed lengths; every other text begins as another one does. Several are longer than the windows of the families that
# have one, so that a window slides within a prompt, at its end and while decoding.
TEXTS = [
    tuple(COMMON[: length // 2] + [(index * 31 + i * i) % 200 for i in range(length - length // 2)])
    if index % 2
    else tuple((index * 17 + i * i) % 200 for i in range(length))
    for index, length in enumerate([3, 58, 16, 45, 24, 59, 9, 31])
]
SCHEDULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "no drafts": {"speculation": ()},
    "a draft model": {"speculation": (), "draft_model_path": "itself"},
    "one at a time, no prefix cache": {"max_num_seqs": 1, "prefix_cache": False},
    "small chunks": {"max_num_batched_tokens": 5, "max_num_seqs": 4},
    "few pages": {"max_model_len": 96},
    "pages of one": {"page_size": 1, "max_num_batched_tokens": 16, "max_num_seqs": 8},
}


class Tiny:
    """A model of a family, its checkpoint, and what transformers says to each of the TEXTS."""

    def __init__(self, family: str, folder: Path) -> None:
        self.model: PreTrainedModel = make_model(family)
        self.path = save_with_tokenizer(self.model, folder)
        self.page_bytes = PAGE_SIZE * from_hf(self.path).kv_bytes_per_token(4)
        self.texts = [greedy(self.model, text, TOKENS) for text in TEXTS]


@pytest.fixture(scope="module", params=FAMILIES)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return Tiny(request.param, tmp_path_factory.mktemp(request.param))


def run_twice(tiny: Tiny, settings: dict[str, Any]) -> tuple[list[list[tuple[int, ...]]], EngineStats]:
    """The texts' continuations, the second time from the prefix cache where there is one."""
    common = {"dtype": "float32", "page_size": PAGE_SIZE, "num_threads": 1, "max_num_batched_tokens": 64}
    executor = Executor(EngineConfig(tiny.path, **{**common, **settings}), byte_tokenizer(), CoreThread)
    try:
        rounds = []
        for index in range(2):
            sampling = SamplingParams(max_tokens=TOKENS)
            requests = [Request(f"{index}-{i}", text, sampling) for i, text in enumerate(TEXTS)]
            results = generate(executor, *requests)
            rounds.append([(*t, END) if r.finish_reason is FinishReason.STOP else t for t, r in results])
        return rounds, executor.stats()
    finally:
        executor.shutdown()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_greedy_text_equals_transformers(tiny: Tiny, schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SCHEDULES[schedule]
    monkeypatch.setattr(Policy, "length", lambda self, draft, batch: len(draft))  # whatever the machine is up to
    monkeypatch.setattr(Policy, "model_length", lambda self, limit, batch: min(limit, 4))
    if "draft_model_path" in settings:
        settings = {**settings, "draft_model_path": tiny.path}
    if schedule == "few pages":
        settings = {**settings, "kv_cache_bytes": 14 * tiny.page_bytes}
    rounds, stats = run_twice(tiny, settings)
    for texts in rounds:
        assert texts == tiny.texts
    assert (stats.cached_tokens > 0) == settings.get("prefix_cache", True)
    assert (stats.preemptions > 0) == (schedule == "few pages")
    if schedule == "a draft model":
        assert 0 < stats.draft_tokens == stats.accepted_draft_tokens
    if schedule == "no drafts":
        assert stats.draft_tokens == 0
    assert stats.pages_free + stats.pages_cached == stats.pages_total
