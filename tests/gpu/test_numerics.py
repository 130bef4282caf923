"""The rounding and the product that all kernels share, against torch."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from kernels.numerics import dot, round_to, widen

TYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float8_e4m3fn: tl.float8e4nv}
COUNT = 1 << 15


@triton.jit
def _round(out, values, DTYPE: tl.constexpr, COUNT: tl.constexpr):
    i = tl.arange(0, COUNT)
    tl.store(out + i, round_to(tl.load(values + i), DTYPE))


@triton.jit
def _widen(out, values, COUNT: tl.constexpr):
    i = tl.arange(0, COUNT)
    tl.store(out + i, widen(tl.load(values + i)))


@triton.jit
def _dot(out, a, b, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :], tl.arange(0, K)
    product = dot(tl.load(a + m * K + k[None, :]), tl.load(b + k[:, None] * N + n), tl.full([M, N], 1.0, tl.float32))
    tl.store(out + m * N + n, product)


def values(device: torch.device) -> torch.Tensor:
    """All bit patterns are drawn; and each e4m3 number, the middles between two, and their neighbours in fp32."""
    noise = torch.Generator().manual_seed(0)
    drawn = torch.randint(-(2**31), 2**31 - 1, (COUNT,), generator=noise).to(torch.int32).view(torch.float32)
    spread = torch.randn(COUNT // 2, generator=noise) * torch.logspace(-14, 10, COUNT // 2, base=2)
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    exact = codes[codes.isfinite()].sort().values
    middles = (exact[1:] + exact[:-1]) / 2
    infinity = torch.tensor(float("inf"))
    edges = torch.cat((exact, middles, middles.nextafter(infinity), middles.nextafter(-infinity)))
    drawn[: len(spread)] = spread
    drawn[: len(edges)] = edges
    return drawn.to(device)


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.uint8 if x.element_size() == 1 else torch.int16)


@pytest.mark.parametrize("dtype", TYPES)
def test_rounding_is_torchs_to_the_bit(dtype: torch.dtype, device: torch.device) -> None:
    x = values(device)
    out = torch.empty(COUNT, dtype=dtype, device=device)
    _round[(1,)](out, x, TYPES[dtype], COUNT)
    number = ~x.isnan()
    expected = x.clamp(-448, 448) if dtype == torch.float8_e4m3fn else x
    assert torch.equal(bits(out)[number], bits(expected.to(dtype))[number])
    assert out[~number].float().isnan().all()


@pytest.mark.parametrize("dtype", TYPES)
def test_widening_is_exact(dtype: torch.dtype, device: torch.device) -> None:
    x = values(device).clamp(-448, 448).nan_to_num(0.0).to(dtype)
    out = torch.empty(COUNT, device=device)
    _widen[(1,)](out, x, COUNT)
    assert torch.equal(out, x.float())


@pytest.mark.parametrize("dtype", TYPES)
def test_the_product_is_that_of_the_rounded_operands(dtype: torch.dtype, device: torch.device) -> None:
    noise = torch.Generator().manual_seed(1)
    a, b = (torch.randn(shape, generator=noise).to(dtype).to(device) for shape in ((64, 32), (32, 16)))
    out = torch.empty(64, 16, device=device)
    _dot[(1,)](out, a, b, 64, 16, 32)
    expected = (1 + a.double() @ b.double()).float()
    # Two fp8 factors have few bits, but the tensor core aligns their products to the largest and cuts what is below.
    limit = 1e-3 if dtype == torch.float8_e4m3fn else 1e-5
    assert (out - expected).norm() <= limit * expected.norm()
