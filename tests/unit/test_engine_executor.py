"""The whole engine from Python: greedy text as transformers makes it, whatever happens around a request."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from transformers import PreTrainedModel

from inference.config import EngineConfig
from inference.core.loop import Core
from inference.core.process import CoreThread
from inference.executor import EngineStopped, Executor, QueueFull
from inference.request import (
    FinishReason,
    GrammarKind,
    GrammarSpec,
    Request,
    RequestRejected,
    SamplingParams,
)
from tests.tiny_models import END, HEAD_SIZE, byte_tokenizer, collect, generate, greedy, make_model, save

PAGE_BYTES = 8 * 2 * 3 * 2 * 16 * 4  # page of 8 tokens: keys and values, 3 layers, 2 KV heads of 16, fp32
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "year": {"type": "integer", "minimum": 0, "maximum": 9999},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        },
        "required": ["name", "year", "tags"],
        "additionalProperties": False,
    }
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[PreTrainedModel, Path]]:
    built = {family: make_model(family) for family in ("llama", "qwen2")}
    return {family: (model, save(model, tmp_path_factory.mktemp(family))) for family, model in built.items()}


@contextmanager
def engine(path: Path, **changes: Any) -> Iterator[Executor]:
    settings: dict[str, Any] = {"dtype": "float32", "page_size": 8, "num_threads": 1, "max_num_batched_tokens": 64}
    executor = Executor(EngineConfig(path, **{**settings, **changes}), byte_tokenizer(), CoreThread)
    try:
        yield executor
        stats = executor.stats()
        assert stats.pages_free + stats.pages_cached == stats.pages_total, "pages leak"
    finally:
        executor.shutdown()


def inside(executor: Executor) -> Core:
    """Its core, which is a thread of ours: tests that break something in it need a way in."""
    assert isinstance(executor._client.core, CoreThread)
    assert executor._client.core.core is not None
    return executor._client.core.core


@pytest.fixture(scope="module")
def shared(models: dict[str, tuple[PreTrainedModel, Path]]) -> Iterator[Executor]:
    """An engine for tests that leave it as it was."""
    with engine(models["qwen2"][1]) as executor:
        yield executor


@pytest.fixture(scope="module")
def qwen2(models: dict[str, tuple[PreTrainedModel, Path]]) -> PreTrainedModel:
    return models["qwen2"][0]


def prompts(count: int, shortest: int = 3, longest: int = 60) -> list[tuple[int, ...]]:
    """Mixed lengths, some of them with a shared beginning."""
    shared = tuple((7 * i) % 200 for i in range(longest))
    made = []
    for index in range(count):
        length = shortest + (index * 13) % (longest - shortest)
        own = tuple((index * 31 + i * i) % 200 for i in range(length))
        made.append(shared[: length // 2] + own[length // 2 :] if index % 2 else own)
    return made


def requests_of(texts: list[tuple[int, ...]], tokens: int = 12, prefix: str = "r", **changes: Any) -> list[Request]:
    return [
        Request(f"{prefix}{index}", text, SamplingParams(max_tokens=tokens), **changes)
        for index, text in enumerate(texts)
    ]


# Agreement


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_num_seqs": 1},
        {"max_num_batched_tokens": 5, "max_num_seqs": 4},
        {"prefix_cache": False},
        {"kv_cache_bytes": 14 * PAGE_BYTES, "max_model_len": 96},
        {"page_size": 1, "max_num_batched_tokens": 16, "max_num_seqs": 8},
    ],
    ids=["plain", "one at a time", "small chunks", "no prefix cache", "few pages", "page of one"],
)
def test_greedy_text_equals_transformers(
    family: str, changes: dict[str, Any], models: dict[str, tuple[PreTrainedModel, Path]]
) -> None:
    model, path = models[family]
    texts = prompts(10)
    with engine(path, **changes) as executor:
        for round_ in range(2):  # the second time, from the prefix cache where there is one
            results = generate(executor, *requests_of(texts, prefix=f"{round_}-"))
            for text, (tokens, last) in zip(texts, results, strict=True):
                expected = greedy(model, text, 12)
                ended = expected[-1] == END
                assert tokens == (expected[:-1] if ended else expected)
                assert last.finish_reason is (FinishReason.STOP if ended else FinishReason.LENGTH)
                assert last.usage.prompt_tokens == len(text)
                assert last.usage.completion_tokens == len(expected)
        stats = executor.stats()
    if "kv_cache_bytes" in changes:
        assert stats.preemptions > 0, "the pool was meant to be too small"
    assert (stats.cached_tokens > 0) == changes.get("prefix_cache", True)


def test_usage_of_a_cache_hit(shared: Executor) -> None:
    text = tuple(range(100, 141))
    (_, first), (_, second) = (generate(shared, Request(n, text, SamplingParams(max_tokens=2)))[0] for n in ("a", "b"))
    assert first.usage.cached_tokens == 0
    assert second.usage.cached_tokens == 40
    assert second.usage.prompt_tokens == 41


def test_json_requests_beside_plain_ones_change_neither(shared: Executor) -> None:
    texts = prompts(8)
    plain = requests_of(texts, prefix="p")
    grammar = GrammarSpec(GrammarKind.JSON_SCHEMA, SCHEMA)
    constrained = requests_of(texts, tokens=90, prefix="j", grammar=grammar)
    sampled = [
        Request(f"s{i}", text, SamplingParams(max_tokens=12, temperature=0.9, top_p=0.9, top_k=40, seed=i))
        for i, text in enumerate(texts)
    ]
    alone = [generate(shared, request)[0][0] for request in (*plain, *constrained, *sampled)]
    mixed = [request for trio in zip(plain, constrained, sampled, strict=True) for request in trio]
    together = dict(zip([r.id for r in mixed], generate(shared, *mixed), strict=True))
    assert [together[r.id][0] for r in (*plain, *constrained, *sampled)] == alone
    tokenizer = byte_tokenizer()
    for request in constrained:
        tokens, last = together[request.id]
        assert last.finish_reason is FinishReason.STOP
        jsonschema.validate(json.loads(tokenizer.decode(tokens)), json.loads(SCHEMA))


# Grammar


@pytest.mark.parametrize(
    ("kind", "source", "holds"),
    [
        (GrammarKind.REGEX, "[ab]{3,5}x", lambda text: set(text[:-1]) <= set("ab") and text[-1] == "x"),
        (GrammarKind.CHOICE, '["yes", "no", "\\"quoted\\""]', lambda text: text in ("yes", "no", '"quoted"')),
        (GrammarKind.JSON_SCHEMA, '{"type": "array", "items": {"type": "boolean"}, "maxItems": 4}', json.loads),
        (GrammarKind.JSON_SCHEMA, '{"const": "\\u00e9"}', lambda text: json.loads(text) == "é"),
    ],
)
def test_output_follows_the_grammar(
    kind: GrammarKind, source: str, holds: Callable[[str], Any], shared: Executor
) -> None:
    for seed in range(5):
        sampling = SamplingParams(max_tokens=40, temperature=1.0, seed=seed)
        tokens, last = generate(shared, Request(f"g{seed}", (1, 2, 3), sampling, GrammarSpec(kind, source)))[0]
        text = byte_tokenizer().decode(tokens)
        assert last.finish_reason is FinishReason.STOP, text
        assert END not in tokens
        assert holds(text) is not False


def test_an_object_without_a_schema_parses_or_is_cut(shared: Executor) -> None:
    spec = GrammarSpec(GrammarKind.JSON_OBJECT, "")
    stopped = 0
    for seed in range(6):
        sampling = SamplingParams(max_tokens=60, temperature=1.0, seed=seed)
        tokens, last = generate(shared, Request(f"o{seed}", (4, 5), sampling, spec))[0]
        assert tokens[0] == byte_tokenizer().encode("{")[0]
        if last.finish_reason is FinishReason.STOP:
            stopped += 1
            assert isinstance(json.loads(byte_tokenizer().decode(tokens)), dict)
        else:
            assert last.finish_reason is FinishReason.LENGTH
    assert stopped


def test_separators_are_compact_and_no_other_space_is_made(shared: Executor) -> None:
    spec = GrammarSpec(GrammarKind.JSON_SCHEMA, '{"const": {"a": 1, "b": [1, 2]}}')
    tokens, _ = generate(shared, Request("c", (9,), SamplingParams(max_tokens=60), spec))[0]
    assert byte_tokenizer().decode(tokens) == '{"a": 1, "b": [1, 2]}'


@pytest.mark.parametrize(
    ("kind", "source", "words"),
    [
        (GrammarKind.JSON_SCHEMA, "{", "cannot be read"),
        (GrammarKind.JSON_SCHEMA, '{"type": "nonsense"}', "nonsense"),
        (GrammarKind.JSON_SCHEMA, '{"type": "string", "pattern": "("}', "cannot be enforced"),
        (GrammarKind.JSON_SCHEMA, '{"allOf": [{"type": "string"}, {"type": "number"}]}', "cannot be enforced"),
        (GrammarKind.JSON_SCHEMA, '{"$ref": "#/nowhere"}', "cannot be enforced"),
        (GrammarKind.JSON_SCHEMA, '{"description": "' + "x" * 300_000 + '"}', "the limit is 262144"),
        (GrammarKind.JSON_SCHEMA, "[" * 100_000, "cannot be read"),
        (GrammarKind.REGEX, "(", "cannot be enforced"),
        (GrammarKind.CHOICE, "[]", "at least one"),
        (GrammarKind.CHOICE, '"yes"', "at least one"),
    ],
)
def test_a_bad_grammar_is_refused_in_words(kind: GrammarKind, source: str, words: str, shared: Executor) -> None:
    with pytest.raises(RequestRejected, match=words):
        shared.enqueue_request(Request("bad", (1,), grammar=GrammarSpec(kind, source)))
    assert generate(shared, Request("bad", (1,), SamplingParams(max_tokens=1)))[0][1].finished


# Sampling


def test_a_seed_gives_the_same_tokens_and_none_gives_others(shared: Executor) -> None:
    def run(name: str, seed: int | None) -> tuple[int, ...]:
        sampling = SamplingParams(max_tokens=20, temperature=1.5, seed=seed, ignore_eos=True)
        return generate(shared, Request(name, (1, 2, 3), sampling))[0][0]

    assert run("a", 5) == run("b", 5)
    assert len({run(str(seed), seed) for seed in range(4)}) > 1
    assert run("c", None) != run("d", None)


def test_tokens_beyond_the_vocabulary_are_never_made(shared: Executor, qwen2: PreTrainedModel) -> None:
    sampling = SamplingParams(max_tokens=200, temperature=50.0, seed=1, ignore_eos=True)
    tokens, _ = generate(shared, Request("hot", (1, 2), sampling))[0]
    assert qwen2.config.vocab_size == HEAD_SIZE
    assert max(tokens) <= END
    assert len(set(tokens)) > 60


def test_logprobs_are_of_the_plain_distribution(shared: Executor, qwen2: PreTrainedModel) -> None:
    text = (10, 20, 30, 40)
    sampling = SamplingParams(max_tokens=4, temperature=2.0, top_k=50, seed=3, logprobs=5)
    spec = GrammarSpec(GrammarKind.REGEX, "[a-c]{4}")
    shared.enqueue_request(Request("l", text, sampling, spec))
    responses = collect(shared, ["l"])["l"]
    context = list(text)
    for response in responses:
        for token, entry in zip(response.token_ids, response.logprobs, strict=True):
            with torch.inference_mode():
                logits = qwen2(torch.tensor([context])).logits[0, -1, : END + 1]
            expected = logits.log_softmax(-1)
            assert entry.token_id == token
            assert math.isclose(entry.logprob, expected[token], abs_tol=1e-3)
            assert [t for t, _ in entry.top] == expected.topk(5).indices.tolist()
            assert entry.top[0][1] == pytest.approx(expected.max().item(), abs=1e-3)
            context.append(token)
    assert len(context) == 8


def test_stop_tokens_and_ignored_ends(shared: Executor, qwen2: PreTrainedModel) -> None:
    text = (11, 12, 13)
    plain = greedy(qwen2, text, 8)
    stop = SamplingParams(max_tokens=8, stop_token_ids=(plain[2],))
    tokens, last = generate(shared, Request("s", text, stop))[0]
    assert tokens == plain[: plain.index(plain[2])]
    assert last.finish_reason is FinishReason.STOP
    eager = SamplingParams(max_tokens=30, logit_bias=((END, 100.0),), ignore_eos=True)
    tokens, last = generate(shared, Request("i", text, eager))[0]
    assert tokens == (END,) * 30
    assert last.finish_reason is FinishReason.LENGTH


# Bad requests, cancels, deadlines


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request("r", ()), "no tokens"),
        (Request("r", (1,) * 500, SamplingParams(max_tokens=50)), "500 tokens and max_tokens is 50.*limit is 512"),
        (Request("r", (1, END + 1)), "token id 257 is outside the vocabulary of 257"),
        (Request("r", (-1,)), "token id -1"),
        (Request("r", (1,), SamplingParams(max_tokens=0)), "max_tokens is 0"),
        (Request("r", (1,), SamplingParams(temperature=-1)), "temperature is -1"),
        (Request("r", (1,), SamplingParams(temperature=math.nan)), "temperature is nan"),
        (Request("r", (1,), SamplingParams(top_p=0.0)), "top_p is 0"),
        (Request("r", (1,), SamplingParams(logprobs=99)), "logprobs is 99"),
        (Request("r", (1,), SamplingParams(min_p=1.5)), "min_p is 1.5; it must be between 0 and 1"),
        (Request("r", (1,), SamplingParams(repetition_penalty=0.0)), "repetition_penalty is 0.0"),
        (Request("r", (1,), SamplingParams(presence_penalty=-2.5)), "presence_penalty is -2.5"),
        (Request("r", (1,), SamplingParams(min_tokens=9, max_tokens=8)), "min_tokens is 9, above max_tokens"),
        (Request("r", (1,), SamplingParams(logit_bias=((END + 1, 1.0),))), "token id 257 is outside"),
        (Request("r", (1,), SamplingParams(logit_bias=((1, math.nan),))), "bias is nan"),
        (Request("r", (1,), SamplingParams(logit_bias=((1, 1.0), (1, 2.0)))), "names a token twice"),
        (Request("r", (1,), SamplingParams(stop_token_ids=(-5,))), "token id -5"),
        (Request("r", (1,), timeout_seconds=0.0), "timeout"),
        (Request("r", (1,), SamplingParams(temperature=1.0, seed=2**70)), "seed"),
    ],
)
def test_a_request_that_cannot_run_is_refused_in_words(request_: Request, words: str, shared: Executor) -> None:
    with pytest.raises(RequestRejected, match=words):
        shared.enqueue_request(request_)


def test_an_id_in_use_is_refused(shared: Executor) -> None:
    shared.enqueue_request(Request("twice", (1,), SamplingParams(max_tokens=1)))
    with pytest.raises(RequestRejected, match="'twice' is under way"):
        shared.enqueue_request(Request("twice", (1,)))
    collect(shared, ["twice"])
    assert generate(shared, Request("twice", (1,), SamplingParams(max_tokens=1)))


def test_cancelled_and_timed_out_requests_end_once_and_harm_none(
    models: dict[str, tuple[PreTrainedModel, Path]],
) -> None:
    model, path = models["llama"]
    endless = SamplingParams(max_tokens=400, ignore_eos=True)
    with engine(path, max_num_seqs=4) as executor:
        for index in range(6):  # more than can run: some are cancelled while they wait
            executor.enqueue_request(Request(f"c{index}", (index, 1, 2), endless))
        executor.enqueue_request(Request("late", (5,), endless, timeout_seconds=0.05))
        normal = requests_of(prompts(3), prefix="n")
        for request in normal:
            executor.enqueue_request(request)
        executor.cancel_request("c0", FinishReason.STOP)
        for index in range(1, 6):
            executor.cancel_request(f"c{index}")
        executor.cancel_request("unknown")
        got = collect(executor, [*(f"c{i}" for i in range(6)), "late", *(r.id for r in normal)])
        assert got["c0"][-1].finish_reason is FinishReason.STOP
        assert all(got[f"c{i}"][-1].finish_reason is FinishReason.CANCELLED for i in range(1, 6))
        assert got["late"][-1].finish_reason is FinishReason.TIMEOUT
        assert "0.05 s" in str(got["late"][-1].error)
        for request in normal:
            expected = greedy(model, request.prompt_token_ids, 12)
            assert tuple(t for r in got[request.id] for t in r.token_ids) == tuple(t for t in expected if t != END)
        assert all(sum(r.finished for r in responses) == 1 for responses in got.values())
        assert executor.await_responses(timeout=0.05) == []


def test_a_full_queue_refuses_and_recovers(models: dict[str, tuple[PreTrainedModel, Path]]) -> None:
    with engine(models["llama"][1], max_num_seqs=1, max_waiting=2) as executor:
        generate(executor, Request("before", (1,), SamplingParams(max_tokens=1)))  # from here on there is a rate
        endless = SamplingParams(max_tokens=500, ignore_eos=True)
        for index in range(3):
            executor.enqueue_request(Request(str(index), (1,), endless))
        with pytest.raises(QueueFull, match="limit is 3") as refused:
            executor.enqueue_request(Request("3", (1,), endless))
        with pytest.raises(QueueFull) as refused_too:
            executor.enqueue_request(Request("4", (1,), endless))
        assert 0 < refused.value.retry_after < refused_too.value.retry_after, "each is told a later time"
        for index in range(3):
            executor.cancel_request(str(index))
        collect(executor, ["0", "1", "2"])
        assert generate(executor, Request("3", (1,), SamplingParams(max_tokens=1)))


# Faults inside


# Those of the operating system are told from those of the client's connection: only these end the core.
FAULTS = [RuntimeError("it is on fire"), OSError(28, "it is on fire"), ConnectionResetError(104, "it is on fire")]


@pytest.mark.parametrize("fault", FAULTS, ids=["ours", "the disk's", "another connection's"])
def test_a_failing_step_fails_its_requests_and_the_loop_lives_on(
    fault: Exception, models: dict[str, tuple[PreTrainedModel, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path = models["llama"]
    with engine(path) as executor:
        runner = inside(executor).engine._runner
        forward = runner.forward

        def fail_on_nine(plan: Any) -> Any:
            if any(9 in item.sequence.request.prompt_token_ids for item in plan):
                raise fault
            return forward(plan)

        monkeypatch.setattr(runner, "forward", fail_on_nine)
        ((_, bad),) = generate(executor, Request("bad", (9, 9), SamplingParams(max_tokens=4)))
        assert bad.finish_reason is FinishReason.ERROR
        assert "the engine failed in a step" in str(bad.error)
        assert "it is on fire" in str(bad.error)
        ((tokens, _),) = generate(executor, Request("good", (8, 8), SamplingParams(max_tokens=4)))
        assert tokens == tuple(t for t in greedy(model, (8, 8), 4) if t != END)


@pytest.mark.parametrize("fault", FAULTS, ids=["ours", "the disk's", "another connection's"])
def test_a_failing_loop_fails_all_and_lives_on(
    fault: Exception, models: dict[str, tuple[PreTrainedModel, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path = models["llama"]
    with engine(path, max_num_seqs=2) as executor:
        scheduler = inside(executor).engine.scheduler
        plan, plans = scheduler.plan, 0

        def fail_at_the_third(drafts: Any) -> Any:
            nonlocal plans
            plans += 1
            if plans == 3:
                scheduler.pool.allocate(1)  # and leave a page behind
                raise fault
            return plan(drafts)

        monkeypatch.setattr(scheduler, "plan", fail_at_the_third)
        endless = SamplingParams(max_tokens=50, ignore_eos=True)
        results = generate(executor, *(Request(str(i), (i, 7), endless) for i in range(4)))
        for _, last in results:
            assert last.finish_reason is FinishReason.ERROR
            assert "the engine's loop failed" in str(last.error)
            assert "it is on fire" in str(last.error)
        ((tokens, _),) = generate(executor, Request("good", (8, 8), SamplingParams(max_tokens=4)))
        assert tokens == tuple(t for t in greedy(model, (8, 8), 4) if t != END)


def test_a_request_that_cannot_be_taken_in_fails_alone(
    shared: Executor, qwen2: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads and random seeds are the operating system's to give."""
    core = inside(shared)

    def nothing_left(*_: object) -> None:
        raise OSError(11, "nothing left")

    spec = GrammarSpec(GrammarKind.REGEX, "nobody has asked for this before")
    with monkeypatch.context() as patch:
        patch.setattr(core._grammars, "submit", nothing_left)
        patch.setattr("inference.core.loop.fresh_seed", nothing_left)
        unseeded = Request("unseeded", (1, 2, 3), SamplingParams(max_tokens=5))
        constrained = Request("constrained", (1, 2, 3), SamplingParams(max_tokens=5, seed=1), spec)
        good = Request("seeded", (1, 2, 3), SamplingParams(max_tokens=5, seed=1))
        results = dict(zip("ucg", generate(shared, unseeded, constrained, good), strict=True))
    for name in "uc":
        tokens, last = results[name]
        assert (tokens, last.finish_reason) == ((), FinishReason.ERROR)
        assert "could not take the request in" in str(last.error)
        assert "nothing left" in str(last.error)
    assert results["g"][0] == tuple(t for t in greedy(qwen2, (1, 2, 3), 5) if t != END)
    assert generate(shared, replace(constrained, id="again"))[0][1].finish_reason is not FinishReason.ERROR


