"""From integers to the tensors of one forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.models.decoder import Decoder, StepTensors
from kernels.ops import AttentionBatch, Span


@dataclass(frozen=True)
class Part:
    """Tokens of one request from position `start` on, to be computed; `pages` hold its whole context."""

    tokens: Sequence[int]
    start: int
    pages: list[int]


def step_tensors(parts: Sequence[Part], logits_rows: Sequence[int], model: Decoder, page_size: int) -> StepTensors:
    """The parts side by side, their tokens in rows 0, 1, ...; `logits_rows` are the rows whose logits are wanted."""
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    spans: list[Span] = []
    for part in parts:
        stop = part.start + len(part.tokens)
        spans.append(Span(len(tokens), part.start, len(part.tokens), part.pages))
        tokens += part.tokens
        positions += range(part.start, stop)
        slots += [part.pages[p // page_size] * page_size + p % page_size for p in range(part.start, stop)]

    def ints(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=model.device)

    return StepTensors(
        tokens=ints(tokens),
        positions=ints(positions),
        slots=ints(slots),
        attention=AttentionBatch(
            spans,
            page_size=page_size,
            group_size=model.config.num_heads // model.config.num_kv_heads,
            dtype=model.dtype,
            device=model.device,
        ),
        logits_rows=ints(logits_rows),
    )
