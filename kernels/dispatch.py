"""The ops of a GPU's forward: in Triton on a GPU, and where TRITON_INTERPRET=1 has the interpreter take its place; in
plain torch elsewhere.

Shapes use T tokens of a step, H query heads over KH KV heads of size D, V tokens of the vocabulary.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Protocol

import torch
from torch import Tensor

from kernels.kv_layout import KVLayout
from kernels.linear import Activation
from kernels.operands import HeadNorms, History, KVScales, Quantized

# Read once, as Triton does: its functions are bound to the interpreter or the compiler when they are made.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@cache
def _twin(device_type: str) -> ModuleType:
    if device_type == "cuda" or INTERPRETED:
        from kernels import gpu

        return gpu
    from kernels import plain

    return plain


def quantize_rows(x: Tensor) -> Quantized:
    """x [R, N], rows contiguous -> codes fp8 e4m3 and scales, a row's largest |x| / 448."""
    return _twin(x.device.type).quantize_rows(x)


def add_rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """residual += x in place, then the RMSNorm of that sum; without a residual that of x. x and residual [T, N].

    A weight of x's dtype multiplies what has been rounded to it, as Llama has it; one in fp32 multiplies before the
    rounding, as Gemma has it.
    """
    return _twin(x.device.type).add_rms_norm(x, residual, weight, eps)


def add_rms_norm_fp8(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Quantized:
    """`add_rms_norm`, and its output quantised by rows."""
    return _twin(x.device.type).add_rms_norm_fp8(x, residual, weight, eps)


def gated_mul(gate_up: Tensor, activation: Activation = "silu") -> Tensor:
    """gate_up [T, 2F] -> f(first half) * second half, [T, F] (Shazeer 2020)."""
    return _twin(gate_up.device.type).gated_mul(gate_up, activation)


def gated_mul_fp8(gate_up: Tensor, activation: Activation = "silu") -> Quantized:
    """`gated_mul`, and its output quantised by rows."""
    return _twin(gate_up.device.type).gated_mul_fp8(gate_up, activation)


class GpuLinear(Protocol):
    """y = x Wᵀ + b; x is quantised by rows where W is, and y is then bf16."""

    def __call__(self, x: Tensor | Quantized) -> Tensor: ...


def gpu_linear(weight: Tensor | Quantized, bias: Tensor | None = None) -> GpuLinear:
    """A linear layer. weight [out, in], or that quantised by rows; bias [out] of the result's dtype, or None."""
    where = weight.codes if isinstance(weight, Quantized) else weight
    make: Callable[..., GpuLinear] = _twin(where.device.type).Linear
    return make(weight, bias)


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
    """Norm (with `norms`) and rotate queries and keys, write keys and values into the cache -> queries [T, H, D].

    qkv [T, (H + 2 KH) D]; cos and sin [positions, D], whole tables of `rope_tables`; positions and slots [T] int64.
    An fp8 cache needs `scales`, and no other takes them (ValueError).
    """
    return _twin(qkv.device.type).rope_and_cache(qkv, cos, sin, positions, slots, cache, layout, norms, scales)


class DecodePlan(Protocol):
    """How decode attention of a step is cut. One for each window of a model and each size of batch."""

    def update(self, lengths: Tensor, starts: Tensor) -> None:
        """Once a step, before the first layer: lengths [B] int32 and starts [B + 1] int32."""
        ...


def decode_plan(
    requests: int,
    layout: KVLayout,
    *,
    group_size: int,
    max_query: int,
    device: torch.device,
    window: int | None = None,
    split_length: int | None = None,
    max_length: int | None = None,
) -> DecodePlan:
    """A plan for `requests` rows of at most `max_query` tokens each; `window` is how many tokens a query sees.

    `split_length` fixes the splits, so that a token's result does not depend on the batch; `max_length` then bounds
    contexts.
    """
    made: DecodePlan = _twin(device.type).DecodePlan(
        requests, layout, group_size=group_size, max_query=max_query, device=device, window=window,
        split_length=split_length, max_length=max_length,
    )  # fmt: skip
    return made


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
    scales: KVScales | None = None,
) -> None:
    """Paged attention for a few new tokens a request, those of the plan's requests, into their rows of `out`.

    query and out [T, H, D]; table [B, max_pages] int32; lengths [B] int32 with the new tokens, starts [B + 1] int32.
    """
    key_scale, value_scale = scales or (None, None)
    _twin(query.device.type).attend_decode(
        out, query, caches, table, lengths, starts, plan, scale,
        softcap=softcap, key_scale=key_scale, value_scale=value_scale,
    )  # fmt: skip


def prefill_tile_tokens(layout: KVLayout, group_size: int, device: torch.device) -> int:
    """New tokens of one tile of prefill attention, as `kernels.tiles.cut` wants them."""
    tokens: int = _twin(device.type).prefill_tile_tokens(layout, group_size)
    return tokens


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
    scales: KVScales | None = None,
) -> None:
    """Paged attention for many new tokens a request, those that `tiles` [N, 2] int32 names, into rows of `out`."""
    key_scale, value_scale = scales or (None, None)
    _twin(query.device.type).attend_prefill(
        out, query, caches, table, lengths, starts, tiles, layout, scale,
        window=window, softcap=softcap, key_scale=key_scale, value_scale=value_scale,
    )  # fmt: skip


def adjust_logits(
    logits: Tensor,
    vocab: int,
    masks: tuple[Tensor, Tensor] | None = None,
    histories: tuple[Tensor, History] | None = None,
) -> None:
    """Masks, then penalties, in place; tokens from `vocab` on become -inf. logits [R, W] fp32.

    masks: lines [R] int32 and words [lines, ceil(vocab / 32)] int32; histories: lines [R] int32 and what they are of;
    a line of -1 leaves its row as it is.
    """
    _twin(logits.device.type).adjust(logits, vocab, masks, histories)


def choose_tokens(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
) -> Tensor:
    """One token for each row -> [R] int64: the likeliest at a temperature of 0, else drawn as `draw` has it."""
    chosen: Tensor = _twin(logits.device.type).choose_tokens(logits, temperature, top_k, top_p, min_p, uniform)
    return chosen
