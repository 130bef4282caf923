"""Paged grouped-query attention for many new tokens a request: prompts, and chunks of them behind a cached past.

    launch = launch_of(layout)                                          once
    tiles = cut(lengths, counts, launch.tokens(group_size))                         once per step, in kernels/tiles.py
    attend_prefill(out, query, caches, table, lengths, starts, tiles, layout, scale, …)   once per layer

The arguments are those of `kernels/attention_decode.py`, and the same requests may be in one batch: this kernel takes
those that `tiles` names and writes the rows of no other.

    tiles       [N, 2] int32               request, and the first of its new tokens that the tile takes

Method. FlashAttention (Dao 2023) with online softmax (Milakov and Gimelshein 2018). A tile holds the query heads of one
KV head side by side for some neighbouring tokens, so that every page is read once for all of them and that little is
computed above the diagonal. Tiles that all rows see whole are multiplied without a mask. With an fp8 cache both
products are fp8: queries are rounded with one scale a row, weights with a power of two, as for decoding, where the
reasons stand; sums of fp8 products leave the tensor core after each tile.

Tiles of the context lie at multiples of their length from its start, so that a row's result is the same to the bit
whatever chunk it came in.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.kv_layout import KVLayout
from kernels.numerics import dot, round_to, widen

LOG2_E = 1.4426950408889634
# Below the base-2 score of any key that is seen.
LOWEST = tl.constexpr(-1e30)
# As for decoding: fp8 weights are at most 2**8.
FP8_SHIFT = tl.constexpr(8.0)


@triton.jit
def _over(
    acc, total, top, q, row_scale, position, keys, values, line, head, begin, end, softcap,
    KH: tl.constexpr, D: tl.constexpr, D_BLOCK: tl.constexpr, S: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, FP8: tl.constexpr, MASKED: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Tiles begin .. end of a context into the sums; `line` is the request's in the block table."""
    d = tl.arange(0, D_BLOCK)
    n_in_tile = tl.arange(0, TILE)
    for tile in tl.range(begin, end, num_stages=STAGES):
        n = tile * TILE + n_in_tile
        if S >= TILE:
            block = ((tl.load(line + tile * TILE // S)).to(tl.int64) * KH + head) * (S * D)
            o = tile * TILE % S + n_in_tile
            k_at = keys + block + (o * D)[:, None] + d[None, :]
        else:
            # Behind the last page the table is rubbish: such tokens read the dummy page, and nobody sees them.
            page = (
                tl.load(line + n // S, mask=n <= tl.max(position, axis=0), other=0)
                if MASKED
                else tl.load(line + n // S)
            )
            blocks = (tl.max_constancy(page, S).to(tl.int64) * KH + head) * (S * D)
            o = n % S
            k_at = keys + (blocks + o * D)[:, None] + d[None, :]
        k = tl.load(k_at) if D == D_BLOCK else tl.load(k_at, mask=d[None, :] < D, other=0.0)
        s = dot(q, tl.trans(k), tl.zeros([ROWS, TILE], tl.float32))
        if SOFTCAP:
            s *= row_scale[:, None]
            s = softcap - 2.0 * softcap / (tl.exp2(s * (2.0 * 1.4426950408889634 / softcap)) + 1.0)
        if MASKED:
            seen = n[None, :] <= position[:, None]
            if WINDOW > 0:
                seen &= n[None, :] > position[:, None] - WINDOW
            s = tl.where(seen, s, float("-inf"))
        # Scores are scaled where they are subtracted from, in one instruction.
        highest = tl.max(s, axis=1) if SOFTCAP else tl.max(s, axis=1) * row_scale
        higher = tl.maximum(top, tl.ceil(highest) if FP8 else highest)
        fade = tl.exp2(top - higher)
        top = higher
        ground = ((higher - FP8_SHIFT) if FP8 else higher)[:, None]
        p = tl.exp2(s - ground if SOFTCAP else s * row_scale[:, None] - ground)
        total = total * fade + tl.sum(p, axis=1)
        if FP8:
            if S >= TILE:
                v_at = values + block + o[None, :] + (d * S)[:, None]
            else:
                v_at = values + (blocks + o)[None, :] + (d * S)[:, None]
            v = tl.load(v_at) if D == D_BLOCK else tl.load(v_at, mask=d[:, None] < D, other=0.0)
            acc = acc * fade[:, None] + dot(round_to(p, v.dtype), tl.trans(v), tl.zeros([ROWS, D_BLOCK], tl.float32))
        else:
            if S >= TILE:
                v_at = values + block + (o * D)[:, None] + d[None, :]
            else:
                v_at = values + (blocks + o * D)[:, None] + d[None, :]
            v = tl.load(v_at) if D == D_BLOCK else tl.load(v_at, mask=d[None, :] < D, other=0.0)
            acc = dot(round_to(p, v.dtype), v, acc * fade[:, None])
    return acc, total, top


@triton.jit
def _attend(
    out, query, keys, values, table, lengths, starts, tiles, key_scale, value_scale,
    scale,  # of scores, in base 2
    softcap,  # in base 2
    table_stride,
    KH: tl.constexpr, G: tl.constexpr, D: tl.constexpr, D_BLOCK: tl.constexpr, S: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, FP8: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    head, item = tl.program_id(0), tl.program_id(1)
    request, first = tl.load(tiles + 2 * item), tl.load(tiles + 2 * item + 1)
    length, row0 = tl.load(lengths + request), tl.load(starts + request)
    tokens = tl.load(starts + request + 1) - row0
    past = length - tokens

    row = tl.arange(0, ROWS)
    d = tl.arange(0, D_BLOCK)
    last = tl.minimum(first + ROWS // G, tokens) - 1  # token of the tile
    real = first + row // G <= last
    position = past + tl.minimum(first + row // G, last)
    place = ((row0 + first + row // G) * KH * G + head * G + row % G).to(tl.int64) * D
    q = tl.load(query + place[:, None] + d[None, :], mask=real[:, None] & (d[None, :] < D), other=0.0)
    row_scale = tl.zeros([ROWS], tl.float32) + scale
    if FP8:
        wide = widen(q)
        step = tl.maximum(tl.max(tl.abs(wide), axis=1), 1e-20) / 448.0
        q = round_to(wide / step[:, None], tl.float8e4nv)
        row_scale = row_scale * step * tl.load(key_scale + head)

    # Tiles of the context: masked up to `whole`, seen whole by all rows up to `diagonal`, masked up to `stop`.
    stop = (past + last) // TILE + 1
    diagonal = (past + first + 1) // TILE
    begin, whole = 0, 0
    if WINDOW > 0:
        begin = tl.maximum(past + first - WINDOW + 1, 0) // TILE
        whole = tl.minimum((tl.maximum(past + last - WINDOW + 1, 0) + TILE - 1) // TILE, stop)
        diagonal = tl.maximum(diagonal, whole)

    acc = tl.zeros([ROWS, D_BLOCK], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    top = tl.full([ROWS], LOWEST, tl.float32)
    line = table + request.to(tl.int64) * table_stride
    if WINDOW > 0:
        acc, total, top = _over(
            acc, total, top, q, row_scale, position, keys, values, line, head, begin, whole, softcap,
            KH, D, D_BLOCK, S, ROWS, TILE, WINDOW, SOFTCAP, FP8, True, STAGES,
        )  # fmt: skip
    acc, total, top = _over(
        acc, total, top, q, row_scale, position, keys, values, line, head, whole, diagonal, softcap,
        KH, D, D_BLOCK, S, ROWS, TILE, WINDOW, SOFTCAP, FP8, False, STAGES,
    )  # fmt: skip
    acc, total, top = _over(
        acc, total, top, q, row_scale, position, keys, values, line, head, diagonal, stop, softcap,
        KH, D, D_BLOCK, S, ROWS, TILE, WINDOW, SOFTCAP, FP8, True, STAGES,
    )  # fmt: skip

    # Each row sees itself: no sum is 0.
    acc = acc / total[:, None]
    if FP8:
        acc = acc * tl.load(value_scale + head)
    tl.store(
        out + place[:, None] + d[None, :], round_to(acc, out.dtype.element_ty), mask=real[:, None] & (d[None, :] < D)
    )


@dataclass(frozen=True)
class Launch:
    """How `_attend` is launched: rows of a tile of queries, tokens of a tile of the context, warps, stages of loads."""

    rows: int
    tile: int
    warps: int
    stages: int

    def tokens(self, group_size: int) -> int:
        """New tokens of a tile."""
        return self.rows // group_size


def launch_of(layout: KVLayout) -> Launch:
    """The largest tiles that the registers of a program hold without a spill. Groups of up to 64 heads fit."""
    fp8 = layout.dtype == torch.float8_e4m3fn
    if layout.head_size > 128:
        return Launch(64, 64, 8, 2) if fp8 else Launch(128, 32, 8, 2)
    return Launch(128, 128, 8, 3 if fp8 or layout.head_size <= 64 else 2)


def attend_prefill(
    out: Tensor,
    query: Tensor,
    caches: tuple[Tensor, Tensor],
    table: Tensor,
    lengths: Tensor,
    starts: Tensor,
    tiles: Tensor,
    layout: KVLayout,
    scale: float,
    *,
    window: int | None = None,
    softcap: float = 0.0,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
    launch: Launch | None = None,
) -> None:
    """Fill the rows of `out` that `tiles`, cut for the launch, name; the module tells the arguments. `window`
    is how many tokens a query sees, itself included (None: all); `softcap` c bends a score s to c tanh(s / c)."""
    fp8 = layout.values_transposed
    if fp8 and (key_scale is None or value_scale is None):
        raise ValueError("an fp8 cache needs key_scale and value_scale, one a KV head")
    group_size = query.shape[1] // layout.kv_heads
    launch = launch or launch_of(layout)
    if not len(tiles):
        return
    _attend[(layout.kv_heads, len(tiles))](
        out, query, *caches, table, lengths, starts, tiles, key_scale, value_scale,
        scale * LOG2_E, softcap * LOG2_E, table.stride(0),
        KH=layout.kv_heads, G=group_size, D=layout.head_size, D_BLOCK=triton.next_power_of_2(layout.head_size),
        S=layout.page_size, ROWS=launch.rows, TILE=launch.tile, WINDOW=window or 0, SOFTCAP=softcap > 0, FP8=fp8,
        STAGES=launch.stages, num_warps=launch.warps,
    )  # fmt: skip
