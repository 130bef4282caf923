"""How commands print: rows on standard output in the format asked for, everything else on standard error."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 200  # columns of a table that goes into a file or a pipe
CELL_CHARS = 300  # of a value in a table; csv and jsonl have all of it


class Format(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSONL = "jsonl"


FormatOption = Annotated[Format, typer.Option("--format", help="How rows are printed on standard output.")]


class UsageError(Exception):
    """The command was used wrongly; ends with exit status 2. The message says what would be right."""


def out() -> Console:
    """Standard output, for tables."""
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)


def err() -> Console:
    """Standard error, for messages and progress."""
    return Console(stderr=True, soft_wrap=True)


def plain(value: Any) -> Any:
    """A value that the JSON writer takes."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return str(value)


def cell(value: Any) -> str:
    """A value as a person reads it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, datetime):
        return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return "; ".join(value)
    if isinstance(value, list | tuple | dict):
        return json.dumps(value, ensure_ascii=False, default=plain)
    return str(value)


def print_rows(
    columns: Sequence[str],
    rows: Iterable[Mapping[str, Any]],
    format: Format,
    *,
    title: str | None = None,
    right: Iterable[str] = (),
) -> int:
    """Print rows with these columns and return how many there were. csv and jsonl are written row by row."""
    if format is Format.TABLE:
        return _print_table(columns, list(rows), title, set(right))
    count = 0
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if format is Format.CSV:
        writer.writerow(columns)
    for row in rows:
        count += 1
        if format is Format.CSV:
            writer.writerow([_csv_cell(row.get(name)) for name in columns])
        else:
            line = {name: row.get(name) for name in columns}
            sys.stdout.write(json.dumps(line, ensure_ascii=False, default=plain) + "\n")
    sys.stdout.flush()
    return count


def _csv_cell(value: Any) -> Any:
    if isinstance(value, list | tuple | dict):
        return json.dumps(value, ensure_ascii=False, default=plain)
    return "" if value is None else plain(value) if isinstance(value, datetime | date) else value


def _print_table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], title: str | None, right: set[str]) -> int:
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold", pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold", justify="right" if name in right else "left")
    for row in rows:
        cells = (cell(row.get(name)) for name in columns)
        table.add_row(*(Text(text if len(text) <= CELL_CHARS else text[: CELL_CHARS - 1] + "…") for text in cells))
    out().print(table)
    return len(rows)
