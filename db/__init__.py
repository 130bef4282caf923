"""SQLAlchemy models, sessions, named queries and typed views. Knows no pipeline: it takes and returns plain values."""
