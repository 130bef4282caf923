"""Between the executor's threads and the event loop: one thread hands responses to the requests they belong to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from typing import Protocol

from inference.request import FinishReason, Request, Response
from inference.stats import EngineStats, ModelInfo

POLL_SECONDS = 0.5  # how soon the thread notices that the front is closing


class ExecutorLike(Protocol):
    """What the front needs of an executor; tests put a scripted one here."""

    model_info: ModelInfo

    def enqueue_request(self, request: Request) -> str: ...
    def await_responses(self, request_id: str | None = None, timeout: float | None = None) -> list[Response]: ...
    def cancel_request(self, request_id: str, reason: FinishReason = FinishReason.CANCELLED) -> None: ...
    def stats(self) -> EngineStats: ...
    def shutdown(self, drain: bool = False, timeout: float | None = None) -> None: ...


class Bridge:
    """Routes responses by request id. `start` it in the loop that serves."""

    def __init__(self, executor: ExecutorLike) -> None:
        self._executor = executor
        self._queues: dict[str, asyncio.Queue[Response]] = {}  # touched in the event loop only
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._pump, name="responses", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def open_requests(self) -> int:
        return len(self._queues)

    async def generate(self, request: Request) -> AsyncGenerator[Response, None]:
        """Responses of one request, to the last. Leaving early (a client that went away) cancels it.

        Raises RequestRejected, EngineStopped.
        """
        queue: asyncio.Queue[Response] = asyncio.Queue()
        self._queues[request.id] = queue
        finished = accepted = False
        try:
            # In a thread: compiling a grammar may take a while.
            enqueued = asyncio.ensure_future(asyncio.to_thread(self._executor.enqueue_request, request))
            try:
                await asyncio.shield(enqueued)
            except asyncio.CancelledError:
                enqueued.add_done_callback(lambda done: self._cancel_late(done, request.id))
                raise
            accepted = True
            while not finished:
                response = await queue.get()
                finished = response.finished
                yield response
        finally:
            del self._queues[request.id]
            if accepted and not finished:
                self._executor.cancel_request(request.id)

    def cancel(self, request_id: str, reason: FinishReason) -> None:
        self._executor.cancel_request(request_id, reason)

    def _cancel_late(self, enqueued: asyncio.Future[str], request_id: str) -> None:
        if not enqueued.cancelled() and enqueued.exception() is None:
            self._executor.cancel_request(request_id)

    def _pump(self) -> None:
        while not self._closing.is_set():
            responses = self._executor.await_responses(timeout=POLL_SECONDS)
            if responses and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._deliver, responses)

    def _deliver(self, responses: list[Response]) -> None:
        for response in responses:
            queue = self._queues.get(response.request_id)
            if queue is not None:
                queue.put_nowait(response)
