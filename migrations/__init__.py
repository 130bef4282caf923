"""Alembic revisions. The models in `db.models` and the result of these must be equal; a test compares them."""
