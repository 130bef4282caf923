"""The parts of answers that have a shape of OpenAI's: usage, log-probabilities, listed models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from inference.request import Usage
from inference.server.generation import ShownLogprob
from inference.tokenizer import Tokenizer

LEAST_LOGPROB = -9999.0  # what OpenAI sends for a token of no probability: -inf is no JSON number


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"accepted_prediction_tokens": usage.accepted_draft_tokens},
    }


def engine_object(usage: Usage) -> dict[str, Any]:
    """Our own addition beside `usage`: seconds of device time, in the queue, and to the first token."""
    return {
        "device_seconds": usage.device_seconds,
        "queue_seconds": usage.queue_seconds,
        "ttft_seconds": usage.ttft_seconds,
    }


def total_usage(prompts: Iterable[Sequence[Usage]]) -> Usage:
    """Of one HTTP request: `prompts` has, for each prompt, the usage of its choices. A prompt counts once, however many
    choices it has, and as cached only where it was for all of them: the others found what the first had computed."""
    listed = [list(choices) for choices in prompts]
    every = [usage for choices in listed for usage in choices]
    first = [usage.ttft_seconds for usage in every if usage.ttft_seconds is not None]
    return Usage(
        prompt_tokens=sum(choices[0].prompt_tokens for choices in listed),
        cached_tokens=sum(min(usage.cached_tokens for usage in choices) for choices in listed),
        completion_tokens=sum(usage.completion_tokens for usage in every),
        accepted_draft_tokens=sum(usage.accepted_draft_tokens for usage in every),
        device_seconds=sum(usage.device_seconds for usage in every),
        queue_seconds=max(usage.queue_seconds for usage in every),
        ttft_seconds=min(first) if first else None,
    )


def chat_logprobs(tokenizer: Tokenizer, items: Sequence[ShownLogprob]) -> list[dict[str, Any]]:
    """Entries of `choices[].logprobs.content`; `bytes` are exact where `token` may show half a character."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        data = tokenizer.token_bytes.spelled(token)
        text = data.decode("utf-8", "replace")
        return {"token": text, "logprob": max(logprob, LEAST_LOGPROB), "bytes": list(data)}

    return [
        {
            **entry(item.logprob.token_id, item.logprob.logprob),
            "top_logprobs": [entry(*top) for top in item.logprob.top],
        }
        for item in items
    ]


def completion_logprobs(tokenizer: Tokenizer, items: Sequence[ShownLogprob]) -> dict[str, Any]:
    """`choices[].logprobs` of plain completions. The chosen token is always among `top_logprobs`, so that there may be
    one more than asked for."""

    def name(token: int) -> str:
        """The token's text; where it is no text by itself, its bytes, spelled out so that no two are the same key."""
        data = tokenizer.token_bytes.spelled(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    entries = [item.logprob for item in items]
    return {
        "tokens": [name(entry.token_id) for entry in entries],
        "token_logprobs": [max(entry.logprob, LEAST_LOGPROB) for entry in entries],
        "top_logprobs": [
            {name(token): max(value, LEAST_LOGPROB) for token, value in (*entry.top, (entry.token_id, entry.logprob))}
            for entry in entries
        ],
        "text_offset": [item.offset for item in items],
    }
