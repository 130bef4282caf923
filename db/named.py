"""Named queries: SQL in files under `db/sql`, each with its name and its purpose in a line.

-- name: claim
-- Take an item that is free, or whose lease ran out.
UPDATE …
"""

from __future__ import annotations

import re
from importlib.resources import files

from sqlalchemy import TextClause, text

_HEADER = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


class Queries:
    """The queries of one file as attributes: `Queries("items").claim`."""

    def __init__(self, name: str) -> None:
        source = files("db").joinpath("sql", f"{name}.sql").read_text("utf-8")
        _, *parts = _HEADER.split(source)
        self._file = name
        self._queries = {
            query: text(body.strip().rstrip(";")) for query, body in zip(parts[::2], parts[1::2], strict=True)
        }

    def __getattr__(self, name: str) -> TextClause:
        try:
            return self._queries[name]
        except KeyError:
            raise AttributeError(f"db/sql/{self._file}.sql has no query named {name}") from None
