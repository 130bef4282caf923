"""Commands about jobs: submit, jobs, watch, cancel, retry, failures."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from cli.connect import connect
from cli.errors import UsageError
from cli.output import Format, FormatOption, err, print_rows
from cli.progress import duration, follow

if TYPE_CHECKING:
    from pipeline.client import Client
    from pipeline.load import Rejected, SourceDocument

REJECTIONS_SHOWN = 5
JobArgument = Annotated[int, typer.Argument(metavar="JOB", help="The job's number, as `quarry jobs` lists it.")]


def register(app: typer.Typer) -> None:
    for command in (submit, jobs, watch, cancel, retry, failures):
        app.command(rich_help_panel="Jobs")(command)


def submit(
    paths: Annotated[list[str], typer.Argument(help="Files, folders, globs, JSONL dumps; `-` is standard input.")],
    schema: Annotated[str, typer.Option(help="What to extract: the name of a registered schema.")],
    name: Annotated[str | None, typer.Option(help="A name for the job.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Stay and show progress until the job has ended.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Process again what has been processed already.")] = False,
    priority: Annotated[int, typer.Option(min=0, max=9, help="0 runs first.")] = 0,
    field: Annotated[
        list[str] | None, typer.Option(help="A JSONL field under another name: text=body, html=raw, url=link.")
    ] = None,
) -> None:
    """Store documents and queue them for extraction. Prints the job's number on standard output.

    Example: quarry submit pages/ more/*.html --schema recipe --watch
    """
    from pipeline.load import iter_sources
    from pipeline.settings import get_settings

    settings = get_settings()
    fields = _fields(field or [])
    console = err()

    def sources() -> Iterator[SourceDocument | Rejected]:
        stdin = sys.stdin.buffer if "-" in paths else None
        yield from iter_sources(paths, stdin=stdin, fields=fields, max_bytes=settings.max_document_bytes)

    with connect(settings) as client:
        with console.status("reading") as status:
            result = client.submit(
                sources(),
                schema,
                name=name,
                force=force,
                priority=priority,
                progress=lambda count, size: status.update(f"reading: {count:,} documents, {size / 2**20:,.1f} MiB"),
            )
        typer.echo(result.job_id)
        parts = [f"job {result.job_id}: {result.items} documents"]
        if result.reused:
            parts.append(f"{result.reused} processed before and not again")
        if result.rejected:
            parts.append(f"{len(result.rejected)} refused")
        console.print(", ".join(parts), markup=False)
        for refused in result.rejected[:REJECTIONS_SHOWN]:
            console.print(f"  {refused.source_uri}: {refused.detail}", style="yellow", markup=False)
        if len(result.rejected) > REJECTIONS_SHOWN:
            console.print(f"  and more: quarry failures {result.job_id}", style="yellow", markup=False)
        if watch:
            _watch(client, result.job_id, name)
        raise typer.Exit(1 if result.rejected else 0)


def _fields(pairs: list[str]) -> dict[str, str]:
    fields = {}
    for pair in pairs:
        ours, separator, theirs = pair.partition("=")
        if not separator or ours not in ("url", "html", "text") or not theirs:
            raise UsageError(f"--field {pair}: write url=NAME, html=NAME or text=NAME")
        fields[ours] = theirs
    return fields


def _watch(client: Client, job: int, name: str | None) -> None:
    """Show the job to its end and say how it ended; exit status 1 when something failed."""
    try:
        (progress,) = follow(client, [(job, name or f"job {job}")], err())
    except KeyboardInterrupt:
        err().print(f"job {job} goes on: `quarry watch {job}` shows it, `quarry cancel {job}` stops it", markup=False)
        raise
    counts = progress.counts
    failed, cancelled = counts.get("failed", 0), counts.get("cancelled", 0)
    words = f"{counts.get('done', 0)} of {progress.items} done in {duration(progress.elapsed_seconds)}"
    if progress.reused:
        words += f", {progress.reused} of them processed before"
    if failed:
        words += f", {failed} failed (quarry failures {progress.job_id})"
    if cancelled:
        words += f", {cancelled} cancelled"
    err().print(words, markup=False)
    raise typer.Exit(1 if failed or cancelled else 0)


def jobs(
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 20,
    format: FormatOption = Format.TABLE,
) -> None:
    """The newest jobs and how far they are.

    Example: quarry jobs --limit 5
    """
    columns = ("job", "name", "schema", "state", "items", "done", "failed", "cancelled", "open", "reused", "created")
    with connect() as client:
        rows = [
            {
                "job": job.id,
                "name": job.name,
                "schema": f"{job.schema} v{job.schema_version}",
                "state": job.state,
                "items": job.items,
                "done": job.done,
                "failed": job.failed,
                "cancelled": job.cancelled,
                "open": job.open,
                "reused": job.reused,
                "created": job.created_at,
            }
            for job in client.jobs(limit)
        ]
    print_rows(columns, rows, format)


def watch(job: JobArgument) -> None:
    """Show a job's progress until it has ended. Exit status 1 when documents failed.

    Example: quarry watch 12
    """
    with connect() as client:
        name = client.job(job).name
        _watch(client, job, name)


def cancel(job: JobArgument) -> None:
    """Stop what a job has not finished. Rows already written stay.

    Example: quarry cancel 12
    """
    with connect() as client:
        count = client.cancel(job)
    err().print(f"job {job}: {count} documents cancelled", markup=False)


def retry(
    job: JobArgument,
    watch: Annotated[bool, typer.Option("--watch", help="Stay and show progress.")] = False,
) -> None:
    """Queue a job's failed and cancelled documents again.

    Example: quarry retry 12 --watch
    """
    with connect() as client:
        count = client.retry(job)
        err().print(f"job {job}: {count} documents queued again", markup=False)
        if watch and count:
            _watch(client, job, client.job(job).name)


def failures(
    job: Annotated[int | None, typer.Argument(metavar="[JOB]", help="Only this job's.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="How many at most, newest first.")] = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Documents that failed, each with its reason.

    Example: quarry failures 12 --format csv
    """
    columns = ("job", "source", "step", "reason", "detail", "attempt", "when")
    with connect() as client:
        rows = [
            {
                "job": failure.job_id,
                "source": failure.source_uri,
                "step": failure.step,
                "reason": failure.reason,
                "detail": failure.detail,
                "attempt": failure.attempt,
                "when": failure.failed_at,
            }
            for failure in client.failures(job, limit)
        ]
    print_rows(columns, rows, format)
