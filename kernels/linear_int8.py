"""Linear layers in 8-bit integers (W8A8) on the CPU, by FBGEMM: weights once, when they are loaded, rows as they come.

Twice as fast as packed fp32 where many rows are multiplied, and three to five times where few are and the time goes
into reading weights, which are a quarter as long. On two AVX2 cores (EPYC 7003): 32 rows of [9728, 896] in 2.1 ms
instead of 4.8, one row of it in 0.2 ms instead of 0.86.

Products are exact sums of integers, and each row has a scale and an offset of its own, so a row's result is the same
to the last bit whatever rows stand beside it. The instruction of AVX2 that multiplies adds pairs of products in 16
bits, where they may saturate; scales are chosen so that no pair of weights can (see `quantize_weight`), which leaves
7.6 bits of the eight. The usual way out, rows of seven bits, costs three times as much of the model's quality.

A row is quantised between its smallest and its largest value: x ≈ s q + c with q from -128 to 127. Outliers of a
decoder's hidden states are few and of one sign, and a range that is symmetric around 0 would spend a bit on nothing.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from kernels.fbgemm import has_fbgemm, with_fbgemm
from kernels.linear import Activation
from kernels.rowwise import gated_mul_by_row

# FBGEMM multiplies rows of unsigned bytes; this one stands for 0.
ZERO = 128
# Two bytes of at most 255 times weights of one sign that add up to 128 at most stay below 2^15.
PAIR = 128


def can_use_int8() -> bool:
    """Whether this CPU and this torch run these layers."""
    return has_fbgemm()


def quantize_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [out, in] -> codes [out, in] int8 and scales [out] fp32; row r stands for codes[r] * scales[r].

    Codes at 2k and 2k + 1, which meet in one 16-bit sum, add up to PAIR at most where they have one sign.
    """
    wide = weight.float()
    pairs = torch.nn.functional.pad(wide, (0, wide.shape[1] % 2)).view(wide.shape[0], -1, 2)
    positive, negative = pairs.clamp(min=0).sum(-1), pairs.clamp(max=0).sum(-1).neg()
    # One less than PAIR: both of a pair may be rounded up by a half.
    scales = torch.maximum(positive, negative).amax(1).div_(PAIR - 1).clamp_(min=1e-30)
    return (wide / scales.unsqueeze(1)).round_().to(torch.int8), scales


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x [T, in] fp32 -> codes [T, in] as fp32, not yet rounded, between -127.5 and 127.5, scales and middles [T, 1]:
    row t is codes[t] * scales[t] + middles[t]."""
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)  # `aminmax` has no vectors along a row
    middles = (low + high).mul_(0.5)
    scales = (high - low).div_(255).clamp_(min=1e-30)
    return (x - middles).div_(scales), scales, middles


class Int8Linear:
    """y ≈ x Wᵀ + b for x [T, in] fp32 -> [T, out] fp32. weight [out, in], any float dtype; bias [out] or None."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        codes, scales = quantize_weight(weight)
        # What the middle of a row, the same number in all its places, adds to each output.
        self._sums = codes.sum(1, dtype=torch.int64).float().mul_(scales)
        self._bias = None if bias is None else bias.float()
        with with_fbgemm(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch: these tensors will move to another package some day
            quantized = torch._make_per_channel_quantized_tensor(
                codes, scales.double(), torch.zeros(self.out_features, dtype=torch.int64), 0
            )
            self._packed = torch.ops.quantized.linear_prepack(quantized, None)

    def __call__(self, x: Tensor) -> Tensor:
        if not x.shape[0]:
            return x.new_empty(0, self.out_features)
        codes, scales, middles = quantize_rows(x)
        out = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(codes, 1.0, ZERO, self._packed)
        # A product and a sum, each rounded by itself: fused, the last bit would hang on where a vector ends.
        out = out.mul_(scales).add_(middles * self._sums)
        return out if self._bias is None else out.add_(self._bias)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual [T, out] + self(x)."""
        return self(x).add_(residual)


class Int8GatedLinear:
    """`kernels.linear.GatedLinear` with 8-bit weights, gate and up side by side."""

    def __init__(self, gate: Tensor, up: Tensor, activation: Activation = "silu") -> None:
        self._merged = Int8Linear(torch.cat((gate, up)))
        self._activation = activation

    def __call__(self, x: Tensor) -> Tensor:
        return gated_mul_by_row(self._merged(x), self._activation)
