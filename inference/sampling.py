"""From logits to tokens, for all rows of a step at once."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.request import SamplingParams, TokenLogprob


@dataclass(frozen=True)
class SamplingRow:
    """How one row of logits is sampled. `generator` is the request's own: a seed means the same in any batch."""

    params: SamplingParams
    generator: torch.Generator | None


@dataclass(frozen=True)
class Sample:
    token: int
    logprob: TokenLogprob | None


def sample(logits: Tensor, rows: Seq[SamplingRow], allowed: Tensor | None, vocab_size: int) -> list[Sample]:
    """One token for each row.

    logits [R, V] fp32, overwritten; allowed [R, V] bool or None; `vocab_size` <= V is the tokenizer's, tokens beyond it
    are never chosen. Log-probabilities are taken before mask and temperature.
    """
    logits[:, vocab_size:] = float("-inf")
    wanted = [i for i, row in enumerate(rows) if row.params.logprobs is not None]
    raw = logits[wanted] if wanted else None
    if allowed is not None:
        logits.masked_fill_(~allowed, float("-inf"))
    tokens = logits.argmax(dim=-1)
    random = [i for i, row in enumerate(rows) if row.params.temperature > 0]
    if random:
        tokens[random] = _draw(logits[random], [rows[i] for i in random])
    chosen: list[int] = tokens.tolist()
    logprobs = _logprobs(raw, [chosen[i] for i in wanted], [rows[i].params for i in wanted]) if raw is not None else []
    by_row = dict(zip(wanted, logprobs, strict=True))
    return [Sample(token, by_row.get(i)) for i, token in enumerate(chosen)]


def _draw(logits: Tensor, rows: Seq[SamplingRow]) -> Tensor:
    """logits [n, V] -> tokens [n]: temperature, then top-k, then top-p, then the exponential race, which draws from the
    categorical distribution (argmax p / e with e ~ Exp(1))."""
    device = logits.device
    logits = logits / torch.tensor([row.params.temperature for row in rows], device=device).unsqueeze(1)
    if any(row.params.top_k > 0 or row.params.top_p < 1 for row in rows):
        logits = _truncate(logits, rows)
    noise = torch.empty_like(logits)
    for i, row in enumerate(rows):
        noise[i].exponential_(generator=row.generator)
    return (logits.softmax(dim=-1) / noise.clamp_min_(torch.finfo(noise.dtype).tiny)).argmax(dim=-1)


def _truncate(logits: Tensor, rows: Seq[SamplingRow]) -> Tensor:
    vocab = logits.shape[-1]
    ordered, order = logits.sort(dim=-1, descending=True)
    top_k = torch.tensor([row.params.top_k or vocab for row in rows], device=logits.device).unsqueeze(1)
    ordered = ordered.masked_fill(torch.arange(vocab, device=logits.device) >= top_k, float("-inf"))
    probabilities = ordered.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities  # the mass in front of each token; the first is always kept
    top_p = torch.tensor([row.params.top_p for row in rows], device=logits.device).unsqueeze(1)
    ordered = ordered.masked_fill(before >= top_p, float("-inf"))
    return torch.empty_like(logits).scatter_(1, order, ordered)


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
