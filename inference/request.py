"""What the HTTP front, the executor and the scheduler share: a request, its sampling, its responses and its usage.

No torch here. Token ids are plain integers; times are seconds on the monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class FinishReason(StrEnum):
    """Why a request ended. Each accepted request ends exactly once, with one of these."""

    STOP = "stop"  # end-of-sequence token, stop string, or the grammar is complete
    LENGTH = "length"  # max_tokens or the model's context
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    ERROR = "error"


class GrammarKind(StrEnum):
    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    CHOICE = "choice"


@dataclass(frozen=True)
class GrammarSpec:
    """A constraint on the output. `source` is a JSON Schema as JSON text, a regex, or a JSON list of choices.

    `strict`: refuse a schema of which a part can only be checked when the text is finished.
    """

    kind: GrammarKind
    source: str
    strict: bool = False


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen. `temperature == 0` is greedy.

    `logprobs` is the number of alternatives to return beside the chosen token's log-probability; None returns none.
    Log-probabilities are of the distribution before temperature and mask.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    seed: int | None = None
    logprobs: int | None = None
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Request:
    """One generation. Stop strings belong to the front, which sees text; it cancels with a reason of STOP."""

    id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    grammar: GrammarSpec | None = None
    priority: int = 0  # lower runs first
    timeout_seconds: float | None = None
    cache_salt: str = ""  # requests with different salts share no cached prefix


@dataclass(frozen=True)
class TokenLogprob:
    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Usage:
    """Counted by the engine. `cached_tokens` are the part of `prompt_tokens` that was not computed again."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    device_seconds: float = 0.0  # the request's share of each step it was in: its tokens over the step's tokens
    queue_seconds: float = 0.0
    ttft_seconds: float | None = None  # from enqueue to the first token


@dataclass(frozen=True)
class Response:
    """A delta: the tokens made since the last response. The last one has `finish_reason` and the final `usage`."""

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    usage: Usage = field(default_factory=Usage)
    error: str | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


class RequestRejected(ValueError):
    """The request can never run as asked (too long, bad grammar, bad parameter). The message names value and limit."""
