"""What makes two pieces of work the same: the content, the schema, and the settings that results depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pipeline.settings import Settings

PIPELINE_VERSION = 1  # raised when the same inputs would give other rows
RESULT_SETTINGS = ("model", "embedder", "chunk_tokens", "context_tokens", "document_first", "max_output_tokens")


def job_settings(settings: Settings) -> dict[str, Any]:
    """The settings that a job's results depend on. They are stored with the job, and its workers use these."""
    return {"pipeline_version": PIPELINE_VERSION, **{name: getattr(settings, name) for name in RESULT_SETTINGS}}


def with_job_settings(settings: Settings, stored: Mapping[str, Any]) -> Settings:
    """A worker's settings with the job's in place."""
    return settings.model_copy(update={name: stored[name] for name in RESULT_SETTINGS if name in stored})


def digest(value: Mapping[str, Any]) -> str:
    """sha256 of the value's canonical JSON, in hex."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def work_key(blob_sha256: bytes, media_type: str, schema_digest: str, settings_digest: str, salt: str = "") -> bytes:
    """32 bytes. `salt` makes work different that would be the same."""
    head = json.dumps([media_type, schema_digest, settings_digest, salt]).encode()
    return hashlib.sha256(blob_sha256 + head).digest()
