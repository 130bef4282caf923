"""A parser's role whose documents do to it what hostile ones do. The body says what."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

_answered = 0


def handle(request: dict[str, Any], data: bytes, send: Callable[..., None]) -> None:
    global _answered  # noqa: PLW0603
    what, _, rest = data.decode().partition(" ")
    if what == "sleep":
        time.sleep(3600)
    elif what == "spin":
        while True:
            pass
    elif what == "allocate":
        bytearray(1 << 40)
    elif what == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif what == "crash-when-used" and _answered:
        os.abort()
    elif what == "terminated":
        os.kill(os.getpid(), signal.SIGTERM)
    elif what == "family":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        with open(rest, "w") as file:
            file.write(str(child.pid))
        time.sleep(3600)
    elif what == "nonsense":
        os.write(3 if not rest else int(rest), b"\xff" * 64)
        time.sleep(3600)
    elif what == "print":
        print("a library talks", flush=True)
        os.write(1, b"and so does its C part\n")
    elif what == "fault":
        raise ZeroDivisionError("in the parser")
    elif what == "deep":
        raise RecursionError
    elif what == "environment":
        rest = ",".join(sorted(os.environ))
    _answered += 1
    send("cleaned", f"{rest or what} {os.getpid()}".encode(), title=None, language=None, metadata={}, cleaner="k",
         cleaner_version="1")  # fmt: skip
