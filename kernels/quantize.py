"""Rows to fp8 e4m3 with a scale each: tokens of an activation at every step, output channels of a weight once.

The plain twin is `kernels.reference.quantize_rows`; both give the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.numerics import E4M3_MAX, to_e4m3, widen
from kernels.operands import Quantized

# A row that holds nothing larger counts as zeros: below it 448 / largest would overflow.
SMALLEST = tl.constexpr(1e-30)


def warps_for(block: int) -> int:
    """Warps of a program that holds a row of `block` elements in registers: 32 of them a thread, up to 16 warps."""
    return min(max(block // 1024, 1), 16)


@triton.jit
def quantized(x):
    """One row x [BLOCK] fp32, zeros behind its end -> (codes [BLOCK] e4m3, scale)."""
    largest = tl.maximum(tl.max(tl.abs(x), axis=0), SMALLEST)
    return to_e4m3(x * tl.div_rn(E4M3_MAX, largest)), tl.div_rn(largest, E4M3_MAX)


@triton.jit
def quantize_kernel(codes, scales, x, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    inside = i < columns
    narrow, scale = quantized(widen(tl.load(x + row * stride + i, mask=inside, other=0.0)))
    tl.store(codes + row * columns + i, narrow, mask=inside)
    tl.store(scales + row, scale)


def quantize_rows(x: Tensor) -> Quantized:
    """x [R, N] bf16, fp16 or fp32, rows contiguous -> codes and scales, scale = max |x| of the row / 448
    (Micikevicius et al. 2022: e4m3's largest number). A row of zeros has codes of 0."""
    rows, columns = x.shape
    out = Quantized.empty(rows, columns, x.device)
    block = triton.next_power_of_2(columns)
    quantize_kernel[(rows,)](*out, x, x.stride(0), columns, BLOCK=block, num_warps=warps_for(block))
    return out
