"""The HTTP client to our engine, or to any OpenAI-compatible server. The only way from the pipeline to a model."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from pipeline.errors import DocumentError, TransientError
from pipeline.gate import clean_string
from pipeline.settings import Settings

EMBED_BATCH = 64  # texts in one request; servers commonly take 100 or more
CONNECT_SECONDS = 5.0
MAX_CONNECTIONS = 256  # above the concurrency of an extract worker, so that the engine's queue is the only queue
_TOO_LONG = ("context length", "too long", "maximum context", "too many tokens", "context_length")


@dataclass(frozen=True)
class TokenLogprob:
    """One generated token: its bytes (a token may be part of a character) and its log-probability (natural log)."""

    data: bytes
    logprob: float


@dataclass(frozen=True)
class EngineUsage:
    """Disjoint buckets: `input_tokens` were computed, `cached_tokens` were not. Together they are the prompt."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    device_seconds: float | None = None  # None: the server does not say

    def __add__(self, other: EngineUsage) -> EngineUsage:
        seconds = [part for part in (self.device_seconds, other.device_seconds) if part is not None]
        return EngineUsage(
            self.input_tokens + other.input_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
            sum(seconds) if seconds else None,
        )


@dataclass(frozen=True)
class Completion:
    """One answer. `tokens` is empty when log-probabilities were not asked for or the server has none."""

    text: str
    finish_reason: str  # stop, length, content_filter, …
    usage: EngineUsage
    model: str
    tokens: tuple[TokenLogprob, ...] = ()
    refusal: str | None = None
    seconds: float = 0.0  # wall clock of the call


@dataclass(frozen=True)
class Embeddings:
    """`vectors[i]` belongs to the i-th text."""

    vectors: list[list[float]] = field(default_factory=list)
    model: str = ""
    usage: EngineUsage = EngineUsage()


class EngineClient:
    """Thread-safe; one connection pool. Raises TransientError (connection, timeout, 429, 5xx) or DocumentError
    (`too_long`, `engine_refused`: the same request would fail again)."""

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        embedder: str | None = None,
        embeddings_url: str | None = None,
        api_key: str | None = None,
        timeout_seconds: float = 600.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """`url` and `embeddings_url` are without `/v1`. `transport` is for tests."""
        self.url = _base(url)
        self.model = model
        self.embedder = embedder
        self._embeddings_url = _base(embeddings_url or url)
        self._timeout = timeout_seconds
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS)
        self._http = httpx.Client(headers=headers, limits=limits, transport=transport)

    @classmethod
    def from_settings(cls, settings: Settings) -> EngineClient:
        """The process's client for these settings: the same object each time, so that the pool is shared."""
        url = settings.endpoint("engine_url")
        secret = settings.engine_api_key.get_secret_value() if settings.engine_api_key else None
        key = (
            url,
            settings.model,
            settings.embedder,
            settings.embeddings_url,
            secret,
            settings.request_timeout_seconds,
        )
        with _SHARED_LOCK:
            if key not in _SHARED:
                _SHARED[key] = cls(
                    url,
                    model=settings.model,
                    embedder=settings.embedder,
                    embeddings_url=settings.embeddings_url,
                    api_key=secret,
                    timeout_seconds=settings.request_timeout_seconds,
                )
            return _SHARED[key]

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        json_schema: Mapping[str, Any] | None = None,
        max_tokens: int,
        temperature: float = 0.0,
        seed: int | None = None,
        logprobs: bool = False,
        timeout_seconds: float | None = None,
    ) -> Completion:
        """One chat completion, constrained to `json_schema` when given. `timeout_seconds` bounds the whole call."""
        body: dict[str, Any] = {
            "model": self.model or self._first_model(),
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": temperature,
        }
        if seed is not None:
            body["seed"] = seed
        if logprobs:
            body["logprobs"] = True
        if json_schema is not None:
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": json_schema, "strict": False},
            }
        started = time.monotonic()
        answer = self._post(f"{self.url}/v1/chat/completions", body, timeout_seconds or self._timeout)
        return _completion(answer, time.monotonic() - started)

    def embed(self, texts: Sequence[str]) -> Embeddings:
        """One vector per text, in order, in batches that a server takes."""
        vectors: list[list[float]] = []
        usage = EngineUsage()
        model = self.embedder or ""
        for start in range(0, len(texts), EMBED_BATCH):
            batch = [text or " " for text in texts[start : start + EMBED_BATCH]]
            body: dict[str, Any] = {"input": batch, "encoding_format": "float"}
            if self.embedder:
                body["model"] = self.embedder
            answer = self._post(f"{self._embeddings_url}/v1/embeddings", body, self._timeout)
            vectors.extend(_vectors(answer, len(batch)))
            usage = usage + _usage(answer)
            model = str(answer.get("model") or model)
        return Embeddings(vectors, model, usage)

    def models(self) -> list[dict[str, Any]]:
        """What the server lists under `/v1/models`."""
        answer = self._get(f"{self.url}/v1/models")
        return [model for model in answer.get("data", ()) if isinstance(model, dict)]

    def tokenizer_json(self) -> bytes | None:
        """The model's tokenizer.json; None when the server has no such endpoint."""
        try:
            response = self._send("GET", f"{self.url}/tokenizer", None, 60.0)
        except DocumentError:
            return None
        return response.content if response.content[:1] == b"{" else None

    def health(self) -> dict[str, Any]:
        """Raises TransientError when the engine is down or not ready. Servers without `/health` count as healthy
        when they list their models."""
        try:
            response = self._send("GET", f"{self.url}/health", None, 10.0)
        except DocumentError:
            return {"status": "ok", "models": [model.get("id") for model in self.models()]}
        try:
            found = response.json()
        except ValueError:
            return {"status": "ok"}
        return found if isinstance(found, dict) else {"status": "ok"}

    def close(self) -> None:
        self._http.close()

    def _first_model(self) -> str:
        listed = self.models()
        if not listed:
            raise TransientError(f"the engine at {self.url} lists no model yet")
        return str(listed[0].get("id"))

    def _get(self, url: str) -> dict[str, Any]:
        return _json_object(self._send("GET", url, None, 30.0))

    def _post(self, url: str, body: Mapping[str, Any], timeout_seconds: float) -> dict[str, Any]:
        return _json_object(self._send("POST", url, body, timeout_seconds))

    def _send(self, method: str, url: str, body: Mapping[str, Any] | None, timeout_seconds: float) -> httpx.Response:
        # One answer arrives in one piece, so the read timeout bounds the call.
        timeout = httpx.Timeout(timeout_seconds, connect=min(CONNECT_SECONDS, timeout_seconds))
        try:
            response = self._http.request(method, url, json=body, timeout=timeout)
        except httpx.ConnectError as error:
            raise TransientError(f"no connection to the engine at {self.url}: {error}") from error
        except httpx.TimeoutException as error:
            words = f"the engine at {self.url} did not answer within {timeout_seconds:g} s"
            raise TransientError(words, reason="engine_timeout") from error
        except httpx.InvalidURL as error:
            raise DocumentError("engine_refused", f"{url} is no usable address: {error}") from error
        except httpx.HTTPError as error:
            raise TransientError(f"the connection to the engine at {self.url} broke: {error!r}") from error
        if response.is_success:
            return response
        raise _failure(response)


