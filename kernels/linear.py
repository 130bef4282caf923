"""Linear layers. On a CPU with bf16 the weight is packed once into oneDNN's blocked layout.

Packing matters most where few rows meet a large weight (decode): measured on an AMX core pair, [1, 896] x [9728, 896]
takes 8.0 ms unpacked and 1.6 ms packed, since oneDNN otherwise reorders the weight in every call.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

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


class Linear:
    """y = x Wᵀ + b for x [T, in] -> [T, out], in the weight's dtype. weight [out, in], bias [out] or None."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, pack: bool = True) -> None:
        self.out_features, self.in_features = weight.shape
        self._bias = bias
        self._packed = pack and can_pack(weight)
        if self._packed:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR_ROWS)
        self._weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed:
            return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return F.linear(x, self._weight, self._bias)
