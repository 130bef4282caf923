"""Linear layers on a GPU, fp8 (W8A8) and 16 bits: our kernel for few tokens, the library's for many.

With few tokens a product is bound by reading the weights once. The operands are swapped: output channels lie on the
tensor core's side of 64, tokens on its side of 8 to 256, so that 16 tokens still fill fp8 instructions
(wgmma m64n16k32). Layers with few channels are split along K to occupy the chip; the split that is done last adds
the parts, always in the same order. A row depends on the layer's shape alone, bit for bit, as long as our kernel
takes it: tile and splits along K follow from the layer, and only the tile's tokens from their number.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from kernels.numerics import dot, round_to, widen
from kernels.operands import Quantized


@dataclass(frozen=True)
class Launch:
    """How a layer is cut: channels and depth (bytes of K) of a tile, splits of K, loads in flight. `most_tokens` is
    where the library becomes faster."""

    channels: int
    depth_bytes: int
    splits: int
    stages: int
    most_tokens: int

    def depth(self, element_size: int) -> int:
        return self.depth_bytes // element_size


@triton.jit
def narrow_gemm_kernel(
    out, parts, arrived, x, weight, x_scales, weight_scales, bias, tokens, channels, depth, x_stride,
    SCALED: tl.constexpr, BIAS: tl.constexpr, EVEN: tl.constexpr, SPLITS: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(2)
    t = tl.program_id(0) * M + tl.arange(0, M)
    n = tl.program_id(1) * N + tl.arange(0, N)
    i = tl.arange(0, K)
    steps = tl.cdiv(depth, K)
    first = split * steps // SPLITS
    last = (split + 1) * steps // SPLITS
    # Rows behind the end repeat the last one and are not stored.
    x_tile = x + tl.minimum(t, tokens - 1).to(tl.int64)[None, :] * x_stride + i[:, None] + first * K
    weight_tile = weight + tl.minimum(n, channels - 1).to(tl.int64)[:, None] * depth + i[None, :] + first * K
    total = tl.zeros([N, M], tl.float32)
    for step in range(first, last):
        if EVEN:
            a, b = tl.load(weight_tile), tl.load(x_tile)
        else:
            inside = step * K + i < depth
            a = tl.load(weight_tile, mask=inside[None, :], other=0.0)
            b = tl.load(x_tile, mask=inside[:, None], other=0.0)
        if SCALED:
            # fp8 sums keep 14 bits inside the tensor core: each step's is added outside it.
            total += dot(a, b, tl.zeros([N, M], tl.float32))
        else:
            total = dot(a, b, total)
        weight_tile += K
        x_tile += K
    tile = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    writes = True
    if SPLITS > 1:
        inner = tl.arange(0, N)[:, None] * M + tl.arange(0, M)[None, :]
        place = parts + tile.to(tl.int64) * SPLITS * N * M + inner
        tl.store(place + split * N * M, total)
        tl.debug_barrier()  # all of this program's part is stored before it says so
        writes = tl.atomic_add(arrived + tile, 1, sem="acq_rel") == SPLITS - 1
        if writes:
            total = tl.zeros([N, M], tl.float32)
            for part in range(SPLITS):
                total += tl.load(place + part * N * M, cache_modifier=".cg")
            tl.store(arrived + tile, 0)
    if writes:
        inside_t, inside_n = t < tokens, n < channels
        if SCALED:
            total *= tl.load(weight_scales + n, mask=inside_n, other=0.0)[:, None]
            total *= tl.load(x_scales + t, mask=inside_t, other=0.0)[None, :]
        if BIAS:
            total += widen(tl.load(bias + n, mask=inside_n, other=0.0))[:, None]
        line = out + t.to(tl.int64)[None, :] * channels + n[:, None]
        tl.store(line, round_to(total, out.dtype.element_ty), mask=inside_t[None, :] & inside_n[:, None])


def tile_tokens(tokens: int) -> int:
    """Tokens of a tile."""
    return min(max(triton.next_power_of_2(tokens), 16), 128)


def warps_of(launch: Launch, width: int) -> int:
    """Warps of a program: of 8, each group of four takes 64 channels; worth it where the sums are many."""
    return 4 if launch.channels * width <= 64 * 128 else 8


class GpuLinear:
    """y = x Wᵀ + b for x [T, K] -> y [T, N]: the twin of `kernels.linear.Linear` on a GPU.

    `weight` is [N, K] in bf16 or fp16, then x and y are of that dtype; or it is quantised by rows, then x is too and y
    is bf16: codes' product * token's scale * channel's scale. `bias` is [N] of y's dtype, or None.
    A layer must not run on two streams at once: its splits meet in counters of its own.
    """

    def __init__(self, weight: Tensor | Quantized, bias: Tensor | None = None, launch: Launch | None = None) -> None:
        self._scales: Tensor | None = None
        if isinstance(weight, Quantized):
            weight, self._scales = weight
        self._weight = weight
        self.out_features, self.in_features = self._weight.shape
        self._bias = bias
        self._launch = launch or choose(self.out_features, self.in_features, scaled=self._scales is not None)
        tiles = triton.cdiv(self.out_features, self._launch.channels) * triton.cdiv(self._launch.most_tokens, 128)
        self._arrived = torch.zeros(max(tiles, 1), dtype=torch.int32, device=self._weight.device)

    def __call__(self, x: Tensor | Quantized) -> Tensor:
        rows, scales = x if isinstance(x, Quantized) else (x, None)
        if (scales is None) != (self._scales is None):
            raise ValueError("quantised weights take quantised rows, and plain ones plain rows")
        if rows.shape[0] <= self._launch.most_tokens:
            return self._narrow(rows, scales)
        if scales is None or self._scales is None:
            return F.linear(rows, self._weight, self._bias)
        return torch._scaled_mm(
            rows, self._weight.t(), scale_a=scales.unsqueeze(1), scale_b=self._scales.unsqueeze(0),
            bias=self._bias, out_dtype=torch.bfloat16, use_fast_accum=True,
        )  # fmt: skip

    def _narrow(self, x: Tensor, scales: Tensor | None) -> Tensor:
        tokens, device, launch = x.shape[0], x.device, self._launch
        dtype = x.dtype if scales is None else torch.bfloat16
        out = torch.empty(tokens, self.out_features, dtype=dtype, device=device)
        if not tokens:
            return out
        width, depth = tile_tokens(tokens), launch.depth(x.element_size())
        grid = triton.cdiv(tokens, width), triton.cdiv(self.out_features, launch.channels), launch.splits
        parts = out
        if launch.splits > 1:
            parts = torch.empty(
                grid[0] * grid[1] * launch.splits, launch.channels * width, dtype=torch.float32, device=device
            )
        narrow_gemm_kernel[grid](
            out, parts, self._arrived, x, self._weight, out if scales is None else scales,
            out if self._scales is None else self._scales, out if self._bias is None else self._bias,
            tokens, self.out_features, self.in_features, x.stride(0),
            SCALED=scales is not None, BIAS=self._bias is not None, EVEN=self.in_features % depth == 0,
            SPLITS=launch.splits, M=width, N=launch.channels, K=depth,
            num_warps=warps_of(launch, width), num_stages=launch.stages,
        )  # fmt: skip
        return out


def choose(channels: int, depth: int, *, scaled: bool) -> Launch:
    """The launch of a layer: wide tiles where there are channels for every multiprocessor, else K is split."""
    most = 128 if scaled else 64
    if channels >= 16384:
        return Launch(128, 128, 1, 4, most)
    return Launch(64, 256, 4 if depth * channels > 2**25 else 2, 4, most)
