"""Products of few tokens: against fp64, one split against another, a row alone against the same row in a crowd."""

from __future__ import annotations

import pytest
import torch

from kernels.gemm import GpuLinear, Launch, choose
from kernels.operands import Quantized
from kernels.quantize import quantize_rows

LAUNCHES = [Launch(64, 128, 1, 3, 256), Launch(64, 128, 3, 3, 256), Launch(128, 256, 2, 3, 256)]


def operands(
    tokens: int, channels: int, depth: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    noise = torch.Generator().manual_seed(tokens + channels + depth)
    shapes = (tokens, depth), (channels, depth), (channels,)
    x, weight, bias = (torch.randn(shape, generator=noise).to(dtype).to(device) for shape in shapes)
    return x, weight, bias


def close(found: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, lost: float) -> bool:
    """Within one rounding of the exact result, and the share `lost` of the factors' norms in the sum."""
    exact = x.double() @ weight.double().T
    if bias is not None:
        exact = exact + bias.double()
    norms = x.double().norm(dim=1, keepdim=True) * weight.double().norm(dim=1)
    rounding = 2**-8 if found.dtype == torch.bfloat16 else 2**-11
    return bool(((found - exact).abs() <= 1.01 * rounding * exact.abs() + lost * norms).all())


@pytest.mark.parametrize("launch", LAUNCHES)
@pytest.mark.parametrize(
    ("tokens", "channels", "depth"), [(1, 192, 512), (5, 130, 400), (33, 128, 1024), (130, 70, 64)]
)
@pytest.mark.parametrize("with_bias", [False, True])
def test_the_fp8_product_is_that_of_the_quantised_inputs(
    with_bias: bool, tokens: int, channels: int, depth: int, launch: Launch, device: torch.device
) -> None:
    x, weight, bias = operands(tokens, channels, depth, torch.bfloat16, device)
    rows, layer = quantize_rows(x), quantize_rows(weight)
    found = GpuLinear(layer, bias if with_bias else None, launch)(rows)
    factors = [part.codes.double() * part.scales.double()[:, None] for part in (rows, layer)]
    assert found.dtype == torch.bfloat16
    assert close(found, factors[0], factors[1], bias if with_bias else None, 1e-4)


@pytest.mark.parametrize("launch", LAUNCHES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "channels", "depth"), [(1, 192, 512), (5, 130, 400), (33, 128, 1024)])
def test_the_16_bit_product(
    tokens: int, channels: int, depth: int, dtype: torch.dtype, launch: Launch, device: torch.device
) -> None:
    x, weight, bias = operands(tokens, channels, depth, dtype, device)
    found = GpuLinear(weight, bias, launch)(x)
    assert found.dtype == dtype
    assert close(found, x, weight, bias, 1e-6)


@pytest.mark.parametrize("launch", LAUNCHES)
@pytest.mark.parametrize("scaled", [False, True])
def test_a_row_alone_is_the_row_in_a_crowd(scaled: bool, launch: Launch, device: torch.device) -> None:
    x, weight, _ = operands(40, 130, 512, torch.bfloat16, device)
    layer = GpuLinear(quantize_rows(weight) if scaled else weight, None, launch)
    rows = quantize_rows(x) if scaled else x
    together = layer(rows)
    for first, last in ((0, 1), (7, 8), (20, 37), (39, 40)):
        part = Quantized(rows.codes[first:last], rows.scales[first:last]) if scaled else x[first:last]
        assert torch.equal(layer(part), together[first:last])
    assert torch.equal(layer(rows), together), "the counters of the splits are back at 0"


def test_rows_inside_wider_ones_and_none_at_all(device: torch.device) -> None:
    x, weight, _ = operands(4, 64, 256, torch.bfloat16, device)
    layer = GpuLinear(weight, None, LAUNCHES[1])
    wide = torch.cat((x, x), dim=1)
    assert torch.equal(layer(wide[:, 256:]), layer(x))
    assert layer(x[:0]).shape == (0, 64)
    with pytest.raises(ValueError, match="quantised"):
        layer(quantize_rows(x))


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(("channels", "depth"), [(28672, 4096), (4096, 14336), (6144, 4096), (4096, 4096), (960, 576)])
def test_the_table_cuts_every_layer(channels: int, depth: int, scaled: bool) -> None:
    launch = choose(channels, depth, scaled=scaled)
    steps = -(-depth // launch.depth(1 if scaled else 2))
    assert steps >= launch.splits, "no split is empty"
