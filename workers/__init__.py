"""Celery app and tasks, the sweeper, the supervisor behind `quarry up`, embedded servers and doctor.

Tasks carry ids only. Nothing here imports torch: ingest workers are forked and must stay light.
"""
