"""Linear layers. On a CPU with bf16 the weight is packed once into oneDNN's blocked layout.

Packing matters most where few rows meet a large weight (decode): [1, 896] x [9728, 896] takes 2.3 ms packed and 5.5 ms
unpacked on two AMX cores, since oneDNN otherwise reorders the weight in every call. What follows a product (SiLU, the
product with the other half, the residual) is done to the fp32 accumulators before they are rounded and stored: for
1,024 rows of that MLP this halves the time.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.reference import gated_mul

Activation = Literal["silu", "gelu_tanh"]
# oneDNN's name for an activation that it does to the accumulators, and its algorithm.
_POINTWISE: dict[Activation, tuple[str, str]] = {"silu": ("swish", ""), "gelu_tanh": ("gelu", "tanh")}
# The row count that packing is told to expect; the layout serves every other count too.
PACKED_FOR_ROWS = 16


def can_pack(weight: Tensor) -> bool:
    """True where oneDNN has a packed bf16 product: an x86 CPU with AVX-512, and a torch built with oneDNN."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and torch.backends.mkldnn.is_available()
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def _pack(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR_ROWS)


class Linear:
    """y = x Wᵀ + b for x [T, in] -> [T, out], in the weight's dtype. weight [out, in], bias [out] or None.

    `pack=False` keeps the plain product where a packed one could be had.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, pack: bool = True) -> None:
        self.out_features, self.in_features = weight.shape
        self._bias = bias
        self._packed = pack and can_pack(weight)
        self._weight = _pack(weight) if self._packed else weight

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed:
            return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return F.linear(x, self._weight, self._bias)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual [T, out] + self(x)."""
        if self._packed:
            return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._weight, self._bias, "add")
        return residual + F.linear(x, self._weight, self._bias)


class GatedLinear:
    """f(x Gᵀ) * (x Uᵀ) for x [T, in] -> [T, out] (Shazeer 2020: SwiGLU and GEGLU). gate and up [out, in].

    `gelu_tanh` is the tanh approximation of GELU (Hendrycks and Gimpel 2016).
    """

    def __init__(self, gate: Tensor, up: Tensor, activation: Activation = "silu", *, pack: bool = True) -> None:
        self._activation: Activation = activation
        self._packed = pack and can_pack(gate)
        if self._packed:
            self._gate, self._up = _pack(gate), _pack(up)
        else:
            self._merged = torch.cat((gate, up))

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed:
            name, algorithm = _POINTWISE[self._activation]
            gate = torch.ops.mkldnn._linear_pointwise(x, self._gate, None, name, [], algorithm)
            return torch.ops.mkldnn._linear_pointwise.binary(x, gate, self._up, None, "mul")
        return gated_mul(F.linear(x, self._merged), self._activation)
