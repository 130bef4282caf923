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
    raw = logits[wanted] if wanted else None
    if masks is not None:
        ops.mask_logits(logits, masks.rows, masks.words)
    tokens = ops.argmax(logits)
    random = [i for i, row in enumerate(rows) if row.params.temperature > 0]
    if random:
        tokens[random] = _draw(logits[random], [rows[i] for i in random])
    chosen: list[int] = tokens.tolist()
    logprobs = _logprobs(raw, [chosen[i] for i in wanted], [rows[i].params for i in wanted]) if raw is not None else []
    by_row = dict(zip(wanted, logprobs, strict=True))
    return [Sample(token, by_row.get(i)) for i, token in enumerate(chosen)]


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


def _logprobs(raw: Tensor, tokens: Seq[int], params: Seq[SamplingParams]) -> list[TokenLogprob]:
    total = raw.logsumexp(dim=-1)
    picked = (raw.gather(1, torch.tensor(tokens, device=raw.device).unsqueeze(1)).squeeze(1) - total).tolist()
    most = max(p.logprobs or 0 for p in params)
    if most:
        top = raw.topk(most, dim=-1)
        values, ids = (top.values - total.unsqueeze(1)).tolist(), top.indices.tolist()
    result = []
    for i, (token, p) in enumerate(zip(tokens, params, strict=True)):
        best = tuple(zip(ids[i][: p.logprobs], values[i][: p.logprobs], strict=True)) if p.logprobs else ()
        result.append(TokenLogprob(token, picked[i], best))
    return result
