"""The HTTP front: OpenAI's endpoints over one executor and one embedder."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import json
import struct
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from inference.embedder import Embedder
from inference.executor import EngineStopped, QueueFull
from inference.request import Request, RequestRejected, TokenLogprob, Usage
from inference.server.bridge import Bridge, ExecutorLike
from inference.server.errors import ApiError
from inference.server.generation import Delta, chat_logprobs, engine_object, generate, usage_object
from inference.server.metrics import CONTENT_TYPE, Metrics
from inference.server.schemas import ChatRequest, CompletionRequest, EmbeddingRequest, parse
from inference.tokenizer import TemplateError, Tokenizer

MAX_EMBEDDING_TEXTS = 2048
CLIENT_CLOSED = 499  # nginx's status for a client that went away; only logs and metrics see it


@dataclass(frozen=True)
class FrontConfig:
    """`aliases` are further names under which the model answers."""

    api_key: str | None = None
    max_body_bytes: int = 8 * 2**20
    aliases: tuple[str, ...] = ()
    request_timeout_seconds: float | None = None


class Front:
    """Routes and what they share."""

    def __init__(
        self, executor: ExecutorLike, tokenizer: Tokenizer, embedder: Embedder | None, config: FrontConfig
    ) -> None:
        self.executor = executor
        self.tokenizer = tokenizer
        self.embedder = embedder
        self.config = config
        self.bridge = Bridge(executor)
        self.metrics = Metrics(executor)
        self.started = int(time.time())

    def app(self) -> Starlette:
        @contextlib.asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            self.bridge.start()
            yield
            # Requests under way have been answered by now: the server drains before it ends the lifespan.
            await asyncio.to_thread(self.bridge.close)

        return Starlette(
            routes=[
                Route("/v1/chat/completions", self._guard(self.chat), methods=["POST"]),
                Route("/v1/completions", self._guard(self.complete), methods=["POST"]),
                Route("/v1/embeddings", self._guard(self.embed), methods=["POST"]),
                Route("/v1/models", self._guard(self.models)),
                Route("/v1/models/{name:path}", self._guard(self.model)),
                Route("/tokenizer", self._guard(self.tokenizer_json)),
                Route("/health", self.health),
                Route("/metrics", self.metrics_text),
            ],
            exception_handlers={404: _not_found, 405: _not_found},
            lifespan=lifespan,
        )

    # Endpoints

    async def health(self, _: HttpRequest) -> Response:
        stats = self.executor.stats()
        models = [self.executor.model_info.name] + ([self.embedder.name] if self.embedder else [])
        return JSONResponse({"status": "ok", "models": models, "running": stats.running, "waiting": stats.waiting})

    async def metrics_text(self, _: HttpRequest) -> Response:
        return Response(self.metrics.render(), media_type=CONTENT_TYPE)

    async def models(self, _: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": self._listed()})

    async def model(self, http: HttpRequest) -> Response:
        name = http.path_params["name"]
        for entry in self._listed():
            if entry["id"] == name:
                return JSONResponse(entry)
        raise self._unknown_model(name)

    async def tokenizer_json(self, _: HttpRequest) -> Response:
        return Response(self.tokenizer.json, media_type="application/json")

    async def chat(self, http: HttpRequest) -> Response:
        asked = parse(ChatRequest, await self._body(http))
        self._check_model(asked.model)
        try:
            prompt = self.tokenizer.encode_chat([message.plain() for message in asked.messages])
        except TemplateError as error:
            raise ApiError(400, str(error), param="messages") from error
        request = self._request("chatcmpl", prompt, asked, asked.limit(), asked.wanted_logprobs())
        deltas = generate(self.bridge, self.tokenizer, request, asked.stops())
        head = self._head(request.id, "chat.completion")

        def logprobs(items: tuple[TokenLogprob, ...]) -> dict[str, Any] | None:
            return {"content": chat_logprobs(self.tokenizer, items), "refusal": None} if asked.logprobs else None

        if asked.stream:

            def chunk(delta: Delta, first: bool) -> dict[str, Any]:
                message: dict[str, Any] = {"content": delta.text}
                if first:
                    message["role"] = "assistant"
                return {"index": 0, "delta": message, "logprobs": logprobs(delta.logprobs),
                        "finish_reason": delta.finish_reason}  # fmt: skip

            with_usage = bool(asked.stream_options and asked.stream_options.include_usage)
            head["object"] = "chat.completion.chunk"
            return await self._stream(http, "chat", deltas, head, chunk, with_usage)
        text, items, last = await self._while_connected(http, _collect(deltas))
        choice = {"index": 0, "message": {"role": "assistant", "content": text, "refusal": None},
                  "logprobs": logprobs(items), "finish_reason": last.finish_reason}  # fmt: skip
        self._count("chat", last)
        return JSONResponse(
            {**head, "choices": [choice], "usage": usage_object(last.usage), "quarry": engine_object(last.usage)}
        )

    async def complete(self, http: HttpRequest) -> Response:
        asked = parse(CompletionRequest, await self._body(http))
        self._check_model(asked.model)
        prompts = self._prompts(asked)
        if asked.stream and len(prompts) > 1:
            raise ApiError(400, f"{len(prompts)} prompts in one streamed request; send one at a time", param="prompt")
        requests = [self._request("cmpl", prompt, asked, asked.max_tokens, asked.logprobs) for prompt in prompts]
        runs = [generate(self.bridge, self.tokenizer, request, asked.stops()) for request in requests]
        head = self._head(requests[0].id, "text_completion")

        def choice(index: int, text: str, items: tuple[TokenLogprob, ...], reason: str | None) -> dict[str, Any]:
            logprobs = self._completion_logprobs(items) if asked.logprobs is not None else None
            return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

        if asked.stream:

            def chunk(delta: Delta, _: bool) -> dict[str, Any]:
                return choice(0, delta.text, delta.logprobs, delta.finish_reason)

            with_usage = bool(asked.stream_options and asked.stream_options.include_usage)
            return await self._stream(http, "completions", runs[0], head, chunk, with_usage)
        results = await self._while_connected(http, _gather([_collect(run) for run in runs]))
        choices, total = [], Usage()
        for index, (text, items, last) in enumerate(results):
            choices.append(choice(index, text, items, last.finish_reason))
            total = _add(total, last.usage)
            self._count("completions", last)
        return JSONResponse({**head, "choices": choices, "usage": usage_object(total), "quarry": engine_object(total)})

    async def embed(self, http: HttpRequest) -> Response:
        asked = parse(EmbeddingRequest, await self._body(http))
        if self.embedder is None:
            raise ApiError(404, "this engine has no embedder; start it with --embedder", code="model_not_found")
        if asked.model != self.embedder.name:
            raise self._unknown_model(asked.model)
        texts = [asked.input] if isinstance(asked.input, str) else asked.input
        if not texts or len(texts) > MAX_EMBEDDING_TEXTS:
            raise ApiError(400, f"{len(texts)} texts; give 1 to {MAX_EMBEDDING_TEXTS}", param="input")
        started = time.monotonic()
        vectors, tokens = await asyncio.to_thread(self.embedder.embed, texts)
        packed = asked.encoding_format == "base64"
        data = [
            {"object": "embedding", "index": i, "embedding": _base64(vector) if packed else vector}
            for i, vector in enumerate(vectors)
        ]
        self.metrics.answered("embeddings", "ok")
        return JSONResponse(
            {"object": "list", "data": data, "model": self.embedder.name,
             "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
             "quarry": {"device_seconds": time.monotonic() - started}}
        )  # fmt: skip

    # What the endpoints share

    def _guard(
        self, endpoint: Callable[[HttpRequest], Awaitable[Response]]
    ) -> Callable[[HttpRequest], Coroutine[Any, Any, Response]]:
        """Check the key, and turn what is raised into an answer."""
        name = getattr(endpoint, "__name__", "endpoint")

        async def guarded(http: HttpRequest) -> Response:
            try:
                self._authorize(http)
                return await endpoint(http)
            except Exception as error:
                answer = as_api_error(error)
                if answer is None:
                    raise
                self.metrics.answered(name, str(answer.status))
                return answer.response()

        return guarded

    def _authorize(self, http: HttpRequest) -> None:
        if self.config.api_key is None:
            return
        given = http.headers.get("authorization", "").removeprefix("Bearer ").strip()
        if not hmac.compare_digest(given.encode(), self.config.api_key.encode()):
            raise ApiError(401, "the API key is missing or wrong; send it as Authorization: Bearer …",
                           kind="authentication_error", code="invalid_api_key")  # fmt: skip

    async def _body(self, http: HttpRequest) -> bytes:
        limit = self.config.max_body_bytes
        body = bytearray()
        async for part in http.stream():
            body += part
            if len(body) > limit:
                raise ApiError(413, f"the request body is over {limit} bytes, the limit; send less", code="too_large")
        return bytes(body)

    def _listed(self) -> list[dict[str, Any]]:
        info = self.executor.model_info
        common = {"object": "model", "created": self.started, "owned_by": "quarry"}
        listed: list[dict[str, Any]] = [
            {"id": info.name, **common, "max_model_len": info.max_model_len, "kind": "generation"}
        ]
        if self.embedder:
            listed.append(
                {"id": self.embedder.name, **common, "kind": "embedding", "dimension": self.embedder.dimension}
            )
        return listed

    def _check_model(self, name: str) -> None:
        if name not in (self.executor.model_info.name, *self.config.aliases):
            raise self._unknown_model(name)

    def _unknown_model(self, name: str) -> ApiError:
        known = ", ".join(entry["id"] for entry in self._listed())
        return ApiError(404, f"no model {name!r} here; there is {known}", code="model_not_found", param="model")

    def _request(
        self, prefix: str, prompt: list[int], asked: ChatRequest | CompletionRequest, limit: int | None,
        logprobs: int | None,
    ) -> Request:  # fmt: skip
        room = self.executor.model_info.max_model_len - len(prompt)
        if room < 1:
            raise ApiError(
                400,
                f"the prompt has {len(prompt)} tokens; this model's context length is "
                f"{self.executor.model_info.max_model_len} with the answer. Shorten the prompt",
                code="context_length_exceeded",
            )
        return Request(
            id=f"{prefix}-{uuid.uuid4().hex}",
            prompt_token_ids=tuple(prompt),
            sampling=asked.sampling(limit or room, logprobs),
            grammar=asked.grammar(),
            priority=asked.priority,
            timeout_seconds=self.config.request_timeout_seconds,
            cache_salt=asked.cache_salt,
        )

    def _prompts(self, asked: CompletionRequest) -> list[list[int]]:
        given = asked.prompt
        if isinstance(given, str):
            return [self.tokenizer.encode(given)]
        if not given:
            raise ApiError(400, "the prompt is empty", param="prompt")
        if isinstance(given[0], int):
            return [list(given)]
        return [self.tokenizer.encode(item) if isinstance(item, str) else list(item) for item in given]

    def _head(self, request_id: str, kind: str) -> dict[str, Any]:
        return {"id": request_id, "object": kind, "created": int(time.time()), "model": self.executor.model_info.name}

    def _completion_logprobs(self, items: tuple[TokenLogprob, ...]) -> dict[str, Any]:
        entries = chat_logprobs(self.tokenizer, items)
        return {
            "tokens": [entry["token"] for entry in entries],
            "token_logprobs": [entry["logprob"] for entry in entries],
            "top_logprobs": [{top["token"]: top["logprob"] for top in entry["top_logprobs"]} for entry in entries],
        }

    def _count(self, endpoint: str, last: Delta) -> None:
        self.metrics.answered(endpoint, str(last.finish_reason))
        self.metrics.finished(last.usage)

    async def _while_connected(self, http: HttpRequest, work: Coroutine[Any, Any, Any]) -> Any:
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

    async def _stream(
        self,
        http: HttpRequest,
        endpoint: str,
        deltas: AsyncGenerator[Delta, None],
        head: dict[str, Any],
        chunk: Callable[[Delta, bool], dict[str, Any]],
        with_usage: bool,
    ) -> Response:
        # The first delta is awaited here, so that a request that is refused gets a status and not a broken stream.
        try:
            first = await self._while_connected(http, anext(deltas))
        except BaseException:
            await deltas.aclose()
            raise

        async def events() -> AsyncIterator[bytes]:
            last = first
            finished = False
            try:
                async with aclosing(deltas):
                    yield _event({**head, "choices": [chunk(first, True)]})
                    async for delta in deltas:
                        last = delta
                        yield _event({**head, "choices": [chunk(delta, False)]})
                finished = True
                if with_usage:
                    yield _event({**head, "choices": [], "usage": usage_object(last.usage),
                                  "quarry": engine_object(last.usage)})  # fmt: skip
            except ApiError as error:
                finished = True
                yield _event(error.body)
            finally:
                if finished:
                    self._count(endpoint, last)
                else:
                    self.metrics.answered(endpoint, "disconnected")
            yield b"data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


def as_api_error(error: Exception) -> ApiError | None:
    """The answer for what an endpoint raised; None for a mistake of the program."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, QueueFull):
        seconds = str(max(1, round(error.retry_after)))
        return ApiError(429, str(error), kind="rate_limit_error", code="queue_full", headers={"Retry-After": seconds})
    if isinstance(error, RequestRejected):
        return ApiError(400, str(error), code="request_rejected")
    if isinstance(error, EngineStopped):
        return ApiError(503, str(error), kind="server_error", code="shutting_down", headers={"Retry-After": "1"})
    return None


