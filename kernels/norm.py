"""RMSNorm with what stands around it in a decoder: the residual added before it, its output quantised for a product.

One pass over memory: a program holds one token's row. Plain twins: `kernels.reference.add_rms_norm`, then
`quantize_rows`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.numerics import round_to, widen
from kernels.operands import Quantized
from kernels.quantize import quantized, warps_for


@triton.jit
def rms_norm_kernel(
    out, scales, x, residual, weight, stride, columns, eps,
    ADD: tl.constexpr, WIDE: tl.constexpr, QUANTIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    inside = i < columns
    dtype = x.dtype.element_ty
    value = widen(tl.load(x + row * stride + i, mask=inside, other=0.0))
    gain = widen(tl.load(weight + i, mask=inside, other=0.0))
    if ADD:
        place = residual + row * columns + i
        total = round_to(value + widen(tl.load(place, mask=inside, other=0.0)), dtype)
        tl.store(place, total, mask=inside)
        value = widen(total)
    normed = value * tl.rsqrt(tl.sum(value * value, axis=0) / columns + eps)
    if not WIDE:
        normed = widen(round_to(normed, dtype))
    normed = round_to(normed * gain, dtype)
    if QUANTIZE:
        # What is quantised is what would have been stored, so that both ways give the same codes.
        codes, scale = quantized(widen(normed))
        tl.store(out + row * columns + i, codes, mask=inside)
        tl.store(scales + row, scale)
    else:
        tl.store(out + row * columns + i, normed, mask=inside)


def add_rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """residual += x in place, then the norm of that sum; without a residual the norm of x.

    x [T, N] bf16, fp16 or fp32, rows contiguous; residual like x and contiguous, or None; weight [N] -> like x. The
    mean is taken in fp32 (Zhang and Sennrich 2019). A weight of x's dtype multiplies what has been rounded to that
    dtype, as Llama has it; one in fp32 multiplies before the rounding, as Gemma has it.
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(out, out, x, residual, weight, eps, quantize=False)
    return out


def add_rms_norm_fp8(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Quantized:
    """`add_rms_norm`, and its output quantised by rows without going through memory."""
    out = Quantized.empty(x.shape[0], x.shape[1], x.device)
    _launch(*out, x, residual, weight, eps, quantize=True)
    return out


def _launch(
    out: Tensor, scales: Tensor, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, *, quantize: bool
) -> None:
    rows, columns = x.shape
    block = triton.next_power_of_2(columns)
    rms_norm_kernel[(rows,)](
        out, scales, x, x if residual is None else residual, weight, x.stride(0), columns, eps,
        ADD=residual is not None, WIDE=weight.dtype == torch.float32, QUANTIZE=quantize, BLOCK=block,
        num_warps=warps_for(block),
    )  # fmt: skip
