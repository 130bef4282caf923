"""From logits to tokens, for all rows of a step at once."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.request import SamplingParams, TokenLogprob
from kernels import ops


@dataclass(frozen=True)
class SamplingRow:
    """How one row of logits is sampled. `generator` is the request's own: a seed means the same in any batch."""

    params: SamplingParams
    generator: torch.Generator | None


@dataclass(frozen=True)
class Masks:
    """What the constrained rows allow: a bit per token, as `kernels.ops.mask_logits` takes it."""

    rows: list[int]
    words: Tensor


@dataclass(frozen=True)
class Sample:
    token: int
    logprob: TokenLogprob | None


def sample(logits: Tensor, rows: Seq[SamplingRow], masks: Masks | None, vocab_size: int) -> list[Sample]:
    """One token for each row.

    logits [R, V] fp32, overwritten; `vocab_size` <= V is the tokenizer's, tokens beyond it are never chosen.
    Log-probabilities are taken before mask and temperature.
    """
    logits[:, vocab_size:] = float("-inf")
    wanted = [i for i, row in enumerate(rows) if row.params.logprobs is not None]
    plain = _Plain.of(logits, wanted, rows) if wanted else None
    if masks is not None:
        ops.mask_logits(logits, masks.rows, masks.words)
    tokens = ops.argmax(logits)
    random = [i for i, row in enumerate(rows) if row.params.temperature > 0]
    if random:
        tokens[random] = _draw(logits[random], [rows[i] for i in random])
    logprobs = plain.logprobs(logits, tokens) if plain is not None else {}
    return [Sample(token, logprobs.get(i)) for i, token in enumerate(tokens.tolist())]


def _draw(logits: Tensor, rows: Seq[SamplingRow]) -> Tensor:
    """One uniform number a row and token, from the request's own generator, which lives on the CPU."""
    device, params = logits.device, [row.params for row in rows]
    uniform = torch.stack([torch.rand((), generator=row.generator) for row in rows])
    return ops.draw(
        logits,
        temperature=torch.tensor([p.temperature for p in params], dtype=torch.float32, device=device),
        top_k=torch.tensor([p.top_k for p in params], device=device),
        top_p=torch.tensor([p.top_p for p in params], dtype=torch.float32, device=device),
        uniform=uniform.to(device),
    )


@dataclass(frozen=True)
class _Plain:
    """What log-probabilities need of the logits before the mask; a chosen token's own logit is the same after it."""

    rows: list[int]
    total: Tensor  # [rows] logsumexp
    top: list[tuple[tuple[int, float], ...]]

    @classmethod
    def of(cls, logits: Tensor, wanted: list[int], rows: Seq[SamplingRow]) -> _Plain:
        asked = [rows[i].params.logprobs or 0 for i in wanted]
        total = torch.stack([logits[i].logsumexp(dim=-1) for i in wanted])
        if not any(asked):
            return cls(wanted, total, [()] * len(wanted))
        best = logits[wanted].topk(max(asked), dim=-1)
        values, ids = (best.values - total.unsqueeze(1)).tolist(), best.indices.tolist()
        return cls(wanted, total, [tuple(zip(ids[n][:k], values[n][:k], strict=True)) for n, k in enumerate(asked)])

    def logprobs(self, logits: Tensor, tokens: Tensor) -> dict[int, TokenLogprob]:
        index = torch.tensor(self.rows, device=logits.device)
        chosen = tokens[index]
        values = (logits[index, chosen] - self.total).tolist()
        return {
            row: TokenLogprob(token, value, top)
            for row, token, value, top in zip(self.rows, chosen.tolist(), values, self.top, strict=True)
        }
