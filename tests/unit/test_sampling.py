"""Choosing tokens: each parameter against its definition, draws against the distribution, rows against the crowd."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from inference.config import EngineConfig
from inference.core.process import CoreThread
from inference.executor import Executor
from inference.randomness import choice_seed, uniforms
from inference.request import FinishReason, GrammarKind, GrammarSpec, Request, SamplingParams
from inference.sampling import Masks, SamplingRow, sample
from inference.sequence import Sequence as EngineSequence
from tests.tiny_models import END, byte_tokenizer, collect, generate, make_model, save

VOCAB, HEAD = 1400, 1408  # several blocks of kernels.drawing.BLOCK


def logits_of(rows: int, seed: int = 0, spread: float = 2.0, vocab: int = HEAD) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def masks_of(rows: dict[int, Sequence[int]], width: int = HEAD) -> Masks:
    """What each of these rows may choose."""
    words = np.zeros((len(rows), width // 32), dtype=np.uint32)
    for line, allowed in enumerate(rows.values()):
        for token in allowed:
            words[line, token // 32] |= np.uint32(1 << (token % 32))
    return Masks(list(rows), torch.from_numpy(words.view(np.int32)))


def tokens_of(logits: torch.Tensor, rows: Sequence[SamplingRow], masks: Masks | None = None, **more: Any) -> list[int]:
    return [made.token for made in sample(logits.clone(), rows, masks, VOCAB, **more)]


# Random numbers


def test_the_stream_is_splitmix64() -> None:
    """The reference's first outputs for the state 1234567, reached through the seed that mixes to it."""
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]

    def unmix(z: int) -> int:
        mask = 2**64 - 1
        z ^= (z >> 31) ^ (z >> 62)
        z = z * pow(0x94D049BB133111EB, -1, 2**64) & mask
        z ^= (z >> 27) ^ (z >> 54)
        z = z * pow(0xBF58476D1CE4E5B9, -1, 2**64) & mask
        return z ^ (z >> 30) ^ (z >> 60)

    seed = (unmix(1234567) - 0x9E3779B97F4A7C15) % 2**64
    found = uniforms([seed] * 4, range(4))
    assert found.tolist() == [(value >> 11) * 2.0**-53 for value in expected]


def test_numbers_are_functions_of_seed_and_position_alone() -> None:
    seeds, positions = [7, -7, 2**63 - 1, -(2**63), 0], [0, 1, 5, 1000, 2**31]
    together = uniforms(seeds, positions)
    alone = [uniforms([seed], [position])[0] for seed, position in zip(seeds, positions, strict=True)]
    assert together.tolist() == alone
    assert len(set(together)) == 5
    assert ((together >= 0) & (together < 1)).all()


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    """How far counts are from what is expected, in standard deviations of the statistic's normal approximation
    (Wilson and Hilferty, 1931). Cells of which fewer than five are expected are pooled."""
    small = expected < 5
    cells = [*zip(counts[~small], expected[~small], strict=True)]
    if small.any() and expected[small].sum() > 0:
        cells.append((counts[small].sum(), expected[small].sum()))
    degrees = len(cells) - 1
    statistic = sum((count - mean) ** 2 / mean for count, mean in cells)
    cube = 2 / (9 * degrees)
    return ((statistic / degrees) ** (1 / 3) - (1 - cube)) / math.sqrt(cube)


