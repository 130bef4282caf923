"""Each op of a GPU's forward on the Triton side and on the plain one, over the same random inputs.

`bench.gpu_check` runs them on a GPU at a model's shapes, the tests under Triton's interpreter at small ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import ModuleType

import torch
from torch import Tensor

from kernels.kv_layout import KVLayout
from kernels.operands import HeadNorms, History, KVScales, Quantized
from kernels.reference import rope_tables
from kernels.tiles import cut

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn


@dataclass(frozen=True)
class Size:
    """Shapes of the cases. `tokens` of a step, `contexts` in tokens, `vocab` of the logits."""

    tokens: tuple[int, ...]
    hidden: int
    inner: int
    kv_heads: int
    group_size: int
    head_size: int
    page_size: int
    contexts: tuple[int, ...]
    vocab: int


SMALL = Size((1, 19), 64, 96, 2, 3, 32, 16, (1, 16, 70), 300)
LLAMA_8B = Size((1, 61, 1024), 4096, 14336, 8, 4, 128, 64, (1, 64, 700, 4100), 128256)


@dataclass(frozen=True)
class OpCase:
    """`run(ops)` gives the outputs on one side, `ops` being `kernels.gpu` or `kernels.plain`; both sides may differ by
    `limit`, relative in the Euclidean norm."""

    name: str
    run: Callable[[ModuleType], list[Tensor]]
    limit: float


def op_cases(size: Size, device: torch.device) -> Iterator[OpCase]:
    noise = torch.Generator().manual_seed(0)

    def random(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
        return torch.randn(shape, generator=noise).to(device, dtype)

    for tokens in size.tokens:
        yield from _elementwise(size, tokens, random)
        yield from _linear(size, tokens, random)
        yield from _rope_and_cache(size, tokens, random)
    for dtype in (BF16, FP8):
        for window, softcap in ((None, 0.0), (size.page_size + 3, 20.0)):
            yield _decode(size, dtype, window, softcap, random)
            yield _prefill(size, dtype, window, softcap, random)
    yield from _choice(size, random)


def compare(case: OpCase) -> float:
    """The largest relative difference of an output."""
    from kernels import gpu, plain

    ours, theirs = case.run(gpu), case.run(plain)
    assert len(ours) == len(theirs)
    return max(difference(a, b) for a, b in zip(ours, theirs, strict=True))


def difference(ours: Tensor, theirs: Tensor) -> float:
    """||ours - theirs|| / ||theirs||; where both are -inf they agree, NaN is infinitely wrong."""
    assert ours.shape == theirs.shape, f"{tuple(ours.shape)} is not {tuple(theirs.shape)}"
    a, b = ours.double(), theirs.double()
    barred = torch.isneginf(a) & torch.isneginf(b)
    a, b = a.masked_fill(barred, 0.0), b.masked_fill(barred, 0.0)
    error = float((a - b).norm() / b.norm().clamp(min=1e-30))
    return error if error == error else float("inf")


Random = Callable[..., Tensor]


def _elementwise(size: Size, tokens: int, random: Random) -> Iterator[OpCase]:
    x, residual, weight = random(tokens, size.hidden), random(tokens, size.hidden), random(size.hidden)
    gate_up = random(tokens, 2 * size.inner)

    def norm(ops: ModuleType) -> list[Tensor]:
        kept = residual.clone()
        return [ops.add_rms_norm(x, kept, weight, 1e-5), kept]

    def norm_fp8(ops: ModuleType) -> list[Tensor]:
        kept = residual.clone()
        return [*_values(ops.add_rms_norm_fp8(x, kept, weight, 1e-5)), kept]

    yield OpCase(f"quantize_rows T={tokens}", lambda ops: _values(ops.quantize_rows(x)), 1e-6)
    yield OpCase(f"add_rms_norm T={tokens}", norm, 4e-3)
    yield OpCase(f"add_rms_norm_fp8 T={tokens}", norm_fp8, 1e-2)
    for activation in ("silu", "gelu_tanh"):
        yield OpCase(f"gated_mul {activation} T={tokens}", partial(_gate, gate_up, activation), 3e-3)
        yield OpCase(f"gated_mul_fp8 {activation} T={tokens}", partial(_gate_fp8, gate_up, activation), 1e-2)


def _gate(gate_up: Tensor, activation: str, ops: ModuleType) -> list[Tensor]:
    return [ops.gated_mul(gate_up, activation)]


def _gate_fp8(gate_up: Tensor, activation: str, ops: ModuleType) -> list[Tensor]:
    return _values(ops.gated_mul_fp8(gate_up, activation))


def _values(quantized: Quantized) -> list[Tensor]:
    return [quantized.codes.float() * quantized.scales.unsqueeze(1), quantized.scales]


def _linear(size: Size, tokens: int, random: Random) -> Iterator[OpCase]:
    from kernels import plain

    x, weight, bias = random(tokens, size.hidden), random(size.inner, size.hidden), random(size.inner)
    codes, rows = plain.quantize_rows(weight), plain.quantize_rows(x)
    yield OpCase(f"linear bf16 T={tokens}", lambda ops: [ops.Linear(weight)(x)], 4e-3)
    yield OpCase(f"linear bf16 + bias T={tokens}", lambda ops: [ops.Linear(weight, bias)(x)], 4e-3)
    yield OpCase(f"linear fp8 T={tokens}", lambda ops: [ops.Linear(codes)(rows)], 4e-3)


def _rope_and_cache(size: Size, tokens: int, random: Random) -> Iterator[OpCase]:
    heads = size.kv_heads * (size.group_size + 2)
    qkv = random(tokens, heads * size.head_size)
    frequencies = 10_000.0 ** (-torch.arange(0, size.head_size, 2, device=qkv.device) / size.head_size)
    cos, sin = rope_tables(frequencies, tokens + 7, torch.float32)
    positions = torch.arange(7, tokens + 7, device=qkv.device)
    slots = torch.arange(tokens, device=qkv.device).flip(0) + size.page_size
    pages = 2 + tokens // size.page_size + 1
    norms = HeadNorms(random(size.head_size), random(size.head_size), 1e-6)
    scale = random(size.kv_heads, dtype=torch.float32).abs() + 0.5
    for dtype, how in ((BF16, None), (BF16, norms), (FP8, None)):
        layout = KVLayout(size.kv_heads, size.head_size, size.page_size, dtype)

        def run(ops: ModuleType, layout: KVLayout = layout, how: HeadNorms | None = how) -> list[Tensor]:
            cache = layout.make(pages, qkv.device)
            scales = KVScales(scale, scale.flip(0)) if layout.values_transposed else None
            return [ops.rope_and_cache(qkv, cos, sin, positions, slots, cache, layout, how, scales), *cache]

        name = f"rope_and_cache {_name(dtype)}{' + norms' if how else ''} T={tokens}"
        yield OpCase(name, run, 2e-2 if dtype == FP8 else 4e-3)


def _name(dtype: torch.dtype) -> str:
    return "fp8" if dtype == FP8 else "bf16"


@dataclass(frozen=True)
class _Contexts:
    layout: KVLayout
    caches: tuple[Tensor, Tensor]
    table: Tensor
    lengths: Tensor
    scales: dict[str, Tensor]


def _contexts(size: Size, dtype: torch.dtype, random: Random) -> _Contexts:
    layout = KVLayout(size.kv_heads, size.head_size, size.page_size, dtype)
    needed = [-(-length // size.page_size) for length in size.contexts]
    pages = sum(needed) + 1
    caches = random(*layout.key_shape(pages)).to(dtype), random(*layout.value_shape(pages)).to(dtype)
    table = torch.zeros(len(needed), max(needed), dtype=torch.int32)
    order = torch.randperm(pages - 1, generator=torch.Generator().manual_seed(1)).add(1).int()
    for row, own in zip(table, order.split(needed), strict=True):
        row[: len(own)] = own
    device = caches[0].device
    scale = torch.linspace(0.5, 1.5, size.kv_heads, device=device)
    scales = {"key_scale": scale, "value_scale": scale.flip(0)} if dtype == FP8 else {}
    lengths = torch.tensor(size.contexts, dtype=torch.int32, device=device)
    return _Contexts(layout, caches, table.to(device), lengths, scales)


def _starts(counts: list[int], device: torch.device) -> Tensor:
    return torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32, device=device)


def _decode(size: Size, dtype: torch.dtype, window: int | None, softcap: float, random: Random) -> OpCase:
    contexts = _contexts(size, dtype, random)
    counts = [1 + (i % 3 if length > 3 else 0) for i, length in enumerate(size.contexts)]
    query = random(sum(counts), size.kv_heads * size.group_size, size.head_size)
    starts = _starts(counts, query.device)

    def run(ops: ModuleType) -> list[Tensor]:
        plan = ops.DecodePlan(
            len(counts), contexts.layout, group_size=size.group_size, max_query=3, device=query.device, window=window
        )
        plan.update(contexts.lengths, starts)
        out = torch.full_like(query, float("nan"))
        arguments = out, query, contexts.caches, contexts.table, contexts.lengths, starts, plan, size.head_size**-0.5
        ops.attend_decode(*arguments, softcap=softcap, **contexts.scales)
        return [out]

    return OpCase(f"attend_decode {_name(dtype)} window={window} softcap={softcap:g}", run, _limit(dtype))


def _limit(dtype: torch.dtype) -> float:
    return 1e-2 if dtype == FP8 else 6e-3


def _prefill(size: Size, dtype: torch.dtype, window: int | None, softcap: float, random: Random) -> OpCase:
    contexts = _contexts(size, dtype, random)
    counts = [length if i % 2 else -(-length // 3) for i, length in enumerate(size.contexts)]
    query = random(sum(counts), size.kv_heads * size.group_size, size.head_size)
    starts = _starts(counts, query.device)

    def run(ops: ModuleType) -> list[Tensor]:
        tokens = ops.prefill_tile_tokens(contexts.layout, size.group_size)
        tiles = torch.tensor(cut(size.contexts, counts, tokens), dtype=torch.int32, device=query.device)
        out = torch.full_like(query, float("nan"))
        where = contexts.table, contexts.lengths, starts, tiles, contexts.layout
        ops.attend_prefill(
            out, query, contexts.caches, *where, size.head_size**-0.5,
            window=window, softcap=softcap, **contexts.scales,
        )  # fmt: skip
        return [out]

    return OpCase(f"attend_prefill {_name(dtype)} window={window} softcap={softcap:g}", run, _limit(dtype))


def _choice(size: Size, random: Random) -> Iterator[OpCase]:
    rows, vocab, width = 5, size.vocab - 3, size.vocab
    logits = random(rows, width, dtype=torch.float32) * 3
    device = logits.device
    choose = torch.Generator().manual_seed(2)
    words = torch.randint(-(2**31), 2**31, (2, (vocab + 31) // 32), generator=choose).to(torch.int32)
    seen = torch.randint(-(2**31), 2**31, (1, (vocab + 31) // 32), generator=choose).to(torch.int32)
    made = torch.randint(0, 3, (1, vocab), generator=choose).to(torch.int32)
    factors = (torch.tensor([value], device=device) for value in (1.3, 0.5, 0.25))
    history = History(seen.to(device), made.to(device), *factors)

    def lines(*values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    def adjust(ops: ModuleType) -> list[Tensor]:
        changed = logits.clone()
        ops.adjust(changed, vocab, (lines(0, -1, 1, -1, 0), words.to(device)), (lines(0, 0, -1, -1, -1), history))
        return [changed]

    def choose_tokens(ops: ModuleType) -> list[Tensor]:
        options = (
            torch.tensor([0.0, 1.0, 0.7, 0.0, 1.5]), torch.tensor([0, 0, 20, 0, 0]),
            torch.tensor([1.0, 1.0, 1.0, 1.0, 0.9]), torch.tensor([0.0, 0.0, 0.0, 0.0, 0.01]),
            torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9], dtype=torch.float64),
        )  # fmt: skip
        return [ops.choose_tokens(logits, *(option.to(device) for option in options))]

    yield OpCase("adjust_logits", adjust, 1e-6)
    yield OpCase("choose_tokens", choose_tokens, 0.0)
