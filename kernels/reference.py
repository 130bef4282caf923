"""Every op in plain torch: the CPU backend, and the oracle that faster twins are compared with.

Shapes use T tokens of a step, H query heads, G query heads per KV head, KH KV heads, D head size, S page size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., N] and weight [N], any float dtype -> like x. The mean is taken in fp32 (Zhang and Sennrich 2019).

    A weight of x's dtype multiplies what has been rounded to that dtype, as Llama has it; one in fp32 multiplies
    before the rounding, as Gemma has it.
    """
    wide = x.to(torch.float32, copy=True)
    norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    scale = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    # In place: at 1,024 tokens this op is bound by memory, and takes half the time of one that allocates at each step.
    if weight.dtype == torch.float32:
        return wide.mul_(scale).mul_(weight).to(x.dtype)
    return wide.mul_(scale).to(x.dtype).mul(weight)


def add_rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """residual += x in place, then `rms_norm` of that sum; without a residual that of x. x [T, N], residual like it."""
    return rms_norm(x if residual is None else residual.add_(x), weight, eps)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [R, N], any float dtype -> codes [R, N] fp8 e4m3 and scales [R] fp32, a row's largest |x| / 448 (Micikevicius
    et al. 2022). Row r stands for codes[r] * scales[r]."""
    wide = x.float()
    largest = wide.abs().amax(dim=-1).clamp(min=1e-30)
    limit = torch.full_like(largest, 448.0)  # a tensor: torch divides by or into a number through a reciprocal
    codes = (wide * (limit / largest).unsqueeze(-1)).clamp(-448, 448).to(torch.float8_e4m3fn)
    return codes, largest / limit


def gated_mul(gate_up: Tensor, activation: str = "silu") -> Tensor:
    """gate_up [T, 2F] -> f(first half) * second half, [T, F] (Shazeer 2020), f one of silu and gelu_tanh."""
    gate, up = gate_up.chunk(2, dim=-1)
    return (F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")) * up


def rope_tables(inv_freq: Tensor, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """inv_freq [D/2] fp32 -> cos and signed sin, each [length, D], computed in fp32 and rounded once to `dtype`.

    The first half of the sines is negated, as `rope` wants it.
    """
    angles = torch.outer(torch.arange(length, dtype=torch.float32, device=inv_freq.device), inv_freq)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1).to(dtype), torch.cat((-sin, sin), dim=-1).to(dtype)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [T, heads, D] by the rows cos, sin [T, D] of `rope_tables`; element i is paired with i + D/2, as in
    GPT-NeoX (Su et al. 2021)."""
    swapped = x.roll(x.shape[-1] // 2, dims=-1)
    return torch.addcmul(x * cos.unsqueeze(1), swapped, sin.unsqueeze(1))


def write_cache(cache: Tensor, values: Tensor, slots: Tensor) -> None:
    """Put values [T, KH, D] into cache [pages, S, KH, D] at slots [T] int64 (page * S + offset), in place."""
    cache.view(-1, *cache.shape[2:]).index_copy_(0, slots, values)