async def _not_found(http: HttpRequest, _: Exception) -> Response:
    return ApiError(404, f"nothing answers {http.method} {http.url.path}", code="not_found").response()


async def _disconnected(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


async def _collect(deltas: AsyncGenerator[Delta, None]) -> tuple[str, tuple[TokenLogprob, ...], Delta]:
    text: list[str] = []
    items: list[TokenLogprob] = []
    last: Delta | None = None
    async with aclosing(deltas):
        async for delta in deltas:
            text.append(delta.text)
            items += delta.logprobs
            last = delta
    assert last is not None
    return "".join(text), tuple(items), last


async def _gather(work: list[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Like asyncio.gather, but one failure cancels the others before it is raised."""
    tasks = [asyncio.ensure_future(item) for item in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _add(a: Usage, b: Usage) -> Usage:
    first = [t for t in (a.ttft_seconds, b.ttft_seconds) if t is not None]
    return Usage(
        prompt_tokens=a.prompt_tokens + b.prompt_tokens,
        cached_tokens=a.cached_tokens + b.cached_tokens,
        completion_tokens=a.completion_tokens + b.completion_tokens,
        accepted_draft_tokens=a.accepted_draft_tokens + b.accepted_draft_tokens,
        device_seconds=a.device_seconds + b.device_seconds,
        queue_seconds=max(a.queue_seconds, b.queue_seconds),
        ttft_seconds=min(first) if first else None,
    )


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False).encode("utf-8", "replace") + b"\n\n"


def _base64(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
