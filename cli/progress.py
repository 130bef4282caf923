"""Jobs, watched: live bars with an estimate on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

if TYPE_CHECKING:
    from pipeline.client import Client
    from pipeline.records import Progress

POLL_SECONDS = 0.5
PLAIN_SECONDS = 5.0  # between two lines where there is no terminal
RATE_SECONDS = 20.0  # tokens are counted when a document is done, so a shorter window would jump
_OPEN_STATES = ("stored", "cleaned", "chunked", "embedded", "extracting")


def follow(client: Client, jobs: Iterable[tuple[int, str]], console: Console) -> list[Progress]:
    """Show the jobs (id, label) until each has ended; returns their last progress. Ctrl-C stops the watching only."""
    labels = dict(jobs)
    show = _show_live if console.is_terminal else _show_plain
    last = show(_observe(client, labels), labels, console)
    return [last[job] for job in labels]


def _observe(client: Client, jobs: Iterable[int]) -> Iterator[dict[int, Progress]]:
    """The progress of all jobs, again and again until none is open."""
    open_jobs = list(jobs)
    last: dict[int, Progress] = {}
    while True:
        last |= {job: client.progress(job) for job in open_jobs}
        yield last
        open_jobs = [job for job in open_jobs if not last[job].ended]
        if not open_jobs:
            return
        time.sleep(POLL_SECONDS)


def _show_live(seen: Iterator[dict[int, Progress]], labels: Mapping[int, str], console: Console) -> dict[int, Progress]:
    bars = Bars(
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TextColumn("{task.fields[detail]}", markup=False),
        console=console,
    )
    tasks = {job: bars.add_task(label, detail="") for job, label in labels.items()}
    tokens = TokenRates()
    last: dict[int, Progress] = {}
    with Live(console=console, refresh_per_second=4) as live:
        for last in seen:
            for job, progress in last.items():
                bars.update(tasks[job], total=progress.items, completed=progress.finished, detail=detail(progress))
            live.update(Group(bars, Text(tokens.line(last.values()), style="dim")))
    return last


def _show_plain(
    seen: Iterator[dict[int, Progress]], labels: Mapping[int, str], console: Console
) -> dict[int, Progress]:
    tokens = TokenRates()
    said = time.monotonic()
    told: set[int] = set()  # jobs whose end has been told
    last: dict[int, Progress] = {}
    for last in seen:
        spent = tokens.line(last.values())
        due = time.monotonic() - said >= PLAIN_SECONDS
        for job, progress in last.items():
            if job not in told and (due or progress.ended):
                console.print(f"{labels[job]}: {progress.finished}/{progress.items} {detail(progress)}", markup=False)
                told |= {job} if progress.ended else set()
        if due:
            said = time.monotonic()
            console.print(spent, markup=False)
    return last


def detail(progress: Progress) -> str:
    """Where the documents are, how fast they go, and when the job should be done."""
    counts = progress.counts
    states = [f"{counts[state]} {state}" for state in _OPEN_STATES if counts.get(state)]
    ends = [f"{counts[state]} {state}" for state in ("failed", "cancelled") if counts.get(state)]
    parts = [", ".join(states + ends)] if states or ends else []
    if progress.retrying:
        parts.append(f"{progress.retrying} to be tried again")
    if progress.left_out:
        parts.append(f"{progress.left_out} {'value' if progress.left_out == 1 else 'values'} left out without a source")
    if progress.ended:
        return "; ".join([*parts, f"ended after {duration(progress.elapsed_seconds)}"])
    if progress.rate:
        parts.append(f"{progress.rate:.2g} documents/s")
    if progress.eta_seconds is not None:
        parts.append(f"about {duration(progress.eta_seconds)} left")
    return "; ".join(parts)


class TokenRates:
    """Tokens of some jobs, and how many a second over the last `RATE_SECONDS`."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int, int]] = deque()

    def line(self, jobs: Iterable[Progress], now: float | None = None) -> str:
        """For people; `now` is seconds on the monotonic clock."""
        moment = time.monotonic() if now is None else now
        read = written = 0
        for job in jobs:
            read += job.input_tokens + job.cached_tokens
            written += job.output_tokens
        self._samples.append((moment, read, written))
        while len(self._samples) > 2 and self._samples[1][0] <= moment - RATE_SECONDS:
            self._samples.popleft()
        before, read_before, written_before = self._samples[0]
        seconds = moment - before
        line = f"{read:,} tokens read, {written:,} written"
        if seconds < 1:
            return line
        return f"{line}; {(read - read_before) / seconds:,.0f} and {(written - written_before) / seconds:,.0f} a second"


def duration(seconds: float) -> str:
    """`95` → `1 min 35 s`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
