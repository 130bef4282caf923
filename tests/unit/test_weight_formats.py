"""Linear layers with weights in fewer bits: what they compute, that a row depends on nothing but itself, and a model
made of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.models import formats
from inference.models.formats import pick_format
from kernels import ops
from kernels.linear_int8 import PAIR, quantize_rows, quantize_weight
from kernels.reference import gated_mul
from kernels.rowwise import gated_mul_by_row
from tests.logits import TEXT, assert_close, logits_of, reference
from tests.tiny_models import make_model

CPU = torch.device("cpu")
needs_fp16 = pytest.mark.skipif(not ops.can_keep_fp16(), reason="no fp16 weights on this CPU")
needs_int8 = pytest.mark.skipif(not ops.can_use_int8(), reason="no int8 on this CPU")
FORMATS = [pytest.param("fp16", 1e-3, marks=needs_fp16), pytest.param("int8", 2.5e-2, marks=needs_int8)]
LAYERS: dict[str, tuple[Callable[..., ops.LinearLayer], Callable[..., ops.GatedLayer]]] = {
    "fp16": (ops.Fp16Linear, ops.Fp16GatedLinear),
    "int8": (ops.Int8Linear, ops.Int8GatedLinear),
}


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def hidden_states(rows: int, size: int) -> torch.Tensor:
    """Rows of different magnitude, with a large value in the same place of each, as decoders have them."""
    x = noise(rows, size, seed=2) * torch.linspace(0.1, 30, max(rows, 1))[:rows, None]
    x[:, size // 3] += 10 * x.abs().mean(1)
    return x


@pytest.mark.parametrize(("name", "within"), FORMATS)
@pytest.mark.parametrize(("out_size", "in_size"), [(160, 96), (576, 1536), (33, 65)])
@pytest.mark.parametrize("rows", [0, 1, 70])
def test_products_are_those_of_plain_layers(name: str, within: float, out_size: int, in_size: int, rows: int) -> None:
    make, make_gated = LAYERS[name]
    weight, up, bias = noise(out_size, in_size) / 8, noise(out_size, in_size, seed=1) / 8, noise(out_size, seed=3)
    x, residual = hidden_states(rows, in_size), noise(rows, out_size, seed=4)
    before = x.clone(), residual.clone()
    layer = make(weight, bias)
    plain = ops.Linear(weight, bias, pack=False)
    plain_gated = ops.GatedLinear(weight, up, "gelu_tanh", pack=False)
    for ours, expected in [
        (layer(x), plain(x)),
        (layer.add(x, residual), plain.add(x, residual)),
        (make_gated(weight, up, "gelu_tanh")(x), plain_gated(x)),
    ]:
        assert ours.shape == expected.shape
        error = (ours - expected).norm(dim=1) / expected.norm(dim=1).clamp(min=1e-6)
        assert (error < 3 * within).all()
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


@pytest.mark.parametrize(("name", "within"), FORMATS)
@pytest.mark.parametrize(("out_size", "in_size"), [(160, 96), (576, 1536), (333, 65)])
def test_a_row_is_the_same_alone_and_in_any_crowd(name: str, within: float, out_size: int, in_size: int) -> None:
    make, make_gated = LAYERS[name]
    layer = make(noise(out_size, in_size) / 8, noise(out_size, seed=3))
    gated = make_gated(noise(out_size, in_size) / 8, noise(out_size, in_size, seed=1) / 8)
    x, residual = hidden_states(130, in_size), noise(130, out_size, seed=4)
    whole = layer(x), layer.add(x, residual), gated(x)
    for count in [*range(1, 40), 55, 64, 127, 128, 129]:  # FBGEMM cuts each number of rows into other tiles
        rows = slice(count % 2, count % 2 + count)
        parts = layer(x[rows]), layer.add(x[rows], residual[rows]), gated(x[rows])
        for part, all_rows in zip(parts, whole, strict=True):
            assert torch.equal(part, all_rows[rows]), f"{count} rows"


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("size", [333, 640, 33000])
@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_an_activation_is_the_same_whatever_stands_beside_it(threads: int, size: int, activation: str) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x = 3 * noise(260 if size < 1000 else 3, 2 * size)
        whole = gated_mul_by_row(x, activation)
        assert torch.equal(whole, torch.cat([gated_mul_by_row(row, activation) for row in x.split(1)]))
        assert torch.equal(whole[1:], gated_mul_by_row(x[1:], activation))
        torch.testing.assert_close(whole, gated_mul(x, activation))
    finally:
        torch.set_num_threads(before)


@needs_int8
@settings(max_examples=50, deadline=None)
@given(out_size=st.integers(1, 20), in_size=st.integers(1, 70), seed=st.integers(0, 10**6), spread=st.floats(0, 8))
def test_no_pair_of_weights_can_saturate(out_size: int, in_size: int, seed: int, spread: float) -> None:
    weight = noise(out_size, in_size, seed=seed)
    weight *= (spread * noise(out_size, in_size, seed=seed + 1)).exp()
    codes, scales = quantize_weight(weight)
    pairs = torch.nn.functional.pad(codes.int(), (0, in_size % 2)).view(out_size, -1, 2)
    assert pairs.clamp(min=0).sum(-1).max() <= PAIR
    assert pairs.clamp(max=0).sum(-1).min() >= -PAIR
    assert ((codes * scales[:, None] - weight).abs() <= scales[:, None] * 0.5001).all()


@needs_int8
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_sums_are_exact_at_the_bounds(sign: float) -> None:
    """Every pair of weights and every value of the rows as large as can be."""
    weight = torch.full((40, 512), 0.5 * sign)
    layer = ops.Int8Linear(weight)
    codes, scales = quantize_weight(weight)
    assert codes.view(40, -1, 2).int().abs().sum(-1).min() == PAIR
    x = torch.ones(9, 512)
    x[:, 0] = -1.0  # the range of a row is from -1 to 1: 1 is 255
    quantized, row_scales, middles = quantize_rows(x)
    stored = (quantized.round() + 128).clamp(0, 255) - 128
    expected = (stored.double() @ codes.double().T) * scales.double() * row_scales.double()
    expected += middles.double() * codes.double().sum(1) * scales.double()
    torch.testing.assert_close(layer(x).double(), expected, rtol=1e-5, atol=1e-4)


@needs_int8
def test_rows_of_one_value_and_of_zeros() -> None:
    layer = ops.Int8Linear(torch.eye(16))
    torch.testing.assert_close(layer(torch.tensor([[3.0] * 16, [0.0] * 16])), torch.tensor([[3.0] * 16, [0.0] * 16]))


@pytest.mark.parametrize(("name", "within"), [("fp16", 2e-3), ("int8", 8e-2)])
@pytest.mark.parametrize("family", ["qwen2", "gemma3"])
def test_a_model_agrees_with_transformers(tmp_path: Path, family: str, name: str, within: float) -> None:
    if not {"fp16": ops.can_keep_fp16, "int8": ops.can_use_int8}[name]():
        pytest.skip("not on this CPU")
    model = make_model(family, initializer_range=0.05)
    model.save_pretrained(tmp_path)
    theirs = reference(model, TEXT, 60)
    ours = logits_of(tmp_path, TEXT, 60, quantization=name)
    assert_close(ours, theirs, within)
    assert not torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6), "the weights are kept as they were"
    for chunk in (1, 17):
        assert torch.equal(logits_of(tmp_path, TEXT, 60, chunk=chunk, quantization=name), ours)


def test_the_format_follows_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def format_on(*, bf16: bool, fp16: bool, **asked: Any) -> tuple[str, torch.dtype]:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": bf16})
        monkeypatch.setattr(ops, "can_keep_fp16", lambda: fp16)
        chosen = pick_format(asked.get("quantization", "auto"), asked.get("dtype", "auto"), CPU)
        return chosen.name, chosen.dtype

    assert format_on(bf16=True, fp16=False) == ("none", torch.bfloat16)
    assert format_on(bf16=False, fp16=True) == ("fp16", torch.float32)
    assert format_on(bf16=False, fp16=False) == ("none", torch.float32)
    assert format_on(bf16=False, fp16=True, dtype="float32") == ("none", torch.float32)
    assert format_on(bf16=False, fp16=True, dtype="bfloat16") == ("none", torch.bfloat16)
    assert format_on(bf16=False, fp16=True, quantization="none") == ("none", torch.float32)
    assert pick_format("auto", "auto", torch.device("cuda")).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("quantization", "dtype", "device", "words"),
    [
        ("int8", "auto", "cuda", "quantization is 'int8', which is for the CPU, and the device is cuda"),
        ("int8", "bfloat16", "cpu", "quantization is 'int8', which computes in float32, and dtype is 'bfloat16'"),
        ("fp16", "auto", "cpu", "quantization is 'fp16', which needs an x86 CPU with AVX2 and no more"),
    ],
)
def test_a_format_that_cannot_be_had_is_refused(
    monkeypatch: pytest.MonkeyPatch, quantization: str, dtype: str, device: str, words: str
) -> None:
    monkeypatch.setattr(formats.ops, "can_keep_fp16", lambda: False)
    with pytest.raises(ValueError, match=words):
        pick_format(quantization, dtype, torch.device(device))
