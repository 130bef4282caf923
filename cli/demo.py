"""`quarry demo`: the whole product on the examples, from nothing to rows."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from cli.connect import connect
from cli.errors import UsageError
from cli.output import Format, err, out, print_rows

if TYPE_CHECKING:
    from pipeline.client import Client
    from pipeline.records import EntityRow, SubmitResult

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
GOLD = EXAMPLES / "gold" / "recipe.json"
SPANS_SHOWN = 24
ENTITIES_SHOWN = 12


@dataclass(frozen=True)
class Part:
    """One job of the demo: a schema of `examples/schemas` and the pages it is for."""

    schema: str
    pages: str
    instructions: str = ""


PARTS = (
    Part("recipe", "recipes"),
    Part("postgres_document", "postgres"),
    Part("named_entity", "texts/statements.jsonl"),
)
QUERY = (
    "SELECT title, yields, cardinality(ingredients) AS ingredients, round(_grounded::numeric, 2) AS grounded\n"
    "FROM entities.recipe ORDER BY title"
)


def register(app: typer.Typer) -> None:
    app.command()(demo)


def demo() -> None:
    """Run the main job on the pages in examples/: services, models, schemas, documents, rows, costs.

    Example: quarry demo
    """
    from cli.progress import follow
    from cli.service import bring_up
    from pipeline.settings import get_settings

    console = err()
    if not EXAMPLES.is_dir():
        raise UsageError(f"{EXAMPLES} is not there: run the demo from a clone of the repository")
    settings = bring_up(get_settings(), console)
    with connect(settings) as client:
        submitted = [submit(client, part, console) for part in PARTS]
        labels = [(result.job_id, part.schema) for result, part in zip(submitted, PARTS, strict=True)]
        try:
            ended = follow(client, labels, console)
        except KeyboardInterrupt:
            console.print("The jobs go on: `quarry jobs` lists them, `quarry demo` shows them again.")
            raise
        failed = sum(progress.counts.get("failed", 0) for progress in ended)
        total, reused = sum(r.items for r in submitted), sum(r.reused for r in submitted)
        if reused == total:
            console.print(
                f"All {total} documents had been processed before: nothing was done twice. "
                "The rows below are those of the first run.",
                style="green",
            )
        elif reused:
            console.print(f"{reused} of {total} documents had been processed before and were not processed again.")
        show(client, submitted)
    _next_steps()
    if failed:
        console.print(f"{failed} documents failed: quarry failures", style="red")
    raise typer.Exit(1 if failed else 0)


def submit(client: Client, part: Part, console: Console) -> SubmitResult:
    """Register the part's schema and queue its pages."""
    from cli.schema import read_json
    from pipeline.load import iter_sources

    client.add_schema(part.schema, read_json(EXAMPLES / "schemas" / f"{part.schema}.json"), part.instructions)
    result = client.submit(iter_sources([str(EXAMPLES / part.pages)]), part.schema, name=f"demo: {part.schema}")
    again = f", {result.reused} of them processed before" if result.reused else ""
    console.print(f"job {result.job_id}: {result.items} documents for {part.schema}{again}", markup=False)
    return result


def show(client: Client, submitted: Sequence[SubmitResult]) -> None:
    """Rows, their sources, a query, costs and the score."""
    from cli.entities import SPAN_COLUMNS, entity_rows, print_costs, span_row

    console = out()
    recipes: list[EntityRow] = []
    for part, result in zip(PARTS, submitted, strict=True):
        entities = list(client.entities(part.schema, job_id=result.job_id))
        recipes = recipes or entities
        shown = entities[:ENTITIES_SHOWN]
        columns, rows = entity_rows(client.get_schema(part.schema), shown)
        more = f" (the first {len(shown)} of {len(entities)})" if len(entities) > len(shown) else ""
        console.print()
        print_rows(columns, ({**row, "_source_uri": _short(row["_source_uri"])} for row in rows), Format.TABLE,
                   title=f"entities.{part.schema}{more}")  # fmt: skip
    spans = [span_row(entity, span) for entity in recipes for span in entity.spans]
    console.print()
    print_rows(SPAN_COLUMNS, spans[:SPANS_SHOWN], Format.TABLE, right=("start", "end"),
               title=f"Where the recipes' values come from (the first {min(SPANS_SHOWN, len(spans))} of {len(spans)}; "
               "code points into the clean text)")  # fmt: skip

    console.print(f"\n[bold]SQL[/bold], as the read-only role:\n{QUERY}", highlight=False)
    with client.sql(QUERY) as answer:
        print_rows(answer.columns, [dict(zip(answer.columns, row, strict=True)) for row in answer.rows], Format.TABLE)

    console.print()
    print_costs(client, "step", None, Format.TABLE,
                title="Costs by step, all jobs so far (seconds add up over documents side by side)")  # fmt: skip
    _show_score(recipes)


def _show_score(recipes: Sequence[EntityRow]) -> None:
    from cli.evaluation import print_scores, read_gold

    scores = read_gold(GOLD).score(recipes)
    right, expected = sum(s.correct for s in scores), sum(s.expected for s in scores)
    console = out()
    console.print()
    print_scores(scores, Format.TABLE, title="The recipes beside their expected values")
    each = ", ".join(f"{score.field} {score.correct}/{score.expected}" for score in scores)
    console.print(f"{right} of {expected} values are right ({right / expected:.0%}): {each}.", highlight=False)
    console.print(
        "Right means: the same letters and digits or four fifths of the words (title, each ingredient), the same "
        "minutes (total time, or preparation and cooking together), the same first number (yields).",
        style="dim",
        highlight=False,
    )


def _short(uri: str) -> str:
    return uri.rsplit("/examples/", 1)[-1]


def _next_steps() -> None:
    quarry = _command()
    err().print(
        "\nTry next:\n"
        f"  {quarry} entities recipe --spans            every value with the characters it came from\n"
        f'  {quarry} sql "SELECT * FROM entities.named_entity LIMIT 5"\n'
        f'  {quarry} search "vector search in PostgreSQL" -k 3\n'
        f"  {quarry} schema add FILE.json; {quarry} submit FOLDER --schema NAME --watch\n"
        f'  psql "$({quarry} dsn)"\n'
        f"  {quarry} status; {quarry} down\n"
        "README.md and docs/first-run.md go on from here.",
        markup=False,
        highlight=False,
    )


def _command() -> str:
    """How this program was called, so that the commands can be copied."""
    called = Path(sys.argv[0])
    return str(called) if called.name == "quarry" and called.parent != Path() else "quarry"
