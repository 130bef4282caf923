"""What every Triton kernel here uses for products and for rounding, so that the CPU interpreter agrees with the GPU.

Triton's interpreter computes with NumPy, which knows neither bf16 nor e4m3: its products of such operands are wrong,
its conversion from fp32 to bf16 truncates and that to e4m3 loses carries, all silently. So kernels `widen` what
they load, compute in fp32, and narrow through `round_to` alone; matrix products go through `dot`. On a GPU each is the
single instruction it stands for.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Read once, when the kernels are made: a jitted function is bound to the interpreter or the compiler at that moment.
INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
E4M3_MAX = tl.constexpr(448.0)


@triton.jit
def dot(a, b, acc):
    """acc + a @ b in fp32. a [M, K] and b [K, N] of one dtype: fp8 e4m3, fp16, bf16 or fp32 (as tf32); acc [M, N] fp32.

    On Hopper the fp8 accumulator keeps about 14 bits inside one instruction: keep K of one call at 128 or less, and
    add what it returns to a sum of your own where a longer sum must hold fp32.
    """
    if INTERPRETED:
        return acc + tl.dot(widen(a), widen(b), input_precision="ieee")
    return tl.dot(a, b, acc)


@triton.jit
def round_to(x, dtype: tl.constexpr):
    """fp32 `x` to `dtype` (fp32, fp16, bf16 or fp8 e4m3), to the nearest, ties to even; e4m3 saturates at 448."""
    if dtype == tl.bfloat16:
        return to_bf16(x)
    elif dtype == tl.float8e4nv:
        return to_e4m3(x)
    else:
        return x.to(dtype)


@triton.jit
def widen(x):
    """A tensor of any float dtype to fp32, exactly."""
    if INTERPRETED and x.dtype == tl.bfloat16:
        return (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    return x.to(tl.float32)


@triton.jit
def to_bf16(x):
    """fp32 -> bf16, to the nearest, ties to even; NaN stays NaN."""
    if INTERPRETED:
        bits = x.to(tl.uint32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return tl.where(x == x, rounded, 0x7FFF).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return x.to(tl.bfloat16)


@triton.jit
def to_e4m3(x):
    """fp32 -> fp8 e4m3 (Micikevicius et al. 2022), to the nearest, ties to even, saturating at +-448; NaN stays NaN."""
    if INTERPRETED:
        clamped = tl.where(x == x, tl.minimum(tl.maximum(x, -E4M3_MAX), E4M3_MAX), 0.0)
        bits = clamped.to(tl.uint32, bitcast=True)
        normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & 0xFFF00000).to(tl.float32, bitcast=True)
        # Below 2**-6 the spacing is fixed at 2**-9, which is that of fp32 at 1.5 * 2**14.
        small = (clamped + 24576.0) - 24576.0
        finite = tl.where(tl.abs(clamped) < 0.015625, small, normal)
        sign = (clamped.to(tl.uint32, bitcast=True) >> 24) & 0x80
        code = (finite.to(tl.float8e4nv).to(tl.uint8, bitcast=True) & 0x7F) | sign.to(tl.uint8)
        code = tl.where(x == x, code, 0x7F)
        return code.to(tl.uint8).to(tl.float8e4nv, bitcast=True)
    return x.to(tl.float8e4nv)
