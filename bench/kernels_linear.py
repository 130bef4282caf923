"""Linear layers and what is fused around them, at the shapes of Llama-3.1-8B: hidden 4,096, MLP 14,336, 32 query heads
and 8 KV heads of 128.

A product with few tokens is bound by reading its weights, so its figure is their bytes a second; with many it is
arithmetic's. The other kernels are held to the bandwidth of a copy, their bytes being each input once and each output
once; what stands beside them is `torch.compile` of the plain reference where that gives the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.kernels import Case
from kernels import reference
from kernels.activation import gated_mul, gated_mul_fp8
from kernels.choice import adjust, choose_tokens
from kernels.gemm import GpuLinear
from kernels.kv_layout import KVLayout
from kernels.norm import add_rms_norm, add_rms_norm_fp8
from kernels.operands import KVScales, Quantized
from kernels.quantize import quantize_rows
from kernels.rope_cache import rope_and_cache

Run = Callable[[], object]

HIDDEN, INNER, HEADS, KV_HEADS, HEAD, PAGE, VOCAB = 4096, 14336, 32, 8, 128, 64, 128256
DEVICE = torch.device("cuda")
# What a set of runs reads in total, to stay clear of a 60 MB L2 cache.
ROTATED_BYTES = 300 << 20
TOKENS = (1, 16, 32, 64, 128, 256, 1024)
# Name, channels, depth, the aim in TB/s for up to 64 tokens, and what CUTLASS as vLLM ships it reaches on an H200 at
# TOKENS: TB/s up to 64 tokens, beyond them TFLOP/s.
LAYERS = [
    ("gate_up", 28672, 4096, 3.2, (2.68, 2.74, 2.43, 2.59, 665, 1056, 1253)),
    ("down", 4096, 14336, 3.0, (2.68, 2.76, 2.21, 2.47, 493, 721, 1247)),
    ("qkv", 6144, 4096, 2.3, (1.77, 1.67, 1.80, 1.78, 427, 784, 1135)),
    ("o", 4096, 4096, 1.7, (1.01, 0.99, 1.08, 1.05, 259, 520, 1124)),
]


def table() -> Iterator[Case]:
    for name, channels, depth, aim, recorded in LAYERS:
        for tokens, peer in zip(TOKENS, recorded, strict=True):
            yield fp8_product(name, tokens, channels, depth, aim if tokens <= 64 else None, peer)
        for tokens in (1, 16, 64):
            yield bf16_product(name, tokens, channels, depth)
    yield from elementwise(8192)
    yield from elementwise(256)
    yield from choice(256)


def sets(nbytes: int) -> range:
    return range(min(max(ROTATED_BYTES // nbytes, 1) + 1, 200))


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16, device=DEVICE)


def amount(tokens: int, channels: int, depth: int, element_size: int) -> tuple[str, float]:
    if tokens <= 64:
        return "TB/s", channels * depth * element_size
    return "TFLOP/s", 2 * tokens * channels * depth


def fp8_product(name: str, tokens: int, channels: int, depth: int, aim: float | None, peer: float) -> Case:
    x = quantize_rows(random(tokens, depth))
    weights = [quantize_rows(random(channels, depth)) for _ in sets(channels * depth)]
    ours: list[Run] = [partial(GpuLinear(weight), x) for weight in weights]
    library = [scaled_mm(x, weight) for weight in weights]
    return Case(
        f"fp8 {name} M={tokens}", *amount(tokens, channels, depth, 1), ours,
        rivals={"torch._scaled_mm": library}, recorded={"CUTLASS": peer}, aim=aim,
    )  # fmt: skip


def scaled_mm(x: Quantized, weight: Quantized) -> Run:
    scales = x.scales.unsqueeze(1), weight.scales.unsqueeze(0)
    return lambda: torch._scaled_mm(
        x.codes, weight.codes.t(), scale_a=scales[0], scale_b=scales[1], out_dtype=torch.bfloat16, use_fast_accum=True
    )


def bf16_product(name: str, tokens: int, channels: int, depth: int) -> Case:
    x = random(tokens, depth)
    weights = [random(channels, depth) for _ in sets(2 * channels * depth)]
    ours: list[Run] = [partial(GpuLinear(weight), x) for weight in weights]
    library: list[Run] = [partial(F.linear, x, weight) for weight in weights]
    return Case(
        f"bf16 {name} M={tokens}", *amount(tokens, channels, depth, 2), ours,
        rivals={"cuBLAS": library},
    )  # fmt: skip


def elementwise(tokens: int) -> Iterator[Case]:
    """Bytes: bf16 counts 2, a code 1, each token's scale 4."""
    rows = [random(tokens, HIDDEN) for _ in sets(2 * tokens * HIDDEN)]
    residual, weight = [row.clone() for row in rows], random(HIDDEN)
    numbers = tokens * HIDDEN
    pairs = list(zip(rows, residual, strict=True))
    plain = torch.compile(reference.quantize_rows, dynamic=False)
    yield Case(
        f"quantise T={tokens}", "TB/s", 3 * numbers + 4 * tokens, [partial(quantize_rows, x) for x in rows],
        rivals={"torch.compile": [partial(plain, x) for x in rows]},
    )  # fmt: skip
    norm = torch.compile(lambda x, rest: F.rms_norm(rest.add_(x), (HIDDEN,), weight, 1e-5), dynamic=False)
    yield Case(
        f"add + norm T={tokens}", "TB/s", 8 * numbers,
        [partial(add_rms_norm, x, rest, weight, 1e-5) for x, rest in pairs],
        rivals={"torch.compile": [partial(norm, x, rest) for x, rest in pairs]},
    )  # fmt: skip
    yield Case(
        f"add + norm + quantise T={tokens}", "TB/s", 7 * numbers + 4 * tokens,
        [partial(add_rms_norm_fp8, x, rest, weight, 1e-5) for x, rest in pairs],
    )  # fmt: skip
    wide = [random(tokens, 2 * INNER) for _ in sets(4 * tokens * INNER)]
    gate = torch.compile(reference.gated_mul, dynamic=False)
    yield Case(
        f"SiLU * up T={tokens}", "TB/s", 6 * tokens * INNER, [partial(gated_mul, x) for x in wide],
        rivals={"torch.compile": [partial(gate, x) for x in wide]},
    )  # fmt: skip
    yield Case(
        f"SiLU * up + quantise T={tokens}", "TB/s", 5 * tokens * INNER + 4 * tokens,
        [partial(gated_mul_fp8, x) for x in wide],
    )  # fmt: skip
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        yield rotation(tokens, dtype)


