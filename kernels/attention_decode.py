"""Paged grouped-query attention for a few new tokens a request: decoded tokens, and drafts to verify.

    plan = DecodePlan(requests, KVLayout(...), group_size=G, max_query=k + 1, device=device)   once per graph
    plan.update(lengths, starts)                                                               once per step
    attend_decode(out, query, caches, table, lengths, starts, plan, scale)                     once per layer

All of it runs on the device without asking the host, over a grid that only depends on the plan, so that it can be
captured in a CUDA graph. The batch has B requests and T tokens, H = KH * G query heads over KH KV heads of size D:

    query, out  [T, H, D] bf16 or fp16     a request's tokens follow each other; its last is at position length - 1
    caches      keys and values as `kernels/kv_layout.py` lays them, with the keys of the new tokens already in
    table       [B, max_pages] int32       pages of each request, in order; what is behind its last page is not read
    lengths     [B] int32                  tokens of the context, the new ones included; 0 for a row that only pads
    starts      [B + 1] int32              rows of `query`: request b has starts[b] .. starts[b + 1], at most max_query
    key_scale, value_scale  [KH] fp32      fp8 caches only: an element stands for code * scale

Method. The context is cut into tiles and runs of tiles into splits (Flash-Decoding, Dao et al. 2023), online softmax in
each (Milakov and Gimelshein 2018). Every page is read once for all query heads of its KV head and all new tokens. The
few rows of queries stand on the narrow side of both products, scoresᵀ = K qᵀ and outᵀ = Vᵀ pᵀ, so that Hopper's
tensor cores take K and V from shared memory as they are: an fp8 cache is never converted. For that, queries are
rounded to fp8 with one scale a row, and the weights p with a power of two: the running maximum is rounded up to an
integer (scores are in base 2), which makes what rounding does to a weight the same whatever split or tile it is in.

How long a split is, is chosen on the device from the lengths of the step, so that the device is filled; with
`split_length` it is fixed instead, and a token's result is then the same to the bit whatever else is in the batch
(invariant mode). Splits are merged in their order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.kv_layout import KVLayout
from kernels.numerics import INTERPRETED, dot, round_to, widen

LOG2_E = 1.4426950408889634
# Items of the split loop that one merge program reads at once.
MERGE_BLOCK = 32
# Without a GPU there is nothing to fill: this many splits are then aimed at.
INTERPRETED_PROGRAMS = 16
# Below the base-2 score of any key that is seen.
LOWEST = tl.constexpr(-1e30)
# Weights of an fp8 product are at most 2**8, so that those down to 2**-14 of the largest keep their three bits.
FP8_SHIFT = tl.constexpr(8.0)


@triton.jit
def _plan(
    items,  # [capacity, 4] int32: request (-1: none), first tile, last tile + 1, splits of the request
    splits,  # [B, 2] int32: first item, splits
    lengths,
    starts,
    requests,
    capacity,
    wanted,  # splits that fill the device
    FIXED_TILES: tl.constexpr,  # tiles of a split; 0: from `wanted`
    MIN_TILES: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK: tl.constexpr,
):
    request = tl.arange(0, BLOCK)
    there = request < requests
    length = tl.load(lengths + request, mask=there, other=0)
    count = tl.load(starts + request + 1, mask=there, other=0) - tl.load(starts + request, mask=there, other=0)
    first = tl.zeros_like(length)
    if WINDOW > 0:
        first = tl.maximum(length - count - WINDOW + 1, 0) // TILE
    stop = tl.where(count > 0, (length + TILE - 1) // TILE, first)
    if FIXED_TILES > 0:
        size = FIXED_TILES
        origin = first // size * size  # splits begin at multiples of their length, whatever the window
    else:
        total = tl.sum(stop - first, axis=0)
        size = tl.maximum((total + wanted - 1) // wanted, MIN_TILES)
        origin = first
    needed = (stop - origin + size - 1) // size
    begin = tl.cumsum(needed, axis=0) - needed
    tl.store(splits + 2 * request, begin, mask=there)
    tl.store(splits + 2 * request + 1, needed, mask=there)
    for i in range(0, tl.max(needed, axis=0)):
        item = items + 4 * (begin + i)
        used = there & (i < needed)
        tl.store(item, request, mask=used)
        tl.store(item + 1, tl.maximum(origin + i * size, first), mask=used)
        tl.store(item + 2, tl.minimum(origin + (i + 1) * size, stop), mask=used)
        tl.store(item + 3, needed, mask=used)
    for i in range(tl.sum(needed, axis=0), capacity, BLOCK):
        tl.store(items + 4 * (i + request), -1, mask=i + request < capacity)


@triton.jit
def _attend(
    out,
    partial,  # [capacity, KH, ROWS, D] fp32
    partial_lse,  # [capacity, KH, ROWS] fp32, base 2
    query,
    keys,
    values,
    table,
    lengths,
    starts,
    items,
    key_scale,
    value_scale,
    scale,  # of scores, in base 2
    softcap,  # in base 2
    table_stride,
    KH: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    D_BLOCK: tl.constexpr,
    S: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    FP8: tl.constexpr,
    STAGES: tl.constexpr,
):
    head, item = tl.program_id(0), tl.program_id(1)
    request = tl.load(items + 4 * item)
    if request < 0:
        return
    begin, end = tl.load(items + 4 * item + 1), tl.load(items + 4 * item + 2)
    length, row0 = tl.load(lengths + request), tl.load(starts + request)
    tokens = tl.load(starts + request + 1) - row0

    row = tl.arange(0, ROWS)
    d = tl.arange(0, D_BLOCK)
    real = row < tokens * G
    position = length - tokens + tl.minimum(row // G, tokens - 1)
    line = ((row0 + row // G) * KH * G + head * G + row % G).to(tl.int64) * D
    q = tl.load(query + line[:, None] + d[None, :], mask=real[:, None] & (d[None, :] < D), other=0.0)
    row_scale = tl.zeros([ROWS], tl.float32) + scale
    if FP8:
        wide = widen(q)
        step = tl.maximum(tl.max(tl.abs(wide), axis=1), 1e-20) / 448.0
        q = round_to(wide / step[:, None], tl.float8e4nv)
        row_scale = row_scale * step * tl.load(key_scale + head)
    q = tl.trans(q)

    top = tl.full([ROWS], LOWEST, tl.float32)
    # Sums stay spread over the tile until the end: a sum across warps in each step would have to wait for them all.
    total = tl.zeros([TILE, ROWS], tl.float32)
    acc = tl.zeros([D_BLOCK, ROWS], tl.float32)
    n_in_tile = tl.arange(0, TILE)
    for tile in tl.range(begin, end, num_stages=STAGES):
        n = tile * TILE + n_in_tile
        page = tl.load(table + request.to(tl.int64) * table_stride + n // S, mask=n < length, other=0)
        page = tl.max_constancy(page, min(S, TILE)).to(tl.int64)
        block = (page * KH + head) * (S * D)
        k_at = keys + (block + n % S * D)[:, None] + d[None, :]
        if D == D_BLOCK:
            k = tl.load(k_at)
        else:
            k = tl.load(k_at, mask=d[None, :] < D, other=0.0)
        s = dot(k, q, tl.zeros([TILE, ROWS], tl.float32)) * row_scale[None, :]
        if SOFTCAP:
            s = softcap - 2.0 * softcap / (tl.exp2(s * (2.0 * 1.4426950408889634 / softcap)) + 1.0)
        seen = n[:, None] <= position[None, :]
        if WINDOW > 0:
            seen &= n[:, None] > position[None, :] - WINDOW
        s = tl.where(seen, s, float("-inf"))
        higher = tl.maximum(top, tl.ceil(tl.max(s, axis=0)))
        fade = tl.exp2(top - higher)
        top = higher
        if FP8:
            p = tl.exp2(s - (higher - FP8_SHIFT)[None, :])
        else:
            p = tl.exp2(s - higher[None, :])
        total = total * fade[None, :] + p
        if FP8:
            v_at = values + (block + n % S)[None, :] + (d * S)[:, None]
            if D == D_BLOCK:
                v = tl.load(v_at)
            else:
                v = tl.load(v_at, mask=d[:, None] < D, other=0.0)
        else:
            v_at = values + (block + n % S * D)[:, None] + d[None, :]
            if D == D_BLOCK:
                v = tl.trans(tl.load(v_at))
            else:
                v = tl.trans(tl.load(v_at, mask=d[None, :] < D, other=0.0))
        p = round_to(p, v.dtype)
        if FP8:
            # The tensor core's sum of fp8 products is short of bits: only one tile goes into it.
            acc = acc * fade[None, :] + dot(v, p, tl.zeros([D_BLOCK, ROWS], tl.float32))
        else:
            acc = dot(v, p, acc * fade[None, :])

    total_of_row = tl.sum(total, axis=0)
    nothing = total_of_row == 0.0
    acc = acc / tl.where(nothing, 1.0, total_of_row)[None, :]
    if FP8:
        acc = acc * tl.load(value_scale + head)
    stored = real[None, :] & (d[:, None] < D)
    if tl.load(items + 4 * item + 3) == 1:
        tl.store(out + line[None, :] + d[:, None], round_to(acc, out.dtype.element_ty), mask=stored)
    else:
        lse = tl.where(nothing, float("-inf"), top + tl.log2(tl.where(nothing, 1.0, total_of_row)))
        at = (item * KH + head).to(tl.int64) * ROWS + row
        tl.store(partial_lse + at, lse, mask=real)
        tl.store(partial + at[None, :] * D + d[:, None], acc, mask=stored)


@triton.jit
def _merge(
    out,
    partial,
    partial_lse,
    splits,
    starts,
    KH: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    D_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row of queries: its splits, BLOCK at a time, weighted by 2**lse."""
    row, head, request = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    count = tl.load(splits + 2 * request + 1)
    row0 = tl.load(starts + request)
    if (count <= 1) | (row >= (tl.load(starts + request + 1) - row0) * G):
        return
    first = tl.load(splits + 2 * request)
    d = tl.arange(0, D_BLOCK)
    top = LOWEST
    total = 0.0
    acc = tl.zeros([D_BLOCK], tl.float32)
    for i in range(0, count, BLOCK):
        split = i + tl.arange(0, BLOCK)
        at = ((first + split) * KH + head).to(tl.int64) * ROWS + row
        there = split < count
        lse = tl.load(partial_lse + at, mask=there, other=float("-inf"))
        part = tl.load(partial + at[:, None] * D + d[None, :], mask=there[:, None] & (d[None, :] < D), other=0.0)
        higher = tl.maximum(top, tl.max(lse, axis=0))
        fade = tl.exp2(top - higher)
        weight = tl.exp2(lse - higher)
        acc = acc * fade + tl.sum(part * weight[:, None], axis=0)
        total = total * fade + tl.sum(weight, axis=0)
        top = higher
    line = ((row0 + row // G) * KH * G + head * G + row % G).to(tl.int64) * D
    tl.store(out + line + d, round_to(acc / total, out.dtype.element_ty), mask=d < D)


@dataclass(frozen=True)
class Launch:
    """How `_attend` is launched: tokens of a tile, warps, stages of its loads, programs that a multiprocessor is given
    work for, and the fewest tiles of a split."""

    tile: int
    warps: int
    stages: int
    programs: int
    min_tiles: int


def launch_of(layout: KVLayout, rows: int) -> Launch:
    """Tiles that leave room for two programs and more on a Hopper multiprocessor."""
    wide = layout.head_size > 128
    if layout.dtype == torch.float8_e4m3fn:
        return Launch(tile=64 if wide or rows > 32 else 128, warps=4, stages=3, programs=3, min_tiles=2)
    return Launch(tile=32 if wide else 64, warps=4, stages=3, programs=3, min_tiles=2)


class DecodePlan:
    """The work of a step, shared by all layers of one window, and the workspace that its splits need.

    `requests` B and `max_query` bound the batch. `window` is how many tokens a query sees, itself included (None: all).
    `split_length`, in tokens, fixes the splits (invariant mode); contexts then have at most `max_length` tokens.
    """

    def __init__(
        self,
        requests: int,
        layout: KVLayout,
        *,
        group_size: int,
        max_query: int,
        device: torch.device,
        window: int | None = None,
        split_length: int | None = None,
        max_length: int | None = None,
    ) -> None:
        self.layout, self.group_size, self.window, self.requests = layout, group_size, window or 0, requests
        self.rows = max(16, triton.next_power_of_2(max_query * group_size))
        self.launch = launch_of(layout, self.rows)
        self.fixed_tiles = 0
        if split_length is None:
            self.wanted = max(1, _programs(device, self.launch) // layout.kv_heads)
            self.capacity = requests + self.wanted
        else:
            if split_length % self.launch.tile:
                raise ValueError(f"splits of {split_length} tokens: take a multiple of {self.launch.tile}, the tile")
            if max_length is None:
                raise ValueError("splits of a fixed length need max_length, the longest context, for their workspace")
            self.wanted = 1
            self.fixed_tiles = split_length // self.launch.tile
            self.capacity = requests * triton.cdiv(max_length, split_length)
        self.items = torch.full((self.capacity, 4), -1, dtype=torch.int32, device=device)
        self.splits = torch.zeros((requests, 2), dtype=torch.int32, device=device)
        rows = (self.capacity, layout.kv_heads, self.rows)
        self.partial = torch.empty((*rows, layout.head_size), dtype=torch.float32, device=device)
        self.partial_lse = torch.empty(rows, dtype=torch.float32, device=device)

    def update(self, lengths: Tensor, starts: Tensor) -> None:
        """lengths [B] int32 and starts [B + 1] int32 of the step."""
        _plan[(1,)](
            self.items,
            self.splits,
            lengths,
            starts,
            self.requests,
            self.capacity,
            self.wanted,
            FIXED_TILES=self.fixed_tiles,
            MIN_TILES=self.launch.min_tiles,
            TILE=self.launch.tile,
            WINDOW=self.window,
            BLOCK=max(32, triton.next_power_of_2(self.requests)),
        )


def _programs(device: torch.device, launch: Launch) -> int:
    if INTERPRETED.value or device.type != "cuda":
        return INTERPRETED_PROGRAMS
    return torch.cuda.get_device_properties(device).multi_processor_count * launch.programs


def attend_decode(
    out: Tensor,
    query: Tensor,
    caches: tuple[Tensor, Tensor],
    table: Tensor,
    lengths: Tensor,
    starts: Tensor,
    plan: DecodePlan,
    scale: float,
    *,
    softcap: float = 0.0,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
) -> None:
    """Fill `out`; the module tells the arguments. `softcap` c bends a score s to c tanh(s / c) (0: as it is)."""
    layout = plan.layout
    fp8 = layout.values_transposed
    if fp8 and (key_scale is None or value_scale is None):
        raise ValueError("an fp8 cache needs key_scale and value_scale, one a KV head")
    shape = {
        "KH": layout.kv_heads,
        "G": plan.group_size,
        "D": layout.head_size,
        "D_BLOCK": triton.next_power_of_2(layout.head_size),
        "ROWS": plan.rows,
    }
    _attend[(layout.kv_heads, plan.capacity)](
        out,
        plan.partial,
        plan.partial_lse,
        query,
        *caches,
        table,
        lengths,
        starts,
        plan.items,
        key_scale,
        value_scale,
        scale * LOG2_E,
        softcap * LOG2_E,
        table.stride(0),
        **shape,
        S=layout.page_size,
        TILE=plan.launch.tile,
        WINDOW=plan.window,
        SOFTCAP=softcap > 0,
        FP8=fp8,
        STAGES=plan.launch.stages,
        num_warps=plan.launch.warps,
    )
    _merge[(plan.rows, layout.kv_heads, plan.requests)](
        out, plan.partial, plan.partial_lse, plan.splits, starts, **shape, BLOCK=MERGE_BLOCK, num_warps=2
    )
