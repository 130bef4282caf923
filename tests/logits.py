"""Logits of a checkpoint through scheduler and runner, beside those of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from inference.config import EngineConfig
from inference.memory.pages import PagePool
from inference.memory.prefix import root_hash
from inference.request import Request
from inference.runner import Runner
from inference.scheduler import Scheduler
from inference.sequence import Sequence

TEXT = [(i * i * 7 + 3 * i) % 250 for i in range(90)]


def logits_of(
    path: Path,
    tokens: list[int],
    prompt: int,
    *,
    chunk: int = 1024,
    page_size: int = 8,
    dtype: str = "float32",
    quantization: str = "auto",
) -> torch.Tensor:
    """Logits for the positions prompt-1 .. end: the prompt in chunks, then one token per step, the text given."""
    config = EngineConfig(
        path, dtype=dtype, quantization=quantization, page_size=page_size, max_num_seqs=1, num_threads=1
    )
    runner = Runner(config)
    scheduler = Scheduler(
        PagePool(runner.pages), page_size=page_size, max_num_seqs=1, max_num_batched_tokens=chunk, prefix_cache=False
    )
    sequence = Sequence(Request("a", tuple(tokens[:prompt])), 0, 0.0, root_hash(""))
    scheduler.add(sequence)
    rows = []
    while len(sequence.tokens) <= len(tokens):
        plan = scheduler.plan()
        logits = runner.forward(plan)
        assert logits.shape[0] == len(plan.logits)
        for item in plan:
            scheduler.commit(item)
        if plan.logits:
            rows.append(logits[0])
            if len(sequence.tokens) == len(tokens):
                break
            sequence.tokens.append(tokens[len(sequence.tokens)])
    return torch.stack(rows)


def reference(model: Any, tokens: list[int], prompt: int) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0, prompt - 1 :]


def assert_close(ours: torch.Tensor, theirs: torch.Tensor, relative: float = 1e-4) -> None:
    assert ours.shape == theirs.shape
    error = (ours - theirs).norm(dim=-1) / theirs.norm(dim=-1)
    assert error.max() < relative, f"relative error {error.max():.2e}"
