"""The HTTP front: OpenAI's endpoints over one executor and one embedder."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from inference.embedder import Embedder
from inference.server.bridge import Bridge, ExecutorLike
from inference.server.chat import chat
from inference.server.completions import complete
from inference.server.context import Context, FrontConfig
from inference.server.embeddings import embed
from inference.server.guard import guarded, no_such_endpoint
from inference.server.metrics import CONTENT_TYPE, Metrics
from inference.tokenizer import Tokenizer

__all__ = ["Front", "FrontConfig"]


class Front:
    """Routes, and the life of what they share."""

    def __init__(
        self, executor: ExecutorLike, tokenizer: Tokenizer, embedder: Embedder | None, config: FrontConfig
    ) -> None:
        self.context = Context(executor, tokenizer, embedder, config, Bridge(executor), Metrics(executor))

    def app(self) -> Starlette:
        bridge = self.context.bridge

        @contextlib.asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            bridge.start()
            yield
            # Requests under way have been answered by now: the server drains before it ends the lifespan.
            await asyncio.to_thread(bridge.close)

        return Starlette(
            routes=[
                Route("/v1/chat/completions", guarded(self.context, "chat", chat), methods=["POST"]),
                Route("/v1/completions", guarded(self.context, "completions", complete), methods=["POST"]),
                Route("/v1/embeddings", guarded(self.context, "embeddings", embed), methods=["POST"]),
                Route("/v1/models", guarded(self.context, "models", _models)),
                Route("/v1/models/{name:path}", guarded(self.context, "models", _model)),
                Route("/tokenizer", guarded(self.context, "tokenizer", _tokenizer)),
                Route("/health", self._health),
                Route("/metrics", self._metrics),
            ],
            exception_handlers={404: no_such_endpoint, 405: no_such_endpoint},
            lifespan=lifespan,
        )

    async def _health(self, _: HttpRequest) -> Response:
        stats = self.context.executor.stats()
        models = [entry["id"] for entry in self.context.models()]
        return JSONResponse({"status": "ok", "models": models, "running": stats.running, "waiting": stats.waiting})

    async def _metrics(self, _: HttpRequest) -> Response:
        return Response(self.context.metrics.render(), media_type=CONTENT_TYPE)


async def _models(context: Context, _: HttpRequest) -> Response:
    return JSONResponse({"object": "list", "data": context.models()})


async def _model(context: Context, http: HttpRequest) -> Response:
    name = http.path_params["name"]
    for entry in context.models():
        if entry["id"] == name:
            return JSONResponse(entry)
    raise context.unknown_model(name)


async def _tokenizer(context: Context, _: HttpRequest) -> Response:
    return Response(context.tokenizer.json, media_type="application/json")
