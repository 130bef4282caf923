"""The pipeline on a folder of pages: documents per second, where the time goes, the engine beside itself alone.

The pages go through the running service as a forced job. Afterwards the same prompts go straight to the engine, with
as many in flight as the extract worker had: what is lost between the two figures is what all around the engine costs.
"""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.progress import Progress as Bar
from rich.table import Table
from sqlalchemy import Engine, text

from db.session import make_engine
from pipeline.client import Client
from pipeline.engine_client import Completion, EngineClient
from pipeline.load import iter_sources
from pipeline.prompt import Prompt
from pipeline.records import CostRow
from pipeline.schema import ExtractionSchema
from pipeline.settings import Settings

# Spans whose own time is database and queue: a task's root (claim, commits, sending) and reading and writing rows.
OVERHEAD_STEPS = ("ingest", "extract", "load", "write")

_PROMPTS = text("""
SELECT r.id, string_agg(c.text, E'\\n\\n' ORDER BY c.ordinal) AS body
FROM quarry.run r
JOIN quarry.job_item i ON i.id = r.item_id
JOIN quarry.chunk c ON c.id = ANY(r.chunk_ids)
WHERE i.job_id = :job_id
GROUP BY r.id ORDER BY r.id
""")
_RUNS = text("""
SELECT coalesce(sum(input_tokens + cached_tokens), 0) AS prompt, coalesce(sum(output_tokens), 0) AS output,
       extract(epoch FROM max(r.ended_at) - min(r.started_at)) AS seconds, count(*) AS calls
FROM quarry.run r JOIN quarry.job_item i ON i.id = r.item_id WHERE i.job_id = :job_id
""")


@dataclass(frozen=True)
class EngineRate:
    """Tokens per second over the time from the first call to the end of the last."""

    calls: int
    prompt_tokens: int
    output_tokens: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return (self.prompt_tokens + self.output_tokens) / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Result:
    """Seconds are wall clock; those of steps are summed over workers and threads, so they exceed the job's."""

    documents: int
    failed: int
    seconds: float
    submit_seconds: float
    steps: Sequence[CostRow]
    in_pipeline: EngineRate
    alone: EngineRate

    @property
    def documents_per_second(self) -> float:
        return self.documents / self.seconds

    @property
    def overhead_seconds(self) -> float:
        """Database and queue, per document."""
        return sum(step.seconds for step in self.steps if step.group in OVERHEAD_STEPS) / max(self.documents, 1)


def run(paths: Sequence[str], *, schema: str, settings: Settings, as_json: bool = False) -> Result:
    """Submit, wait, replay; prints a table on stdout, or JSON. Raises what `Client.submit` raises."""
    with Client(settings) as client:
        result = measure(client, paths, schema)
    if as_json:
        print(json.dumps(as_figures(result), indent=2))
    else:
        show(result)
    return result


def measure(client: Client, paths: Sequence[str], schema: str) -> Result:
    """One forced job through the service, then its prompts to the engine alone."""
    settings = client.settings
    started = time.perf_counter()
    sources = iter_sources(paths, max_bytes=settings.max_document_bytes)
    submitted = client.submit(sources, schema, name="bench", force=True)
    submit_seconds = time.perf_counter() - started
    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("documents", total=submitted.items)
        for progress in client.watch(submitted.job_id, interval=0.2):
            bar.update(task, completed=progress.finished)
    job = client.job(submitted.job_id)
    assert job.finished_at is not None
    info = client.get_schema(schema)
    parsed = ExtractionSchema.parse(info.name, info.json_schema, info.instructions, info.examples)
    engine = make_engine(settings.endpoint("database_url"), pool_size=1, application="quarry bench")
    try:
        in_pipeline = _rate_of_job(engine, submitted.job_id)
        alone = replay(engine, submitted.job_id, parsed, settings)
    finally:
        engine.dispose()
    return Result(
        documents=job.done,
        failed=job.failed,
        seconds=(job.finished_at - job.created_at).total_seconds(),
        submit_seconds=submit_seconds,
        steps=client.costs("step", job_id=submitted.job_id),
        in_pipeline=in_pipeline,
        alone=alone,
    )


def replay(database: Engine, job_id: int, schema: ExtractionSchema, settings: Settings) -> EngineRate:
    """The job's prompts straight to the engine. Each page begins with a word of its own, so that only the schema's part
    is found in the engine's prefix cache, as it was in the job."""
    prompt = Prompt.of(schema)
    client = EngineClient.from_settings(settings)
    with database.connect() as connection:
        pages = [row.body for row in connection.execute(_PROMPTS, {"job_id": job_id})]

    def ask(page: str) -> Completion:
        return client.chat(
            prompt.messages(f"{secrets.token_hex(2)}\n{page}"),
            json_schema=schema.grammar_schema,
            max_tokens=settings.max_output_tokens,
            logprobs=True,
        )

    started = time.perf_counter()
    with ThreadPoolExecutor(settings.extract_concurrency) as pool:
        answers = list(pool.map(ask, pages))
    seconds = time.perf_counter() - started
    usages = [answer.usage for answer in answers]
    return EngineRate(
        len(answers),
        sum(usage.input_tokens + usage.cached_tokens for usage in usages),
        sum(usage.output_tokens for usage in usages),
        seconds,
    )


def as_figures(result: Result) -> dict[str, Any]:
    """The result and what follows from it, for programs."""
    return asdict(result) | {
        "documents_per_second": result.documents_per_second,
        "overhead_seconds_per_document": result.overhead_seconds,
        "engine_tokens_per_second": result.in_pipeline.tokens_per_second,
        "engine_alone_tokens_per_second": result.alone.tokens_per_second,
    }


def show(result: Result) -> None:
    """Three small tables on stdout."""
    console = Console(file=sys.stdout)
    total = sum(step.seconds for step in result.steps) or 1.0
    steps = Table(title="Where the time goes (own time of each step, summed over workers)")
    for name in ("step", "calls", "seconds", "share", "ms per document"):
        steps.add_column(name, justify="left" if name == "step" else "right")
    for step in sorted(result.steps, key=lambda step: -step.seconds):
        per_document = 1000 * step.seconds / max(result.documents, 1)
        share = f"{step.seconds / total:.1%}"
        steps.add_row(step.group, str(step.spans), f"{step.seconds:.2f}", share, f"{per_document:.1f}")
    console.print(steps)
    rates = Table(title="The engine")
    for name in ("", "calls", "prompt tokens", "output tokens", "seconds", "tokens/s"):
        rates.add_column(name, justify="left" if not name else "right")
    for name, rate in (("in the pipeline", result.in_pipeline), ("alone, same prompts", result.alone)):
        rates.add_row(
            name,
            str(rate.calls),
            str(rate.prompt_tokens),
            str(rate.output_tokens),
            f"{rate.seconds:.2f}",
            f"{rate.tokens_per_second:.0f}",
        )
    console.print(rates)
    whole = Table(title="The whole", show_header=False)
    whole.add_row("documents", f"{result.documents} done, {result.failed} failed")
    whole.add_row("documents per second", f"{result.documents_per_second:.2f}")
    whole.add_row("database and queue, per document", f"{1000 * result.overhead_seconds:.1f} ms")
    whole.add_row("submission, all documents", f"{result.submit_seconds:.2f} s")
    console.print(whole)


def _rate_of_job(database: Engine, job_id: int) -> EngineRate:
    with database.connect() as connection:
        row = connection.execute(_RUNS, {"job_id": job_id}).one()
    return EngineRate(row.calls, int(row.prompt), int(row.output), float(row.seconds or 0))
