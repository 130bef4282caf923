"""A front from its start to its end, which SIGTERM or SIGINT asks for:

    start the core ──▶ serve ──signal──▶ drain: requests under way go on, new ones get 503
                                            └─all answered, time over, or a second signal─▶ end the core, close, exit

The port stays open while it drains: a client gets a reason and not a closed door.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Generator
from contextlib import suppress

import uvicorn

from inference.core.client import CoreClient
from inference.server.app import Front

log = logging.getLogger(__name__)

CLOSE_SECONDS = 5  # for clients to read the last bytes of their answers


class Ending:
    """What signals have asked for: to end, and then to hurry."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurry = asyncio.Event()

    def listen(self) -> None:
        """From now on, in the event loop that runs. Asyncio takes its handlers back when the loop is closed."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._ask)

    def _ask(self) -> None:
        (self.hurry if self.asked.is_set() else self.asked).set()


async def start(core: CoreClient, ending: Ending) -> bool:
    """Start the core -> False when the end was asked for meanwhile, and the core has ended. Raises StartFailed."""
    starting = asyncio.create_task(core.start())
    if await _before(ending.asked, starting):
        await starting
        return True
    starting.cancel()
    with suppress(asyncio.CancelledError):
        await starting
    await core.shutdown()
    return False


async def serve(front: Front, ending: Ending, *, host: str, port: int, drain_seconds: float) -> None:
    """Until the end has been asked for. Exits with uvicorn's status 3 when the port can't be had."""
    server = _Server(uvicorn.Config(
        front.app(), host=host, port=port, log_level="warning", access_log=False,
        timeout_graceful_shutdown=CLOSE_SECONDS,
    ))  # fmt: skip
    closing = asyncio.create_task(_close(server, front.context.core, ending, drain_seconds))
    try:
        await server.serve()
    finally:
        closing.cancel()


async def _close(server: uvicorn.Server, core: CoreClient, ending: Ending, drain_seconds: float) -> None:
    await ending.asked.wait()
    log.info("no new requests; those under way have %g s", drain_seconds)
    draining = asyncio.create_task(core.drain(drain_seconds))
    await _before(ending.hurry, draining)
    draining.cancel()
    await core.shutdown()
    server.should_exit = True


async def _before(event: asyncio.Event, task: asyncio.Task[None]) -> bool:
    """Wait for either -> whether the task is done."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    return task.done()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Uvicorn's own would close the port at once, and end the process by the signal: the exit status is 0 here."""
        yield
