"""The other end of a core, in an event loop: hands requests in, passes responses on, starts a crashed core anew.

    starting ──Ready──▶ up ──core ended, or hangs and is killed──▶ down ──pause over──▶ starting …
                         └──drain──▶ stopping ──shutdown──▶ stopped

Every request that `submit` accepts gets exactly one response with a finish reason, from the core or, when the core is
gone, from here.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from array import array
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum

from inference.core.link import Link, StartFailed
from inference.core.messages import (
    Accepted,
    Cancel,
    Embed,
    Embedded,
    EmbedderInfo,
    Failed,
    FromCore,
    Pong,
    Progress,
    Ready,
    Rejected,
    Start,
    Stop,
    Submit,
    ToCore,
    frame,
)
from inference.core.process import CoreProcess, Handle
from inference.pace import Pace
from inference.request import (
    EngineDown,
    EngineStopped,
    FinishReason,
    GrammarSpec,
    QueueFull,
    Request,
    RequestRejected,
    Response,
    check,
)
from inference.stats import EngineStats, ModelInfo

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
RAN_WELL_SECONDS = 60.0  # a crash after that counts as the first again
STOP_SECONDS = 15.0  # for a core to say its last words, a step under way included
KNOWN_GRAMMARS = 1024

Sink = Callable[[Response], None]

__all__ = ["CoreClient", "EmbeddingFailed", "Sink", "StartFailed", "State", "pause"]


class State(StrEnum):
    """In what state the core is, as `/health` tells it."""

    STARTING = "starting"
    UP = "ok"
    DOWN = "down"
    STOPPING = "stopping"  # what is under way goes on
    STOPPED = "stopped"


@dataclass
class _Open:
    sink: Sink
    verdict: asyncio.Future[None] | None  # whether the core takes the request's grammar


class CoreClient:
    """One core. Everything happens in the event loop that `start` was called in; nothing here is thread-safe."""

    def __init__(self, start: Start, launch: Callable[[], Handle] = CoreProcess) -> None:
        self.config = start.config
        self.restarts = 0
        self.core: Handle | None = None
        self._state = State.STARTING  # the core's own; `state` is the engine's
        self._start_message = start
        self._launch = launch
        self._ready: Ready | None = None
        self._open: dict[str, _Open] = {}
        self._embeddings: dict[int, asyncio.Future[Embedded]] = {}
        self._numbers = iter(range(1 << 62))
        self._stats = EngineStats()
        self._grammars: OrderedDict[GrammarSpec, None] = OrderedDict()  # known to compile
        self._pace = Pace()
        self._why_down = ""
        self._next_start = 0.0
        self._stopping = False  # no new requests
        self._stop_sent = False
        self._quiet = asyncio.Event()  # nothing is under way
        self._quiet.set()
        self._link: Link | None = None
        self._keeper: asyncio.Task[None] | None = None

    # Life

    async def start(self) -> None:
        """Start the core and wait until it has loaded its models. Raises StartFailed."""
        self._keeper = asyncio.create_task(self._keep(await self._start_core()))

    async def drain(self, timeout: float | None = None) -> None:
        """Take no new requests, and wait until those under way have ended; `timeout` seconds at most."""
        self._stopping = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._quiet.wait(), timeout)

    async def shutdown(self) -> None:
        """End the core; what is under way ends as cancelled. May be called twice, and also when `start` failed or was
        cancelled."""
        self._stopping = True
        ended = False
        if self._keeper is not None:
            if self._state is State.UP:
                self._stop_sent = True
                self._send(Stop())
                await asyncio.wait([self._keeper], timeout=STOP_SECONDS)
            ended = self._keeper.done()
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        if self._link is not None:
            self._link.drop()
        self._end_open(FinishReason.CANCELLED, "the engine is shutting down")
        self._state = State.STOPPED
        if self.core is not None:
            if not ended:
                self.core.kill()
            await asyncio.to_thread(self.core.end)

    async def _start_core(self) -> Link:
        """Raises StartFailed."""
        self._state = State.STARTING
        self.core = self._launch()
        self._link = await Link.open(self.core, self._start_message, self._take)
        self._ready = self._link.ready
        self._state = State.UP
        return self._link

    async def _keep(self, link: Link) -> None:
        """Start a core for each that crashes or hangs."""
        crashes = 0
        while True:
            up_at = time.monotonic()
            hangs = await link.broken(self.config.stall_seconds)
            self._state = State.DOWN
            assert self.core is not None
            if self._stop_sent:
                return
            if hangs:
                # Its requests hear of it first: who hangs in a driver is long in dying.
                self._lose(f"the engine's core made no turn for {self.config.stall_seconds:g} s and was killed")
                link.drop()
                self.core.kill()
                await asyncio.to_thread(self.core.end)
            else:
                self._lose(f"the engine's core {await asyncio.to_thread(self.core.end)}")
            if self._stopping:
                return
            crashes = 1 if time.monotonic() - up_at > RAN_WELL_SECONDS else crashes + 1
            while True:
                seconds = pause(crashes)
                self._next_start = time.monotonic() + seconds
                await asyncio.sleep(seconds)
                self.restarts += 1
                try:
                    link = await self._start_core()
                    break
                except (StartFailed, OSError) as error:
                    self._state, self._why_down, crashes = State.DOWN, str(error), crashes + 1
                    log.error("the core can't be started anew: %s", error)
            log.info("the core runs again")

    def _lose(self, why: str) -> None:
        self._why_down = why
        log.error("%s; %d requests are lost", why, len(self._open))
        self._stats = EngineStats()
        then = "the engine is shutting down" if self._stopping else "it is being started anew"
        self._end_open(FinishReason.ERROR, f"{why}; {then}")

    # Requests

    @property
    def state(self) -> State:
        return State.STOPPING if self._stopping and self._state is not State.STOPPED else self._state

    @property
    def model_info(self) -> ModelInfo:
        assert self._ready is not None, "not started"
        return self._ready.model

    @property
    def embedder(self) -> EmbedderInfo | None:
        return self._ready.embedder if self._ready else None

    @property
    def why_down(self) -> str:
        """Why no requests are taken just now, in words; empty when they are."""
        if self._stopping:
            return "the engine is shutting down"
        return "" if self._state is State.UP else self._why_down

    async def submit(self, request: Request, sink: Sink) -> None:
        """Hand in a request; `sink` gets its responses. Waits for the core only where a grammar is new to it.

        Raises RequestRejected (QueueFull when only the queue is the reason), EngineDown, EngineStopped. Whoever stops
        waiting here must cancel the request.
        """
        self._check_up()
        check(request, self.model_info)
        if request.id in self._open:
            raise RequestRejected(f"a request with id {request.id!r} is under way; ids must be unique")
        limit = self.config.max_waiting + self.config.max_num_seqs
        if len(self._open) >= limit:
            raise QueueFull(
                f"{len(self._open)} requests are queued or running; the limit is {limit}. Try again later",
                retry_after=self._pace.refuse(time.monotonic()),
            )
        try:
            data = frame(Submit(request))
        except UnicodeEncodeError as error:
            raise RequestRejected(f"a text of the request is no Unicode: {error}") from error
        new = request.grammar is not None and request.grammar not in self._grammars
        verdict = asyncio.get_running_loop().create_future() if new else None
        self._open[request.id] = _Open(sink, verdict)
        self._quiet.clear()
        self._write(data)
        if verdict is not None:
            await verdict
            assert request.grammar is not None
            self._grammars[request.grammar] = None
            if len(self._grammars) > KNOWN_GRAMMARS:
                self._grammars.popitem(last=False)

    async def generate(self, request: Request) -> AsyncGenerator[Response, None]:
        """Responses of one request, to the last. Leaving early (a client that went away) cancels it.

        Raises what `submit` raises.
        """
        queue: asyncio.Queue[Response] = asyncio.Queue()
        finished = False
        mine = request.id not in self._open
        try:
            await self.submit(request, queue.put_nowait)
            while not finished:
                response = await queue.get()
                finished = response.finished
                yield response
        finally:
            if not finished and mine:
                self.cancel(request.id)

    def cancel(self, request_id: str, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """End a request at the next step. Unknown and finished ids are ignored: a cancel may cross the last token."""
        if request_id in self._open and self._state is State.UP:
            self._send(Cancel(request_id, reason))

    async def embed(self, texts: list[str]) -> tuple[list[list[float]], int]:
        """One vector for each text, in order, and the tokens read.

        Raises EngineDown, EngineStopped, EmbeddingFailed, and RequestRejected for a text that is no Unicode."""
        self._check_up()
        assert self.embedder is not None, "the core has no embedder"
        number = next(self._numbers)
        answer: asyncio.Future[Embedded] = asyncio.get_running_loop().create_future()
        try:
            data = frame(Embed(number, texts))
        except UnicodeEncodeError as error:
            raise RequestRejected(f"a text is no Unicode: {error}") from error
        self._embeddings[number] = answer
        self._quiet.clear()
        try:
            self._write(data)
            got = await answer
        finally:
            del self._embeddings[number]
            self._note_quiet()
        if got.error is not None:
            raise EmbeddingFailed(got.error)
        values, width = array("f", got.vectors).tolist(), self.embedder.dimension
        return [values[start : start + width] for start in range(0, len(values), width)], got.tokens

    def stats(self) -> EngineStats:
        """The core's last figures; what it has not looked at yet counts as waiting."""
        return replace(self._stats, waiting=max(self._stats.waiting, len(self._open) - self._stats.running))

    def _check_up(self) -> None:
        if self._stopping:
            raise EngineStopped("the engine is shutting down")
        if self._state is not State.UP:
            seconds = math.ceil(max(1.0, self._next_start - time.monotonic() + 1.0))
            raise EngineDown(f"{self._why_down}; it is being started anew", retry_after=seconds)

    # The stream

    def _send(self, message: ToCore) -> None:
        self._write(frame(message))

    def _write(self, data: bytes) -> None:
        assert self._link is not None
        self._link.write(data)

    def _take(self, message: FromCore) -> None:
        match message:
            case Progress(responses, stats):
                self._stats = stats
                for response in responses:
                    self._pass_on(response)
            case Accepted(request_id):
                self._decide(request_id, None)
            case Rejected(request_id, error):
                self._decide(request_id, RequestRejected(error))
                self._close(request_id)
            case Embedded(number):
                answer = self._embeddings.get(number)
                if answer is not None and not answer.done():
                    answer.set_result(message)
            case Ready() | Failed() | Pong():
                log.warning("a core that runs already says %s", type(message).__name__)

    def _pass_on(self, response: Response) -> None:
        entry = self._open.get(response.request_id)
        if entry is None:
            return
        if response.finished:
            self._decide(response.request_id, None)
            self._close(response.request_id)
        entry.sink(response)

    def _decide(self, request_id: str, refusal: RequestRejected | None) -> None:
        entry = self._open.get(request_id)
        if entry is None or entry.verdict is None or entry.verdict.done():
            return
        if refusal is None:
            entry.verdict.set_result(None)
        else:
            entry.verdict.set_exception(refusal)

    def _close(self, request_id: str) -> None:
        if self._open.pop(request_id, None) is not None:
            self._pace.ended(time.monotonic())
        self._note_quiet()

    def _note_quiet(self) -> None:
        if not self._open and not self._embeddings:
            self._quiet.set()

    def _end_open(self, reason: FinishReason, words: str) -> None:
        for request_id in list(self._open):
            self._pass_on(Response(request_id, finish_reason=reason, error=words))
        for answer in self._embeddings.values():
            if not answer.done():
                answer.set_exception(EngineStopped(words) if self._stopping else EngineDown(words, retry_after=1.0))


class EmbeddingFailed(RuntimeError):
    """The core could not embed the texts; its words."""


def pause(crashes: int) -> float:
    """Seconds before the next start, after so many crashes in a row."""
    return min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** (min(crashes, 32) - 1))
