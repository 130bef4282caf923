"""A job, watched: a live bar with an estimate on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from pipeline.client import Client
from pipeline.records import Progress

PLAIN_SECONDS = 5.0  # between two lines where there is no terminal
_ORDER = ("stored", "cleaned", "chunked", "embedded", "extracting", "done", "failed", "cancelled")


def follow(client: Client, jobs: Iterable[tuple[int, str]], console: Console) -> list[Progress]:
    """Show the jobs (id, label) until each has ended; returns their last progress. Ctrl-C stops the watching only."""
    open_jobs = dict(jobs)
    last: dict[int, Progress] = {}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[detail]}"),
        TimeElapsedColumn(),
    )
    said = 0.0
    with Bars(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks: dict[int, TaskID] = {
            job: bars.add_task(label, total=None, detail="") for job, label in open_jobs.items()
        }
        pending = set(open_jobs)
        while pending:
            for job in sorted(pending):
                progress = last[job] = client.progress(job)
                bars.update(
                    tasks[job],
                    total=progress.items,
                    completed=progress.finished,
                    detail=_detail(progress),
                )
                if progress.ended:
                    pending.discard(job)
            if not console.is_terminal and (time.monotonic() - said > PLAIN_SECONDS or not pending):
                said = time.monotonic()
                for job, label in open_jobs.items():
                    state = last[job]
                    console.print(f"{label}: {state.finished}/{state.items} {_detail(state)}", markup=False)
            if pending:
                time.sleep(0.5)
    return [last[job] for job in open_jobs]


def _detail(progress: Progress) -> str:
    states = ", ".join(f"{progress.counts[s]} {s}" for s in _ORDER if progress.counts.get(s) and s != "done")
    parts = [states] if states else []
    if progress.output_tokens:
        parts.append(
            f"{progress.input_tokens + progress.cached_tokens:,} tokens read, {progress.output_tokens:,} written"
        )
    if progress.rate and not progress.ended:
        parts.append(f"{progress.rate:.2g} documents/s")
    if progress.eta_seconds is not None and not progress.ended:
        parts.append(f"about {duration(progress.eta_seconds)} left")
    return "; ".join(parts)


def duration(seconds: float) -> str:
    """`95` → `1 min 35 s`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
