"""One settings object: read once, validated once, shown by `quarry doctor` with secrets masked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class NotConfigured(RuntimeError):
    """A part of the service has no address. The message says what to run or to set."""


@dataclass(frozen=True)
class Endpoints:
    """Where the running parts are. URLs as psycopg/SQLAlchemy, Celery and HTTP clients take them."""

    database_url: str
    broker_url: str
    engine_url: str


class Settings(BaseSettings):
    """Environment variables with the prefix `QUARRY_`, and Langfuse's own `LANGFUSE_*`."""

    model_config = SettingsConfigDict(env_prefix="QUARRY_", frozen=True, extra="ignore", populate_by_name=True)

    home: Path = Field(default=Path("~/.quarry"), validate_default=True)
    database_url: str | None = None  # unset: the embedded PostgreSQL
    broker_url: str | None = None  # unset: the embedded Redis
    engine_url: str | None = None  # unset: our own engine; else any OpenAI-compatible server, without /v1
    engine_api_key: SecretStr | None = None
    embeddings_url: str | None = None  # unset: the engine's

    model: str = "qwen2.5-coder-0.5b-instruct"
    embedder: str = "all-minilm-l6-v2"
    device: str = "auto"
    dtype: str = "auto"
    quantization: str = "auto"

    ingest_workers: int = Field(default=1, ge=1)
    extract_concurrency: int = Field(default=16, ge=1)  # documents in flight: enough to fill the engine's batch
    lease_seconds: float = Field(default=120.0, gt=0)  # renewed while the task works
    item_seconds: float = Field(default=1800.0, gt=0)  # a task that takes longer loses its lease
    max_attempts: int = Field(default=3, ge=1)
    sweep_seconds: float = Field(default=2.0, gt=0)
    resend_seconds: float = Field(default=30.0, gt=0)  # an item that waits this long beside an empty queue is sent anew

    max_document_bytes: int = Field(default=16 * 2**20, gt=0)
    parse_seconds: float = Field(default=60.0, gt=0)  # for one document in its child process
    parse_memory_bytes: int = Field(default=2 * 2**30, ge=64 * 2**20)  # beyond what that process takes by itself
    chunk_tokens: int = Field(default=256, ge=16)
    context_tokens: int = Field(default=3072, ge=64)  # document tokens in one prompt
    document_first: bool = False  # in the prompt; several schemas then share a document's prefix
    max_output_tokens: int = Field(default=1024, ge=1)
    request_timeout_seconds: float = Field(default=600.0, gt=0)

    device_price_per_hour: float = Field(default=0.10, ge=0)  # USD, of the engine's device
    cpu_price_per_hour: float = Field(default=0.04, ge=0)  # USD, of one core, for every other step
    input_token_price: float | None = None  # USD per million tokens: set for a remote engine
    cached_token_price: float | None = None
    output_token_price: float | None = None

    langfuse_public_key: str | None = Field(default=None, validation_alias="LANGFUSE_PUBLIC_KEY")
    langfuse_secret_key: SecretStr | None = Field(default=None, validation_alias="LANGFUSE_SECRET_KEY")
    langfuse_host: str | None = Field(default=None, validation_alias="LANGFUSE_HOST")

    log_level: str = "INFO"
    log_format: str = "text"  # text or json

    @field_validator("home")
    @classmethod
    def _expand(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @property
    def run_dir(self) -> Path:
        return self.home / "run"

    @property
    def endpoints_file(self) -> Path:
        """Written by the supervisor once each embedded part answers; JSON with the keys of `Endpoints`."""
        return self.run_dir / "endpoints.json"

    def recorded(self) -> dict[str, str]:
        """What the running `quarry up` wrote: the keys of `Endpoints` that answered, and `model`. Empty without one."""
        try:
            found = json.loads(self.endpoints_file.read_text())
            return {str(key): str(value) for key, value in found.items()}
        except (OSError, ValueError, AttributeError):
            return {}

    def endpoint(self, name: str) -> str:
        """The URL called `name` in `Endpoints`: set explicitly, else from the running `quarry up`."""
        explicit = getattr(self, name)
        if explicit:
            return str(explicit)
        if url := self.recorded().get(name):
            return url
        raise NotConfigured(f"no {name.replace('_', ' ')}: run `quarry up`, or set QUARRY_{name.upper()}")

    def endpoints(self) -> Endpoints:
        return Endpoints(self.endpoint("database_url"), self.endpoint("broker_url"), self.endpoint("engine_url"))


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """From the environment, once per process. The model is what `quarry up` serves, unless QUARRY_MODEL names one:
    it may have had to fall back on another than the default."""
    settings = Settings()
    served = settings.recorded().get("model")
    if served and "model" not in settings.model_fields_set:
        return settings.model_copy(update={"model": served})
    return settings
