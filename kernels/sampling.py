"""Choosing tokens from logits: masks, the greedy choice, and draws from a truncated distribution.

Rows of logits are long (150,000 and more) and few. Torch's CPU versions of these ops go through them element by element
(32 rows: argmax 10 ms, masked_fill 15 ms), NumPy's with vector instructions (1 ms), so that is what the CPU runs.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# Draws look at this many of the likeliest tokens first; all of them are sorted only when those don't reach top-p.
CANDIDATES = 256


def argmax(logits: Tensor) -> Tensor:
    """logits [R, V] fp32 -> [R] int64, the first of equals."""
    if logits.device.type == "cpu":
        return torch.from_numpy(logits.numpy().argmax(axis=-1))
    return logits.argmax(dim=-1)


def mask_logits(logits: Tensor, rows: list[int], words: Tensor) -> None:
    """Set what is not allowed to -inf, in place.

    logits [R, V] fp32; words [len(rows), ceil(V / 32)] int32 on the CPU: bit b of word w of line i says whether
    `rows[i]` may go on with token 32 w + b.
    """
    if logits.device.type == "cpu":
        _mask_on_cpu(logits, rows, words)
    else:
        shifts = torch.arange(32, dtype=torch.int32, device=logits.device)
        bits = (words.to(logits.device).unsqueeze(-1) >> shifts) & 1
        index = torch.tensor(rows, device=logits.device)
        allowed = bits.flatten(1)[:, : logits.shape[1]].bool()
        logits[index] = logits[index].masked_fill(~allowed, float("-inf"))


def _mask_on_cpu(logits: Tensor, rows: list[int], words: Tensor) -> None:
    vocab = logits.shape[1]
    packed = words.numpy().view(np.uint8)
    for row, line in zip(rows, packed, strict=True):
        values = logits[row].numpy()
        allowed = np.unpackbits(line, count=vocab, bitorder="little").view(np.bool_)
        # Grammars allow either few tokens or nearly all: only the smaller side is touched one by one.
        if 2 * np.count_nonzero(allowed) < vocab:
            index = np.flatnonzero(allowed)
            kept = values[index]
            values.fill(-np.inf)
            values[index] = kept
        else:
            values[np.flatnonzero(~allowed)] = -np.inf


def draw(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, uniform: Tensor) -> Tensor:
    """One token for each row by inversion of the cumulative distribution.

    logits [R, V] fp32; temperature [R] > 0; top_k [R] int64, 0 for no limit; top_p [R] in (0, 1];
    uniform [R] fp32 in [0, 1) -> [R] int64. Top-p is of the distribution that top-k leaves; the likeliest token stays.
    """
    vocab = logits.shape[-1]
    # Relative to the largest, so that a temperature near zero does not overflow.
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / temperature.unsqueeze(1)
    limit = torch.where(top_k > 0, top_k, vocab)
    truncated = (limit < vocab) | (top_p < 1)
    tokens = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    whole = (~truncated).nonzero().squeeze(1)
    if len(whole):
        tokens[whole] = _invert(logits[whole].softmax(dim=-1), uniform[whole])
    rest = truncated.nonzero().squeeze(1)
    width = CANDIDATES
    while len(rest):
        width = min(width, vocab)
        chosen, enough = _draw_top(logits[rest], limit[rest], top_p[rest], uniform[rest], width)
        tokens[rest] = chosen
        rest = rest[~enough]
        width = vocab
    return tokens


def _draw_top(logits: Tensor, limit: Tensor, top_p: Tensor, uniform: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Draw from the `width` likeliest tokens -> tokens, and whether those held all that may be drawn."""
    values, order = logits.topk(width, dim=-1)
    values = values.masked_fill(torch.arange(width, device=logits.device) >= limit.unsqueeze(1), float("-inf"))
    total = torch.where(limit <= width, values.logsumexp(dim=-1), logits.logsumexp(dim=-1))
    probabilities = (values - total.unsqueeze(1)).exp()
    before = probabilities.cumsum(dim=-1) - probabilities
    enough = (limit <= width) | (before[:, -1] + probabilities[:, -1] >= top_p) | (width == logits.shape[-1])
    # The likeliest token has nothing before it and so is always kept.
    kept = probabilities.masked_fill(before >= top_p.unsqueeze(1), 0.0)
    return order.gather(1, _invert(kept, uniform).unsqueeze(1)).squeeze(1), enough


def _invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """weights [R, N] >= 0, uniform [R] -> [R], the first index whose cumulative weight exceeds uniform * total."""
    cumulative = weights.cumsum(dim=-1)
    total = cumulative[:, -1:]
    # Rounding may carry the product to the total itself; the last index with weight is then the answer.
    target = torch.minimum(uniform.unsqueeze(1) * total, torch.nextafter(total, torch.zeros_like(total)))
    # A row without any weight (a grammar that allows nothing) must not disturb the others.
    return torch.searchsorted(cumulative, target, right=True).squeeze(1).clamp_(max=weights.shape[-1] - 1)
