"""Ops against what defines them, and packed products against plain ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from kernels import ops

DTYPES = [torch.float32, torch.bfloat16]
# Rounding of one result, and of a few in a row.
CLOSE = {torch.float32: {"rtol": 1e-5, "atol": 1e-5}, torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2}}


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm(dtype: torch.dtype) -> None:
    x, weight = random(5, 48, dtype=dtype) * 3, random(48, seed=1, dtype=dtype)
    before = x.clone()
    norm = LlamaRMSNorm(48, eps=1e-5).to(dtype)
    norm.weight.data = weight
    torch.testing.assert_close(ops.rms_norm(x, weight, 1e-5), norm(x), **CLOSE[dtype])
    assert torch.equal(x, before), "the input is left alone"


def test_rms_norm_with_a_wide_weight() -> None:
    """Gemma's way: one rounding, after the product."""
    x, weight = random(5, 48, dtype=torch.bfloat16) * 3, random(48, seed=1, dtype=torch.float32)
    norm = Gemma3RMSNorm(48, eps=1e-6)
    norm.weight.data = weight - 1
    ours = ops.rms_norm(x, weight, 1e-6)
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours, norm(x), rtol=2**-8, atol=0)
    assert (ours == norm(x)).float().mean() > 0.98, "two roundings where there should be one"


def test_rope() -> None:
    query, key = random(7, 4, 32), random(7, 2, 32, seed=1)
    inv_freq = 10_000.0 ** (-torch.arange(0, 32, 2) / 32)
    positions = torch.tensor([0, 1, 2, 50, 51, 3, 300])
    angles = torch.outer(positions.float(), inv_freq)
    angles = torch.cat((angles, angles), -1)[None]
    expected = apply_rotary_pos_emb(query.transpose(0, 1)[None], key.transpose(0, 1)[None], angles.cos(), angles.sin())
    cos, sin = (table[positions] for table in ops.rope_tables(inv_freq, 301, torch.float32))
    for x, theirs in zip((query, key), expected, strict=True):
        torch.testing.assert_close(ops.rope(x, cos, sin), theirs[0].transpose(0, 1), **CLOSE[torch.float32])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 17, 70])
@pytest.mark.parametrize("bias", [False, True])
def test_linear_layers_packed_and_plain(rows: int, bias: bool, dtype: torch.dtype) -> None:
    x, weight = random(rows, 96, dtype=dtype), random(160, 96, seed=1, dtype=dtype) / 10
    offset = random(160, seed=2, dtype=dtype) if bias else None
    up, residual = random(160, 96, seed=3, dtype=dtype) / 10, random(rows, 160, seed=4, dtype=dtype)
    exact = F.linear(x.double(), weight.double(), None if offset is None else offset.double())
    gates = {"silu": F.silu, "gelu_tanh": lambda gate: F.gelu(gate, approximate="tanh")}
    inner = F.linear(x.double(), weight.double()), F.linear(x.double(), up.double())
    for pack in (False, True):
        linear = ops.Linear(weight, offset, pack=pack)
        torch.testing.assert_close(linear(x), exact.to(dtype), **CLOSE[dtype])
        torch.testing.assert_close(linear.add(x, residual), (residual + exact).to(dtype), **CLOSE[dtype])
        for name, gate in gates.items():
            ours = ops.GatedLinear(weight, up, name, pack=pack)(x)
            torch.testing.assert_close(ours, (gate(inner[0]) * inner[1]).to(dtype), **CLOSE[dtype])


def test_write_cache_puts_each_token_in_its_slot() -> None:
    cache, values = torch.zeros(4, 3, 2, 5), random(3, 2, 5)
    ops.write_cache(cache, values, torch.tensor([11, 3, 4]))
    flat = cache.flatten(0, 1)
    assert torch.equal(flat[[11, 3, 4]], values)
    assert flat[[0, 1, 2, 5, 6, 7, 8, 9, 10]].abs().sum() == 0


def test_argmax_takes_the_first_of_equals() -> None:
    logits = torch.tensor([[1.0, 5.0, 5.0, 2.0], [-1.0, -2.0, -1.0, float("-inf")]])
    assert ops.argmax(logits).tolist() == [1, 0]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99, 1.0])
def test_mask_logits(share: float) -> None:
    vocab = 333  # not a multiple of 32
    logits = random(4, vocab)
    allowed = torch.rand(2, vocab, generator=torch.Generator().manual_seed(1)) < share
    bits = F.pad(allowed, (0, 352 - vocab)).view(2, 11, 32).long() << torch.arange(32)
    words = bits.sum(-1).to(torch.uint32).view(torch.int32)
    expected = logits.clone()
    expected[[3, 1]] = expected[[3, 1]].masked_fill(~allowed, float("-inf"))
    ops.mask_logits(logits, [3, 1], words)
    assert torch.equal(logits, expected)


