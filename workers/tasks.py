"""The two tasks. They never raise for an item's sake and never retry through Celery: its row says what is next."""

from __future__ import annotations

import threading

from celery.concurrency.thread import TaskPool as ThreadPool
from celery.signals import celeryd_init, worker_process_shutdown, worker_shutdown

from db.models import Step
from pipeline.flow import WorkerFlow
from pipeline.messages import TASKS
from pipeline.settings import get_settings
from workers.app import app

_lock = threading.Lock()
_flow: WorkerFlow | None = None
_threads = 1


def flow() -> WorkerFlow:
    """This process's flow. Made by its first task: after the fork, so that no connection crosses one."""
    global _flow  # noqa: PLW0603
    with _lock:
        if _flow is None:
            _flow = WorkerFlow(get_settings(), threads=_threads)
        return _flow


@app.task(name=TASKS[Step.INGEST], ignore_result=True)
def ingest(item_id: int) -> None:
    flow().ingest(item_id)


@app.task(name=TASKS[Step.EXTRACT], ignore_result=True)
def extract(item_id: int) -> None:
    flow().extract(item_id)


@celeryd_init.connect
def _count_threads(options: dict[str, object] | None = None, **_: object) -> None:
    global _threads  # noqa: PLW0603
    if options and options.get("pool_cls") is ThreadPool:
        _threads = int(str(options["concurrency"]))


@worker_process_shutdown.connect
@worker_shutdown.connect
def _close(**_: object) -> None:
    global _flow  # noqa: PLW0603
    with _lock:
        if _flow is not None:
            _flow.close()
            _flow = None
