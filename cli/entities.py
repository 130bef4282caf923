"""Commands that read: entities, search, sql, dsn, costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.connect import connect
from cli.output import Format, FormatOption, cut, print_rows

if TYPE_CHECKING:
    from pipeline.client import Client
    from pipeline.records import CostGroup, EntityRow, SchemaInfo, SpanRef

SNIPPET_CHARS = 150


def register(app: typer.Typer) -> None:
    for command in (entities, search, sql, dsn, costs):
        app.command(rich_help_panel="Results")(command)


def entities(
    name: Annotated[str, typer.Argument(help="The schema's name.")],
    job: Annotated[int | None, typer.Option(help="Only what this job gave.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="How many at most.")] = None,
    spans: Annotated[
        bool, typer.Option("--spans", help="One row for each value, with the characters it came from.")
    ] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """The extracted entities of a schema. jsonl has every value's source span as well.

    Example: quarry entities recipe --spans
    """
    with connect() as client:
        info = client.get_schema(name)
        found = client.entities(name, job_id=job, limit=limit)
        if spans:
            print_rows(SPAN_COLUMNS, span_rows(found), format)
        else:
            print_rows(*entity_rows(info, found, full=format is Format.JSONL), format)


def entity_rows(
    info: SchemaInfo, found: Iterable[EntityRow], *, full: bool = False
) -> tuple[list[str], Iterator[dict[str, Any]]]:
    """Columns and rows: the schema's columns, then where the entity came from; `full` adds all spans."""
    fields = [str(column["name"]) for column in info.columns]
    columns = [
        *fields,
        "_source_uri",
        "_grounded",
        "_confidence",
        *(("_spans", "_entity_id", "_job_id") if full else ()),
    ]

    def rows() -> Iterator[dict[str, Any]]:
        for entity in found:
            row = {str(column["name"]): _at(entity.data, column["path"]) for column in info.columns}
            row |= {
                "_source_uri": entity.source_uri,
                "_grounded": entity.grounded,
                "_confidence": entity.confidence,
                "_entity_id": entity.entity_id,
                "_job_id": entity.job_id,
                "_spans": [
                    {"path": s.path, "start": s.start, "end": s.end, "status": s.status, "text": s.text}
                    for s in entity.spans
                ],
            }
            yield row

    return columns, rows()


def _at(data: Any, path: Iterable[str]) -> Any:
    for key in path:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


SPAN_COLUMNS = ("entity", "path", "value", "source", "start", "end", "status", "confidence")


def span_rows(found: Iterable[EntityRow]) -> Iterator[dict[str, Any]]:
    """One row for each value of each entity; offsets are code points into the document's clean text."""
    for entity in found:
        for span in entity.spans:
            yield span_row(entity, span)


def span_row(entity: EntityRow, span: SpanRef) -> dict[str, Any]:
    return {
        "entity": entity.entity_id,
        "path": span.path,
        "value": span.value,
        "source": entity.source_uri.rsplit("/", 1)[-1],
        "start": span.start,
        "end": span.end,
        "status": span.status,
        "confidence": span.confidence,
    }


def search(
    text: Annotated[str, typer.Argument(help="What to look for, in words.")],
    k: Annotated[int, typer.Option("-k", min=1, max=1000, help="How many chunks at most.")] = 10,
    job: Annotated[int | None, typer.Option(help="Only documents of this job.")] = None,
    source: Annotated[str | None, typer.Option(help="Only sources that begin with this.")] = None,
    language: Annotated[str | None, typer.Option(help="Only documents in this language, as `en`.")] = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Find chunks by meaning and by words.

    Example: quarry search "vector index for PostgreSQL" -k 3
    """
    from pipeline.records import SearchFilters

    filters = SearchFilters(job_id=job, source_prefix=source, language=language)
    with connect() as client:
        rows = [
            {
                "score": hit.score,
                "source": hit.source_uri,
                "start": hit.start,
                "end": hit.end,
                "heading": " > ".join(hit.heading_path),
                "text": hit.text if format is not Format.TABLE else cut(" ".join(hit.text.split()), SNIPPET_CHARS),
            }
            for hit in client.search(text, k, filters)
        ]
    print_rows(("score", "source", "start", "end", "heading", "text"), rows, format)


def sql(
    query: Annotated[str, typer.Argument(help="One SELECT over the views in `entities`.")],
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds the query may take.")] = 60.0,
    format: FormatOption = Format.TABLE,
) -> None:
    """Run a query as the read-only role, which sees the entity views and nothing else.

    Example: quarry sql "SELECT title, yields FROM entities.recipe ORDER BY title"
    """
    from db.readonly import QueryError

    try:
        with connect() as client, client.sql(query, timeout_seconds=timeout) as result:
            columns = _unique(result.columns)
            print_rows(columns, (dict(zip(columns, row, strict=True)) for row in result.rows), format)
    except QueryError as error:
        if "permission denied" not in str(error):
            raise
        raise QueryError(
            f'{error}: only the views in `entities` are seen here; psql "$(quarry dsn)" sees all'
        ) from None


def _unique(names: Iterable[str]) -> list[str]:
    """Column names as the query gives them; a repeated one gets a number, so that no value is lost."""
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return result


def dsn() -> None:
    """Print the database's address, for psql and other tools. It may hold a password.

    Example: psql "$(quarry dsn)"
    """
    from pipeline.settings import get_settings

    scheme, separator, rest = get_settings().endpoint("database_url").partition("://")
    typer.echo(f"{scheme.split('+')[0]}{separator}{rest}")


def costs(
    by: Annotated[str, typer.Option(help="step, job, schema or model.")] = "step",
    job: Annotated[int | None, typer.Option(help="Only this job's.")] = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Where tokens, seconds and money went.

    Example: quarry costs --by schema
    """
    groups: dict[str, CostGroup] = {"step": "step", "job": "job", "schema": "schema", "model": "model"}
    if by not in groups:
        raise typer.BadParameter(f"{by!r} is not one of {', '.join(groups)}", param_hint="--by")
    with connect() as client:
        print_costs(client, groups[by], job, format)


COST_COLUMNS = ("spans", "documents", "seconds", "input_tokens", "cached_tokens", "output_tokens", "cost_usd", "share")


def print_costs(client: Client, by: CostGroup, job: int | None, format: Format, title: str | None = None) -> None:
    """The cost table, dearest first."""
    rows = []
    for row in client.costs(by, job_id=job):
        values: dict[str, Any] = {name: getattr(row, name) for name in COST_COLUMNS} | {by: row.group}
        if format is Format.TABLE:
            values |= {"cost_usd": f"{row.cost_usd:.6f}", "share": f"{row.share:.0%}", "seconds": f"{row.seconds:.1f}"}
        rows.append(values)
    print_rows((by, *COST_COLUMNS), rows, format, title=title, right=COST_COLUMNS)
