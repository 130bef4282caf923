"""The engine beside `transformers.generate` and llama.cpp's server: same weights, same prompts, same output lengths.

The mixes of `bench.workloads` are sent all at once, `concurrency` of them under way at a time. Rounds of all engines
take turns, each with prompts of its own, so that a noisy machine disturbs all alike and no round finds the answers of
another in a prefix cache. Medians of the rounds count.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from bench.rivals import Contestant, LlamaCpp, Load, Outcome, Rival, Transformers, has_llama_cpp
from bench.workloads import MIXES, Source, Work
from inference.config import EngineConfig
from inference.executor import Executor
from inference.request import GrammarKind, GrammarSpec, Request, SamplingParams
from inference.tokenizer import Tokenizer, load_tokenizer
from pipeline.clean import clean
from pipeline.errors import DocumentError
from pipeline.load import SourceDocument, iter_sources

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
PAGES = tuple(str(EXAMPLES / folder) for folder in ("recipes", "postgres", "texts"))
AIMS = {"transformers": 3.0, "llama.cpp": 1.0}
INSTALL = "llama.cpp is left out: pip install 'quarry[bench]' brings it."


@dataclass(frozen=True)
class Plan:
    """What is run."""

    mixes: Sequence[str] = tuple(MIXES)
    requests: int = 32
    concurrency: int = 32
    shrink: float = 10.0
    rounds: int = 2
    seed: int = 1
    quantization: str = "auto"
    threads: int = os.cpu_count() or 1
    rivals: Sequence[str] = ("llama.cpp", "transformers")
    pages: Sequence[str] = PAGES  # whose text is in the prompts of the extraction mix


@dataclass(frozen=True)
class Result:
    """One engine on one mix: medians of the rounds, in requests and tokens a second."""

    mix: str
    engine: str
    requests_per_second: float
    output_per_second: float
    total_per_second: float
    memory: int  # bytes resident, the most seen after a round
    rounds: tuple[Outcome, ...]
    tokens_per_forward: float | None = None  # of ours: of each request's output


class Quarry:
    """Our engine as a contestant: an executor and its core's process."""

    def __init__(self, path: Path, tokenizer: Tokenizer, load: Load, *, quantization: str, drafts: bool) -> None:
        base = EngineConfig(path)
        config = EngineConfig(
            path,
            max_num_seqs=load.concurrency,
            max_num_batched_tokens=max(base.max_num_batched_tokens, load.concurrency),
            num_threads=load.threads,
            quantization=quantization,
            speculation=base.speculation if drafts else (),
        )
        before = {child.pid for child in psutil.Process().children()}
        self._executor = Executor(config, tokenizer)
        self._core = next(child for child in psutil.Process().children() if child.pid not in before)
        info = self._executor.model_info
        self.name = f"quarry {info.dtype if info.quantization == 'none' else info.quantization}"
        self.tokens_per_forward: list[float] = []
        self._runs = 0

    def run(self, work: Sequence[Work]) -> Outcome:
        self._runs += 1
        before = self._executor.stats()
        started = time.perf_counter()
        for i, item in enumerate(work):
            self._executor.enqueue_request(_request(f"{self._runs}-{i}", item))
        open_requests, made = len(work), 0
        while open_requests:
            for response in self._executor.await_responses():
                assert response.error is None, response.error
                made += len(response.token_ids)
                open_requests -= response.finished
        seconds = time.perf_counter() - started
        assert made == sum(item.output for item in work), "the engine made another number of tokens than asked for"
        after = self._executor.stats()
        self.tokens_per_forward.append(made / max(1, after.forwards - before.forwards))
        return Outcome(seconds, len(work), sum(len(w.prompt) for w in work), made)

    def memory(self) -> int:
        return self._core.memory_info().rss

    def close(self) -> None:
        self._executor.shutdown()


def _request(name: str, item: Work) -> Request:
    grammar = None if item.schema is None else GrammarSpec(GrammarKind.JSON_SCHEMA, item.schema)
    return Request(name, item.prompt, SamplingParams(max_tokens=item.output, ignore_eos=grammar is None), grammar)