@pytest.mark.parametrize("walk", ["positions", "seeds", "choices", "both"])
def test_numbers_are_uniform_and_neighbours_independent(walk: str) -> None:
    count = 40_000
    steps = range(count)
    if walk == "positions":
        found = uniforms([3] * count, steps)
    elif walk == "seeds":
        found = uniforms(steps, [9] * count)
    elif walk == "choices":
        found = uniforms([choice_seed(3, choice) for choice in steps], [0] * count)
    else:
        found = uniforms([step // 200 for step in steps], [step % 200 for step in steps])
    bins = (found * 20).astype(int)
    assert chi_square(np.bincount(bins, minlength=20), np.full(20, count / 20)) < 3
    pairs = np.bincount(bins[:-1] * 20 + bins[1:], minlength=400)
    assert chi_square(pairs, np.full(400, (count - 1) / 400)) < 3


def test_the_first_choice_has_the_seed_and_the_others_their_own() -> None:
    assert choice_seed(42, 0) == 42
    seeds = {choice_seed(seed, choice) for seed in range(-50, 50) for choice in range(20)}
    assert len(seeds) == 2000
    assert all(-(2**63) <= seed < 2**63 for seed in seeds)


# Distributions

WAYS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=1.7, top_k=12),
    SamplingParams(temperature=1.0, top_p=0.8),
    SamplingParams(temperature=1.3, min_p=0.05),
    SamplingParams(temperature=0.9, min_p=0.02, top_k=30, top_p=0.9),
]


