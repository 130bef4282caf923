"""The sweeper: whatever a crash, a lost message or a silent worker left behind, it sets going again.

    python -m workers.sweeper

Any number may run; rows are locked with SKIP LOCKED. All it does can be done twice without harm.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import Engine, TextClause
from sqlalchemy.exc import SQLAlchemyError

from db.models import Step
from db.named import Queries
from db.session import make_engine
from pipeline.messages import BrokerDown, Sender
from pipeline.settings import Settings, get_settings
from workers.logs import set_up_logging

log = structlog.get_logger(__name__)
_ITEMS = Queries("items")
BATCH = 1000
# Beside a queue that is not empty an item may wait for hours in good order; then its message is repeated this seldom.
BUSY_RESEND_SECONDS = 3600.0
BUSY_CHECK_SECONDS = 300.0


@dataclass(frozen=True)
class Swept:
    """What one round did, in items (jobs for `finished`)."""

    taken_back: int = 0
    given_up: int = 0
    resent: int = 0
    sent: int = 0
    finished: int = 0
    pruned: int = 0


class Sweeper:
    """`run_once` is one round; `run` goes on until `stop` is set."""

    def __init__(self, settings: Settings, *, engine: Engine | None = None, sender: Sender | None = None) -> None:
        self.settings = settings
        self.engine = engine or make_engine(
            settings.endpoint("database_url"), pool_size=2, application="quarry sweeper"
        )
        self.sender = sender or Sender(settings.endpoint("broker_url"))
        self.stop = threading.Event()
        self._busy_check = dict.fromkeys(Step, time.monotonic())

    def run_once(self) -> Swept:
        """Raises SQLAlchemyError when the database is down. With the broker down, messages wait for the next round."""
        limits = {"max_attempts": self.settings.max_attempts, "batch": BATCH}
        given_up = self._count(_ITEMS.give_up, limits)
        taken_back = self._count(_ITEMS.take_back, limits)
        finished = self._count(_ITEMS.finish_jobs, {"job_id": None})
        pruned = self._count(_ITEMS.prune_outbox, {"batch": BATCH})
        resent = sent = 0
        try:
            resent = sum(self._resend(step) for step in Step)
            sent = self.sender.dispatch(self.engine)
        except BrokerDown as error:
            log.warning("messages wait for the broker", error=str(error))
        return Swept(taken_back, given_up, resent, sent, finished, pruned)

    def run(self) -> None:
        """One round every `sweep_seconds`."""
        while not self.stop.is_set():
            try:
                swept = self.run_once()
                if swept != Swept():
                    log.info("swept", **{name: n for name, n in vars(swept).items() if n})
            except SQLAlchemyError as error:
                words = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
                log.warning("the database does not answer; trying again", error=words)
            self.stop.wait(self.settings.sweep_seconds)

    def close(self) -> None:
        self.engine.dispose()
        self.sender.close()

    def _resend(self, step: Step) -> int:
        seconds = self.settings.resend_seconds
        if self.sender.depth(step):
            if time.monotonic() - self._busy_check[step] < BUSY_CHECK_SECONDS:
                return 0
            self._busy_check[step] = time.monotonic()
            seconds = BUSY_RESEND_SECONDS
        return self._count(_ITEMS.resend, {"task": step.value, "seconds": seconds, "batch": BATCH})

    def _count(self, query: TextClause, parameters: Mapping[str, Any]) -> int:
        with self.engine.begin() as connection:
            result = connection.execute(query, parameters)
            return len(result.all()) if result.returns_rows else result.rowcount


def main() -> None:
    """Until SIGTERM or SIGINT."""
    set_up_logging(get_settings())
    sweeper = Sweeper(get_settings())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sweeper.stop.set())
    sweeper.run()
    sweeper.close()


if __name__ == "__main__":
    main()
