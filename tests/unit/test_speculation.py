"""Drafts: the answer is the one that plain decoding gives, whatever is proposed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.config import EngineConfig
from inference.core.process import CoreThread
from inference.executor import Executor
from inference.models.hf_config import from_hf
from inference.request import FinishReason, GrammarKind, GrammarSpec, Request, SamplingParams
from inference.speculation.draft import Draft, Source
from inference.speculation.draft_model import VocabularyMismatch, check_vocabulary
from inference.speculation.lookup import Lookup
from inference.speculation.policy import Policy, StepTime
from tests.tiny_models import byte_tokenizer, generate, make_model, save_with_tokenizer

PAGE_SIZE = 8
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "heading": {"type": "string", "maxLength": 6},
            "published": {"type": "integer", "minimum": 0, "maximum": 9999},
            "tags": {"type": "array", "items": {"enum": ["alpha", "beta"]}, "maxItems": 3},
        },
        "required": ["heading", "published", "tags"],
        "additionalProperties": False,
    }
)
GRAMMAR = GrammarSpec(GrammarKind.JSON_SCHEMA, SCHEMA)
# Texts that repeat themselves, so that lookup has something to find; every other one begins as another does.
TEXTS = [tuple((i * i + 3 * (i % 5)) % 11 + 40 + (index // 2) for i in range(12 + 9 * index)) for index in range(6)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_with_tokenizer(make_model("qwen2"), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the same vocabulary that says something else."""
    return save_with_tokenizer(make_model("llama", seed=5), tmp_path_factory.mktemp("other"))


def config(path: Path, **changes: Any) -> EngineConfig:
    settings: dict[str, Any] = {"dtype": "float32", "page_size": PAGE_SIZE, "num_threads": 1}
    return EngineConfig(path, **{**settings, "max_num_batched_tokens": 64, **changes})


def requests(**changes: Any) -> list[Request]:
    """Greedy and sampled, constrained and not, side by side."""
    ways = (SamplingParams(max_tokens=40, ignore_eos=True), SamplingParams(max_tokens=60, temperature=0.8, seed=7))
    grammars = (None, None, GRAMMAR, GRAMMAR)
    return [
        Request(str(index), text, replace(ways[index % 2], **changes), grammars[index % 4])
        for index, text in enumerate(TEXTS)
    ]


def answers(
    engine: EngineConfig, work: list[Request]
) -> tuple[list[tuple[tuple[int, ...], FinishReason | None]], Executor]:
    executor = Executor(engine, byte_tokenizer(), CoreThread)
    try:
        return [(tokens, last.finish_reason) for tokens, last in generate(executor, *work)], executor
    finally:
        executor.shutdown()


@pytest.fixture(scope="module")
def plain(checkpoint: Path) -> list[tuple[tuple[int, ...], FinishReason | None]]:
    return answers(config(checkpoint, speculation=()), requests())[0]


