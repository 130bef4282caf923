"""How commands print: rows on standard output in the format asked for, everything else on standard error."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 200  # columns of a table that goes into a file or a pipe
CELL_CHARS = 160  # of a value in a table; csv and jsonl have all of it
LEAST_WIDTH = 16  # columns are not squeezed below this, nor below their names: rows then stand as records
BORDERS = 3  # characters beside each column


class Format(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSONL = "jsonl"


FormatOption = Annotated[Format, typer.Option("--format", help="How rows are printed on standard output.")]


def out() -> Console:
    """Standard output, for tables."""
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)


def err() -> Console:
    """Standard error, for messages and progress."""
    return Console(stderr=True, soft_wrap=True)


def print_rows(
    columns: Sequence[str],
    rows: Iterable[Mapping[str, Any]],
    format: Format,
    *,
    title: str | None = None,
    right: Iterable[str] = (),
) -> int:
    """Print rows with these columns and return how many there were. csv and jsonl are written row by row.

    `title` and the columns aligned to the `right` are for tables only.
    """
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
            line = {name: _json_cell(row.get(name)) for name in columns}
            sys.stdout.write(json.dumps(line, ensure_ascii=False, default=_plain) + "\n")
    sys.stdout.flush()
    return count


def _plain(value: Any) -> Any:
    """A value that the JSON writer takes."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal) and value.is_finite():
        return int(value) if value == value.to_integral_value() else float(value)
    return str(value)


def _json_cell(value: Any) -> Any:
    """JSON has no word for NaN and the infinities, which a query may give."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _csv_cell(value: Any) -> Any:
    if isinstance(value, list | tuple | dict | bool):
        return json.dumps(value, ensure_ascii=False, default=_plain)
    if isinstance(value, datetime | date):
        return value.isoformat()
    return "" if value is None else value


def _cell(value: Any) -> str:
    """A value as a person reads it, cut where it is long."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, datetime):
        return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return _listed(value)
    if isinstance(value, list | tuple | dict):
        value = json.dumps(value, ensure_ascii=False, default=_plain)
    return cut(str(value))


def cut(text: str, chars: int = CELL_CHARS) -> str:
    """At most `chars` characters."""
    return text if len(text) <= chars else text[: chars - 1] + "…"


def _listed(items: Sequence[str]) -> str:
    """As many whole items as fit, and how many there are when that is not all."""
    text = "; ".join(items)
    if len(text) <= CELL_CHARS:
        return text
    shown = cut(text).rpartition("; ")[0] or cut(text)
    return f"{shown}; … ({len(items)} in all)"


def _print_table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], title: str | None, right: set[str]) -> int:
    console = out()
    cells = [[_cell(row.get(name)) for name in columns] for row in rows]
    wanted = [
        max([cell_len(name), *(cell_len(line) for row in cells for line in row[index].splitlines())])
        for index, name in enumerate(columns)
    ]
    least = [min(want, max(LEAST_WIDTH, cell_len(name))) for want, name in zip(wanted, columns, strict=True)]
    room = console.width - BORDERS * len(columns) - 1
    if rows and sum(least) > room:
        _print_records(console, columns, cells, title)
        return len(rows)
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=box.ROUNDED if console.is_terminal else box.SIMPLE_HEAD,
    )
    for name, width in zip(columns, _shared(wanted, least, room), strict=True):
        table.add_column(name, overflow="fold", justify="right" if name in right else "left", width=width)
    for row in cells:
        table.add_row(*map(Text, row))
    console.print(table)
    return len(rows)


def _shared(wanted: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Column widths within `room`: each has its least, and what is left goes to those that need little first."""
    widths = list(least)
    left = room - sum(least)
    needy = sorted(range(len(wanted)), key=lambda index: wanted[index] - least[index])
    for place, index in enumerate(needy):
        more = min(wanted[index] - least[index], max(0, left) // (len(needy) - place))
        widths[index] += more
        left -= more
    return widths


def _print_records(console: Console, columns: Sequence[str], cells: Sequence[Sequence[str]], title: str | None) -> None:
    """Rows that are too wide for a table: one below the other, a line for each column."""
    if title:
        console.print(Text(title, style="bold"))
    for number, row in enumerate(cells, 1):
        console.print(Text(f"— {number} —", style="dim"))
        record = Table.grid(padding=(0, 2))
        record.add_column(style="bold", no_wrap=True)
        record.add_column(overflow="fold")
        for name, text in zip(columns, row, strict=True):
            if text:
                record.add_row(name, Text(text))
        console.print(record)
