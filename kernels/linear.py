"""Linear layers. On a CPU the weight is packed once into oneDNN's blocked layout.

Packing matters most where few rows meet a large weight (decode): [1, 896] x [9728, 896] takes 2.3 ms packed and 5.5 ms
unpacked on two AMX cores, since oneDNN otherwise reorders the weight in every call. What follows a product (SiLU, the
product with the other half, the residual) is done to the fp32 accumulators before they are rounded and stored: for
1,024 rows of that MLP this halves the time.

A row's result is the same to the last bit whatever rows stand beside it. oneDNN's packed products keep that from two
rows on, plain ones where the rows are a multiple of 8; so the rows are filled up to that.
"""

from __future__ import annotations

from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.rowwise import gated_mul_by_row

Activation = Literal["silu", "gelu_tanh"]
# oneDNN's name for an activation that it does to the accumulators, and its algorithm.
_POINTWISE: dict[Activation, tuple[str, str]] = {"silu": ("swish", ""), "gelu_tanh": ("gelu", "tanh")}
# The row count that packing is told to expect; the layout serves every other count too.
PACKED_FOR_ROWS = 16
# The fewest rows of a packed product, and what those of a plain one are a multiple of.
PACKED_ROWS = 2
PLAIN_ROWS = 8


class LinearLayer(Protocol):
    """What a decoder asks of a linear layer; how it keeps its weight is its own business."""

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, in] -> [T, out]."""
        ...

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual [T, out] + self(x)."""
        ...


class GatedLayer(Protocol):
    def __call__(self, x: Tensor) -> Tensor:
        """x [T, in] -> [T, out], as `GatedLinear`."""
        ...


def can_pack(weight: Tensor) -> bool:
    """True where oneDNN has a packed product: on a CPU in fp32, and in bf16 where it has AVX-512."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return weight.dtype == torch.float32


def _pack(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR_ROWS)


def _filled(x: Tensor, packed: bool) -> Tensor:
    """x with rows of zeros behind it, as many as an exact product needs."""
    rows = x.shape[0]
    missing = max(PACKED_ROWS - rows, 0) if packed else -rows % PLAIN_ROWS
    return F.pad(x, (0, 0, 0, missing)) if missing else x


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
        filled = _filled(x, self._packed)
        if self._packed:
            out = torch.ops.mkldnn._linear_pointwise(filled, self._weight, self._bias, "none", [], "")
        else:
            out = F.linear(filled, self._weight, self._bias)
        return out[: x.shape[0]]

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual [T, out] + self(x)."""
        if not self._packed:
            return residual + self(x)
        filled, beside = _filled(x, True), _filled(residual, True)
        out = torch.ops.mkldnn._linear_pointwise.binary(filled, beside, self._weight, self._bias, "add")
        return out[: x.shape[0]]


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
        filled = _filled(x, self._packed)
        if self._packed:
            name, algorithm = _POINTWISE[self._activation]
            gate = torch.ops.mkldnn._linear_pointwise(filled, self._gate, None, name, [], algorithm)
            out = torch.ops.mkldnn._linear_pointwise.binary(filled, gate, self._up, None, "mul")
        else:
            out = gated_mul_by_row(F.linear(filled, self._merged), self._activation)
        return out[: x.shape[0]]