SCHEDULES: dict[str, dict[str, Any]] = {
    "forced": {"speculation": ("forced",)},
    "lookup": {"speculation": ("lookup",)},
    "both": {},
    "one at a time": {"max_num_seqs": 1},
    "a budget that cuts drafts": {"max_num_batched_tokens": 9, "max_num_seqs": 6},
    "pages of one": {"page_size": 1},
    "few pages": {"max_model_len": 136},
    "one token ahead": {"max_draft_tokens": 1},
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("drafter", ["none", "itself", "another"])
def test_answers_are_those_of_plain_decoding(
    schedule: str,
    drafter: str,
    checkpoint: Path,
    other: Path,
    plain: list[tuple[tuple[int, ...], FinishReason | None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Policy, "length", lambda self, draft, batch: len(draft))
    monkeypatch.setattr(Policy, "model_length", lambda self, limit, batch: min(limit, 4))
    path = {"none": None, "itself": checkpoint, "another": other}[drafter]
    settings = {**SCHEDULES[schedule], "draft_model_path": path}
    if schedule == "few pages":
        models = [checkpoint, *([path] if path else [])]
        page = sum(PAGE_SIZE * from_hf(model).kv_bytes_per_token(4) for model in models)
        settings["kv_cache_bytes"] = 17 * page
    made, executor = answers(config(checkpoint, **settings), requests())
    assert made == plain
    stats = executor.stats()
    assert stats.draft_tokens > 0
    assert stats.pages_free + stats.pages_cached == stats.pages_total
    assert (stats.preemptions > 0) == (schedule == "few pages")


def test_a_draft_model_that_is_the_model_is_always_right(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Policy, "model_length", lambda self, limit, batch: min(limit, 4))
    sampling = SamplingParams(max_tokens=60, ignore_eos=True)
    work = [Request(str(index), text, sampling) for index, text in enumerate(TEXTS)]
    made, executor = answers(config(checkpoint, speculation=(), draft_model_path=checkpoint), work)
    assert all(len(tokens) == 60 for tokens, _ in made)
    stats = executor.stats()
    assert 0 < stats.draft_tokens == stats.accepted_draft_tokens
    assert stats.forwards < stats.completion_tokens


def test_a_draft_model_keeps_to_pages_that_others_left(checkpoint: Path) -> None:
    """Few pages, handed from one request to the next, with and without shared beginnings."""
    page = 2 * PAGE_SIZE * from_hf(checkpoint).kv_bytes_per_token(4)
    sampling = SamplingParams(max_tokens=20, ignore_eos=True)
    work = [Request(str(i), TEXTS[i % 3][: 9 + i] + (i,) * (i % 4), sampling) for i in range(18)]
    settings: dict[str, Any] = {"speculation": (), "max_model_len": 64, "kv_cache_bytes": 10 * page}
    made, executor = answers(config(checkpoint, draft_model_path=checkpoint, **settings), work)
    assert made == answers(config(checkpoint, **settings), work)[0]
    stats = executor.stats()
    assert 0 < stats.draft_tokens == stats.accepted_draft_tokens


def test_usage_counts_accepted_drafts(checkpoint: Path) -> None:
    executor = Executor(config(checkpoint), byte_tokenizer(), CoreThread)
    try:
        ((tokens, last),) = generate(executor, Request("a", (5, 6, 7), SamplingParams(max_tokens=120), GRAMMAR))
        assert last.finish_reason is FinishReason.STOP
        assert 0 < last.usage.accepted_draft_tokens < last.usage.completion_tokens == len(tokens)
        assert executor.stats().accepted_draft_tokens == last.usage.accepted_draft_tokens
    finally:
        executor.shutdown()


@pytest.mark.parametrize("constrained", [False, True])
def test_sampled_tokens_keep_their_distribution(
    constrained: bool, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tokens of many seeded answers, with drafts and without: Pearson's chi-squared of the two samples.

    The seeds of the two samples differ, so that agreement token by token is not what is tested here.
    """
    monkeypatch.setattr(Policy, "length", lambda self, draft, batch: len(draft))
    letters = byte_tokenizer().encode("ABC")
    monkeypatch.setattr(Lookup, "follow", lambda self, tokens, ahead, count: letters[:count])
    grammar = GrammarSpec(GrammarKind.REGEX, "[A-C][A-C]") if constrained else None
    bias = () if constrained else tuple((letter, 100.0) for letter in letters)
    sampling = SamplingParams(max_tokens=3, temperature=1.0, logit_bias=bias, ignore_eos=True)
    samples = []
    for start, speculation in ((0, ()), (10_000, ("lookup",))):
        work = [Request(str(s), (1, 2), replace(sampling, seed=start + s), grammar) for s in range(600)]
        made, executor = answers(config(checkpoint, speculation=speculation, max_waiting=600), work)
        stats = executor.stats()
        assert (stats.draft_tokens > stats.accepted_draft_tokens > 0) == bool(speculation)
        samples.append(Counter(tokens[:2] for tokens, _ in made))
    seen = [key for key, count in (samples[0] + samples[1]).items() if count >= 10]
    assert len(seen) > 2
    squared = sum((samples[0][key] - samples[1][key]) ** 2 / (samples[0][key] + samples[1][key]) for key in seen)
    # Mean `freedom`, variance 2 `freedom`: five standard deviations are reached once in many thousand times.
    freedom = len(seen) - 1
    assert squared < freedom + 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("nonsense", [[9999], [-1], [0, 1, 2, 3], [34, 34, 34]])
def test_an_illegal_draft_costs_nothing(
    nonsense: list[int],
    checkpoint: Path,
    plain: list[tuple[tuple[int, ...], FinishReason | None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Policy, "length", lambda self, draft, batch: len(draft))
    known = [token for token in nonsense if 0 <= token < 256]
    constrained = iter(lambda: nonsense, None)

    def follow(self: Lookup, tokens: list[int], ahead: list[int], count: int) -> list[int]:
        return (next(constrained) if ahead else known)[:count]

    monkeypatch.setattr(Lookup, "follow", follow)
    assert answers(config(checkpoint), requests())[0] == plain


def test_an_error_in_a_source_leaves_plain_decoding(
    checkpoint: Path, plain: list[tuple[tuple[int, ...], FinishReason | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Lookup, tokens: list[int], ahead: list[int], count: int) -> list[int]:
        raise RuntimeError("the index is gone")

    monkeypatch.setattr(Lookup, "follow", fail)
    assert answers(config(checkpoint), requests())[0] == plain


def test_a_draft_model_of_another_vocabulary_is_refused() -> None:
    check_vocabulary({"a": 0, "b": 1}, {"b": 1, "a": 0})
    with pytest.raises(VocabularyMismatch, match="token 1 is 'b' for the model and 'c' for the draft"):
        check_vocabulary({"a": 0, "b": 1}, {"a": 0, "c": 1})
    with pytest.raises(VocabularyMismatch, match="token 2 is None"):
        check_vocabulary({"a": 0, "b": 1}, {"a": 0, "b": 1, "c": 2})


@pytest.mark.parametrize(
    ("change", "words"),
    [({"max_draft_tokens": -1}, "max_draft_tokens is -1"), ({"speculation": ("guess",)}, "speculation names 'guess'")],
)
def test_bad_settings_are_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        EngineConfig(Path("."), **change)


# Lookup


def test_lookup_goes_on_behind_the_longest_match() -> None:
    tokens = [1, 2, 3, 10, 11, 9, 2, 3, 20, 21, 1, 2, 3]
    assert Lookup().follow(tokens, [], 2) == [10, 11]
    assert Lookup().follow(tokens, [9, 2, 3], 2) == [20, 21]  # what is ahead belongs to the end
    assert Lookup().follow([1, 2, 5, 1, 2, 6, 1, 2], [], 1) == [6]  # the latest of equals
    assert Lookup().follow(tokens, [77], 2) == []
    assert Lookup().follow([1], [], 2) == []


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 3), max_size=3), st.integers(0, 6))
def test_lookup_says_what_stood_behind_the_last_two_tokens(tokens: list[int], ahead: list[int], count: int) -> None:
    grown = Lookup()
    for end in range(len(tokens)):
        grown.follow(tokens[:end], [], 1)
    found = grown.follow(tokens, ahead, count)
    assert found == Lookup().follow(tokens, ahead, count)  # however it has grown
    tail = [*tokens, *ahead][-2:]
    places = [i for i in range(2, len(tokens)) if tokens[i - 2 : i] == tail]
    assert bool(found) == bool(places and count)
    assert not found or any(tokens[i : i + count] == found for i in places)


# Policy


def policy(fixed: float, per_row: float) -> Policy:
    made = Policy()
    for rows in (8, 12, 16, 24, 32) * 20:
        made.note_step(rows, fixed + per_row * rows)
    return made


def drafts() -> Iterator[Draft]:
    for source in Source:
        draft = Draft()
        draft.extend(source, range(8))
        yield draft


def test_where_rows_are_free_all_drafts_pay() -> None:
    idle = policy(fixed=1.0, per_row=1e-6)
    assert all(idle.length(draft, batch=1) == 8 for draft in drafts())
    assert idle.model_length(8, batch=1) == 8


def test_under_full_load_no_draft_pays() -> None:
    full = policy(fixed=0.01, per_row=1.0)
    assert all(full.length(draft, batch=32) == 0 for draft in drafts())
    full.note_draft_step(0.1)
    assert full.model_length(8, batch=32) == 0


def test_what_seldom_comes_true_is_given_up_and_tried_again() -> None:
    some = policy(fixed=1.0, per_row=0.05)
    lookup = Draft()
    lookup.extend(Source.LOOKUP, range(4))
    before = some.length(lookup, batch=8)
    for _ in range(100):
        some.observe(lookup, accepted=0)
    assert before > some.length(lookup, batch=8) == 0
    for rows in (8, 12, 16, 24, 32) * 100:
        some.note_step(rows, 1.0 + 0.05 * rows)
    assert some.length(lookup, batch=8) == before


def test_only_the_first_wrong_token_counts_against_a_source() -> None:
    made, draft = Policy(), Draft()
    draft.extend(Source.FORCED, [1, 2])
    draft.extend(Source.LOOKUP, [3, 4, 5])
    forced, lookup = (made.acceptance[source].rate for source in (Source.FORCED, Source.LOOKUP))
    made.observe(draft, accepted=2)
    assert made.acceptance[Source.FORCED].rate > forced
    assert made.acceptance[Source.LOOKUP].rate == pytest.approx(lookup * 8 / 9)


def test_a_line_through_steps_of_one_size_is_half_fixed() -> None:
    time = StepTime()
    for _ in range(10):
        time.observe(10, 2.0)
    assert time.line() == pytest.approx((1.0, 0.1))
    for rows in (5, 20) * 50:
        time.observe(rows, 1.5 + 0.05 * rows)
    fixed, per_row = time.line()
    assert fixed == pytest.approx(1.5, rel=0.1)
    assert per_row == pytest.approx(0.05, rel=0.1)
