"""`quarry schema`: what is to be extracted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.connect import connect
from cli.errors import UsageError
from cli.output import Format, FormatOption, err, print_rows

app = typer.Typer(no_args_is_help=True, help="Register, list and show extraction schemas.")


@app.command()
def add(
    file: Annotated[Path, typer.Argument(help="A JSON Schema; see docs/schemas.md.")],
    name: Annotated[str | None, typer.Option(help="Its name, and its view's; default: the file's name.")] = None,
    instructions: Annotated[str, typer.Option(help="What the model should know beside the schema.")] = "",
    examples: Annotated[
        Path | None, typer.Option(help="A JSON list of {text, output}: passages with their right answers.")
    ] = None,
) -> None:
    """Register a schema and build its view. Changed content under a known name becomes its next version.

    Example: quarry schema add examples/schemas/recipe.json
    """
    from inference.grammar.schema import SchemaRefused, unenforced
    from pipeline.schema import ExtractionSchema

    chosen = name or file.stem
    schema = read_json(file)
    shown = read_json(examples) if examples else []
    with connect() as client:
        info = client.add_schema(chosen, schema, instructions, shown)
    console = err()
    parsed = ExtractionSchema.parse(info.name, schema, instructions, shown)
    notes = list(parsed.warnings)
    try:
        notes += unenforced(parsed.grammar_schema)
    except SchemaRefused as refusal:
        notes.append(f"the engine will refuse this schema: {refusal}")
    for note in notes:
        console.print(f"note: {note}", style="yellow", markup=False)
    console.print(f"{info.name} version {info.version}: {len(info.columns)} columns in {info.view}", markup=False)


@app.command("list")
def list_(format: FormatOption = Format.TABLE) -> None:
    """The newest version of each schema.

    Example: quarry schema list --format jsonl
    """
    with connect() as client:
        rows = [
            {
                "name": info.name,
                "version": info.version,
                "view": info.view,
                "columns": [str(column["name"]) for column in info.columns],
                "created": info.created_at,
            }
            for info in client.list_schemas()
        ]
    print_rows(("name", "version", "view", "columns", "created"), rows, format)


@app.command()
def show(
    name: str,
    version: Annotated[int | None, typer.Option(help="Default: the newest.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The JSON Schema instead, as it was registered.")] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """A schema's columns, with their SQL types and where they come from.

    Example: quarry schema show recipe
    """
    with connect() as client:
        info = client.get_schema(name, version)
    if as_json:
        typer.echo(json.dumps(info.json_schema, ensure_ascii=False, indent=2))
        return
    rows = [{"column": c["name"], "type": c["type"], "from": "/" + "/".join(c["path"])} for c in info.columns]
    print_rows(("column", "type", "from"), rows, format, title=f"{info.name} version {info.version}, view {info.view}")


@app.command()
def drop(name: str, yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False) -> None:
    """Take a schema and its view out of use. Extracted rows stay in the tables.

    Example: quarry schema drop recipe --yes
    """
    if not yes and not typer.confirm(f"Drop the schema {name} and its view?", err=True):
        raise typer.Exit(1)
    with connect() as client:
        client.drop_schema(name)
    err().print(f"{name} is dropped; its rows stay in quarry.entity", markup=False)


def read_json(file: Path) -> Any:
    """The file's JSON. Raises UsageError that names the place of a mistake."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{file}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: can't be read ({error})") from None
    except json.JSONDecodeError as error:
        raise UsageError(f"{file}: not JSON: {error.msg} in line {error.lineno}, column {error.colno}") from None
