"""What drafts save on pages: tokens per forward and wall-clock time, beside the same engine without them.

Real pages are cleaned and put into a schema's prompt as an extraction job would, cut to the same number of tokens, and
answered under the schema's grammar, at several batch sizes. Answers must be the same however they were made.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from inference.config import EngineConfig
from inference.executor import Executor
from inference.request import GrammarKind, GrammarSpec, Request, SamplingParams
from inference.tokenizer import Tokenizer, load_tokenizer
from pipeline.clean import clean
from pipeline.errors import DocumentError
from pipeline.load import SourceDocument, iter_sources
from pipeline.prompt import Prompt
from pipeline.schema import ExtractionSchema

WAYS: dict[str, tuple[str, ...]] = {
    "off": (),
    "forced": ("forced",),
    "lookup": ("lookup",),
    "both": ("forced", "lookup"),
}


@dataclass(frozen=True)
class Result:
    """`seconds` of each round; the rounds of all ways take turns, so that a noisy machine disturbs all alike."""

    way: str
    batch: int
    seconds: tuple[float, ...]
    tokens: int
    forwards: int
    proposed: int
    accepted: int

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def tokens_per_forward(self) -> float:
        return self.tokens / self.forwards


def run(
    model: Path,
    folders: Sequence[str],
    schema: ExtractionSchema,
    *,
    draft_model: Path | None,
    batches: Sequence[int],
    requests: int,
    rounds: int,
    prompt_tokens: int,
    as_json: bool,
) -> list[Result]:
    """Measure and print: a table, or JSON on standard output. Raises ValueError when no page can be read."""
    console = Console(stderr=True)
    tokenizer = load_tokenizer(model)
    work = list(_requests(folders, schema, tokenizer, requests, prompt_tokens))
    if not work:
        raise ValueError(f"no page to read in {', '.join(folders)}")
    base = EngineConfig(model, prefix_cache=False)
    ways = {name: replace(base, speculation=sources) for name, sources in WAYS.items()}
    if draft_model is not None:
        ways["both + draft"] = replace(base, draft_model_path=draft_model)
    results = []
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("", total=len(batches) * rounds * len(ways))
        for batch in batches:
            config = {name: replace(way, max_num_seqs=batch) for name, way in ways.items()}
            measured: dict[str, list[_Round]] = {name: [] for name in ways}
            for _ in range(rounds):
                for name, way in config.items():
                    bar.update(task, description=f"{name}, batch {batch}")
                    measured[name].append(_round(way, tokenizer, work))
                    bar.advance(task)
            plain = measured["off"][0].answers
            for name, made in measured.items():
                assert all(r.answers == plain for r in made), f"{name}, batch {batch}: the answers are not the same"
                last = made[-1]
                seconds = tuple(r.seconds for r in made)
                results.append(Result(name, batch, seconds, last.tokens, last.forwards, last.proposed, last.accepted))
    _print(model, draft_model, len(work), results, as_json)
    return results


@dataclass(frozen=True)
class _Round:
    seconds: float
    answers: list[tuple[int, ...]]
    tokens: int
    forwards: int
    proposed: int
    accepted: int


def _requests(
    folders: Sequence[str], schema: ExtractionSchema, tokenizer: Tokenizer, count: int, prompt_tokens: int
) -> Iterator[Request]:
    """Extraction requests, one for each readable page, at most `count`."""
    prompt = Prompt.of(schema)
    grammar = GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(schema.grammar_schema))
    sources = (source for source in iter_sources(folders) if isinstance(source, SourceDocument))
    made = 0
    for source in sources:
        if made == count:
            return
        try:
            text = clean(source.data, source.media_type).text
        except DocumentError:
            continue
        kept = tokenizer.decode(tokenizer.encode(text, special=False)[:prompt_tokens])
        tokens = tuple(tokenizer.encode_chat(prompt.messages(kept)))
        yield Request(str(made), tokens, SamplingParams(max_tokens=prompt_tokens), grammar)
        made += 1


def _round(config: EngineConfig, tokenizer: Tokenizer, work: Sequence[Request]) -> _Round:
    executor = Executor(config, tokenizer)
    try:
        _answers(executor, [replace(work[0], id="warm-up")])
        before = executor.stats()
        started = time.perf_counter()
        answers = _answers(executor, work)
        seconds = time.perf_counter() - started
        after = executor.stats()
    finally:
        executor.shutdown()
    return _Round(
        seconds,
        answers,
        after.completion_tokens - before.completion_tokens,
        after.forwards - before.forwards,
        after.draft_tokens - before.draft_tokens,
        after.accepted_draft_tokens - before.accepted_draft_tokens,
    )


def _answers(executor: Executor, work: Sequence[Request]) -> list[tuple[int, ...]]:
    made: dict[str, tuple[int, ...]] = {request.id: () for request in work}
    for request in work:
        executor.enqueue_request(request)
    open_requests = len(work)
    while open_requests:
        for response in executor.await_responses():
            assert response.error is None, response.error
            made[response.request_id] += response.token_ids
            open_requests -= response.finished
    return list(made.values())


def _print(model: Path, draft_model: Path | None, requests: int, results: Sequence[Result], as_json: bool) -> None:
    plain = {r.batch: r.median for r in results if r.way == "off"}
    if as_json:
        rows = [asdict(r) | {"ratio": plain[r.batch] / r.median} for r in results]
        print(json.dumps({"model": str(model), "draft_model": str(draft_model or ""), "results": rows}))
        return
    table = Table(title=f"{model.parent.name}/{model.name}, {requests} pages")
    for name in ("batch", "drafts", "seconds", "tokens", "tokens/forward", "proposed", "came true", "faster by"):
        table.add_column(name, justify="left" if name == "drafts" else "right")
    for r in results:
        share = f"{r.accepted / r.proposed:.0%}" if r.proposed else ""
        table.add_row(
            str(r.batch), r.way, f"{r.median:.1f}", str(r.tokens), f"{r.tokens_per_forward:.2f}", str(r.proposed),
            share, f"{plain[r.batch] / r.median:.2f} ×", end_section=r is results[-1] or r.way == list(WAYS)[-1],
        )  # fmt: skip
    Console().print(table)
