"""Processes that outlive whoever started them: recognised again, logged to a file, ended for certain."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

# In the environment of every process that a supervisor starts, and so of that process's children: "<home>:<name>".
# It finds what a supervisor killed between starting a process and writing that down has left behind.
MARK = "QUARRY_SUPERVISED"
START_TOLERANCE_SECONDS = 2.0  # the clock may be set between two readings of a start time
LOG_BYTES = 10 * 2**20
LOG_KEEP = 3


@dataclass(frozen=True)
class Identity:
    """A process, not just a number: pids are used again, the pair of pid and start time is not."""

    pid: int
    started: float  # seconds since the epoch

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """The process that has `pid` now; None when it is gone."""
        with suppress(psutil.Error):
            return cls(pid, psutil.Process(pid).create_time())
        return None

    def process(self) -> psutil.Process | None:
        """None when it has ended, also as a zombie, or when the pid is another's."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < START_TOLERANCE_SECONDS
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.Error:
            return None


def spawn(
    command: Sequence[str], *, home: Path, name: str, env: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """Start `command` in a session of its own, with its output at the end of `log`.

    It writes to the file itself: a pipe through the supervisor would break when the supervisor is killed.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            cwd=home,  # not the caller's folder: `python -m` looks for modules there first
            env={**os.environ, **env, MARK: f"{home}:{name}"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def marked(home: Path, names: Iterable[str] | None = None) -> list[psutil.Process]:
    """Living processes that a supervisor of `home` started, and their children; of the services `names` only."""
    wanted = None if names is None else {f"{home}:{name}" for name in names}
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            mark = process.environ().get(MARK, "")
            ours = mark.startswith(f"{home}:") if wanted is None else mark in wanted
            if ours and process.pid != os.getpid() and not ended(process):
                found.append(process)
    return found


def family(process: psutil.Process) -> list[psutil.Process]:
    """The process and all below it."""
    with suppress(psutil.Error):
        return [process, *process.children(recursive=True)]
    return []


def ended(process: psutil.Process) -> bool:
    """It is gone, or a zombie that waits for its parent (which may be an init that never asks)."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def end(processes: Iterable[psutil.Process], *, number: signal.Signals, seconds: float) -> None:
    """Send `number`, wait, then kill what is left. Returns when all have ended, which a kill is given 10 s for."""
    waiting = list(processes)
    for process in waiting:
        with suppress(psutil.Error):
            process.send_signal(number)
    left = _wait(waiting, seconds)
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    _wait(left, 10.0)


def _wait(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that have not ended after `seconds`. Unlike psutil's own waiting it takes no exit status away from us."""
    deadline = time.monotonic() + seconds
    while (left := [process for process in processes if not ended(process)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def rotate(log: Path, *, limit: int = LOG_BYTES, keep: int = LOG_KEEP) -> bool:
    """Copy a log above `limit` bytes to `<log>.1`, older ones to `.2` …, and empty it. True when it did.

    The writers keep their descriptor, which appends: a rename would leave them writing to the old file. A line written
    between the copy and the emptying is lost; no log is worth a pipe that a dead supervisor would break.
    """
    try:
        if log.stat().st_size <= limit:
            return False
    except FileNotFoundError:
        return False
    for number in range(keep - 1, 0, -1):
        with suppress(FileNotFoundError):
            log.with_name(f"{log.name}.{number}").replace(log.with_name(f"{log.name}.{number + 1}"))
    shutil.copyfile(log, log.with_name(f"{log.name}.1"))
    os.truncate(log, 0)
    return True


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log; empty when there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 16_384))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""
