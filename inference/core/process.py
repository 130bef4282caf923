"""A core's process, or thread: started, watched, ended. `python -m inference.core.process FD LEVEL` is the process.

No core outlives its client. It reads the end of the stream between two steps; a watcher sees the hang-up also while a
step runs, and ends the process at once: the kernel closes a killed client's sockets.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from inference.core.loop import Core, Load

log = logging.getLogger(__name__)

_ROOT = Path(__file__).parents[2]
END_SECONDS = 10.0  # for a core to end by itself once its connection has ended


class Handle(Protocol):
    """A core as its client sees it."""

    connection: socket.socket

    def kill(self) -> None:
        """End it at once, whatever it does."""
        ...

    def end(self) -> str:
        """Wait until it has ended, kill it when it does not -> how it ended, in words. Blocks, for 2 END_SECONDS at
        most: what hangs in a driver can't even be killed."""
        ...


class CoreProcess:
    """The usual place: what breaks the core (a driver, a kernel, the memory) does not break its client."""

    def __init__(self, command: tuple[str, ...] = ("-m", "inference.core.process")) -> None:
        self.connection, theirs = socket.socketpair()
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        level = logging.getLevelName(logging.getLogger().getEffectiveLevel())
        with theirs:
            # -P: modules are not looked for in the folder that the client happens to be in.
            self._process = subprocess.Popen(
                [sys.executable, "-P", *command, str(theirs.fileno()), level],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> str:
        try:
            status = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)
                return f"did not end within {END_SECONDS:g} s and was killed"
            log.error("the core's process %d was killed and has not ended; it holds on to its memory", self.pid)
            return "was killed and has not ended"
        return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


class CoreThread:
    """The same loop behind the same socket in a thread of this process: for profilers and debuggers, and for tests that
    look into the engine or break it. A crash takes this process along."""

    def __init__(self, load: Load | None = None) -> None:
        """`load` takes the place of `inference.core.loop.load_models`."""
        self.core: Core | None = None
        self._load = load
        self.connection, self._theirs = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        from inference.core.loop import load_models, open_core

        self.core = open_core(self._theirs, self._load or load_models)
        if self.core is not None:
            self.core.run()

    def kill(self) -> None:
        """No thread can be killed. This one ends when it comes back to its loop, and finds no client."""

    def end(self) -> str:
        self._thread.join(END_SECONDS)
        return "has not ended, and is left behind" if self._thread.is_alive() else "ended"


def _end_with(connection: socket.socket) -> None:
    hangup = select.poll()
    hangup.register(connection, 0)  # POLLHUP and POLLERR are always told
    hangup.poll()
    os._exit(0)


def main(arguments: list[str], load: Load | None = None) -> int:
    """`load` as in `CoreThread`. Exit status: 0, or 2 for a core that could not start."""
    descriptor, level = arguments
    logging.basicConfig(level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    # Ctrl-C reaches all processes of a terminal, and a supervisor's signals the whole family. When to stop is the
    # client's to say: it lets requests finish first.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    connection = socket.socket(fileno=int(descriptor))
    threading.Thread(target=_end_with, args=(connection.dup(),), daemon=True).start()

    from inference.core.loop import load_models, open_core  # torch: the watcher is at its post before

    core = open_core(connection, load or load_models)
    if core is None:
        return 2
    core.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
