"""Celery app and tasks (they carry ids only), the sweeper, the supervisor behind `quarry up`, embedded servers and doctor.

Nothing here imports torch: ingest workers are forked and must stay light."""
