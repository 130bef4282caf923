"""Work with a deadline, in few threads: what is too slow is given up, and nobody behind it waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class TooSlow(Exception):
    """The work did not end in time."""


class Busy(Exception):
    """No thread became free."""


class Workshop:
    """Runs work in a thread of its own, `slots` at a time, for at most `seconds` each.

    A thread can't be stopped from outside. One that is past its time gives up its slot and goes on unheard; no more
    than `overdue` of those may live at once.
    """

    def __init__(self, *, slots: int, seconds: float, overdue: int = 4) -> None:
        self.seconds = seconds
        self._slots = threading.BoundedSemaphore(slots)
        self._overdue: list[threading.Thread] = []
        self._most_overdue = overdue
        self._lock = threading.Lock()

    def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises. Blocks the caller. Raises TooSlow, Busy."""
        if not self._slots.acquire(timeout=4 * self.seconds):
            raise Busy
        try:
            with self._lock:
                self._overdue = [thread for thread in self._overdue if thread.is_alive()]
                if len(self._overdue) >= self._most_overdue:
                    raise Busy
            result: Future[T] = Future()
            thread = threading.Thread(target=_into, args=(work, result), name="grammar compiler", daemon=True)
            thread.start()
            thread.join(self.seconds)
            if not result.done():
                with self._lock:
                    self._overdue.append(thread)
                raise TooSlow
            return result.result()
        finally:
            self._slots.release()


def _into(work: Callable[[], T], result: Future[T]) -> None:
    try:
        result.set_result(work())
    except BaseException as error:
        result.set_exception(error)
