"""Around every endpoint: the key is checked, the body is bounded, and what is raised becomes an answer."""

from __future__ import annotations

import hmac
import logging
import math
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from inference.core.client import EmbeddingFailed
from inference.request import EngineDown, EngineStopped, QueueFull, RequestRejected
from inference.server.context import Context
from inference.server.errors import ApiError

log = logging.getLogger(__name__)
Endpoint = Callable[[Context, HttpRequest], Awaitable[Response]]


def guarded(context: Context, name: str, endpoint: Endpoint) -> Callable[[HttpRequest], Coroutine[Any, Any, Response]]:
    """The endpoint as a route takes it; `name` is the one in the metrics. Every answer has an `x-request-id`."""

    async def answer(http: HttpRequest) -> Response:
        request_id = f"req-{uuid.uuid4().hex}"
        try:
            _authorize(http, context.config.api_key)
            response = await endpoint(context, http)
        except Exception as error:
            failure = as_api_error(error)
            if failure.status == 500:
                log.exception("request %s failed", request_id)
            context.metrics.answered(name, str(failure.status))
            response = failure.response()
        response.headers["x-request-id"] = request_id
        return response

    return answer


async def read_body(context: Context, http: HttpRequest) -> bytes:
    limit = context.config.max_body_bytes
    declared = http.headers.get("content-length", "")
    body = bytearray()
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(limit)
    async for part in http.stream():
        body += part
        if len(body) > limit:
            raise _too_large(limit)
    return bytes(body)


def as_api_error(error: Exception) -> ApiError:
    """The answer for what an endpoint raised."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, QueueFull):
        seconds = str(max(1, math.ceil(error.retry_after)))
        return ApiError(429, str(error), kind="rate_limit_error", code="queue_full", headers={"Retry-After": seconds})
    if isinstance(error, RequestRejected):
        return ApiError(400, str(error), code="request_rejected")
    if isinstance(error, EngineDown):
        again = {"Retry-After": str(math.ceil(error.retry_after))}
        return ApiError(503, str(error), kind="server_error", code="engine_down", headers=again)
    if isinstance(error, EmbeddingFailed):
        return ApiError(500, str(error), kind="server_error", code="engine_error")
    if isinstance(error, EngineStopped):
        return ApiError(503, str(error), kind="server_error", code="shutting_down", headers={"Retry-After": "1"})
    words = "the server failed at this request; its log says why, under the x-request-id of this answer"
    return ApiError(500, words, kind="server_error", code="internal_error")


async def no_such_endpoint(http: HttpRequest, error: Exception) -> Response:
    """404 and 405."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == 405:
        words = f"{http.url.path} does not answer {http.method}; it answers {headers.get('Allow', 'other methods')}"
        return ApiError(405, words, code="method_not_allowed", headers=headers).response()
    return ApiError(404, f"nothing answers {http.method} {http.url.path}", code="not_found").response()


def _authorize(http: HttpRequest, key: str | None) -> None:
    if key is None:
        return
    scheme, _, given = http.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), key.encode()):
        raise ApiError(
            401,
            "the API key is missing or wrong; send it as Authorization: Bearer …",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )


def _too_large(limit: int) -> ApiError:
    # The rest of the body is not read, so the connection can't be used again.
    words = f"the request body is over {limit} bytes, the limit; send less"
    return ApiError(413, words, code="too_large", headers={"Connection": "close"})
