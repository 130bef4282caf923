"""A client's connection to one core: opened when the core has loaded its models, broken when it ends or hangs.

A core that hangs (a kernel that never returns, a stopped process) ends nothing: its socket stays open and silent. So
the loop is pinged, and answers in its next turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from inference.core.messages import (
    Failed,
    Frames,
    FromCore,
    Ping,
    Pong,
    Ready,
    Start,
    ToCore,
    frame,
    from_core,
)
from inference.core.process import Handle

PINGS_PER_LIMIT = 4  # the later a ping, the later a hang is noticed: after 1 to 1.25 times the limit


class StartFailed(ValueError):
    """The core could not load what the configuration names. The message says what and why."""


class Link:
    """One core's stream. `ready` is what it said of itself."""

    def __init__(self, core: Handle, transport: asyncio.Transport, stream: _Stream, ready: Ready) -> None:
        self.ready = ready
        self._core = core
        self._transport = transport
        self._stream = stream

    @classmethod
    async def open(cls, core: Handle, start: Start, take: Callable[[FromCore], None]) -> Link:
        """Wait until `core` has loaded what `start` names; from then on `take` gets its messages.

        Raises StartFailed, with the core ended. Cancelled, it leaves the core without a client, so that it ends."""
        loop = asyncio.get_running_loop()
        stream = _Stream(take)
        core.connection.setblocking(False)
        # A connected pair of sockets is what asyncio calls an accepted one.
        transport, _ = await loop.connect_accepted_socket(lambda: stream, core.connection)
        transport.write(frame(start))
        seconds = start.config.start_seconds
        try:
            return cls(core, transport, stream, await asyncio.wait_for(stream.ready, seconds))
        except StartFailed:
            transport.abort()
            await asyncio.to_thread(core.end)
            raise
        except ConnectionResetError:
            how = await asyncio.to_thread(core.end)
            raise StartFailed(f"the engine's core {how} while it started") from None
        except TimeoutError:
            transport.abort()
            core.kill()
            await asyncio.to_thread(core.end)
            words = f"the engine's core did not load its models within {seconds:g} s and was killed"
            raise StartFailed(f"{words}; start_seconds is the limit") from None
        except asyncio.CancelledError:
            transport.abort()
            raise

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def send(self, message: ToCore) -> None:
        self._transport.write(frame(message))

    def drop(self) -> None:
        """Hang up at once, what is still to be sent is lost."""
        self._transport.abort()

    async def broken(self, limit: float) -> bool:
        """Wait until the core has ended, or has made no turn of its loop for `limit` seconds -> whether it hangs."""
        while not self._stream.ended.is_set():
            # Counted from a ping, not from the last answer: when this process was stopped, nobody was asked.
            self._stream.heard.clear()
            self.send(Ping())
            if not await _within(limit, self._stream.heard):
                return True
            await _within(limit / PINGS_PER_LIMIT, self._stream.ended)
        return False


async def _within(seconds: float, event: asyncio.Event) -> bool:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()  # perhaps in the same turn as the time ran out


class _Stream(asyncio.Protocol):
    """One core's frames. The first is `ready`'s."""

    def __init__(self, take: Callable[[FromCore], None]) -> None:
        self.ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self.heard = asyncio.Event()  # anything at all: only the loop's own thread speaks
        self.ended = asyncio.Event()
        self._take = take
        self._frames = Frames()

    def data_received(self, data: bytes) -> None:
        self.heard.set()
        for content in self._frames.push(data):
            message = from_core.decode(content)
            if isinstance(message, Pong):
                continue
            if self.ready.done():
                self._take(message)
            elif isinstance(message, Ready):
                self.ready.set_result(message)
            elif isinstance(message, Failed):
                self.ready.set_exception(StartFailed(message.error))

    def connection_lost(self, _: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(ConnectionResetError())
        self.heard.set()
        self.ended.set()
