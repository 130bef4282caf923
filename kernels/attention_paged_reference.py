"""Paged attention in plain torch: the oracle of the kernels for decoding and for prefill.

It rounds where an fp8 cache makes the kernels round: queries with one scale a row, weights with a power of two.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.kv_layout import KVLayout

E4M3_MAX = 448.0
LOG2_E = 1.4426950408889634


def _round(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.float().to(dtype).double()


def paged_attention_plain(
    query: Tensor,
    caches: tuple[Tensor, Tensor],
    layout: KVLayout,
    table: Tensor,
    lengths: Tensor,
    starts: Tensor,
    scale: float,
    *,
    window: int | None = None,
    softcap: float = 0.0,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
) -> Tensor:
    """query [T, H, D], caches of `layout`, table [B, max_pages], lengths [B], starts [B + 1], scales [KH] -> [T, H, D]
    fp64; rows of no request are 0. A request's tokens are the last of its context."""
    out = torch.zeros(query.shape, dtype=torch.float64, device=query.device)
    for b, length in enumerate(lengths.tolist()):
        rows = slice(int(starts[b]), int(starts[b + 1]))
        count = rows.stop - rows.start
        if not count:
            continue
        at = torch.arange(length, device=query.device)
        slots = table[b].long()[at // layout.page_size] * layout.page_size + at % layout.page_size
        key, value = (x.double().transpose(0, 1) for x in layout.read(caches, slots))  # [KH, N, D]
        q = query[rows].double().view(count, layout.kv_heads, -1, layout.head_size).permute(1, 2, 0, 3)
        if key_scale is not None and value_scale is not None:
            step = (q.float().abs().amax(-1, keepdim=True).clamp(min=1e-20) / E4M3_MAX).double()
            q = _round(q / step, layout.dtype) * step
            key, value = (x * s.double()[:, None, None] for x, s in ((key, key_scale), (value, value_scale)))
        scores = q @ key.unsqueeze(1).transpose(-1, -2) * scale  # [KH, G, count, N]
        if softcap:
            scores = torch.tanh(scores / softcap) * softcap
        position = length - count + torch.arange(count, device=query.device)[:, None]
        seen = at <= position
        if window is not None:
            seen &= at > position - window
        scores = (scores * LOG2_E).masked_fill(~seen, float("-inf"))
        weights = torch.exp2(scores - scores.amax(-1, keepdim=True).ceil())
        total = weights.sum(-1, keepdim=True)
        lift = 256.0 if layout.values_transposed else 1.0
        weights = _round(weights * lift, layout.dtype) / lift
        out[rows] = ((weights @ value.unsqueeze(1)) / total).permute(2, 0, 1, 3).reshape(count, -1, layout.head_size)
    return out
