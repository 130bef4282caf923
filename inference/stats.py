"""What an engine says of itself: the model it serves, and its figures. No torch: the front reads them too."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelInfo:
    """What is being served."""

    name: str
    architecture: str
    vocab_size: int  # the tokenizer's
    max_model_len: int
    dtype: str
    device: str
    parameters: int
    page_size: int
    pages: int
    quantization: str = "none"  # how weights are kept: `inference.models.formats`


@dataclass(frozen=True)
class EngineStats:
    """A snapshot. Pages: free + cached + owned = total. Counters run from the start of the engine."""

    running: int = 0
    waiting: int = 0
    pages_total: int = 0
    pages_free: int = 0
    pages_cached: int = 0
    pages_owned: int = 0
    steps: int = 0
    step_seconds: float = 0.0
    step_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    forwards: int = 0  # that chose tokens, counted for each request in the step: 1 for each token without drafts
    draft_tokens: int = 0  # verified, so many of them:
    accepted_draft_tokens: int = 0
    preemptions: int = 0
