"""Starting and stopping the supervisor from outside: what `quarry up` and `quarry down` do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import psutil

from pipeline.settings import Settings
from workers.processes import MARK, Identity, rotate
from workers.services import Service, plan
from workers.state import log_file, read_state
from workers.supervisor import URLS, AlreadyRunning, Supervisor, holding_lock

STOP_SECONDS = 180.0  # for a supervisor to end all it runs; then it is killed and the rest ended without it


def launch(settings: Settings) -> subprocess.Popen[bytes]:
    """A supervisor of its own session, detached from the caller. Watch `workers.state.read_state` for what it does."""
    path = log_file(settings, "supervisor")
    path.parent.mkdir(parents=True, exist_ok=True)
    rotate(path)
    env = {name: value for name, value in os.environ.items() if name != MARK}
    env |= {"QUARRY_HOME": str(settings.home), "QUARRY_MODEL": settings.model}
    with path.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "workers.supervisor"],
            cwd=settings.home,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def running(settings: Settings) -> bool:
    """A supervisor holds the lock of this home."""
    try:
        with holding_lock(settings):
            return False
    except AlreadyRunning:
        return True


def bring_down(
    settings: Settings, services: Sequence[Service] | None = None, *, hurry: Callable[[], bool] = lambda: False
) -> bool:
    """Stop everything that runs for this home, with a living supervisor or without. False when nothing ran.

    `hurry` is asked now and then; once true, documents in hand are not waited for.
    """
    stopped = False
    while True:
        try:
            with holding_lock(settings):
                return _stop_orphans(settings, services, hurry()) or stopped
        except AlreadyRunning:
            _ask_supervisor_to_stop(settings, hurry)
            stopped = True


def _stop_orphans(settings: Settings, services: Sequence[Service] | None, hurry: bool) -> bool:
    # Whatever URLs are set now: the servers may have been started without them.
    everything = settings.model_copy(update=dict.fromkeys(URLS))
    supervisor = Supervisor(settings, plan(everything) if services is None else services)
    supervisor.hurry = hurry
    supervisor.adopt(changed_too=True)
    found = any(unit.identity for unit in supervisor.units)
    supervisor.stop_all()
    return found


def _ask_supervisor_to_stop(settings: Settings, hurry: Callable[[], bool]) -> None:
    """Returns when it has ended, which it is made to after `STOP_SECONDS`."""
    deadline = time.monotonic() + STOP_SECONDS
    asked = hurried = False
    while running(settings):
        state = read_state(settings)  # missing while it has just begun
        process = Identity(state.pid, state.started).process() if state else None
        if process is not None:
            with suppress(psutil.Error):
                if not asked or (hurry() and not hurried):
                    process.send_signal(signal.SIGTERM)
                    asked, hurried = True, asked and hurry()
                if time.monotonic() > deadline:
                    process.kill()
        time.sleep(0.1)
