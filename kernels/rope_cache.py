"""From the product of a layer's q, k, v projection to rotated queries and a written cache, in one pass over memory.

A program takes one head of a block of tokens. Where a cache's values are transposed (fp8), a block's tokens are mostly
neighbours in one page, so that what its threads store lies side by side.
Plain twins: `kernels.reference.rms_norm` and `rope`, `KVLayout.write`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.kv_layout import KVLayout
from kernels.numerics import round_to, to_e4m3, widen
from kernels.operands import HeadNorms, KVScales

TOKENS = 16  # of a program


@triton.jit
def write_value(
    values, start, present, block, offset, factor,
    FP8: tl.constexpr, D: tl.constexpr, D_BLOCK: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """One head of some tokens, at start [TOKENS], to `offset` [TOKENS] of `block` [TOKENS], a page of one head each."""
    d = tl.arange(0, D_BLOCK)
    if FP8:
        inside = present[None, :] & (d < D)[:, None]
        value = widen(tl.load(start[None, :] + d[:, None], mask=inside, other=0.0))
        place = values + (block * D * PAGE + offset)[None, :] + d[:, None] * PAGE
        tl.store(place, to_e4m3(value * factor), mask=inside)
    else:
        inside = present[:, None] & (d < D)[None, :]
        value = tl.load(start[:, None] + d[None, :], mask=inside, other=0.0)
        tl.store(values + ((block * PAGE + offset) * D)[:, None] + d[None, :], value, mask=inside)


@triton.jit
def rope_cache_kernel(
    query, keys, values, qkv, cos, sin, positions, slots, query_weight, key_weight, key_scales, value_scales,
    tokens, stride, heads, kv_heads, eps,
    NORM: tl.constexpr, WIDE: tl.constexpr, FP8: tl.constexpr, D: tl.constexpr, D_BLOCK: tl.constexpr,
    PAGE: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    t = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    present = t < tokens
    slot = tl.load(slots + t, mask=present, other=0)
    page, offset = slot // PAGE, slot % PAGE
    start = qkv + t.to(tl.int64) * stride + head * D
    if head < heads + kv_heads:
        # Element i is rotated with i + D / 2: two tiles of half a head.
        i = tl.arange(0, D_BLOCK // 2)[None, :]
        inside = present[:, None] & (i < D // 2)
        dtype = qkv.dtype.element_ty
        first = widen(tl.load(start[:, None] + i, mask=inside, other=0.0))
        second = widen(tl.load(start[:, None] + D // 2 + i, mask=inside, other=0.0))
        if NORM:
            mean = (tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)) / D
            scale = tl.rsqrt(mean + eps)[:, None]
            weight = query_weight if head < heads else key_weight
            first_gain = widen(tl.load(weight + i, mask=i < D // 2, other=0.0))
            second_gain = widen(tl.load(weight + D // 2 + i, mask=i < D // 2, other=0.0))
            first, second = first * scale, second * scale
            if not WIDE:
                first, second = widen(round_to(first, dtype)), widen(round_to(second, dtype))
            first, second = widen(round_to(first * first_gain, dtype)), widen(round_to(second * second_gain, dtype))
        place = tl.load(positions + t, mask=present, other=0)[:, None] * D + D // 2 + i
        c = widen(tl.load(cos + place, mask=inside, other=0.0))
        s = widen(tl.load(sin + place, mask=inside, other=0.0))
        low, high = round_to(first * c - second * s, dtype), round_to(second * c + first * s, dtype)
        if head < heads:
            query_place = query + ((t.to(tl.int64) * heads + head) * D)[:, None] + i
            tl.store(query_place, low, mask=inside)
            tl.store(query_place + D // 2, high, mask=inside)
        else:
            kv_head = head - heads
            key_place = keys + (((page * kv_heads + kv_head) * PAGE + offset) * D)[:, None] + i
            if FP8:
                inverse = tl.div_rn(1.0, tl.load(key_scales + kv_head))
                tl.store(key_place, to_e4m3(widen(low) * inverse), mask=inside)
                tl.store(key_place + D // 2, to_e4m3(widen(high) * inverse), mask=inside)
            else:
                tl.store(key_place, low, mask=inside)
                tl.store(key_place + D // 2, high, mask=inside)
    else:
        kv_head = head - heads - kv_heads
        factor = tl.div_rn(1.0, tl.load(value_scales + kv_head)) if FP8 else 1.0
        write_value(values, start, present, page * kv_heads + kv_head, offset, factor, FP8, D, D_BLOCK, PAGE)


def rope_and_cache(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    cache: tuple[Tensor, Tensor],
    layout: KVLayout,
    norms: HeadNorms | None = None,
    scales: KVScales | None = None,
) -> Tensor:
    """Rotate queries and keys, write keys and values into the cache -> the queries, [T, H, D] and contiguous.

    qkv [T, (H + 2 KH) D] bf16 or fp16, rows contiguous: all query heads, key heads, value heads. cos and sin
    [positions, D] are whole tables of `rope_tables`; positions and slots [T] int64, slots as `KVLayout` counts them.
    `cache` is what `layout.make` gave. An fp8 cache holds what a 16-bit one would, divided by `scales` and rounded
    again; it needs them, and no other takes them (ValueError). Rotation after Su et al. 2021, pairs as in GPT-NeoX.
    """
    layout.admit(qkv.dtype, scales)
    tokens, kv_heads, head_size = qkv.shape[0], layout.kv_heads, layout.head_size
    heads = qkv.shape[1] // head_size - 2 * kv_heads
    query = torch.empty(tokens, heads, head_size, dtype=qkv.dtype, device=qkv.device)
    rope_cache_kernel[(triton.cdiv(tokens, TOKENS), heads + 2 * kv_heads)](
        query, *cache, qkv, cos, sin, positions, slots,
        *(norms[:2] if norms else (qkv, qkv)), *(scales or (qkv, qkv)),
        tokens, qkv.stride(0), heads, kv_heads, norms.eps if norms else 0.0,
        NORM=norms is not None, WIDE=norms is not None and norms.query.dtype == torch.float32, FP8=scales is not None,
        D=head_size, D_BLOCK=triton.next_power_of_2(head_size), PAGE=layout.page_size, TOKENS=TOKENS, num_warps=4,
    )  # fmt: skip
    return query
