"""`quarry eval`: a job's entities beside a gold file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.connect import connect
from cli.errors import UsageError
from cli.output import Format, FormatOption, print_rows

if TYPE_CHECKING:
    from pipeline.evaluate import FieldScore
    from pipeline.records import EntityRow

COLUMNS = ("field", "right", "expected", "found", "exact", "precision", "recall", "f1")


@dataclass(frozen=True)
class Gold:
    """The right values of some documents, and how each field is compared.

    `documents` maps the end of a source URI to the values; `compare` and `sums` are `score_fields`' arguments.
    """

    documents: Mapping[str, Mapping[str, Any]]
    compare: Mapping[str, str]
    sums: Mapping[str, Sequence[str]]

    @property
    def fields(self) -> list[str]:
        """The fields that any document has a value for."""
        return list(dict.fromkeys(name for values in self.documents.values() for name in values))

    def score(self, entities: Iterable[EntityRow]) -> list[FieldScore]:
        """One score per field, over all gold documents; a document without an entity counts as all wrong."""
        from pipeline.evaluate import score_fields

        found: dict[str, Mapping[str, Any]] = {}
        for entity in entities:
            for source in self.documents:
                if entity.source_uri == source or entity.source_uri.endswith(f"/{source}"):
                    found[source] = entity.data
        pairs = [(found.get(source), values) for source, values in self.documents.items()]
        return score_fields(pairs, self.fields, self.compare, self.sums)


def read_gold(file: Path) -> Gold:
    """A JSON file {"documents": {source: {field: value}}, "compare": {field: how}, "sums": {field: [fields]}}.

    `source` is the end of the document's source URI. Raises UsageError.
    """
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
        return Gold(raw["documents"], raw.get("compare", {}), raw.get("sums", {}))
    except OSError as error:
        raise UsageError(f"{file}: can't be read ({error})") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{file}: not a gold file ({error}): docs/schemas.md shows one") from None


def register(app: typer.Typer) -> None:
    app.command("eval", rich_help_panel="Results")(evaluate)


def evaluate(
    job: Annotated[int, typer.Argument(metavar="JOB")],
    gold: Annotated[Path, typer.Option(help="The right values; see docs/schemas.md.")],
    format: FormatOption = Format.TABLE,
) -> None:
    """Precision, recall and F1 of a job's entities, field by field.

    Example: quarry eval 1 --gold examples/gold/recipe.json
    """
    truth = read_gold(gold)
    with connect() as client:
        scores = truth.score(client.entities(client.job(job).schema, job_id=job))
    print_scores(scores, format)


def print_scores(scores: Sequence[FieldScore], format: Format, title: str | None = None) -> None:
    from pipeline.evaluate import FieldScore

    rows = [score_row(score) for score in scores]
    total = FieldScore("all", *(sum(getattr(s, n) for s in scores) for n in ("expected", "found", "correct", "exact")))
    print_rows(COLUMNS, [*rows, score_row(total)], format, title=title, right=COLUMNS[1:])


def score_row(score: FieldScore) -> dict[str, Any]:
    return {
        "field": score.field,
        "right": score.correct,
        "expected": score.expected,
        "found": score.found,
        "exact": score.exact,
        "precision": round(score.precision, 3),
        "recall": round(score.recall, 3),
        "f1": round(score.f1, 3),
    }
