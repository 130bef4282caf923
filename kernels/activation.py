"""The gate of an MLP: SwiGLU and GEGLU (Shazeer 2020), plain or quantised for the product that follows.

Plain twins: `kernels.reference.gated_mul`, then `quantize_rows`; here all is fp32 up to one rounding at the end.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.linear import Activation
from kernels.numerics import round_to, widen
from kernels.operands import Quantized
from kernels.quantize import quantized, warps_for


@triton.jit
def gated(gate, up, GELU: tl.constexpr):
    """f(gate) * up in fp32, f being SiLU or the tanh approximation of GELU (Hendrycks and Gimpel 2016)."""
    # (1 + tanh z) / 2 is the sigmoid of 2 z; 1.5957691 is 2 sqrt(2 / pi).
    inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate) if GELU else gate
    return gate * tl.sigmoid(inner) * up


@triton.jit
def gated_mul_kernel(
    out, scales, gate_up, stride, columns, GELU: tl.constexpr, QUANTIZE: tl.constexpr, BLOCK: tl.constexpr
):
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = block * BLOCK + tl.arange(0, BLOCK)
    inside = i < columns
    gate = widen(tl.load(gate_up + row * stride + i, mask=inside, other=0.0))
    up = widen(tl.load(gate_up + row * stride + columns + i, mask=inside, other=0.0))
    product = round_to(gated(gate, up, GELU), gate_up.dtype.element_ty)
    if QUANTIZE:
        # What is quantised is what would have been stored, so that both ways give the same codes.
        codes, scale = quantized(widen(product))
        tl.store(out + row * columns + i, codes, mask=inside)
        tl.store(scales + row, scale)
    else:
        tl.store(out + row * columns + i, product, mask=inside)


def gated_mul(gate_up: Tensor, activation: Activation = "silu") -> Tensor:
    """gate_up [T, 2F] bf16, fp16 or fp32, rows contiguous -> f(first half) * second half, [T, F]."""
    rows, columns = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, columns, dtype=gate_up.dtype, device=gate_up.device)
    block = min(triton.next_power_of_2(columns), 2048)
    gated_mul_kernel[(rows, triton.cdiv(columns, block))](
        out, out, gate_up, gate_up.stride(0), columns, activation == "gelu_tanh", False, block, num_warps=4
    )
    return out


def gated_mul_fp8(gate_up: Tensor, activation: Activation = "silu") -> Quantized:
    """`gated_mul`, and its output quantised by rows without going through memory: a program holds a whole row."""
    rows, columns = gate_up.shape[0], gate_up.shape[1] // 2
    out = Quantized.empty(rows, columns, gate_up.device)
    block = triton.next_power_of_2(columns)
    gated_mul_kernel[(rows, 1)](
        *out, gate_up, gate_up.stride(0), columns, activation == "gelu_tanh", True, block, num_warps=warps_for(block)
    )
    return out
