"""The choices of one HTTP request, run together: collected into one answer, or merged into one stream of events."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse

from inference.randomness import choice_seed
from inference.request import FinishReason, Request, Usage
from inference.server.context import Context
from inference.server.errors import ApiError
from inference.server.generation import Delta, ShownLogprob, generate
from inference.server.guard import as_api_error
from inference.server.openai_objects import engine_object, total_usage, usage_object
from inference.server.schemas import Generation

CLIENT_CLOSED = 499  # nginx's status for a client that went away; only logs and metrics see it
MAX_CHOICES = 128  # of one HTTP request: prompts times n


@dataclass(frozen=True)
class Choice:
    """One finished choice."""

    index: int
    text: str
    logprobs: tuple[ShownLogprob, ...]
    finish_reason: FinishReason | None
    usage: Usage


@dataclass(frozen=True)
class Shape:
    """How an endpoint writes its answers. `choice` writes a finished choice, `chunk` a piece of one (index, piece,
    whether it is the first of its choice)."""

    endpoint: str  # in the metrics
    prefix: str  # of ids
    object: str
    chunk_object: str
    continues: bool  # whether an answer continues the prompt's text
    choice: Callable[[Choice], dict[str, Any]]
    chunk: Callable[[int, Delta, bool], dict[str, Any]]


async def answer(
    context: Context, http: HttpRequest, asked: Generation, prompts: list[list[int]], shape: Shape
) -> Response:
    """Run `asked.n` choices for each prompt, numbered prompt by prompt, and answer. Raises what the engine refuses."""
    if len(prompts) * asked.n > MAX_CHOICES:
        raise ApiError(400, f"{len(prompts)} prompts times n {asked.n}: the limit is {MAX_CHOICES} choices", param="n")
    name = f"{shape.prefix}-{uuid.uuid4().hex}"
    requests = _requests(context, asked, prompts, name)
    stops = asked.stops()
    runs = [
        generate(context.core, context.tokenizer, request, stops, continues=shape.continues) for request in requests
    ]
    head = {"id": name, "object": shape.object, "created": int(time.time()), "model": context.model_name}
    if asked.stream:
        return await _Stream(context, asked, shape, head | {"object": shape.chunk_object}, len(runs)).start(http, runs)
    choices = await _while_connected(http, _collect(runs))
    usage = _total([choice.usage for choice in choices], asked.n)
    for choice in choices:
        _count(context, shape.endpoint, choice.finish_reason, choice.usage)
    body = {"choices": [shape.choice(choice) for choice in choices], "usage": usage_object(usage)}
    return JSONResponse({**head, **body, "quarry": engine_object(usage)})


def _requests(context: Context, asked: Generation, prompts: list[list[int]], name: str) -> list[Request]:
    """A request for each choice. Those of one prompt share its pages in the prefix cache: the first computes them."""
    grammar, config = asked.grammar(), context.config
    limits = [limit for limit in (asked.timeout_seconds, config.request_timeout_seconds) if limit is not None]
    made: list[Request] = []
    for prompt in prompts:
        sampling = asked.sampling(_room(context, prompt))
        for choice in range(asked.n):
            seed = None if asked.seed is None else choice_seed(asked.seed, choice)
            made.append(
                Request(
                    id=f"{name}-{len(made)}",
                    prompt_token_ids=tuple(prompt),
                    sampling=replace(sampling, seed=seed),
                    grammar=grammar,
                    priority=asked.priority,
                    timeout_seconds=min(limits, default=None),
                    cache_salt=asked.cache_salt,
                )
            )
    return made


def _room(context: Context, prompt: list[int]) -> int:
    longest = context.core.model_info.max_model_len
    if len(prompt) >= longest:
        raise ApiError(
            400,
            f"the prompt has {len(prompt)} tokens; this model's context length is {longest} with the answer. "
            "Shorten the prompt",
            code="context_length_exceeded",
        )
    return longest - len(prompt)


def _total(usages: list[Usage], choices: int) -> Usage:
    return total_usage(usages[start : start + choices] for start in range(0, len(usages), choices))


def _count(context: Context, endpoint: str, outcome: FinishReason | None, usage: Usage) -> None:
    context.metrics.answered(endpoint, str(outcome))
    context.metrics.finished(usage)


# Running choices side by side


async def _merge(runs: list[AsyncGenerator[Delta, None]]) -> AsyncGenerator[tuple[int, Delta], None]:
    """(index, delta) of all runs as they come. The first failure ends the others and is raised."""
    if len(runs) == 1:
        async with aclosing(runs[0]) as only:
            async for delta in only:
                yield 0, delta
        return
    queue: asyncio.Queue[tuple[int, Delta | BaseException | None]] = asyncio.Queue()

    async def pump(index: int, run: AsyncGenerator[Delta, None]) -> None:
        try:
            async with aclosing(run):
                async for delta in run:
                    queue.put_nowait((index, delta))
            queue.put_nowait((index, None))
        except Exception as error:
            queue.put_nowait((index, error))

    tasks = [asyncio.ensure_future(pump(index, run)) for index, run in enumerate(runs)]
    under_way = len(tasks)
    try:
        while under_way:
            index, item = await queue.get()
            if item is None:
                under_way -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield index, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _collect(runs: list[AsyncGenerator[Delta, None]]) -> list[Choice]:
    pieces: list[list[Delta]] = [[] for _ in runs]
    async with aclosing(_merge(runs)) as deltas:
        async for index, delta in deltas:
            pieces[index].append(delta)
    return [
        Choice(
            index,
            "".join(delta.text for delta in deltas),
            tuple(item for delta in deltas for item in delta.logprobs),
            deltas[-1].finish_reason,
            deltas[-1].usage,
        )
        for index, deltas in enumerate(pieces)
    ]


class _Stream:
    """Server-sent events: chunks of all choices as they come, the usage if it was asked for, `[DONE]`."""

    def __init__(self, context: Context, asked: Generation, shape: Shape, head: dict[str, Any], count: int) -> None:
        options = asked.stream_options
        self._context = context
        self._shape = shape
        self._head = head
        self._choices = asked.n
        self._usage = [Usage()] * count
        self._begun = [False] * count
        self._with_usage = options is not None and options.include_usage
        self._always = options is not None and options.continuous_usage_stats

    async def start(self, http: HttpRequest, runs: list[AsyncGenerator[Delta, None]]) -> Response:
        """The first delta is awaited here, so that a request that is refused gets a status and no broken stream."""
        deltas = _merge(runs)
        try:
            first = await _while_connected(http, anext(deltas))
        except BaseException:
            await deltas.aclose()
            raise
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        return StreamingResponse(self._events(first, deltas), media_type="text/event-stream", headers=headers)

    async def _events(
        self, first: tuple[int, Delta], deltas: AsyncGenerator[tuple[int, Delta], None]
    ) -> AsyncIterator[bytes]:
        ended = False
        try:
            async with aclosing(deltas):
                yield self._chunk(*first)
                async for index, delta in deltas:
                    # Half a character, or what may be the beginning of a stop string: nothing to show yet.
                    if delta.text or delta.logprobs or delta.finish_reason:
                        yield self._chunk(index, delta)
            ended = True
            if self._with_usage:
                yield _event({**self._head, "choices": [], **self._usage_fields()})
        except Exception as error:
            ended = True
            failure = as_api_error(error)
            self._context.metrics.answered(self._shape.endpoint, str(failure.status))
            yield _event(failure.body)
        finally:
            if not ended:
                self._context.metrics.answered(self._shape.endpoint, "disconnected")
        yield b"data: [DONE]\n\n"

    def _chunk(self, index: int, delta: Delta) -> bytes:
        self._usage[index] = delta.usage
        first, self._begun[index] = not self._begun[index], True
        if delta.finish_reason is not None:
            _count(self._context, self._shape.endpoint, delta.finish_reason, delta.usage)
        body = {**self._head, "choices": [self._shape.chunk(index, delta, first)]}
        if self._always:
            body |= self._usage_fields()
        elif self._with_usage:
            body["usage"] = None  # as OpenAI has it: usage comes in the last chunk
        return _event(body)

    def _usage_fields(self) -> dict[str, Any]:
        usage = _total(self._usage, self._choices)
        return {"usage": usage_object(usage), "quarry": engine_object(usage)}


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


async def _while_connected(http: HttpRequest, work: Coroutine[Any, Any, Any]) -> Any:
    """Run `work`, and drop it when the client goes away. Its requests are cancelled on the way out."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(http))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(CLIENT_CLOSED, "the client went away")
        return task.result()
    finally:
        for pending in (task, gone):
            pending.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
