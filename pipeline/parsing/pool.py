"""Parsers as a parent sees them: started when needed, used again, killed when late, replaced when dead.

A document that kills a parser which had read others before is tried once more in a fresh one, so that nobody pays for
what an earlier document did to it.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from pipeline.clean import Cleaned
from pipeline.errors import DocumentError, TransientError
from pipeline.parsing.wire import LENGTHS, MAX_HEADER_BYTES, BrokenFrame, header_of, pack

START_SECONDS = 120.0  # imports on a busy machine with a cold disk
MIB = 2**20
READ_BYTES = 2**20
# Signals that someone sends; every other one is what the document did.
_SENT_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL}
_SECRETS = ("QUARRY_", "LANGFUSE_", "OPENAI_", "AWS_")
_KEPT = ("QUARRY_SUPERVISED",)  # the mark by which `quarry down` finds what it has to end


@dataclass(frozen=True)
class ParserLimits:
    """For one document: wall-clock seconds, and bytes of memory beyond what a parser takes by itself."""

    seconds: float = 60.0
    memory_bytes: int = 2 * 2**30
    documents: int = 1000  # after which a parser is replaced, in case a library leaks


class Died(Exception):
    """A parser ended without an answer. `used`: it had read other documents before."""

    def __init__(self, status: int, used: bool) -> None:
        super().__init__(f"exit status {status}")
        self.status = status
        self.used = used

    @property
    def sent(self) -> bool:
        """Someone ended it: its document may be innocent."""
        return -self.status in _SENT_SIGNALS

    def words(self) -> str:
        if self.status >= 0:
            return f"its parser ended with exit status {self.status}"
        try:
            name = signal.Signals(-self.status).name
        except ValueError:
            name = f"signal {-self.status}"
        return f"its parser was ended by {name}"


class Late(Exception):
    """A parser had no answer in time, and was killed."""


class OutOfMemory(Exception):
    """A document needed more than the limit. The parser has ended."""

    def __init__(self, used: bool) -> None:
        super().__init__("out of memory")
        self.used = used


Frame = tuple[dict[str, Any], bytes]


class Parser:
    """One child process, in a group of its own. Not thread-safe: a pool lends it to one caller at a time."""

    def __init__(self, role: str, limits: ParserLimits) -> None:
        self.documents = 0
        self._used = False
        self._limits = limits
        cpu_seconds = int(limits.seconds * 2) + 10
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pipeline.parsing.child", role, str(limits.memory_bytes), str(cpu_seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_without_secrets(os.environ),
            start_new_session=True,
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._input, False)
        os.set_blocking(self._output, False)
        self._ready = False

    @property
    def usable(self) -> bool:
        return self._process.poll() is None and self.documents < self._limits.documents

    def ask(self, header: Mapping[str, Any], body: bytes = b"") -> None:
        """Send one request. Raises Died, Late."""
        if not self._ready:
            self._frame(time.monotonic() + START_SECONDS)
            self._ready = True
        self._used = self.documents > 0
        self.documents += 1
        deadline = time.monotonic() + self._limits.seconds
        try:
            for part in (pack(header, body), body):
                self._write(part, deadline)
        except BrokenPipeError:
            raise self._died() from None

    def answer(self) -> Frame:
        """The next frame, within the limit from now on. Raises Died, Late, OutOfMemory."""
        header, body = self._frame(time.monotonic() + self._limits.seconds)
        if header.get("kind") == "out_of_memory":
            self.kill()
            raise OutOfMemory(self._used)
        return header, body

    def kill(self) -> int:
        """End the process and whatever it started. Returns its exit status."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return self.close()

    def close(self) -> int:
        """Wait for its end: a closed input is what it ends at."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            status = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            status = self._process.wait()
        self._process.stdout.close()
        return status

    def _frame(self, deadline: float) -> Frame:
        header_size, body_size = LENGTHS.unpack(self._read(LENGTHS.size, deadline))
        if header_size > MAX_HEADER_BYTES:
            self.kill()
            raise BrokenFrame(f"a frame's header has {header_size:,} bytes")
        return header_of(self._read(header_size, deadline)), self._read(body_size, deadline)

    def _read(self, size: int, deadline: float) -> bytes:
        parts: list[bytes] = []
        while size:
            try:
                part = os.read(self._output, min(size, READ_BYTES))
            except BlockingIOError:
                self._wait(self._output, select.POLLIN, deadline)
                continue
            if not part:
                raise self._died()
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _write(self, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._input, view) :]
            except BlockingIOError:
                self._wait(self._input, select.POLLOUT, deadline)

    def _wait(self, descriptor: int, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(descriptor, event)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            self.kill()
            raise Late

    def _died(self) -> Died:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1)  # its output may close a moment before its end
        return Died(self.kill(), self._used)


class ParserPool:
    """Parsers of one role, as many as there are callers at once. Thread-safe; make it after a fork. `role` is a module
    with a function `handle`, see `pipeline.parsing.child`."""

    def __init__(self, role: str, limits: ParserLimits) -> None:
        self.limits = limits
        self._role = role
        self._idle: list[Parser] = []
        self._lock = threading.Lock()

    def clean(self, data: bytes, media_type: str, *, charset: str | None = None, url: str | None = None) -> Cleaned:
        """`pipeline.clean.clean` in a child process. Raises DocumentError, also for a document that takes too long,
        too much memory, or its parser's life; TransientError when someone else ended the parser."""
        header = {
            "media_type": media_type,
            "charset": charset,
            "url": url,
            "deadline_seconds": min(30.0, self.limits.seconds / 2),
        }
        answer, text = self._ask_twice(header, data)
        if answer["kind"] == "refused":
            raise DocumentError(str(answer["reason"]), str(answer["detail"]))
        return Cleaned(
            text.decode(),
            answer["title"],
            answer["language"],
            answer["metadata"],
            answer["cleaner"],
            answer["cleaner_version"],
        )

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for parser in idle:
            parser.close()

    def _ask_twice(self, header: Mapping[str, Any], data: bytes) -> Frame:
        try:
            return self._ask_once(header, data, fresh=False)
        except (Died, OutOfMemory) as first:
            if not first.used:
                raise self.verdict(first) from first
        except (Late, BrokenFrame) as error:
            raise self.verdict(error) from error
        try:
            return self._ask_once(header, data, fresh=True)
        except (Died, OutOfMemory, Late, BrokenFrame) as error:
            raise self.verdict(error) from error

    def _ask_once(self, header: Mapping[str, Any], data: bytes, *, fresh: bool) -> Frame:
        with self.lend(fresh=fresh) as parser:
            parser.ask(header, data)
            return parser.answer()

    def verdict(self, error: Exception) -> DocumentError | TransientError:
        """What a parser's end says about its document."""
        if isinstance(error, Late):
            words = f"reading it takes more than {self.limits.seconds:g} s (QUARRY_PARSE_SECONDS)"
            return DocumentError("too_slow", words)
        if isinstance(error, OutOfMemory):
            size = f"{self.limits.memory_bytes // MIB:,} MiB"
            words = f"reading it takes more than {size} of memory (QUARRY_PARSE_MEMORY_BYTES)"
            return DocumentError("too_much_memory", words)
        if isinstance(error, Died) and error.sent:
            return TransientError(error.words(), reason="parser_ended")
        if isinstance(error, Died):
            return DocumentError("parser_crashed", f"{error.words()}: the document is damaged or hostile")
        return DocumentError("parser_crashed", f"its parser answered nonsense: {error}")

    @contextmanager
    def lend(self, *, fresh: bool = False) -> Iterator[Parser]:
        """A parser for the time of the block. One whose block ends with an error does not come back."""
        parser = self._new() if fresh else self._take()
        try:
            yield parser
        except BaseException:
            parser.kill()
            raise
        if parser.usable:
            with self._lock:
                self._idle.append(parser)
        else:
            parser.close()

    def _take(self) -> Parser:
        while True:
            with self._lock:
                parser = self._idle.pop() if self._idle else None
            if parser is None:
                return self._new()
            if parser.usable:
                return parser
            parser.close()

    def _new(self) -> Parser:
        return Parser(self._role, self.limits)


def _without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """A parser needs no addresses, passwords or keys."""
    return {name: value for name, value in environment.items() if name in _KEPT or not name.startswith(_SECRETS)}
