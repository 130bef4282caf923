"""Alembic's entry. The connection comes from `db.migrate`, never from a file or the environment."""

from __future__ import annotations

from alembic import context

from db.migrate import in_models
from db.models import SCHEMA, Base

connection = context.config.attributes.get("connection")
if connection is None:
    raise RuntimeError("migrations run through db.migrate.upgrade(url)")

context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    include_schemas=True,
    include_name=in_models,
    version_table_schema=SCHEMA,
)
with context.begin_transaction():
    context.run_migrations()