def rotation(tokens: int, dtype: torch.dtype) -> Case:
    """Queries and keys rotated, keys and values written to neighbouring slots, as in the prefill of one prompt."""
    layout = KVLayout(KV_HEADS, HEAD, PAGE, dtype)
    width = (HEADS + 2 * KV_HEADS) * HEAD
    tables = reference.rope_tables(1e4 ** (-torch.arange(0, HEAD, 2, device=DEVICE) / HEAD), tokens, torch.float32)
    positions = torch.arange(tokens, device=DEVICE)
    scales = None
    if dtype == torch.float8_e4m3fn:
        scales = KVScales(*(torch.ones(KV_HEADS, device=DEVICE) for _ in range(2)))

    def run() -> Run:
        qkv, cache = random(tokens, width), layout.make(tokens // PAGE + 1, DEVICE)
        return lambda: rope_and_cache(qkv, *tables, positions, positions, cache, layout, scales=scales)

    written = 2 * HEADS * HEAD + 2 * KV_HEADS * HEAD * dtype.itemsize
    per_token = 2 * width + written + 4 * HEAD  # half of both tables is read
    return Case(
        f"rotate + write {str(dtype).removeprefix('torch.')} T={tokens}", "TB/s", tokens * per_token,
        [run() for _ in sets(tokens * per_token)],
    )  # fmt: skip


def choice(rows: int) -> Iterator[Case]:
    """Tokens of a step; bytes are the logits once, twice where they are changed."""
    logits = [torch.randn(rows, VOCAB, device=DEVICE) for _ in range(3)]
    lines = torch.arange(rows, dtype=torch.int32, device=DEVICE)
    words = torch.randint(-(2**31), 2**31, (rows, VOCAB // 32), device=DEVICE).to(torch.int32)
    yield Case(
        f"mask R={rows}",
        "TB/s",
        rows * VOCAB * (8 + 1 / 8),
        [partial(adjust, x, VOCAB, (lines, words)) for x in logits],
    )
    uniform = torch.rand(rows, dtype=torch.float64, device=DEVICE)
    limits = {"greedy": (0.0, 0, 1.0), "draw": (1.0, 0, 1.0), "top-k": (1.0, 50, 1.0), "top-p": (1.0, 0, 0.9)}
    for name, (temperature, top_k, top_p) in limits.items():
        options = (
            torch.full((rows,), temperature, device=DEVICE), torch.full((rows,), top_k, device=DEVICE),
            torch.full((rows,), top_p, device=DEVICE), torch.zeros(rows, device=DEVICE), uniform,
        )  # fmt: skip
        rivals: dict[str, list[Run]] = {}
        if name == "greedy":
            rivals["torch.argmax"] = [partial(torch.argmax, x, -1) for x in logits]
        ours = [partial(choose_tokens, x, *options) for x in logits]
        yield Case(f"{name} R={rows}", "TB/s", 4 * rows * VOCAB, ours, rivals=rivals)
