"""What a core has to say and its client has not taken yet: bounded, and never waited for."""

from __future__ import annotations

import socket
from collections.abc import Iterable

from inference.core.messages import FromCore, Progress, frame
from inference.request import Response
from inference.stats import EngineStats

# Tokens that may wait for a client. One that reads is a step behind at most; this is a second or two of a full batch.
LIMIT_TOKENS = 1 << 16


class ClientGone(Exception):
    """The connection has ended, or is no good any more; the message says how."""


class Outbox:
    """Sends without blocking. While earlier bytes are stuck, responses are merged: one for each request.

    So what waits is bounded by the requests that are open, and by `limit` tokens over all of them.
    """

    def __init__(self, connection: socket.socket, limit: int = LIMIT_TOKENS) -> None:
        self._connection = connection
        self._limit = limit
        self._bytes = bytearray()
        self._waiting: dict[str, Response] = {}
        self._tokens = 0
        self._stats = self._sent_stats = EngineStats()

    @property
    def empty(self) -> bool:
        return not (self._bytes or self._waiting or self._stats != self._sent_stats)

    def say(self, message: FromCore) -> None:
        """A message that stands for itself. In order with others of its kind, not with responses."""
        self._bytes += frame(message)

    def put(self, responses: Iterable[Response]) -> None:
        for response in responses:
            earlier = self._waiting.get(response.request_id)
            self._waiting[response.request_id] = response if earlier is None else _merged(earlier, response)
            self._tokens += len(response.token_ids)

    def note(self, stats: EngineStats) -> None:
        self._stats = stats

    def overdue(self) -> list[str]:
        """Requests that must be ended because nobody takes their tokens, which are dropped here: their last response,
        still to come, is all the client will get of them."""
        if self._tokens <= self._limit:
            return []
        left = {name: response for name, response in self._waiting.items() if response.finished}
        dropped = [name for name in self._waiting if name not in left]
        self._waiting = left
        self._tokens = sum(len(response.token_ids) for response in left.values())
        return dropped

    def flush(self) -> None:
        """Send what the socket takes now. Raises ClientGone."""
        while not self.empty:
            if not self._bytes:
                self._bytes += frame(Progress(list(self._waiting.values()), self._stats))
                self._waiting, self._tokens, self._sent_stats = {}, 0, self._stats
            try:
                sent = self._connection.send(self._bytes)
            except BlockingIOError:
                return
            except OSError as error:
                raise ClientGone(str(error)) from error
            del self._bytes[:sent]


def _merged(earlier: Response, later: Response) -> Response:
    return Response(
        later.request_id,
        earlier.token_ids + later.token_ids,
        earlier.logprobs + later.logprobs,
        later.finish_reason,
        later.usage,
        later.error,
    )
