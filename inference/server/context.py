"""What the endpoints share: the engine, the tokenizer, the settings, and which models answer here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from inference.core.client import CoreClient
from inference.server.errors import ApiError
from inference.server.metrics import Metrics
from inference.tokenizer import Tokenizer

T = TypeVar("T")
LONG_TEXT = 16_384  # characters; tokenising more takes milliseconds, during which nobody else would be answered


@dataclass(frozen=True)
class FrontConfig:
    """`aliases` are further names under which the model answers."""

    api_key: str | None = None
    max_body_bytes: int = 8 * 2**20
    aliases: tuple[str, ...] = ()
    request_timeout_seconds: float | None = None


@dataclass(frozen=True)
class Context:
    core: CoreClient
    tokenizer: Tokenizer
    config: FrontConfig
    metrics: Metrics
    started: int = field(default_factory=lambda: int(time.time()))

    @property
    def model_name(self) -> str:
        return self.core.model_info.name

    def models(self) -> list[dict[str, Any]]:
        """As `/v1/models` lists them."""
        info = self.core.model_info
        common = {"object": "model", "created": self.started, "owned_by": "quarry"}
        listed = [{"id": info.name, **common, "max_model_len": info.max_model_len, "kind": "generation"}]
        if embedder := self.core.embedder:
            own = {"kind": "embedding", "dimension": embedder.dimension}
            listed.append({"id": embedder.name, **common, **own})
        return listed

    def check_model(self, name: str) -> None:
        if name not in (self.model_name, *self.config.aliases):
            raise self.unknown_model(name)

    def unknown_model(self, name: str) -> ApiError:
        known = ", ".join(entry["id"] for entry in self.models())
        return ApiError(404, f"no model {name!r} here; there is {known}", code="model_not_found", param="model")


async def beside_the_loop(size: int, work: Callable[..., T], *arguments: Any) -> T:
    """Tokenise `size` characters: in a thread when they are many, at once when a thread would cost more."""
    if size < LONG_TEXT:
        return work(*arguments)
    return await asyncio.to_thread(work, *arguments)
