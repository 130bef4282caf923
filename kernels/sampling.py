"""What is done to logits before a token is drawn: masks, penalties, biases. And the greedy choice, and the likeliest.

`kernels/drawing.py` draws. Rows of logits are long (150,000 and more) and few. Torch's CPU versions of these ops go
through them element by element (32 rows: argmax 10 ms, masked_fill 15 ms), NumPy's with vector instructions (1 ms), so
that is what the CPU runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kernels.drawing import largest, tree_sum


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


def ban(row: Tensor, tokens: Sequence[int]) -> None:
    """Set the logits of `tokens` to -inf in place, unless nothing else is left. row [V] fp32."""
    index = torch.tensor(tokens, dtype=torch.int64, device=row.device)
    before = row[index]
    row[index] = float("-inf")
    if bool(row.max() == float("-inf")):
        row[index] = before


def add_bias(row: Tensor, tokens: Sequence[int], bias: Sequence[float]) -> None:
    """Add to the logits of `tokens`, each named once, in place. row [V] fp32."""
    index = torch.tensor(tokens, dtype=torch.int64, device=row.device)
    row[index] += torch.tensor(bias, dtype=torch.float32, device=row.device)


def penalize_seen(row: Tensor, seen: Sequence[int], penalty: float) -> None:
    """The repetition penalty of CTRL (Keskar et al., 2019), in place: divide positive logits of the tokens `seen`,
    multiply others. row [V] fp32; tokens may be named more than once and count once."""
    index = torch.tensor(seen, dtype=torch.int64, device=row.device)
    values = row[index]
    row[index] = torch.where(values > 0, values / penalty, values * penalty)


def penalize_made(row: Tensor, made: Sequence[int], presence: float, frequency: float) -> None:
    """OpenAI's penalties, in place: a token of `made` loses `presence`, and `frequency` for each time it is there.
    row [V] fp32."""
    tokens, counts = np.unique(np.array(made, dtype=np.int64), return_counts=True)
    index = torch.from_numpy(tokens).to(row.device)
    row[index] -= (presence + frequency * torch.from_numpy(counts).to(row.device)).to(row.dtype)


def log_total(row: Tensor) -> float:
    """The logarithm of the sum of exponentials. row [V] fp32; the same for a row whatever stands beside it."""
    if row.device.type == "cpu":
        values = row.numpy()
        highest = values.max()
        return float(highest) + math.log(np.exp(values - highest).sum())
    likeliest = row.max()
    return float(likeliest.double() + tree_sum((row - likeliest).exp().unsqueeze(0)).log())


def top(row: Tensor, count: int) -> tuple[list[int], list[float]]:
    """The `count` largest of row [V] fp32 -> where and what they are, largest first, of equal ones the first."""
    if row.device.type == "cpu":
        values = row.numpy()
        index = largest(values, count)
        return index.tolist(), values[index].tolist()
    ordered = row.sort(descending=True, stable=True)
    return ordered.indices[:count].tolist(), ordered.values[:count].tolist()
