"""Attention over pages at the shape of Llama-3.1-8B: 32 query heads over 8 KV heads of 128, pages of 64 tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.kernels import Case
from kernels.attention_decode import DecodePlan, attend_decode
from kernels.attention_prefill import attend_prefill, launch_of
from kernels.kv_layout import KVLayout
from kernels.tiles import cut

KV_HEADS, GROUP, HEAD = 8, 4, 128
PAGE = 64
DEVICE = torch.device("cuda")
# What a set of runs reads in total, to stay clear of a 60 MB L2 cache.
ROTATED_BYTES = 400 << 20

# Batch, tokens of context, whether all are equal; TB/s of FlashAttention 3 and FlashInfer on an H200 in bf16 and fp8
# (pages of 64 and 16), and the figures we aim at.
DECODE = [
    (16, 1024, False, (1.63, 1.73, 1.8), (0.88, 0.61, 1.2)),
    (64, 1024, False, (2.95, 2.90, 3.0), (1.66, 1.16, 2.4)),
    (128, 1024, False, (3.53, 3.21, 3.5), (2.05, 1.30, 2.9)),
    (256, 1024, False, (3.92, 3.80, 3.9), (2.32, 1.63, 3.2)),
    (64, 4096, False, (3.73, 3.35, 3.8), (2.31, 1.30, 3.3)),
    (8, 16384, True, (3.80, 3.76, 3.8), (2.60, 1.91, 3.3)),
    (1, 32768, True, (2.46, 2.54, 2.6), (1.55, 1.37, 2.0)),
]

# Prompts, tokens of each; TFLOP/s of FlashAttention 3 in bf16 on an H200, and the figure we aim at.
PREFILL = [(8, 1024, 409, 327), (2, 4096, 573, 458), (1, 16384, 637, 510)]


def random_cache(layout: KVLayout, pages: int) -> tuple[Tensor, Tensor]:
    keys, values = (
        torch.randn(shape, dtype=torch.bfloat16, device=DEVICE).to(layout.dtype)
        for shape in (layout.key_shape(pages), layout.value_shape(pages))
    )
    return keys, values


def decode_run(layout: KVLayout, lengths: Tensor) -> Callable[[], object]:
    """One launch over a cache of its own, on shuffled pages. lengths [B] int32."""
    batch = len(lengths)
    width = int(lengths.max()) // PAGE + 1
    caches = random_cache(layout, batch * width + 1)
    table = torch.randperm(batch * width, device=DEVICE).add(1).to(torch.int32).view(batch, width)
    starts = torch.arange(batch + 1, dtype=torch.int32, device=DEVICE)
    query = torch.randn(batch, KV_HEADS * GROUP, HEAD, dtype=torch.bfloat16, device=DEVICE)
    out = torch.empty_like(query)
    plan = DecodePlan(batch, layout, group_size=GROUP, max_query=1, device=DEVICE)
    plan.update(lengths, starts)
    one = torch.ones(KV_HEADS, device=DEVICE) if layout.values_transposed else None

    def run() -> None:
        attend_decode(out, query, caches, table, lengths, starts, plan, HEAD**-0.5, key_scale=one, value_scale=one)

    return run


def dense_run(batch: int, length: int) -> Callable[[], object]:
    """torch's attention over contexts that are contiguous and equally long."""
    query = torch.randn(batch, KV_HEADS * GROUP, 1, HEAD, dtype=torch.bfloat16, device=DEVICE)
    key, value = (torch.randn(batch, KV_HEADS, length, HEAD, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
    return lambda: F.scaled_dot_product_attention(query, key, value, enable_gqa=True)


def prefill_run(layout: KVLayout, batch: int, length: int) -> Callable[[], object]:
    """One launch over whole prompts in a cache, on shuffled pages."""
    width = length // PAGE
    caches = random_cache(layout, batch * width + 1)
    table = torch.randperm(batch * width, device=DEVICE).add(1).to(torch.int32).view(batch, width)
    lengths = torch.full((batch,), length, dtype=torch.int32, device=DEVICE)
    starts = torch.arange(0, batch * length + 1, length, dtype=torch.int32, device=DEVICE)
    query = torch.randn(batch * length, KV_HEADS * GROUP, HEAD, dtype=torch.bfloat16, device=DEVICE)
    out = torch.empty_like(query)
    made = cut([length] * batch, [length] * batch, launch_of(layout).tokens(GROUP))
    tiles = torch.tensor(made, dtype=torch.int32, device=DEVICE)
    one = torch.ones(KV_HEADS, device=DEVICE) if layout.values_transposed else None

    def run() -> None:
        arguments = out, query, caches, table, lengths, starts, tiles, layout, HEAD**-0.5
        attend_prefill(*arguments, key_scale=one, value_scale=one)

    return run


def dense_prefill_run(batch: int, length: int) -> Callable[[], object]:
    """torch's causal attention over contiguous prompts."""
    query = torch.randn(batch, KV_HEADS * GROUP, length, HEAD, dtype=torch.bfloat16, device=DEVICE)
    key, value = (torch.randn(batch, KV_HEADS, length, HEAD, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
    return lambda: F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)


def decode_lengths(batch: int, length: int, equal: bool) -> Tensor:
    if equal:
        return torch.full((batch,), length, dtype=torch.int32, device=DEVICE)
    noise = torch.Generator().manual_seed(0)
    return torch.randint(length // 2, length * 3 // 2, (batch,), generator=noise, dtype=torch.int32).to(DEVICE)


def table() -> Iterator[Case]:
    for dtype, size, name in ((torch.bfloat16, 2, "bf16"), (torch.float8_e4m3fn, 1, "fp8")):
        layout = KVLayout(KV_HEADS, HEAD, PAGE, dtype)
        for batch, length, equal, *figures in DECODE:
            lengths = decode_lengths(batch, length, equal)
            amount = int(lengths.sum()) * KV_HEADS * HEAD * 2 * size
            sets = 2 + ROTATED_BYTES // amount
            flash, infer, aim = figures[size == 1]
            yield Case(
                f"decode {name} {batch} x {'' if equal else '~'}{length}",
                "TB/s",
                amount,
                [decode_run(layout, lengths) for _ in range(sets)],
                {"SDPA, dense": [dense_run(batch, length) for _ in range(sets)]} if size == 2 and equal else {},
                {"FlashAttention 3": flash, "FlashInfer": infer},
                aim,
            )
    yield from prefill_table()


def prefill_table() -> Iterator[Case]:
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float8_e4m3fn, "fp8")):
        layout = KVLayout(KV_HEADS, HEAD, PAGE, dtype)
        for batch, length, flash, aim in PREFILL:
            wide = dtype == torch.bfloat16
            yield Case(
                f"prefill {name} {batch} x {length}",
                "TFLOP/s",
                2 * batch * length**2 * KV_HEADS * GROUP * HEAD,  # two products over half of the square
                [prefill_run(layout, batch, length) for _ in range(2)],
                {"SDPA, dense": [dense_prefill_run(batch, length) for _ in range(2)]} if wide else {},
                {"FlashAttention 3": flash} if wide else {},
                aim,
            )
