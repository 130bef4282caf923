"""POST /v1/chat/completions"""

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
from inference.server.openai_objects import chat_logprobs
from inference.server.schemas import ChatRequest, parse
from inference.tokenizer import TemplateError


async def chat(context: Context, http: HttpRequest) -> Response:
    asked = parse(ChatRequest, await read_body(context, http))
    context.check_model(asked.model)
    messages = [message.plain() for message in asked.messages]
    size = sum(len(message["content"]) for message in messages)
    try:
        prompt = await beside_the_loop(size, context.tokenizer.encode_chat, messages)
    except TemplateError as error:
        raise ApiError(400, str(error), param="messages") from error

    def logprobs(items: Sequence[ShownLogprob]) -> dict[str, Any] | None:
        return {"content": chat_logprobs(context.tokenizer, items), "refusal": None} if asked.logprobs else None

    def choice(made: Choice) -> dict[str, Any]:
        message = {"role": "assistant", "content": made.text, "refusal": None}
        return {"index": made.index, "message": message, "logprobs": logprobs(made.logprobs),
                "finish_reason": made.finish_reason}  # fmt: skip

    def chunk(index: int, delta: Delta, first: bool) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant"} if first else {}
        if first or delta.text:
            message["content"] = delta.text
        return {"index": index, "delta": message, "logprobs": logprobs(delta.logprobs),
                "finish_reason": delta.finish_reason}  # fmt: skip

    shape = Shape("chat", "chatcmpl", "chat.completion", "chat.completion.chunk", False, choice, chunk)
    return await answer(context, http, asked, [prompt], shape)
