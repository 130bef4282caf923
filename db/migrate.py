"""Bringing a database to the newest revision. Safe to call from several processes at once."""

from __future__ import annotations

from importlib.resources import files

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, MetaData, text

from db.models import SCHEMA, Base
from db.session import make_engine

LOCK = 0x5155_4152  # advisory lock key, "QUAR": one migration at a time per database


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(files("migrations")))
    return config


def _engine(url: str) -> Engine:
    return make_engine(
        url, pool_size=1, statement_timeout_seconds=0, lock_timeout_seconds=600, application="quarry migration"
    )


def upgrade(url: str) -> None:
    """Create or upgrade the schemas `quarry` and `entities` in the database at `url`. Needs the right to create
    extensions (once), schemas and roles."""
    engine = _engine(url)
    with engine.connect() as connection:
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": LOCK})
        try:
            connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))  # holds alembic_version too
            connection.commit()
            config = _config()
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            connection.commit()
        finally:
            connection.rollback()
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": LOCK})
    engine.dispose()


def current(url: str) -> str | None:
    """The revision the database is at; None before the first upgrade."""
    engine = _engine(url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table_schema": SCHEMA})
        revision = context.get_current_revision()
    engine.dispose()
    return revision


def head() -> str:
    """The newest revision this program knows."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None
    return revision


def in_models(name: str | None, kind: str, parents: object) -> bool:
    """Alembic's filter: what is compared. Embedders' tables are made at run time and are no part of the models."""
    if kind == "schema":
        return name == SCHEMA
    if kind == "table" and name is not None:
        return not (name.startswith("embedding_") and name != "embedding_model")
    return True


def differences(connection: Connection, metadata: MetaData = Base.metadata) -> list[object]:
    """What Alembic would still change to make the database equal to the models."""
    from alembic.autogenerate import compare_metadata

    context = MigrationContext.configure(
        connection,
        opts={
            "include_schemas": True,
            "include_name": in_models,
            "version_table_schema": SCHEMA,
            "compare_type": True,
            "compare_server_default": True,
        },
    )
    return list(compare_metadata(context, metadata))
