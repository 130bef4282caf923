"""One request's way through the front: ids in, pieces of text out, stop strings seen, log-probabilities translated."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from inference.detokenize import Detokenizer, token_bytes
from inference.request import FinishReason, Request, TokenLogprob, Usage
from inference.server.bridge import Bridge
from inference.server.errors import ApiError
from inference.tokenizer import Tokenizer


@dataclass(frozen=True)
class Delta:
    """A piece of the answer; the last one has `finish_reason` (stop or length)."""

    text: str
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: str | None
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


async def generate(
    bridge: Bridge, tokenizer: Tokenizer, request: Request, stops: tuple[str, ...]
) -> AsyncGenerator[Delta, None]:
    """Run a request. Raises ApiError when the engine ended it with an error, a time-out or a cancellation."""
    detokenizer, stopper = Detokenizer(tokenizer), StopStrings(stops)
    async with aclosing(bridge.generate(request)) as responses:
        async for response in responses:
            text, stopped = stopper.push(detokenizer.push(response.token_ids))
            if response.finished and not stopped:
                more, stopped = stopper.push(detokenizer.flush())
                text += more + ("" if stopped else stopper.flush())
            if stopped and not response.finished:
                # The engine is told; its own last word about this request is not waited for.
                bridge.cancel(request.id, FinishReason.STOP)
                yield Delta(text, response.logprobs, FinishReason.STOP, response.usage)
                return
            reason = FinishReason.STOP if stopped else response.finish_reason
            if reason not in (None, FinishReason.STOP, FinishReason.LENGTH):
                status, code = {FinishReason.TIMEOUT: (504, "timeout"), FinishReason.CANCELLED: (503, "cancelled")}.get(
                    reason, (500, "engine_error")
                )
                raise ApiError(status, response.error or f"the request was {reason}", kind="server_error", code=code)
            yield Delta(text, response.logprobs, reason, response.usage)


def usage_object(usage: Usage) -> dict[str, Any]:
    """OpenAI's `usage`."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def engine_object(usage: Usage) -> dict[str, Any]:
    """Our own addition beside `usage`: seconds of device time, in the queue, and to the first token."""
    return {
        "device_seconds": usage.device_seconds,
        "queue_seconds": usage.queue_seconds,
        "ttft_seconds": usage.ttft_seconds,
    }


def chat_logprobs(tokenizer: Tokenizer, logprobs: tuple[TokenLogprob, ...]) -> list[dict[str, Any]]:
    """Entries of `choices[].logprobs.content`; `bytes` are exact where `token` may show half a character."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        data = token_bytes(tokenizer, token)
        # -inf (a token that the mask of an earlier step ruled out) is no JSON number.
        value = max(logprob, -9999.0)
        return {"token": data.decode("utf-8", "replace"), "logprob": value, "bytes": list(data)}

    return [
        {**entry(item.token_id, item.logprob), "top_logprobs": [entry(*top) for top in item.top]} for item in logprobs
    ]