def as_transformers(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Its warpers, in our order (its own has min-p last) -> probabilities."""
    scores = TemperatureLogitsWarper(params.temperature)(None, logits[None])  # type: ignore[arg-type]
    if params.min_p:
        scores = MinPLogitsWarper(params.min_p)(None, scores)  # type: ignore[arg-type]
    if params.top_k:
        scores = TopKLogitsWarper(params.top_k)(None, scores)  # type: ignore[arg-type]
    if params.top_p < 1:
        scores = TopPLogitsWarper(params.top_p)(None, scores)  # type: ignore[arg-type]
    return scores[0].double().softmax(-1)


@pytest.mark.parametrize("params", WAYS, ids=str)
@pytest.mark.parametrize("walk", ["positions", "seeds"])
def test_draws_have_the_distribution(params: SamplingParams, walk: str) -> None:
    """Drawn as an engine draws, along an answer and over requests, compared by chi-square."""
    count, logits = 10_000, logits_of(1)
    rows = [SamplingRow(params, 11, i) if walk == "positions" else SamplingRow(params, i, 3) for i in range(count)]
    found = np.bincount(tokens_of(logits.expand(count, -1), rows), minlength=HEAD)
    expected = as_transformers(logits[0, :VOCAB], params).numpy()
    assert not found[VOCAB:].any()
    assert not found[:VOCAB][expected == 0].any(), "a token outside the limits"
    assert chi_square(found[:VOCAB], expected * count) < 3


def test_a_wrong_distribution_would_be_noticed() -> None:
    count, logits = 10_000, logits_of(1)
    rows = [SamplingRow(SamplingParams(temperature=1.0), 11, i) for i in range(count)]
    found = np.bincount(tokens_of(logits.expand(count, -1), rows), minlength=HEAD)[:VOCAB]
    other = as_transformers(logits[0, :VOCAB], SamplingParams(temperature=1.1)).numpy()
    assert chi_square(found, other * count) > 4


def test_a_temperature_near_zero_is_greedy() -> None:
    logits = logits_of(3)
    rows = [SamplingRow(SamplingParams(temperature=t), 1, 0) for t in (0.0, 1e-7, 1e-30)]
    assert tokens_of(logits, rows) == logits[:, :VOCAB].argmax(-1).tolist()


# Alone and in a crowd


def params_strategy() -> st.SearchStrategy[SamplingParams]:
    return st.builds(
        SamplingParams,
        max_tokens=st.just(100),
        min_tokens=st.sampled_from([0, 0, 5]),
        temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
        top_p=st.sampled_from([1.0, 1.0, 0.9, 0.2]),
        top_k=st.sampled_from([0, 0, 1, 7, 400]),
        min_p=st.sampled_from([0.0, 0.0, 0.1]),
        repetition_penalty=st.sampled_from([1.0, 1.0, 1.3]),
        presence_penalty=st.sampled_from([0.0, 0.0, 1.5]),
        frequency_penalty=st.sampled_from([0.0, 0.0, -0.5]),
        logit_bias=st.sampled_from([(), (), ((3, 5.0), (9, -100.0))]),
        logprobs=st.sampled_from([None, 0, 20]),
        stop_token_ids=st.sampled_from([(), (1,)]),
    )


def row_strategy() -> st.SearchStrategy[SamplingRow]:
    token = st.integers(0, VOCAB - 1)
    return st.builds(
        SamplingRow,
        params=params_strategy(),
        seed=st.integers(-(2**63), 2**63 - 1),
        position=st.integers(0, 20),
        prompt=st.lists(token, max_size=6),
        made=st.lists(token, max_size=6),
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(row_strategy(), st.booleans()), min_size=1, max_size=40), st.integers(0, 10_000))
def test_a_row_alone_is_the_row_in_a_crowd_bit_for_bit(crowd: list[tuple[SamplingRow, bool]], seed: int) -> None:
    logits = logits_of(len(crowd), seed)
    rows = [row for row, _ in crowd]
    allowed = {i: range(i % 7, VOCAB, 2 + i) for i, (_, constrained) in enumerate(crowd) if constrained}
    together = sample(logits.clone(), rows, masks_of(allowed) if allowed else None, VOCAB, {0, 2})
    for i, row in enumerate(rows):
        mask = masks_of({0: allowed[i]}) if i in allowed else None
        assert sample(logits[i : i + 1].clone(), [row], mask, VOCAB, {0, 2}) == [together[i]]


@pytest.mark.parametrize("rows", [1, 2, 33, 70])
def test_the_batched_twin_draws_a_row_as_alone_too(rows: int) -> None:
    """The path of other devices, on the CPU."""
    from kernels import ops

    choose = torch.Generator().manual_seed(rows)
    logits = logits_of(rows, 3, vocab=3000)
    options = (
        torch.rand(rows, generator=choose) + 0.1,
        torch.randint(0, 3, (rows,), generator=choose) * 20,
        torch.rand(rows, generator=choose) * 0.5 + 0.5,
        torch.randint(0, 2, (rows,), generator=choose) * 0.01,
        torch.rand(rows, generator=choose, dtype=torch.float64),
    )
    together = ops.draw_batched(logits, *options)
    alone = [ops.draw_batched(logits[i : i + 1], *(o[i : i + 1] for o in options)).item() for i in range(rows)]
    assert together.tolist() == alone


# What is done to logits


def test_the_repetition_penalty_is_transformers_over_prompt_and_answer() -> None:
    logits = logits_of(1)
    prompt, made = [5, 5, 9, 100], [7, 9, 499]
    expected = RepetitionPenaltyLogitsProcessor(1.4)(torch.tensor([prompt + made]), logits[:, :VOCAB].clone())
    row = SamplingRow(SamplingParams(), 0, 3, prompt, made)
    after = adjusted(SamplingParams(repetition_penalty=1.4), row, logits)
    torch.testing.assert_close(after[:VOCAB], expected[0])
    assert (after[:VOCAB] != logits[0, :VOCAB]).sum() == 5


def adjusted(params: SamplingParams, row: SamplingRow, base: torch.Tensor) -> torch.Tensor:
    """The logits that a choice is made from."""
    logits = base.clone()
    sample(logits, [replace(row, params=params)], None, VOCAB, {0})
    return logits[0]


def test_presence_and_frequency_count_the_answer_only() -> None:
    base = logits_of(1)
    row = SamplingRow(SamplingParams(), 0, 4, prompt=[1, 2], made=[2, 3, 3, 3])
    after = adjusted(SamplingParams(presence_penalty=0.5, frequency_penalty=0.25), row, base)
    change = (after - base[0])[:VOCAB]
    assert change[2] == pytest.approx(-0.75)
    assert change[3] == pytest.approx(-1.25)
    assert change[[1, 4, 0]].abs().sum() == 0


def test_a_bias_is_added_and_may_force_or_forbid_a_token() -> None:
    base = logits_of(1)
    best = int(base[0, :VOCAB].argmax())
    assert tokens_of(base, [SamplingRow(SamplingParams(logit_bias=((best, -100.0),)))]) != [best]
    assert tokens_of(base, [SamplingRow(SamplingParams(logit_bias=((77, 100.0),)))]) == [77]
    after = adjusted(SamplingParams(logit_bias=((4, 2.5),)), SamplingRow(SamplingParams()), base)
    assert after[4] - base[0, 4] == pytest.approx(2.5)
    # Before the penalty, as in vLLM and transformers.
    row = SamplingRow(SamplingParams(), 0, 1, made=[4])
    after = adjusted(SamplingParams(logit_bias=((4, 50.0),), repetition_penalty=2.0), row, base)
    assert after[4] == pytest.approx(float(base[0, 4] + 50) / 2)


def test_a_bias_lifts_nothing_that_the_grammar_forbids() -> None:
    base = logits_of(1)
    params = SamplingParams(logit_bias=((77, 100.0), (8, 1.0)))
    assert tokens_of(base, [SamplingRow(params)], masks_of({0: [8, 9]})) in ([8], [9])


def test_no_end_before_min_tokens() -> None:
    base = logits_of(1)
    base[0, [0, 5]] = 50.0
    params = SamplingParams(min_tokens=3, stop_token_ids=(5,))
    for position, allowed in ((0, False), (2, False), (3, True)):
        (token,) = tokens_of(base, [SamplingRow(params, 0, position)], ends={0})
        assert (token in (0, 5)) == allowed
    ignoring = replace(params, ignore_eos=True)
    assert tokens_of(base, [SamplingRow(ignoring)], ends={0}) == [0], "a token that ends nothing is not masked"


def test_min_tokens_gives_way_to_a_grammar_that_allows_only_the_end() -> None:
    base = logits_of(3)
    params = SamplingParams(min_tokens=9, temperature=1.0, ignore_eos=True)
    rows = [SamplingRow(params)] * 3
    masks = masks_of({0: [0], 1: [0, 6], 2: [6]})
    assert tokens_of(base, rows, masks, ends={0}) == [0, 6, 6]


def test_logprobs_are_the_models_own() -> None:
    base = logits_of(2)
    heavy = SamplingParams(
        temperature=0.5, logit_bias=((77, 100.0),), repetition_penalty=1.5, presence_penalty=2.0, logprobs=20
    )
    made = sample(base.clone(), [SamplingRow(heavy, 0, 1, made=[77])] * 2, masks_of({0: [77, 3]}), VOCAB)
    expected = base[:, :VOCAB].double().log_softmax(-1)
    for row, choice in enumerate(made):
        assert choice.token == 77
        assert choice.logprob is not None
        assert choice.logprob.logprob == pytest.approx(float(expected[row, 77]), abs=1e-5)
        ids, values = zip(*choice.logprob.top, strict=True)
        best = expected[row].topk(20)
        assert list(ids) == best.indices.tolist()
        assert values == pytest.approx(best.values.tolist(), abs=1e-5)


# Drafts and the whole engine


def test_rows_of_a_draft_are_those_of_the_tokens_committed() -> None:
    params = SamplingParams(temperature=1.0, repetition_penalty=1.2, presence_penalty=0.3, min_tokens=6)
    prompt, made, draft = (4, 5, 6), [10, 11], [20, 21, 22]

    def sequence(tokens: list[int]) -> EngineSequence:
        return EngineSequence(Request("a", prompt, params), 0, 0.0, b"", tokens=[*prompt, *tokens], seed=99)

    for taken in range(len(draft) + 1):
        ahead = SamplingRow.behind(sequence(made), draft[:taken])
        later = SamplingRow.behind(sequence(made + draft[:taken]))
        assert ahead == later
        assert ahead.position == len(made) + taken
        assert tokens_of(logits_of(1, taken), [ahead], ends={0}) == tokens_of(logits_of(1, taken), [later], ends={0})


PAGE_BYTES = 8 * 2 * 3 * 2 * 16 * 4  # page of 8 tokens: keys and values, 3 layers, 2 KV heads of 16, fp32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(make_model("llama"), tmp_path_factory.mktemp("llama"))


@contextmanager
def engine(path: Path, **changes: Any) -> Iterator[Executor]:
    options: dict[str, Any] = {"dtype": "float32", "page_size": 8, "num_threads": 1, "max_num_batched_tokens": 64}
    executor = Executor(EngineConfig(path, **{**options, **changes}), byte_tokenizer(), CoreThread)
    try:
        yield executor
    finally:
        executor.shutdown()


def mixed_requests(prefix: str) -> list[Request]:
    """Every parameter somewhere, over prompts with a common beginning."""
    base = SamplingParams(max_tokens=24, temperature=0.8)
    ways = [
        replace(base, top_k=40, top_p=0.9),
        replace(base, min_p=0.1, repetition_penalty=1.3),
        replace(base, temperature=1.2, presence_penalty=1.0, frequency_penalty=0.5, logprobs=3),
        replace(base, temperature=0.0, repetition_penalty=1.5),
        replace(base, logit_bias=((END, 8.0), (40, 3.0)), min_tokens=10),
        replace(base, temperature=2.0, ignore_eos=True),
    ]
    return [
        Request(f"{prefix}{i}", (7, 8, 9, *range(20 + 3 * i)), replace(ways[i % len(ways)], seed=i)) for i in range(12)
    ]


def test_sampled_text_depends_on_the_request_alone(folder: Path) -> None:
    with engine(folder) as executor:
        alone = [generate(executor, request)[0][0] for request in mixed_requests("a")]
        assert [result[0] for result in generate(executor, *mixed_requests("b"))] == alone
    few = {"kv_cache_bytes": 16 * PAGE_BYTES, "max_model_len": 96}
    for changes in ({"max_num_batched_tokens": 5, "max_num_seqs": 4}, few, {"prefix_cache": False}):
        with engine(folder, **changes) as executor:
            assert [result[0] for result in generate(executor, *mixed_requests("c"))] == alone
            assert (executor.stats().preemptions > 0) == (changes is few)


def test_min_tokens_holds_in_the_engine_and_yields_to_the_grammar(folder: Path) -> None:
    eager = SamplingParams(max_tokens=30, min_tokens=12, logit_bias=((END, 100.0),))
    with engine(folder) as executor:
        tokens, last = generate(executor, Request("m", (1, 2), eager))[0]
        assert len(tokens) == 12
        assert last.finish_reason is FinishReason.STOP
        optional = GrammarSpec(GrammarKind.REGEX, "[a-d]{2,20}")
        tokens, last = generate(executor, Request("o", (1, 2), eager, optional))[0]
        assert len(tokens) == 12
        fixed = GrammarSpec(GrammarKind.CHOICE, '["abc"]')
        tokens, last = generate(executor, Request("f", (1, 2), eager, fixed))[0]
        assert byte_tokenizer().decode(tokens) == "abc"
        assert last.finish_reason is FinishReason.STOP


def test_answers_without_a_seed_differ_and_logprobs_come_with_each_token(folder: Path) -> None:
    params = SamplingParams(max_tokens=16, temperature=1.5, logprobs=20, ignore_eos=True)
    with engine(folder) as executor:
        requests = [Request(str(i), (1, 2, 3), params) for i in range(4)]
        for request in requests:
            executor.enqueue_request(request)
        got = collect(executor, [request.id for request in requests])
    answers = {name: tuple(t for r in responses for t in r.token_ids) for name, responses in got.items()}
    assert len(set(answers.values())) == 4
    for responses in got.values():
        entries = [entry for response in responses for entry in response.logprobs]
        assert len(entries) == 16
        assert all(len(entry.top) == 20 for entry in entries)
