"""POST /v1/embeddings"""

from __future__ import annotations

import base64
import struct
import time

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from inference.server.context import Context
from inference.server.errors import ApiError
from inference.server.guard import read_body
from inference.server.schemas import EmbeddingRequest, parse

MAX_TEXTS = 2048


async def embed(context: Context, http: HttpRequest) -> Response:
    asked = parse(EmbeddingRequest, await read_body(context, http))
    embedder = context.core.embedder
    if embedder is None:
        raise ApiError(404, "this engine has no embedder; start it with --embedder", code="model_not_found")
    if asked.model != embedder.name:
        raise context.unknown_model(asked.model)
    if asked.dimensions not in (None, embedder.dimension):
        words = f"dimensions is {asked.dimensions}; {embedder.name} makes {embedder.dimension}, no fewer"
        raise ApiError(400, words, param="dimensions")
    texts = [asked.input] if isinstance(asked.input, str) else asked.input
    if not texts or len(texts) > MAX_TEXTS:
        raise ApiError(400, f"{len(texts)} texts; give 1 to {MAX_TEXTS}", param="input")
    started = time.monotonic()
    vectors, tokens = await context.core.embed(texts)
    packed = asked.encoding_format == "base64"
    data = [
        {"object": "embedding", "index": i, "embedding": _base64(vector) if packed else vector}
        for i, vector in enumerate(vectors)
    ]
    context.metrics.answered("embeddings", "ok")
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    seconds = {"device_seconds": time.monotonic() - started}
    return JSONResponse({"object": "list", "data": data, "model": embedder.name, "usage": usage, "quarry": seconds})


def _base64(vector: list[float]) -> str:
    """Little-endian floats of 32 bits, as OpenAI packs them."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
