"""Drawing a token from a truncated distribution: row by row with NumPy on the CPU, all rows at once elsewhere.

A row's token depends on that row alone, bit for bit: the CPU goes through rows one by one, and the batched twin adds up
by a fixed tree of element-wise sums, because a library's reductions may group the numbers by the batch's shape.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_Floats = npt.NDArray[np.float32]
_Ids = npt.NDArray[np.int64]

BLOCK = 512  # weights whose sum is looked at before they are looked at one by one
ROWS_AT_ONCE = 32  # rows whose trees lie in memory together: 4 MB a row of 150,000 tokens


def draw(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor) -> Tensor:
    """One token for each row by inversion of the cumulative distribution, tokens in the order of their ids.

    logits [R, V] fp32; temperature [R] > 0; top_k [R] int64, 0 for no limit; top_p [R] in (0, 1]; min_p [R] in [0, 1],
    a share of the likeliest token's probability; uniform [R] fp64 in [0, 1) -> [R] int64.
    Each limit is of the distribution that those before it leave: temperature, min-p, top-k, top-p. The likeliest token
    always stays, and of equal ones the smaller id. A row without any finite logit gives some token.
    """
    if logits.device.type == "cpu":
        values = (logits.numpy(), temperature.tolist(), top_k.tolist(), top_p.tolist(), min_p.tolist())
        rows = zip(*values, uniform.tolist(), strict=True)
        return torch.tensor([_draw_row(*row) for row in rows], dtype=torch.int64)
    return draw_batched(logits, temperature, top_k, top_p, min_p, uniform)


def largest(values: _Floats, count: int) -> _Ids:
    """Where the `count` largest lie, largest first, of equal ones the first."""
    if len(values) > count:
        # The count-th largest of the blocks' maxima bounds the count-th largest value from below: few are above it.
        width = max(1, min(128, len(values) // (2 * count)))
        whole = len(values) // width * width
        maxima = values[:whole].reshape(-1, width).max(axis=1)
        near = np.flatnonzero(values >= np.partition(maxima, len(maxima) - count)[len(maxima) - count])
    else:
        near = np.arange(len(values))
    return near[np.argsort(-values[near], kind="stable")[:count]]


def _draw_row(logits: _Floats, temperature: float, top_k: int, top_p: float, min_p: float, uniform: float) -> int:
    likeliest = logits.max()
    if not np.isfinite(likeliest):
        return int(logits.argmax())
    kept: _Ids | None = None  # ascending; None: all of them
    if min_p > 0:
        kept = np.flatnonzero(logits - likeliest >= np.float32(temperature) * np.log(np.float32(min_p)))
    if 0 < top_k < (len(logits) if kept is None else len(kept)):
        best = largest(_at(logits, kept), top_k)
        kept = np.sort(_within(kept, best))
    values = _at(logits, kept)
    with np.errstate(over="ignore", under="ignore"):
        # Relative to the largest, so that a temperature near zero does not overflow.
        weights = np.exp((values - likeliest) / np.float32(temperature))
    if top_p < 1:
        nucleus = _nucleus(weights, values, top_p)
        weights, kept = weights[nucleus], _within(kept, nucleus)
    index = _invert(weights, uniform)
    return index if kept is None else int(kept[index])


def _at(values: _Floats, kept: _Ids | None) -> _Floats:
    return values if kept is None else values[kept]


def _within(kept: _Ids | None, some: _Ids) -> _Ids:
    """Which tokens `some` of those kept are."""
    return some if kept is None else kept[some]


def _nucleus(weights: _Floats, logits: _Floats, top_p: float) -> _Ids:
    """Where the likeliest tokens lie that together have `top_p` of the weight, in ascending order."""
    total = float(weights.sum())
    # Those below a floor of (1 - top_p) of the mean weigh less than 1 - top_p together; only the others are sorted.
    near = np.flatnonzero(weights >= 0.999 * (1 - top_p) * total / len(weights))
    order = near[np.argsort(-logits[near], kind="stable")]
    cumulative = weights[order].cumsum(dtype=np.float64)
    count = int(np.searchsorted(cumulative, top_p * total, side="left")) + 1
    return np.sort(order[:count])


def _invert(weights: _Floats, uniform: float) -> int:
    """The first index whose cumulative weight exceeds uniform * total; always one that has weight."""
    if len(weights) <= BLOCK:
        return _first_beyond(weights, uniform * float(weights.sum(dtype=np.float64)))
    sums = np.add.reduceat(weights, np.arange(0, len(weights), BLOCK))
    before = np.concatenate(([0.0], sums.cumsum(dtype=np.float64)))
    target = uniform * float(before[-1])
    block = _first_beyond(sums, target)
    start = block * BLOCK
    return start + _first_beyond(weights[start : start + BLOCK], target - float(before[block]))


def _first_beyond(weights: _Floats, target: float) -> int:
    cumulative = weights.cumsum(dtype=np.float64)
    # Rounding may carry the target to the total; the last index with weight is then the answer.
    last = int(np.searchsorted(cumulative, cumulative[-1], side="left"))
    return min(int(np.searchsorted(cumulative, target, side="right")), last)


def draw_batched(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
) -> Tensor:
    """The plain twin, for any device: signature and meaning of `draw`."""
    parts = [tensor.split(ROWS_AT_ONCE) for tensor in (logits, temperature, top_k, top_p, min_p, uniform)]
    return torch.cat([_draw_some(*part) for part in zip(*parts, strict=True)])


def _draw_some(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
) -> Tensor:
    below = logits - logits.amax(dim=-1, keepdim=True)
    weights = (below / temperature.unsqueeze(1)).exp().nan_to_num(0.0)
    weights = weights.masked_fill(below < (temperature * min_p.log()).unsqueeze(1), 0.0)
    vocab = logits.shape[-1]
    if bool(((top_k > 0) | (top_p < 1)).any()):
        order = logits.sort(dim=-1, descending=True, stable=True).indices
        ranked = weights.gather(1, order)
        rank = torch.arange(vocab, device=logits.device)
        ranked = ranked.masked_fill(rank >= torch.where(top_k > 0, top_k, vocab).unsqueeze(1), 0.0)
        last = torch.where(top_p < 1, _descend(ranked, top_p, inclusive=True), vocab)
        ranked = ranked.masked_fill(rank > last.unsqueeze(1), 0.0)
        weights = torch.zeros_like(weights).scatter_(1, order, ranked)
    return _descend(weights, uniform, inclusive=False)


def tree_sum(weights: Tensor) -> Tensor:
    """weights [R, N] -> [R] fp64."""
    return _tree(weights)[-1].squeeze(1)


def _tree(weights: Tensor) -> list[Tensor]:
    """Sums of 1, 2, 4 … neighbours, in fp64, up to the total: [R, 2^k], …, [R, 2], [R, 1]."""
    width = weights.shape[-1]
    level = torch.nn.functional.pad(weights.double(), (0, (1 << (width - 1).bit_length()) - width))
    tree = [level]
    while level.shape[-1] > 1:
        level = level[:, 0::2] + level[:, 1::2]
        tree.append(level)
    return tree


def _descend(weights: Tensor, share: Tensor, *, inclusive: bool) -> Tensor:
    """weights [R, N] >= 0, share [R] -> [R], the first index whose cumulative weight exceeds share * total, or reaches
    it when `inclusive`; always one that has weight, where there is one."""
    tree = _tree(weights)
    target = share.double() * tree.pop().squeeze(1)
    index = torch.zeros_like(target, dtype=torch.int64)
    for level in reversed(tree):
        left, right = (level.gather(1, (2 * index + side).unsqueeze(1)).squeeze(1) for side in (0, 1))
        beyond = left < target if inclusive else left <= target
        # Rounding may carry the target beyond all that is left; where one side weighs nothing, the other is taken.
        go = (right > 0) & (beyond | (left == 0))
        target = torch.where(go, target - left, target)
        index = 2 * index + go
    return index.clamp_(max=weights.shape[-1] - 1)
