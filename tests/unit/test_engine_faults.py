"""Faults that big engines have shown in public, one test each, named after what their users saw.

Held elsewhere, beside what they are about: masks shifted when drafts are trimmed and a compact grammar without the bare
quote (test_grammar_matcher.py), a bad schema that stalls everyone (test_grammar_schema.py), an illegal draft that kills
the request (test_speculation.py), late results after a cancel under random events (test_engine_invariants.py).
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from inference.config import EngineConfig
from inference.detokenize import Detokenizer
from inference.executor import Executor
from inference.invariants import check_ends, check_plan
from inference.memory.pages import PagePool
from inference.memory.prefix import root_hash
from inference.request import FinishReason, GrammarKind, GrammarSpec, Request, SamplingParams
from inference.scheduler import Scheduler
from inference.sequence import Sequence
from tests.tiny_models import END, byte_tokenizer, collect, generate, make_model, save

TOKEN_BYTES = 2 * 3 * 2 * 16 * 4  # keys and values, 3 layers, 2 KV heads of 16, fp32
OBJECT = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 6}, "year": {"type": "integer"}},
        "required": ["name", "year"],
        "additionalProperties": False,
    }
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(make_model("qwen2"), tmp_path_factory.mktemp("qwen2"))


@contextmanager
def engine(path: Path, **changes: Any) -> Iterator[Executor]:
    settings: dict[str, Any] = {"dtype": "float32", "page_size": 16, "num_threads": 1, "max_num_batched_tokens": 64}
    executor = Executor(EngineConfig(path, **{**settings, **changes}), byte_tokenizer())
    try:
        yield executor
    finally:
        executor.shutdown()


@pytest.fixture(scope="module")
def shared(checkpoint: Path) -> Iterator[Executor]:
    with engine(checkpoint) as executor:
        yield executor


def prompt(number: int, length: int = 40) -> tuple[int, ...]:
    """Odd ones share their first half."""
    own = tuple((number * 31 + i * i) % 200 for i in range(length))
    return tuple(range(length // 2)) + own[length // 2 :] if number % 2 else own


def crowd(prefix: str) -> tuple[list[Request], list[Request]]:
    """Requests under a grammar, and plain ones; half of them sampled."""

    def sampling(number: int, tokens: int) -> SamplingParams:
        return SamplingParams(max_tokens=tokens, temperature=number % 2 * 0.9, seed=number)

    grammar = GrammarSpec(GrammarKind.JSON_SCHEMA, OBJECT)
    constrained = [Request(f"{prefix}j{i}", prompt(i), sampling(i, 70), grammar) for i in range(8)]
    plain = [Request(f"{prefix}p{i}", prompt(i), sampling(i, 20)) for i in range(8)]
    return constrained, plain


def mixed(executor: Executor, prefix: str) -> tuple[list[Any], list[Any]]:
    """What both kinds get when all are under way together."""
    constrained, plain = crowd(prefix)
    results = generate(executor, *(request for pair in zip(constrained, plain, strict=True) for request in pair))
    return results[::2], results[1::2]


def test_json_is_corrupted_only_under_concurrency(shared: Executor) -> None:
    alone = [generate(shared, request)[0][0] for request in crowd("a")[0]]
    together, _ = mixed(shared, "t")
    assert [tokens for tokens, _ in together] == alone
    for tokens, last in together:
        assert last.finish_reason is FinishReason.STOP
        assert set(json.loads(byte_tokenizer().decode(tokens))) == {"name", "year"}


def test_unconstrained_requests_beside_json_ones_are_garbled(shared: Executor) -> None:
    alone = [generate(shared, request)[0][0] for request in crowd("b")[1]]
    _, together = mixed(shared, "u")
    assert [tokens for tokens, _ in together] == alone


@pytest.mark.parametrize("favourite", [" ", "\n", "7", "0"])
def test_runaway_whitespace_or_digits_under_a_grammar(favourite: str, shared: Executor) -> None:
    spec = GrammarSpec(
        GrammarKind.JSON_SCHEMA,
        '{"type": "object", "properties": {"n": {"type": "number"}, "i": {"type": "integer"}}, "required": ["n", "i"],'
        ' "additionalProperties": false}',
    )
    (token,) = byte_tokenizer().encode(favourite)
    wishes = SamplingParams(max_tokens=100, logit_bias=((token, 100.0),))
    ((tokens, last),) = generate(shared, Request(f"w{ord(favourite)}", prompt(3), wishes, spec))
    assert last.finish_reason is FinishReason.STOP
    assert set(json.loads(byte_tokenizer().decode(tokens))) == {"n", "i"}


def test_a_head_padded_beyond_the_vocabulary_makes_tokens_that_are_none(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = save(make_model("llama", vocab_size=320), tmp_path_factory.mktemp("padded"))
    with engine(path) as executor:
        assert executor.model_info.vocab_size == END + 1
        wild = [SamplingParams(max_tokens=40, temperature=50.0, seed=seed, ignore_eos=True) for seed in range(4)]
        results = generate(executor, *(Request(str(i), prompt(i), sampling) for i, sampling in enumerate(wild)))
    assert all(len(tokens) == 40 and max(tokens) <= END for tokens, _ in results)


@pytest.mark.parametrize("page_size", [16, 32, 64])
def test_a_cache_hit_answers_otherwise_than_a_miss(page_size: int, checkpoint: Path) -> None:
    def requests(prefix: str) -> list[Request]:
        ways = [{"temperature": 0.0}, {"temperature": 0.9, "seed": 5, "top_p": 0.9}]
        lengths = [page_size, page_size + 1, 2 * page_size - 1, 2 * page_size, 2 * page_size + 1, 150]
        return [
            Request(f"{prefix}{length}-{way}", prompt(1, length), SamplingParams(max_tokens=page_size + 2, **options))
            for length in lengths
            for way, options in enumerate(ways)
        ]

    with engine(checkpoint, page_size=page_size, prefix_cache=False) as executor:
        plain = [tokens for tokens, _ in generate(executor, *requests("p"))]
    with engine(checkpoint, page_size=page_size) as executor:
        for round_ in range(2):
            results = generate(executor, *requests(str(round_)))
            assert [tokens for tokens, _ in results] == plain
        for _, last in results:  # all full pages but for the last token, which is always computed
            whole = (last.usage.prompt_tokens - 1) // page_size * page_size
            assert last.usage.cached_tokens == whole


def test_thrash_and_lost_output_under_memory_pressure(checkpoint: Path) -> None:
    requests = [Request(str(i), prompt(2 * i), SamplingParams(max_tokens=50, ignore_eos=True)) for i in range(8)]
    with engine(checkpoint) as executor:
        calm = [tokens for tokens, _ in generate(executor, *requests)]
    with engine(checkpoint, kv_cache_bytes=12 * 16 * TOKEN_BYTES, max_model_len=128) as executor:
        pressed = generate(executor, *requests)
        stats = executor.stats()
    assert [tokens for tokens, _ in pressed] == calm
    assert 0 < stats.preemptions <= len(requests), "pressed, and nobody is thrown out again and again"


def test_pages_are_leaked_by_aborts(checkpoint: Path) -> None:
    chance = random.Random(3)
    with engine(checkpoint, kv_cache_bytes=40 * 16 * TOKEN_BYTES, max_num_seqs=4) as executor:
        ids = [str(i) for i in range(40)]
        for i, name in enumerate(ids):
            executor.enqueue_request(Request(name, prompt(i), SamplingParams(max_tokens=60, ignore_eos=True)))
            if chance.random() < 0.7:
                executor.cancel_request(chance.choice(ids[: i + 1]))
        responses = [r for got in collect(executor, ids).values() for r in got]
        stats = executor.stats()
    check_ends(ids, responses)
    assert any(response.finish_reason is FinishReason.CANCELLED for response in responses)
    assert stats.pages_owned == 0
    assert stats.pages_free + stats.pages_cached == stats.pages_total


def test_broken_utf8_in_a_stream() -> None:
    tokenizer, text = byte_tokenizer(), "né 日本 🍞"
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push((token,)) for token in tokenizer.encode(text)]
    assert len(pieces) == len(text.encode())
    assert [piece for piece in pieces if piece] == list(text)


# Scheduler and memory alone


def scheduler(budget: int = 8, pages: int = 32) -> Scheduler:
    return Scheduler(PagePool(pages), page_size=4, max_num_seqs=4, max_num_batched_tokens=budget)


def sequence(name: str, tokens: tuple[int, ...], arrival: int = 0) -> Sequence:
    return Sequence(Request(name, tokens), arrival, 0.0, root_hash(""))


def test_late_results_after_a_cancel_are_taken() -> None:
    one, gone = scheduler(), sequence("a", (1, 2, 3))
    one.add(gone)
    (late,) = one.plan()
    one.remove(gone)
    heir = sequence("b", (7, 8, 9))  # gets the same page
    one.add(heir)
    (now,) = one.plan()
    assert not one.commit(late)
    assert one.commit(now)
    assert (gone.computed, heir.computed) == (0, 3)
    one.check()


def test_stale_drafts_after_preemption_are_verified() -> None:
    one, request = scheduler(), sequence("a", (1, 2, 3))
    one.add(request)
    (item,) = one.plan()
    one.commit(item)
    request.tokens.append(4)
    (item,) = one.plan({"a": (5, 6)})
    assert item.draft == (5, 6)
    one._preempt(request)
    assert not one.commit(item)
    plan = one.plan()
    check_plan(plan, one.running, 4)
    (again,) = plan
    assert (again.start, again.tokens, again.draft) == (0, [1, 2, 3, 4], ())


def test_reuse_is_not_counted_in_the_budget() -> None:
    one = scheduler()
    first = sequence("a", tuple(range(13)))
    one.add(first)
    while first.remaining:
        for item in one.plan():
            one.commit(item)
    one.remove(first)
    for arrival in range(3):
        one.add(sequence(str(arrival), (*range(12), 50 + arrival, 60), arrival))
    plan = one.plan()
    assert [(item.start, item.count) for item in plan] == [(12, 2)] * 3, "36 cached tokens cost none of the 8"


def test_predictable_prefix_hashes_are_shared_across_tenants() -> None:
    assert root_hash("tenant", "model", "float32") == root_hash("tenant", "model", "float32")
    others = [("other", "model", "float32"), ("tenant", "model 2", "float32"), ("tenant", "model", "bfloat16")]
    roots = {root_hash(*parts) for parts in [("tenant", "model", "float32"), *others]}
    assert len(roots) == 4
    assert root_hash("ab", "c") != root_hash("a", "bc")
    assert root_hash("") != blake2b(b"", digest_size=16, person=b"quarry-prefix").digest()
    script = "from inference.memory.prefix import root_hash; print(root_hash('tenant').hex())"
    other_process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert other_process.stdout.strip() != root_hash("tenant").hex()
