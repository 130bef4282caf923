"""The HTTP front: OpenAI's endpoints over one core. Loads no torch."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from inference.core.client import CoreClient, State
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

    def __init__(self, core: CoreClient, tokenizer: Tokenizer, config: FrontConfig) -> None:
        """`core` has been started, in the event loop that serves."""
        self.context = Context(core, tokenizer, config, Metrics(core))

    def app(self) -> Starlette:
        @contextlib.asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            yield
            # Requests under way have been answered by now: the server drains before it ends the lifespan.
            await self.context.core.shutdown()

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
        core = self.context.core
        stats, models = core.stats(), [entry["id"] for entry in self.context.models()]
        found = {"status": core.state, "models": models, "running": stats.running, "waiting": stats.waiting}
        if core.state is State.UP:
            return JSONResponse(found)
        return JSONResponse(found | {"reason": core.why_down, "restarts": core.restarts}, status_code=503)

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
