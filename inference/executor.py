"""The engine as a Python object: hand in requests from any thread, take responses out. Names as in TensorRT-LLM."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from inference.config import EngineConfig
from inference.core.client import CoreClient, StartFailed
from inference.core.messages import Start, TokenizerData
from inference.core.process import CoreProcess, Handle
from inference.request import EngineDown, EngineStopped, FinishReason, QueueFull, Request, RequestRejected, Response
from inference.stats import EngineStats

if TYPE_CHECKING:
    from inference.tokenizer import Tokenizer

__all__ = ["EngineDown", "EngineStopped", "Executor", "QueueFull", "StartFailed"]

T = TypeVar("T")


class Executor:
    """One model, running in a core of its own: a process, unless `launch` says otherwise. All methods are thread-safe.

    Every request that `enqueue_request` accepts gets exactly one response with a finish reason, also when the core
    crashes; it is then started anew.
    """

    def __init__(self, config: EngineConfig, tokenizer: Tokenizer, launch: Callable[[], Handle] = CoreProcess) -> None:
        """Starts the core and waits until it has loaded the model. Raises StartFailed."""
        self.config = config
        self.tokenizer = tokenizer
        self._changed = threading.Condition()  # guards the three below
        self._under_way: set[str] = set()  # accepted, last response not yet taken
        self._responses: dict[str, list[Response]] = defaultdict(list)
        self._stopped = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="core client", daemon=True)
        self._thread.start()
        data = TokenizerData(tokenizer.json, tokenizer.vocab_size, tokenizer.eos_token_ids)
        self._client = CoreClient(Start(config, data), launch)
        try:
            self._call(self._client.start())
        except BaseException:
            self._end_loop()
            raise
        self.model_info = self._client.model_info

    def enqueue_request(self, request: Request) -> str:
        """Queue a request and return its id. Waits while a grammar that is new to the core is compiled.

        Raises RequestRejected (QueueFull when only the queue is the reason), EngineDown, EngineStopped.
        """
        with self._changed:
            if self._stopped:
                raise EngineStopped("the engine has been shut down")
        self._call(self._submit(request))
        return request.id

    def await_responses(self, request_id: str | None = None, timeout: float | None = None) -> list[Response]:
        """Responses since the last call, of one request or of all; empty when `timeout` seconds passed without any.

        Raises KeyError for a request that is unknown or whose last response was taken.
        """
        with self._changed:
            if request_id is None:
                self._changed.wait_for(lambda: bool(self._responses) or self._stopped, timeout)
                taken = [response for batch in self._responses.values() for response in batch]
                self._responses.clear()
            else:
                if request_id not in self._under_way:
                    raise KeyError(f"no request {request_id!r} is under way")
                self._changed.wait_for(lambda: request_id in self._responses or self._stopped, timeout)
                taken = self._responses.pop(request_id, [])
            self._under_way.difference_update(response.request_id for response in taken if response.finished)
            return taken

    def cancel_request(self, request_id: str, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """End a request at the next step. Unknown and finished ids are ignored: a cancel may cross the last token."""
        with self._changed:
            if not self._stopped:
                self._loop.call_soon_threadsafe(self._client.cancel, request_id, reason)

    def stats(self) -> EngineStats:
        """A snapshot; what the core has not looked at yet counts as waiting."""
        return self._client.stats()

    def shutdown(self, drain: bool = False, timeout: float | None = None) -> None:
        """Stop. With `drain`, requests under way are finished first (for at most `timeout` seconds); others end as
        cancelled. May be called twice."""
        with self._changed:
            if self._stopped:
                return
        if drain:
            self._call(self._client.drain(timeout))
        self._call(self._client.shutdown())
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._end_loop()

    # In the client's loop

    async def _submit(self, request: Request) -> None:
        with self._changed:
            if request.id in self._under_way:
                raise RequestRejected(f"a request with id {request.id!r} is under way; ids must be unique")
            self._under_way.add(request.id)
        try:
            await self._client.submit(request, self._take_out)
        except BaseException:
            with self._changed:
                self._under_way.discard(request.id)
            raise

    def _take_out(self, response: Response) -> None:
        with self._changed:
            self._responses[response.request_id].append(response)
            self._changed.notify_all()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