def run(path: Path, plan: Plan, *, as_json: bool) -> list[Result]:
    """Measure and print: a table, or JSON on standard output. Raises RivalFailed."""
    console = Console(stderr=True)
    tokenizer = load_tokenizer(path)
    source = _source(tokenizer, plan.pages)
    work = {mix: list(_rounds(mix, plan, source)) for mix in plan.mixes}
    longest = max(len(w.prompt) + w.output for rounds in work.values() for part in rounds for w in part)
    load = Load(plan.concurrency, -(-longest // 64) * 64, plan.threads)
    results: list[Result] = []
    with ExitStack() as opened:
        rivals = list(_rivals(path, plan, load, console, opened))
        for mix in plan.mixes:
            # Drafts copy from the page and from themselves. Nobody asks for what follows random tokens, which soon
            # repeats itself, and every draft would come true.
            drafts = any(item.schema is not None for item in work[mix][0])
            with console.status("loading quarry"), _quarry(path, tokenizer, load, plan, drafts) as ours:
                contestants: list[Contestant] = [ours, *rivals]
                for contestant in contestants:
                    contestant.run([Work(work[mix][0][0].prompt[:16], 4)])
                results += _measure(mix, work[mix][1:], contestants, console)
    _print(path, plan, results, as_json)
    return results


@contextmanager
def _quarry(path: Path, tokenizer: Tokenizer, load: Load, plan: Plan, drafts: bool) -> Iterator[Quarry]:
    ours = Quarry(path, tokenizer, load, quantization=plan.quantization, drafts=drafts)
    try:
        yield ours
    finally:
        ours.close()


def _rivals(path: Path, plan: Plan, load: Load, console: Console, opened: ExitStack) -> Iterator[Contestant]:
    for name in plan.rivals:
        if name == "llama.cpp":
            if path.is_dir() and not list(path.glob("*.gguf")):
                console.print("llama.cpp is left out: it reads GGUF, and this is a folder of safetensors.")
                continue
            if not has_llama_cpp():
                console.print(INSTALL)
                continue
        with console.status(f"loading {name}"):
            rival = Rival(LlamaCpp if name == "llama.cpp" else Transformers, path, load)
        opened.callback(rival.close)
        yield rival


def _source(tokenizer: Tokenizer, pages: Sequence[str]) -> Source:
    text: list[int] = []
    for source in iter_sources(pages):
        if isinstance(source, SourceDocument):
            try:
                text += tokenizer.encode(clean(source.data, source.media_type).text, special=False)
            except DocumentError:
                continue
    return Source(tokenizer.vocab_size, lambda words: tokenizer.encode(words, special=False), text)


def _rounds(mix: str, plan: Plan, source: Source) -> Iterator[list[Work]]:
    """The work of a warm-up and of each round."""
    for index in range(plan.rounds + 1):
        yield MIXES[mix](plan.requests, plan.seed + 1000 * index, plan.shrink, source)


def _measure(
    mix: str, rounds: Sequence[Sequence[Work]], contestants: Sequence[Contestant], console: Console
) -> Iterator[Result]:
    outcomes: dict[str, list[Outcome]] = {contestant.name: [] for contestant in contestants}
    memory = dict.fromkeys(outcomes, 0)
    for number, work in enumerate(rounds, 1):
        # Who goes first changes, for a machine that is busier at one end of a round.
        for contestant in contestants if number % 2 else reversed(contestants):
            with console.status(f"{mix}, round {number}: {contestant.name}"):
                outcome = contestant.run(work)
            outcomes[contestant.name].append(outcome)
            memory[contestant.name] = max(memory[contestant.name], contestant.memory())
            console.print(f"{mix}, round {number}: {contestant.name}, {outcome.seconds:.1f} s", highlight=False)
    for contestant in contestants:
        yield _result(mix, contestant, outcomes[contestant.name], memory[contestant.name])


def _result(mix: str, contestant: Contestant, rounds: Sequence[Outcome], memory: int) -> Result:
    return Result(
        mix,
        contestant.name,
        statistics.median(r.requests / r.seconds for r in rounds),
        statistics.median(r.output_tokens / r.seconds for r in rounds),
        statistics.median((r.prompt_tokens + r.output_tokens) / r.seconds for r in rounds),
        memory,
        tuple(rounds),
        statistics.median(contestant.tokens_per_forward[1:]) if isinstance(contestant, Quarry) else None,
    )


def _rows(results: Sequence[Result]) -> Iterator[tuple[Result, float | None]]:
    """Each result, and how many times its total rate ours has: None for our own."""
    ours = {r.mix: r for r in results if r.engine.startswith("quarry")}
    for r in results:
        yield r, None if r is ours[r.mix] else ours[r.mix].total_per_second / r.total_per_second


def _print(path: Path, plan: Plan, results: Sequence[Result], as_json: bool) -> None:
    if as_json:
        rows: list[dict[str, Any]] = [
            {
                "mix": r.mix,
                "engine": r.engine,
                "requests_per_second": r.requests_per_second,
                "output_tokens_per_second": r.output_per_second,
                "total_tokens_per_second": r.total_per_second,
                "resident_bytes": r.memory,
                "tokens_per_forward": r.tokens_per_forward,
                "seconds": [o.seconds for o in r.rounds],
                "quarry_is_faster_by": ratio,
            }
            for r, ratio in _rows(results)
        ]
        print(json.dumps({"model": str(path), "threads": plan.threads, "requests": plan.requests,
                          "concurrency": plan.concurrency, "shrink": plan.shrink, "results": rows}))  # fmt: skip
        return
    table = Table(
        title=f"{path.parent.name}/{path.name}: {plan.requests} requests, {plan.concurrency} at once, lengths divided "
        f"by {plan.shrink:g}, {plan.threads} threads, median of {plan.rounds}"
    )
    for name in ("mix", "", "req/s", "output/s", "tokens/s", "per forward", "MiB", "faster by"):
        table.add_column(name, justify="left" if name in ("mix", "") else "right")
    last = {r.mix: r for r in results}
    for r, ratio in _rows(results):
        table.add_row(
            f"{r.mix}{', JSON' if r.mix == 'extraction' else ''}" if ratio is None else "", r.engine,
            f"{r.requests_per_second:.2f}", f"{r.output_per_second:.1f}", f"{r.total_per_second:.0f}",
            "" if r.tokens_per_forward is None else f"{r.tokens_per_forward:.2f}", f"{r.memory / 2**20:,.0f}",
            "" if ratio is None else f"{ratio:.2f} ×", end_section=r is last[r.mix],
        )  # fmt: skip
    Console().print(table)
    Console().print(
        "Aims: at least " + " and ".join(f"{aim:g} × {name}" for name, aim in AIMS.items()) + ", in total tokens a "
        "second. `per forward`: tokens of each request. transformers has no grammar: in the extraction mix it makes "
        "tokens of anything; its batches are as large as there are requests at once."
    )
