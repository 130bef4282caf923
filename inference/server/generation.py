"""One request's way through the front: ids in, pieces of text out, stop strings seen."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace

from inference.core.client import CoreClient
from inference.detokenize import Detokenizer
from inference.request import FinishReason, Request, Response, TokenLogprob, Usage
from inference.server.errors import ApiError
from inference.tokenizer import Tokenizer


@dataclass(frozen=True)
class ShownLogprob:
    """A token's log-probability, and how many characters of the answer were complete before the token."""

    logprob: TokenLogprob
    offset: int


@dataclass(frozen=True)
class Delta:
    """A piece of the answer; the last one has `finish_reason` (stop or length)."""

    text: str
    logprobs: tuple[ShownLogprob, ...]
    finish_reason: FinishReason | None
    usage: Usage


class StopStrings:
    """Cuts the text at the first stop string, and holds back what might be the beginning of one."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""

    def push(self, piece: str) -> tuple[str, bool]:
        """(text to show, whether a stop string has been reached)."""
        if not self._stops:
            return piece, False
        text = self._held + piece
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        keep = max((self._overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """Length of the longest end of `text` that begins `stop`."""
        for length in range(min(len(text), len(stop) - 1), 0, -1):
            if stop.startswith(text[len(text) - length :]):
                return length
        return 0


class TextOf:
    """Responses of one request in, deltas out. Nothing follows a delta with a finish reason."""

    def __init__(self, request: Request, tokenizer: Tokenizer, stops: tuple[str, ...], *, continues: bool) -> None:
        """`continues`: the answer continues the prompt's text, as it does in plain completions."""
        self._detokenizer = Detokenizer(tokenizer, continues=continues)
        self._stopper = StopStrings(stops)
        self._min_tokens = request.sampling.min_tokens
        self._tokens = 0

    def take(self, response: Response) -> Delta:
        """A token at a time, so that a stop string ends the answer at the same token, with the same usage, however many
        tokens a response brings."""
        text, logprobs, stopped = "", [], False
        for token, logprob in _aligned(response):
            if logprob is not None:
                logprobs.append(ShownLogprob(logprob, self._detokenizer.length))
            self._tokens += 1
            piece, stopped = self._search(self._detokenizer.push((token,)))
            text += piece
            if stopped:
                return Delta(text, tuple(logprobs), FinishReason.STOP, self._usage_here(response.usage))
        if response.finished:
            piece, stopped = self._search(self._detokenizer.flush())
            text += piece + self._stopper.flush()
        reason = FinishReason.STOP if stopped else response.finish_reason
        return Delta(text, tuple(logprobs), reason, response.usage)

    def _search(self, piece: str) -> tuple[str, bool]:
        # What min_tokens asks for is not searched: a stop string there ends nothing.
        return self._stopper.push(piece) if self._tokens > self._min_tokens else (piece, False)

    def _usage_here(self, usage: Usage) -> Usage:
        accepted = min(usage.accepted_draft_tokens, self._tokens)
        return replace(usage, completion_tokens=self._tokens, accepted_draft_tokens=accepted)


def _aligned(response: Response) -> Iterator[tuple[int, TokenLogprob | None]]:
    logprobs = response.logprobs or (None,) * len(response.token_ids)
    return zip(response.token_ids, logprobs, strict=True)


async def generate(
    core: CoreClient, tokenizer: Tokenizer, request: Request, stops: tuple[str, ...], *, continues: bool = False
) -> AsyncGenerator[Delta, None]:
    """Run a request. Raises ApiError when the engine ended it with an error, a time-out or a cancellation."""
    text = TextOf(request, tokenizer, stops, continues=continues)
    async with aclosing(core.generate(request)) as responses:
        async for response in responses:
            if response.finished:
                _raise_if_failed(response)
            delta = text.take(response)
            if delta.finish_reason is not None and not response.finished:
                # The engine is told; its own last word about this request is not waited for.
                core.cancel(request.id, FinishReason.STOP)
            yield delta
            if delta.finish_reason is not None:
                return


def _raise_if_failed(response: Response) -> None:
    if response.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
        return
    status, code = {FinishReason.TIMEOUT: (504, "timeout"), FinishReason.CANCELLED: (503, "cancelled")}.get(
        response.finish_reason or FinishReason.ERROR, (500, "engine_error")
    )
    message = response.error or f"the request was {response.finish_reason}"
    raise ApiError(status, message, kind="server_error", code=code)
