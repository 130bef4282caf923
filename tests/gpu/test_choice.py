"""Tokens from logits: against the plain ops one by one, and draws against the definition."""

from __future__ import annotations

import pytest
import torch

from kernels import sampling
from kernels.choice import adjust, choose_tokens
from kernels.drawing import draw
from kernels.operands import History

VOCAB, WIDTH = 5000, 5056


def random(rows: int, width: int, seed: int, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * spread


def pack(allowed: torch.Tensor) -> torch.Tensor:
    """[L, V] bool -> [L, ceil(V / 32)] int32."""
    lines, vocab = allowed.shape
    padded = torch.nn.functional.pad(allowed, (0, -vocab % 32)).view(lines, -1, 32).long() << torch.arange(32)
    return padded.sum(-1).to(torch.uint32).view(torch.int32)


def test_masks_and_penalties_are_the_plain_ops_to_the_bit(device: torch.device) -> None:
    choose = torch.Generator().manual_seed(1)
    logits = random(4, WIDTH, 2)
    allowed = torch.rand(2, VOCAB, generator=choose) < 0.3
    prompt, made = (torch.randint(0, VOCAB, (2, 60), generator=choose) for _ in range(2))
    made[:, :20] = made[:, 20:40]
    seen = torch.zeros(2, VOCAB, dtype=torch.bool).scatter_(1, prompt, True).scatter_(1, made, True)
    counts = torch.zeros(2, VOCAB, dtype=torch.int32).scatter_add_(1, made, torch.ones(2, 60, dtype=torch.int32))
    penalties = [[1.3, 1.0], [0.5, -1.25], [0.25, 0.75]]
    expected = logits.clone()
    expected[:, VOCAB:] = float("-inf")
    sampling.mask_logits(expected[:, :VOCAB], [3, 1], pack(allowed))
    for row, past in ((1, 0), (2, 1)):
        repetition, presence, frequency = (values[past] for values in penalties)
        sampling.penalize_seen(expected[row], [*prompt[past].tolist(), *made[past].tolist()], repetition)
        sampling.penalize_made(expected[row], made[past].tolist(), presence, frequency)
    history = History(pack(seen).to(device), counts.to(device), *(torch.tensor(p, device=device) for p in penalties))
    lines, pasts = (torch.tensor(index, dtype=torch.int32, device=device) for index in ([-1, 1, -1, 0], [-1, 0, 1, -1]))
    found = logits.to(device)
    adjust(found, VOCAB, (lines, pack(allowed).to(device)), (pasts, history))
    assert torch.equal(found.cpu(), expected)
    plain = logits.to(device)
    adjust(plain, VOCAB)
    assert torch.equal(plain.cpu()[:, :VOCAB], logits[:, :VOCAB])
    assert (plain.cpu()[:, VOCAB:] == float("-inf")).all()


def options(rows: int, device: torch.device, seed: int) -> list[torch.Tensor]:
    """Every mixture of limits, and of none."""
    choose = torch.Generator().manual_seed(seed)
    row = torch.arange(rows)
    made = [
        torch.rand(rows, generator=choose) * 2 + 0.05,
        torch.randint(1, 60, (rows,), generator=choose) * (row % 3 == 0),
        torch.where(row % 2 == 0, 1.0, torch.rand(rows, generator=choose) * 0.98 + 0.01),
        torch.where(row % 5 == 0, 0.05, 0.0),
        torch.rand(rows, generator=choose, dtype=torch.float64),
    ]
    return [values.to(device) for values in made]


@pytest.mark.parametrize("rounded", [False, True])
def test_draws_are_those_of_the_plain_twin(rounded: bool, device: torch.device) -> None:
    rows = 30
    logits = random(rows, VOCAB, 3)
    if rounded:
        logits = logits.round()  # many equal ones: the smaller ids come first
    logits[::7, 40:] = float("-inf")
    chosen = options(rows, device, 4)
    found = choose_tokens(logits.to(device), *chosen).cpu()
    # Exponentials may differ in the last bit, and with them a draw at the very edge of a token.
    assert (found == draw(logits, *(values.cpu() for values in chosen))).sum() >= rows - 1


def test_greedy_rows_take_the_first_of_the_likeliest(device: torch.device) -> None:
    logits = random(8, VOCAB, 5).round()
    logits[7] = float("-inf")
    chosen = options(8, device, 6)
    chosen[0].zero_()
    found = choose_tokens(logits.to(device), *chosen).cpu()
    assert torch.equal(found[:7], logits[:7].argmax(dim=-1))
    assert 0 <= found[7] < VOCAB, "a row that allows nothing gives some token"


def test_a_row_alone_is_the_row_in_a_crowd(device: torch.device) -> None:
    logits, chosen = random(9, VOCAB, 7).to(device), options(9, device, 8)
    together = choose_tokens(logits, *chosen)
    for row in range(9):
        assert torch.equal(
            choose_tokens(logits[row : row + 1], *(v[row : row + 1] for v in chosen)), together[row : row + 1]
        )


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), [(0, 1.0, 0.0), (7, 1.0, 0.0), (0, 0.6, 0.0), (12, 0.8, 0.02)])
def test_draws_follow_the_distribution(top_k: int, top_p: float, min_p: float, device: torch.device) -> None:
    """Evenly spread numbers hit each token as often as it is likely, to within one hit at both of its edges."""
    count, vocab = 50, 40
    logits = random(1, vocab, 9, spread=1.0)
    weights = logits[0].double().softmax(-1)
    weights[weights < min_p * weights.max()] = 0
    ordered, order = weights.sort(descending=True)
    if top_k:
        ordered[top_k:] = 0
    ordered /= ordered.sum()
    ordered[(ordered.cumsum(-1) - ordered) >= top_p] = 0
    expected = torch.zeros_like(weights).scatter_(0, order, ordered / ordered.sum())
    fill = [torch.ones(count), torch.full((count,), top_k), torch.full((count,), top_p), torch.full((count,), min_p)]
    uniform = (torch.arange(count).double() + 0.5) / count
    chosen = [values.to(device) for values in (*fill, uniform)]
    found = choose_tokens(logits.expand(count, -1).contiguous().to(device), *chosen).cpu()
    hits = torch.bincount(found, minlength=vocab)
    assert ((hits - expected * count).abs() <= 1).all()
    assert (hits[expected == 0] == 0).all()
