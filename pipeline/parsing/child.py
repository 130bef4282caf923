"""A parser: reads one request after the other from standard input and answers on what was standard output.

python -P -m pipeline.parsing.child MODULE MEMORY_BYTES CPU_SECONDS

The module's `handle(request, body, send)` does the work. `-P`: the folder it is started in may be the documents' own.
"""

from __future__ import annotations

import gc
import logging
import os
import resource
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.errors import DocumentError
from pipeline.parsing.wire import BrokenFrame, read_frame, write_frame

Send = Callable[..., None]
Handler = Callable[[dict[str, Any], bytes, Send], None]

GROWTH_BYTES = 256 * 2**20  # a parser that has grown by this much gives its memory back by ending


def main(arguments: list[str]) -> int:
    role, memory, cpu_seconds = arguments[0], int(arguments[1]), int(arguments[2])
    requests = sys.stdin.buffer
    answers = _private_output()
    logging.disable(logging.ERROR)  # what libraries think of a foreign page is no one's log
    # What a role needs is imported before the memory limit is set, so that it does not count.
    handler: Handler = import_module(role).handle
    baseline = _resident_bytes()
    _limit(memory)
    write_frame(answers, {"kind": "ready"})
    while True:
        try:
            frame = read_frame(requests)
        except BrokenFrame:
            return 1
        if frame is None:
            return 0
        _limit_cpu(cpu_seconds)
        if not _answer(handler, frame, answers):
            return 0
        del frame
        if _resident_bytes() > baseline + GROWTH_BYTES:
            gc.collect()
            if _resident_bytes() > baseline + GROWTH_BYTES:
                return 0


def _answer(handler: Handler, frame: tuple[dict[str, Any], bytes], answers: BinaryIO) -> bool:
    """Handle one request. False when this process should not go on."""

    def send(kind: str, body: bytes = b"", **header: Any) -> None:
        write_frame(answers, {"kind": kind, **header}, body)

    try:
        handler(*frame, send)
    except DocumentError as error:
        send("refused", reason=error.reason, detail=error.detail)
    except MemoryError:
        del frame
        send("out_of_memory")
        return False
    except RecursionError:
        send("refused", reason="too_deep", detail="it is nested too deeply to be read")
    except (BrokenPipeError, KeyboardInterrupt):
        return False
    except Exception as error:
        # A fault of the parser met by this document: it fails the document, in words, and nothing else.
        send("refused", reason="unreadable", detail=f"its parser failed: {type(error).__name__}: {error}"[:2000])
    return True


def _private_output() -> BinaryIO:
    """Where answers go. What libraries print goes to standard error."""
    answers = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(answers, "wb")


def _limit(memory: int) -> None:
    """`memory` bytes of address space beyond what the process has now; no core files."""
    space = _status_bytes("VmSize") + memory
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        space = min(space, hard)
    resource.setrlimit(resource.RLIMIT_AS, (space, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_cpu(seconds: int) -> None:
    """The kernel ends the process after so many more CPU seconds, even when its parent is gone."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    wanted = int(used.ru_utime + used.ru_stime) + seconds + 1
    resource.setrlimit(resource.RLIMIT_CPU, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _resident_bytes() -> int:
    return _status_bytes("VmRSS")


def _status_bytes(name: str) -> int:
    """A size from /proc/self/status; 0 where there is none (then the address space is limited to `memory` alone)."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