def test_a_grammar_that_fails_midway_fails_alone(shared: Executor, qwen2: PreTrainedModel) -> None:
    spec = GrammarSpec(GrammarKind.REGEX, "[a-z]{1,50}")
    bad = Request("bad", (1, 2, 3), SamplingParams(max_tokens=30, temperature=1.0), spec)
    good = Request("good", (4, 5, 6), SamplingParams(max_tokens=10))
    compiler = inside(shared).compiler
    matcher = compiler.matcher
    try:

        def poisoned(asked: GrammarSpec) -> Any:
            made = matcher(asked)
            made.consume(byte_tokenizer().encode("A")[0])
            return made

        compiler.matcher = poisoned  # type: ignore[method-assign]
        (_, failed), (tokens, _) = generate(shared, bad, good)
    finally:
        compiler.matcher = matcher  # type: ignore[method-assign]
    assert failed.finish_reason is FinishReason.ERROR
    assert "grammar" in str(failed.error)
    assert tokens == tuple(t for t in greedy(qwen2, (4, 5, 6), 10) if t != END)


# Life


def test_many_callers_at_once(shared: Executor, qwen2: PreTrainedModel) -> None:
    texts = prompts(12)
    found: dict[int, tuple[int, ...]] = {}

    def call(index: int) -> None:
        request = Request(f"t{index}", texts[index], SamplingParams(max_tokens=6))
        shared.enqueue_request(request)
        tokens: list[int] = []
        while True:
            for response in shared.await_responses(request.id, timeout=60):
                tokens += response.token_ids
                if response.finished:
                    found[index] = tuple(tokens)
                    return

    threads = [threading.Thread(target=call, args=(i,)) for i in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, text in enumerate(texts):
        assert found[index] == tuple(t for t in greedy(qwen2, text, 6) if t != END)
    with pytest.raises(KeyError, match="t0"):
        shared.await_responses("t0")


def test_shutdown_ends_what_runs(models: dict[str, tuple[PreTrainedModel, Path]]) -> None:
    path = models["llama"][1]
    endless = SamplingParams(max_tokens=400, ignore_eos=True)
    with engine(path) as executor:
        executor.enqueue_request(Request("a", (1,), endless))
        executor.shutdown()
        assert collect(executor, ["a"])["a"][-1].finish_reason is FinishReason.CANCELLED
        with pytest.raises(EngineStopped):
            executor.enqueue_request(Request("b", (1,)))
        executor.shutdown()
    with engine(path) as executor:
        executor.enqueue_request(Request("a", (1,), SamplingParams(max_tokens=30, ignore_eos=True)))
        executor.shutdown(drain=True)
        assert collect(executor, ["a"])["a"][-1].finish_reason is FinishReason.LENGTH


def test_usage_adds_up(shared: Executor) -> None:
    before, started = shared.stats(), time.monotonic()
    results = generate(shared, *requests_of(prompts(6), prefix="u"))
    elapsed, after = time.monotonic() - started, shared.stats()
    spent = sum(last.usage.device_seconds for _, last in results)
    assert spent == pytest.approx(after.step_seconds - before.step_seconds)
    assert 0 < spent <= elapsed
    for _, last in results:
        usage = last.usage
        assert usage.ttft_seconds is not None
        assert 0 <= usage.queue_seconds <= usage.ttft_seconds <= elapsed


def test_a_cache_too_small_for_a_page_says_so(models: dict[str, tuple[PreTrainedModel, Path]]) -> None:
    with pytest.raises(ValueError, match="kv_cache_bytes is 100"):
        Executor(EngineConfig(models["llama"][1], dtype="float32", kv_cache_bytes=100), byte_tokenizer())


def test_model_info(shared: Executor) -> None:
    info = shared.model_info
    assert (info.architecture, info.dtype, info.device) == ("qwen2", "float32", "cpu")
    assert (info.vocab_size, info.max_model_len) == (257, 512)
    assert info.parameters == sum(p.numel() for p in make_model("qwen2").parameters())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dtype": "int3"}, "dtype is 'int3'"),
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"quantization": "int3"}, "quantization is 'int3'; it must be one of auto, none, fp16, int8"),
        ({"page_size": 0}, "page_size is 0"),
        ({"max_num_seqs": 9, "max_num_batched_tokens": 8}, "max_num_seqs is 9"),
    ],
)
def test_a_wrong_configuration_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        EngineConfig(Path("m.gguf"), **change)
