"""Linear layers whose weights are kept in fp16 and multiplied in fp32, by FBGEMM: for a CPU that has no bf16.

A weight is half as long to read as in fp32 and is widened in registers, so few rows take half the time or less and
many rows no more than oneDNN's packed fp32. On two AVX2 cores (EPYC 7003): [1, 896] x [9728, 896] in 0.28 ms instead of
0.86, 32 rows in 3.2 ms instead of 4.8, 512 rows in 50 ms instead of 62. The rounding of weights, 2^-11, is what a
bf16 model never had, and below what 8-bit and 4-bit checkpoints leave.

A row's result is the same to the last bit whatever rows stand beside it, for row counts that are multiples of
ROW_MULTIPLE: FBGEMM cuts the rows into tiles of up to six, and those of one and two rows, which others never leave
behind, add in another order. Its tiles for AVX-512 are others, and untried.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.fbgemm import has_fbgemm, with_fbgemm
from kernels.linear import Activation
from kernels.rowwise import gated_mul_by_row

ROW_MULTIPLE = 3


def can_keep_fp16() -> bool:
    """Whether this CPU runs these layers, and a row's result is known not to depend on others."""
    return has_fbgemm() and torch.backends.cpu.get_cpu_capability() == "AVX2"


class Fp16Linear:
    """y = x Wᵀ + b for x [T, in] fp32 -> [T, out] fp32. weight [out, in], any float dtype; bias [out] or None.

    Weights beyond fp16's range (65,504) become the largest that it has.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        with with_fbgemm():
            self._packed = torch.ops.quantized.linear_prepack_fp16(
                weight.float(), None if bias is None else bias.float()
            )

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        if not rows:
            return x.new_empty(0, self.out_features)
        missing = -rows % ROW_MULTIPLE
        filled = F.pad(x, (0, 0, 0, missing)) if missing else x.contiguous()
        return torch.ops.quantized.linear_dynamic_fp16(filled, self._packed)[:rows]

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual [T, out] + self(x)."""
        return self(x).add_(residual)


class Fp16GatedLinear:
    """`kernels.linear.GatedLinear` with fp16 weights, gate and up side by side."""

    def __init__(self, gate: Tensor, up: Tensor, activation: Activation = "silu") -> None:
        self._merged = Fp16Linear(torch.cat((gate, up)))
        self._activation = activation

    def __call__(self, x: Tensor) -> Tensor:
        return gated_mul_by_row(self._merged(x), self._activation)
