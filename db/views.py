"""One typed view per extraction schema, in the SQL schema `entities`, readable by `quarry_reader`.

Names and paths come from users' schemas: they are quoted by psycopg and checked for length, never pasted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg import errors, sql
from sqlalchemy import Connection

from db.session import driver

VIEW_SCHEMA = "entities"
READER = "quarry_reader"
MAX_IDENTIFIER_BYTES = 63  # PostgreSQL cuts longer ones off, and two columns could become one
MAX_COLUMNS = 1000  # a target list holds 1,664 entries; entity views add their own
OWN_COLUMNS = (
    "_entity_id",
    "_document_id",
    "_source_uri",
    "_spans",
    "_grounded",
    "_confidence",
    "_job_id",
    "_extracted_at",
)

# A value that does not fit its type is NULL, never an error: see migrations/versions/0002_rules.sql.
_CASTS = {
    "text": sql.SQL("e.data #>> {path}"),
    "bigint": sql.SQL("quarry.to_bigint(quarry.to_numeric(e.data #> {path}))"),
    "numeric": sql.SQL("quarry.to_numeric(e.data #> {path})"),
    "boolean": sql.SQL("quarry.to_boolean(e.data #> {path})"),
    "date": sql.SQL("quarry.to_date(e.data #> {path})"),
    "timestamptz": sql.SQL("quarry.to_timestamptz(e.data #> {path})"),
    "text[]": sql.SQL("quarry.to_text_array(e.data #> {path})"),
    "jsonb": sql.SQL("NULLIF(e.data #> {path}, 'null'::jsonb)"),
}
SQL_TYPES = tuple(_CASTS)

_VIEW = sql.SQL("""
CREATE VIEW {view} AS
SELECT {columns}e.id AS _entity_id,
       e.document_id AS _document_id,
       d.source_uri AS _source_uri,
       (SELECT jsonb_agg(jsonb_build_object('path', m.path, 'start', m.start, 'end', m."end", 'status', m.status,
                                            'confidence', m.confidence) ORDER BY m.id)
        FROM quarry.mention m WHERE m.entity_id = e.id) AS _spans,
       e.grounded AS _grounded,
       e.confidence AS _confidence,
       e.job_id AS _job_id,
       e.created_at AS _extracted_at
FROM quarry.entity e
JOIN quarry.document d ON d.id = e.document_id
WHERE e.current AND e.merged_into IS NULL
  AND e.schema_id IN (SELECT s.id FROM quarry.extraction_schema s WHERE s.name = {name})
""")


class ViewError(ValueError):
    """The view can't be built. The message names the column or name, the limit and what to change."""


@dataclass(frozen=True)
class ViewColumn:
    """`path` leads from the entity's data to the value, key by key; `type` is one of SQL_TYPES."""

    name: str
    path: tuple[str, ...]
    type: str

    @classmethod
    def from_json(cls, column: Mapping[str, object]) -> ViewColumn:
        path = column["path"]
        assert isinstance(path, Sequence)
        return cls(str(column["name"]), tuple(str(key) for key in path), str(column["type"]))

    def as_json(self) -> dict[str, object]:
        return {"name": self.name, "path": list(self.path), "type": self.type}


def view_name(schema: str) -> str:
    """The view of a schema as SQL writes it, quoted where needed: `entities.company`, `entities."Firm"`."""
    plain = schema.isascii() and schema.isidentifier() and schema == schema.lower()
    return f"{VIEW_SCHEMA}.{schema}" if plain else sql.Identifier(VIEW_SCHEMA, schema).as_string()


def create_view(connection: Connection, schema: str, columns: Sequence[ViewColumn]) -> None:
    """Build or replace the view of `schema`. It shows the current rows of all its versions through these columns.

    Raises ViewError for names or types that can't be, and when other views depend on the one to be replaced.
    """
    _check_identifier(schema, "schema name")
    seen = set(OWN_COLUMNS)
    if len(columns) > MAX_COLUMNS:
        raise ViewError(f"schema {schema!r} has {len(columns)} columns; a view holds {MAX_COLUMNS}: nest some fields")
    for column in columns:
        _check_identifier(column.name, "column name")
        if column.name in seen:
            kind = "taken by the view itself" if column.name in OWN_COLUMNS else "there twice"
            raise ViewError(f"column {column.name!r} of schema {schema!r} is {kind}: rename the field")
        if column.type not in _CASTS:
            raise ViewError(f"column {column.name!r} has type {column.type!r}; known are {', '.join(_CASTS)}")
        if any("\x00" in key for key in column.path):
            raise ViewError(
                f"the path of column {column.name!r} holds a NUL character, which PostgreSQL has no place for"
            )
        seen.add(column.name)
    selected = sql.SQL("").join(
        sql.SQL("{value} AS {name}, ").format(
            value=_CASTS[column.type].format(path=_path(column.path)), name=sql.Identifier(column.name)
        )
        for column in columns
    )
    view = sql.Identifier(VIEW_SCHEMA, schema)
    drop_view(connection, schema)
    raw = driver(connection)
    raw.execute(_VIEW.format(view=view, columns=selected, name=sql.Literal(schema)))
    raw.execute(sql.SQL("GRANT SELECT ON {view} TO {reader}").format(view=view, reader=sql.Identifier(READER)))


def drop_view(connection: Connection, schema: str) -> None:
    """Raises ViewError when something else in the database reads from it."""
    try:
        driver(connection).execute(sql.SQL("DROP VIEW IF EXISTS {}").format(sql.Identifier(VIEW_SCHEMA, schema)))
    except errors.DependentObjectsStillExist as error:
        raise ViewError(
            f"{view_name(schema)} is used by others: {error.diag.message_detail}; drop those first"
        ) from None


def _path(keys: Sequence[str]) -> sql.Composable:
    return sql.SQL("ARRAY[{}]::text[]").format(sql.SQL(", ").join(map(sql.Literal, keys)))


def _check_identifier(name: str, what: str) -> None:
    size = len(name.encode("utf-8", "surrogatepass"))
    if not name or "\x00" in name or any("\ud800" <= c <= "\udfff" for c in name):
        raise ViewError(f"{what} {name!r} can't be an SQL name: it must be non-empty text without NUL or surrogates")
    if size > MAX_IDENTIFIER_BYTES:
        raise ViewError(f"{what} {name!r} has {size} bytes; PostgreSQL's names hold {MAX_IDENTIFIER_BYTES}: shorten it")
