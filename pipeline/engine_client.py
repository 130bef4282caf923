"""The HTTP client to our engine, or to any OpenAI-compatible server. The only way from the pipeline to a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.settings import Settings


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


@dataclass(frozen=True)
class Completion:
    text: str
    finish_reason: str  # stop, length, content_filter, …
    usage: EngineUsage
    model: str
    tokens: tuple[TokenLogprob, ...] = ()
    refusal: str | None = None
    seconds: float = 0.0  # wall clock of the call


@dataclass(frozen=True)
class Embeddings:
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
    ) -> None:
        raise NotImplementedError

    @classmethod
    def from_settings(cls, settings: Settings) -> EngineClient:
        """The process's client for these settings: the same object each time, so that the pool is shared."""
        raise NotImplementedError

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
        raise NotImplementedError

    def embed(self, texts: Sequence[str]) -> Embeddings:
        """One vector per text, in order, in batches that a server takes."""
        raise NotImplementedError

    def models(self) -> list[dict[str, Any]]:
        raise NotImplementedError

    def tokenizer_json(self) -> bytes | None:
        """The model's tokenizer.json; None when the server has no such endpoint."""
        raise NotImplementedError

    def health(self) -> dict[str, Any]:
        """Raises TransientError when the engine is down or not ready."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
