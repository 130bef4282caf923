"""POST /v1/completions"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from inference.server.answers import Choice, Shape, answer
from inference.server.context import Context, beside_the_loop
from inference.server.errors import ApiError
from inference.server.generation import Delta, ShownLogprob
from inference.server.guard import read_body
from inference.server.openai_objects import completion_logprobs
from inference.server.schemas import CompletionRequest, parse


async def complete(context: Context, http: HttpRequest) -> Response:
    asked = parse(CompletionRequest, await read_body(context, http))
    context.check_model(asked.model)
    prompts = await _prompts(context, asked)

    def written(index: int, text: str, items: Sequence[ShownLogprob], finish_reason: str | None) -> dict[str, Any]:
        logprobs = completion_logprobs(context.tokenizer, items) if asked.logprobs is not None else None
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}

    def choice(made: Choice) -> dict[str, Any]:
        return written(made.index, made.text, made.logprobs, made.finish_reason)

    def chunk(index: int, delta: Delta, _: bool) -> dict[str, Any]:
        return written(index, delta.text, delta.logprobs, delta.finish_reason)

    shape = Shape("completions", "cmpl", "text_completion", "text_completion", True, choice, chunk)
    return await answer(context, http, asked, prompts, shape)


async def _prompts(context: Context, asked: CompletionRequest) -> list[list[int]]:
    """A text, several, token ids, or several lists of them."""
    given = asked.prompt
    if not given:
        raise ApiError(400, "the prompt is empty", param="prompt")
    listed = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    return [
        await beside_the_loop(len(item), context.tokenizer.encode, item) if isinstance(item, str) else list(item)
        for item in listed
    ]
