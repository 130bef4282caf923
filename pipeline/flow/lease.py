"""Leases: one thread per process renews those of all items that its tasks hold.

A lease says that someone is at an item; the attempt says who may write. So a lease that is lost costs work, never rows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from db.named import Queries

log = structlog.get_logger(__name__)
_ITEMS = Queries("items")
RENEWALS_PER_LEASE = 3  # two may fail before the lease runs out


class LeaseLost(Exception):
    """The attempt no longer holds: cancelled, taken back, or too slow. The results at hand are dropped."""


@dataclass
class Lease:
    """One held item. `until` is when this process stops renewing it, on the monotonic clock: a task that hangs must not
    hold its item for ever."""

    item_id: int
    attempt: int
    until: float
    lost: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        """Raises LeaseLost once a renewal has found that the attempt is gone: saves the work still ahead."""
        if self.lost.is_set():
            raise LeaseLost(f"item {self.item_id}, attempt {self.attempt}")


class LeaseKeeper:
    """Make it after a fork: its thread starts with the first lease and belongs to this process."""

    def __init__(self, engine: Engine, lease_seconds: float, hold_seconds: float) -> None:
        self._engine = engine
        self._lease_seconds = lease_seconds
        self._hold_seconds = hold_seconds
        self._leases: dict[int, Lease] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def hold(self, item_id: int, attempt: int) -> Iterator[Lease]:
        """Renew the lease of a claimed item until the block ends."""
        lease = Lease(item_id, attempt, time.monotonic() + self._hold_seconds)
        with self._lock:
            self._leases[id(lease)] = lease
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lease-keeper", daemon=True)
                self._thread.start()
        try:
            yield lease
        finally:
            with self._lock:
                del self._leases[id(lease)]

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._stop.wait(self._lease_seconds / RENEWALS_PER_LEASE):
            now = time.monotonic()
            with self._lock:
                leases = [lease for lease in self._leases.values() if lease.until > now and not lease.lost.is_set()]
            if not leases:
                continue
            try:
                self._renew(leases)
            except SQLAlchemyError as error:
                log.warning("leases could not be renewed; trying again", error=str(error).splitlines()[0])

    def _renew(self, leases: list[Lease]) -> None:
        with self._engine.begin() as connection:
            held = connection.execute(
                _ITEMS.renew,
                {
                    "ids": [lease.item_id for lease in leases],
                    "attempts": [lease.attempt for lease in leases],
                    "lease_seconds": self._lease_seconds,
                },
            )
            kept = set(held.scalars())
        with self._lock:
            still = set(map(id, self._leases.values()))
        for lease in leases:
            if lease.item_id not in kept and id(lease) in still:
                lease.lost.set()