_SHARED: dict[tuple[Any, ...], EngineClient] = {}
_SHARED_LOCK = threading.Lock()


def _base(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")


def _failure(response: httpx.Response) -> TransientError | DocumentError:
    status = response.status_code
    words = f"the engine answered {status}: {_message(response)}"
    if status == 429:
        return TransientError(words, reason="engine_busy", retry_after=_retry_after(response))
    if status >= 500 or status in (408, 409, 425):
        return TransientError(words, retry_after=_retry_after(response))
    if status == 413 or any(sign in words.lower() for sign in _TOO_LONG):
        return DocumentError("too_long", words)
    return DocumentError("engine_refused", words)


def _message(response: httpx.Response) -> str:
    try:
        answer = response.json()
    except ValueError:
        answer = response.text
    if isinstance(answer, dict):
        error = answer.get("error", answer)
        answer = error.get("message", error) if isinstance(error, dict) else error
    return clean_string(str(answer)).strip()[:500] or response.reason_phrase


def _retry_after(response: httpx.Response) -> float | None:
    """Seconds to wait, from either form of the header."""
    value = response.headers.get("retry-after", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (TypeError, ValueError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _json_object(response: httpx.Response) -> dict[str, Any]:
    try:
        answer = response.json()
    except ValueError as error:
        raise TransientError(f"the engine's answer is not JSON: {response.text[:200]!r}") from error
    if not isinstance(answer, dict):
        raise TransientError(f"the engine's answer is a {type(answer).__name__}, not an object")
    return answer


def _completion(answer: Mapping[str, Any], seconds: float) -> Completion:
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise TransientError("the engine's answer has no choices")
    choice = choices[0]
    message = choice.get("message") or {}
    return Completion(
        text=message.get("content") or "",
        finish_reason=str(choice.get("finish_reason") or "stop"),
        usage=_usage(answer),
        model=str(answer.get("model") or ""),
        tokens=_tokens(choice),
        refusal=message.get("refusal") or None,
        seconds=seconds,
    )


def _tokens(choice: Mapping[str, Any]) -> tuple[TokenLogprob, ...]:
    listed = (choice.get("logprobs") or {}).get("content") or ()
    found = []
    for entry in listed:
        raw = entry.get("bytes")
        data = bytes(raw) if isinstance(raw, list) else str(entry.get("token", "")).encode()
        logprob = entry.get("logprob")
        found.append(TokenLogprob(data, float(logprob) if logprob is not None else 0.0))
    return tuple(found)


def _usage(answer: Mapping[str, Any]) -> EngineUsage:
    usage = answer.get("usage") or {}
    prompt = int(usage.get("prompt_tokens") or 0)
    cached = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
    seconds = (answer.get("quarry") or usage.get("quarry") or {}).get("device_seconds")
    return EngineUsage(
        input_tokens=max(0, prompt - cached),
        cached_tokens=min(cached, prompt),
        output_tokens=int(usage.get("completion_tokens") or 0),
        device_seconds=float(seconds) if seconds is not None else None,
    )


def _vectors(answer: Mapping[str, Any], expected: int) -> list[list[float]]:
    data = answer.get("data")
    if not isinstance(data, list) or len(data) != expected:
        got = len(data) if isinstance(data, list) else 0
        raise TransientError(f"the engine sent {got} vectors for {expected} texts")
    ordered = sorted(data, key=lambda entry: int(entry.get("index", 0)))
    vectors = [entry.get("embedding") for entry in ordered]
    for vector in vectors:
        if not isinstance(vector, list) or not all(
            isinstance(value, int | float) and math.isfinite(value) for value in vector
        ):
            raise TransientError("the engine sent a vector that is not a list of finite numbers")
    return vectors
