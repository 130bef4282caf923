"""How a model's weights are kept, and in which dtype it computes.

    none    weights and arithmetic in the same dtype: bf16 where the device computes in it, fp32 elsewhere
    fp16    weights in fp16, arithmetic in fp32
    int8    linear layers in 8-bit integers, rows quantised as they come; embedding in fp16, all else in fp32

`auto` is none where the CPU computes in bf16, where fp32 is asked for by name, and on a GPU; it is fp16 on a CPU with
AVX2 and no more. What fp16 rounds off is far below what the checkpoint's own quantisation has left (`bench/LOG.md`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import ops
from kernels.ops import GatedLayer, LinearLayer


@dataclass(frozen=True)
class WeightFormat:
    """`linear(weight, bias=None)` and `gated(gate, up, activation)` make layers; `table` is for the embedding."""

    name: str
    dtype: torch.dtype  # of hidden states, keys and values
    linear: Callable[..., LinearLayer]
    gated: Callable[..., GatedLayer]
    table: Callable[[Tensor], Tensor]


def whole(dtype: torch.dtype) -> WeightFormat:
    """Weights as they are, in the dtype of the arithmetic."""
    return WeightFormat("none", dtype, ops.Linear, ops.GatedLinear, lambda table: table)


FP16 = WeightFormat("fp16", torch.float32, ops.Fp16Linear, ops.Fp16GatedLinear, Tensor.half)
INT8 = WeightFormat("int8", torch.float32, ops.Int8Linear, ops.Int8GatedLinear, Tensor.half)


def pick_format(quantization: str, dtype: str, device: torch.device) -> WeightFormat:
    """Names as in EngineConfig. Raises ValueError for what the device or the dtype asked for does not allow."""
    if quantization in ("none", "auto"):
        computes_in_bf16 = device.type != "cpu" or _has_bf16()
        if quantization == "auto" and dtype == "auto" and not computes_in_bf16 and ops.can_keep_fp16():
            return FP16
        if dtype == "auto":
            # Emulated bf16 is slower than fp32.
            return whole(torch.bfloat16 if computes_in_bf16 else torch.float32)
        return whole({"bfloat16": torch.bfloat16, "float32": torch.float32}[dtype])
    if device.type != "cpu":
        raise ValueError(
            f"quantization is {quantization!r}, which is for the CPU, and the device is {device}; use 'auto'"
        )
    if dtype == "bfloat16":
        raise ValueError(
            f"quantization is {quantization!r}, which computes in float32, and dtype is {dtype!r}; use 'auto'"
        )
    chosen, able = {"fp16": (FP16, ops.can_keep_fp16()), "int8": (INT8, ops.can_use_int8())}[quantization]
    if not able:
        raise ValueError(
            f"quantization is {quantization!r}, which needs "
            f"{'an x86 CPU with AVX2 and no more' if chosen is FP16 else 'an x86 CPU with AVX2'}; use 'auto'"
        )
    return chosen


def _has_bf16() -> bool:
    able = torch.cpu.get_capabilities()
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))