# Drawing: what the CPU does row by row, and its batched twin

DRAWS = [ops.draw, ops.draw_batched]


def draws(
    draw: Any, logits: torch.Tensor, count: int, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0,
    min_p: float = 0.0,
) -> torch.Tensor:  # fmt: skip
    """How often each token is drawn, as a share, from evenly spread uniform numbers."""
    tokens = draw(
        logits.expand(count, -1),
        torch.full((count,), temperature),
        torch.full((count,), top_k),
        torch.full((count,), top_p),
        torch.full((count,), min_p),
        (torch.arange(count).double() + 0.5) / count,
    )
    return torch.bincount(tokens, minlength=logits.shape[-1]) / count


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_draws_follow_the_distribution(draw: Any, temperature: float) -> None:
    logits = random(600) * 2
    found = draws(draw, logits, 20_000, temperature)
    assert (found - (logits / temperature).softmax(-1)).abs().max() < 1e-4


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [(1, 1.0, 0), (7, 1.0, 0), (500, 1.0, 0), (0, 0.3, 0), (0, 0.999, 0), (20, 0.8, 0), (0, 1e-6, 0), (0, 1.0, 0.2),
     (0, 0.7, 0.1), (9, 0.9, 0.3), (0, 1.0, 1.0)],
)  # fmt: skip
def test_truncated_draws(draw: Any, top_k: int, top_p: float, min_p: float) -> None:
    """Against the definition: each limit takes from what those before it leave, min-p, top-k, top-p."""
    logits = random(600) * 0.5
    ordered, order = logits.double().sort(descending=True)
    expected = ordered.softmax(-1)
    expected[expected < min_p * expected[0]] = 0
    if top_k:
        expected[top_k:] = 0
    expected /= expected.sum()
    expected[(expected.cumsum(-1) - expected) >= top_p] = 0
    expected = torch.zeros(600, dtype=torch.float64).scatter_(0, order, expected / expected.sum())
    found = draws(draw, logits, 20_000, top_k=top_k, top_p=top_p, min_p=min_p)
    assert (found - expected).abs().max() < 1e-4
    assert ((found > 0) <= (expected > 0)).all()


@pytest.mark.parametrize("draw", DRAWS)
def test_draws_at_the_edges(draw: Any) -> None:
    none = float("-inf")
    logits = torch.tensor([[0.0, 1.0, none], [none] * 3, [0.0, 1.0, none], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    for uniform in (0.0, 1.0 - 2**-53):
        tokens = draw(
            logits,
            torch.tensor([1.0, 1.0, 1e-30, 1.0, 1.0]),
            torch.tensor([0, 0, 2, 2, 0]),
            torch.tensor([1.0, 1.0, 1.0, 1.0, 1 / 3]),
            torch.zeros(5),
            torch.full((5,), uniform, dtype=torch.float64),
        )
        assert tokens[0] == (0 if uniform == 0 else 1)
        assert 0 <= tokens[1] < 3, "a row that allows nothing gives some token, and no error"
        assert tokens[2] == 1
        assert tokens[3] == (0 if uniform == 0 else 1), "of equal tokens the first ones stay"
        assert tokens[4] in (0, 1)


def test_both_ways_of_drawing_agree() -> None:
    rows = 300
    choose = torch.Generator().manual_seed(5)
    logits = random(rows, 3000, seed=6) * 4
    logits[::7, 40:] = float("-inf")
    options = (
        torch.rand(rows, generator=choose) * 2 + 0.05,
        torch.randint(0, 60, (rows,), generator=choose) * (torch.arange(rows) % 3 == 0),
        torch.where(torch.arange(rows) % 2 == 0, 1.0, torch.rand(rows, generator=choose) * 0.98 + 0.01),
        torch.where(torch.arange(rows) % 5 == 0, 0.05, 0.0),
        torch.rand(rows, generator=choose, dtype=torch.float64),
    )
    same = ops.draw(logits, *options) == ops.draw_batched(logits, *options)
    # Exponentials of NumPy and torch may differ in the last bit, and with them a draw at the very edge of a token.
    assert same.sum() >= rows - 1


@pytest.mark.parametrize("count", [1, 5, 20, 300, 1000])
def test_the_largest_of_a_row_in_order(count: int) -> None:
    for seed in range(20):
        row = (random(1000, seed=seed) * 3).round()  # many equal ones
        ids, values = ops.top(row, count)
        expected = row.sort(descending=True, stable=True)
        assert ids == expected.indices[:count].tolist()
        assert values == expected.values[:count].tolist()


def test_the_log_of_the_total() -> None:
    row = random(5000) * 20
    row[7] = float("-inf")
    assert ops.log_total(row) == pytest.approx(float(row.double().logsumexp(0)), abs=1e-6)
    assert ops.log_total(row - 1e4) == pytest.approx(float((row.double() - 1e4).logsumexp(0)), abs=2e-3)
