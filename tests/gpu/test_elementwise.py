"""Quantising rows, RMSNorm and the MLP's gate: against torch in fp64, and the fused kernels against the plain ones."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kernels import reference
from kernels.activation import gated_mul, gated_mul_fp8
from kernels.norm import add_rms_norm, add_rms_norm_fp8
from kernels.quantize import quantize_rows

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# Half a unit in the last place, and for fp32 what a sum of 5,000 squares and an approximate exponential may lose.
ROUNDING = {torch.float32: 4e-6, torch.float16: 2**-11, torch.bfloat16: 2**-8}
SHAPES = [(1, 16), (3, 100), (17, 128), (2, 4096), (5, 5000)]


def random(*shape: int, seed: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Rows of very different sizes, as activations have them."""
    noise = torch.Generator().manual_seed(seed)
    rows = torch.randn(shape[0], 1, generator=noise).exp2() if len(shape) > 1 else 1
    return (torch.randn(*shape, generator=noise) * rows).to(dtype).to(device)


def same_codes(found: tuple[torch.Tensor, torch.Tensor], expected: tuple[torch.Tensor, torch.Tensor]) -> bool:
    """Bit for bit, negative zeros too."""
    codes = found[0].view(torch.uint8), expected[0].view(torch.uint8)
    return torch.equal(*codes) and torch.equal(found[1], expected[1])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_quantised_rows_are_the_references_to_the_bit(
    dtype: torch.dtype, shape: tuple[int, int], device: torch.device
) -> None:
    x = random(*shape, seed=1, dtype=dtype, device=device)
    found = quantize_rows(x)
    assert same_codes(found, reference.quantize_rows(x))
    assert (found.codes.float().abs().amax(dim=1) == 448).all(), "the whole range is used"
    error = (found.codes.double() * found.scales.double().unsqueeze(1) - x.double()).abs()
    largest = x.double().abs().amax(dim=1, keepdim=True)
    assert (error <= torch.maximum(x.double().abs() * 2**-4, largest * 2**-10 / 448) * 1.0001).all()


def test_rows_of_zeros_and_of_tiny_numbers(device: torch.device) -> None:
    x = torch.tensor([[0.0, -0.0], [1e-38, -1e-38], [3e38, -1.0]], device=device)
    found = quantize_rows(x)
    assert same_codes(found, reference.quantize_rows(x))
    assert (found.codes[:2].float() == 0).all()
    assert found.scales.isfinite().all()


def test_a_row_may_lie_inside_a_wider_one(device: torch.device) -> None:
    wide = random(6, 96, seed=2, dtype=torch.bfloat16, device=device)
    part = wide[:, 32:80]
    weight = random(48, seed=3, dtype=torch.bfloat16, device=device)
    assert same_codes(quantize_rows(part), quantize_rows(part.contiguous()))
    assert torch.equal(add_rms_norm(part, None, weight, 1e-5), add_rms_norm(part.contiguous(), None, weight, 1e-5))
    assert torch.equal(gated_mul(part), gated_mul(part.contiguous()))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("wide", [False, True])
def test_the_norm_of_a_sum(
    wide: bool, adds: bool, dtype: torch.dtype, shape: tuple[int, int], device: torch.device
) -> None:
    x = random(*shape, seed=4, dtype=dtype, device=device)
    residual = random(*shape, seed=5, dtype=dtype, device=device) if adds else None
    weight = random(shape[1], seed=6, dtype=torch.float32 if wide else dtype, device=device)
    total = x if residual is None else x + residual
    kept = None if residual is None else residual.clone()
    found = add_rms_norm(x, residual, weight, 1e-5)
    if residual is not None:
        assert torch.equal(residual, total), "the sum stays in the residual"
    exact = F.rms_norm(total.double(), (shape[1],), weight.double(), 1e-5)
    roundings = 1 if wide else 2
    assert ((found - exact).abs() <= roundings * 1.01 * ROUNDING[dtype] * exact.abs() + 1e-7).all()
    # The fused kernel stores nothing in between, and yet gives the codes of what would have been stored.
    assert same_codes(add_rms_norm_fp8(x, kept, weight, 1e-5), quantize_rows(found))
    if kept is not None:
        assert torch.equal(kept, total)


def test_a_sum_is_rounded_before_its_norm(device: torch.device) -> None:
    x = random(4, 64, seed=7, dtype=torch.bfloat16, device=device)
    residual, kept = (random(4, 64, seed=8, dtype=torch.bfloat16, device=device) for _ in range(2))
    weight = torch.ones(64, dtype=torch.bfloat16, device=device)
    assert torch.equal(add_rms_norm(x, residual, weight, 0.0), add_rms_norm(x + kept, None, weight, 0.0))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_the_gate(activation: str, dtype: torch.dtype, shape: tuple[int, int], device: torch.device) -> None:
    rows, columns = shape
    gate_up = random(rows, 2 * columns, seed=9, dtype=dtype, device=device) * 3
    found = gated_mul(gate_up, activation)
    exact = reference.gated_mul(gate_up.double(), activation)
    # GELU's tail is a difference of nearly equal numbers: what remains of it is below 1e-6 of the input.
    size = gate_up.double()[:, :columns].abs() * gate_up.double()[:, columns:].abs()
    assert ((found - exact).abs() <= 1.01 * ROUNDING[dtype] * exact.abs() + 1e-6 * size + 1e-7).all()
    assert same_codes(gated_mul_fp8(gate_up, activation), quantize_rows(found))


def test_no_rows(device: torch.device) -> None:
    empty = torch.empty(0, 64, dtype=torch.bfloat16, device=device)
    weight = torch.ones(64, dtype=torch.bfloat16, device=device)
    assert quantize_rows(empty).codes.shape == (0, 64)
    assert add_rms_norm(empty, empty, weight, 1e-5).shape == (0, 64)
    assert gated_mul(empty).shape == (0, 32)
