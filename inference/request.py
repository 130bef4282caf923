"""What the HTTP front, the executor and the scheduler share: a request, its sampling, its responses and its usage.

No torch here. Token ids are plain integers; times are seconds on the monotonic clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from inference.stats import ModelInfo


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


# Below this, logits divided by the temperature overflow; the distribution is the greedy choice long before.
GREEDY_BELOW = 1e-5
MAX_LOGPROBS = 20
MAX_PRIORITY = 100
MAX_BIASES = 1024
MAX_STOP_TOKENS = 128


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen. A temperature of 0 is greedy.

    What the model says goes through these, in this order: the grammar's mask; end tokens masked until `min_tokens`;
    `logit_bias`, added; `repetition_penalty` (1: none) over prompt and answer; `presence_penalty` and
    `frequency_penalty` (0: none) over the answer; then the greedy choice, or temperature, `min_p`, `top_k` and `top_p`,
    each of the distribution that those before it leave, and a draw.

    A draw depends on `seed` and the token's place in the answer only; None takes a seed of its own for each request.
    `logprobs` is the number of alternatives to return beside the chosen token's log-probability; None returns none.
    Log-probabilities are of the model's own distribution, before all of the above.
    """

    max_tokens: int = 256
    min_tokens: int = 0  # no end before these, unless the grammar allows nothing else
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    min_p: float = 0.0  # of the likeliest token's probability; 0: no limit
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token, what is added); each token once
    seed: int | None = None
    logprobs: int | None = None
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def penalizes(self) -> bool:
        """Whether a choice depends on the tokens before it."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    def check(self, vocab_size: int) -> None:
        """Raise RequestRejected for what cannot be sampled with."""
        limits: tuple[tuple[str, float, float, float], ...] = (
            ("max_tokens", self.max_tokens, 1, math.inf),
            ("min_tokens", self.min_tokens, 0, math.inf),
            ("temperature", self.temperature, 0, 1e6),
            ("top_k", self.top_k, 0, 2**31 - 1),
            ("min_p", self.min_p, 0, 1),
            ("repetition_penalty", self.repetition_penalty, 0.01, 100),
            ("presence_penalty", self.presence_penalty, -2, 2),
            ("frequency_penalty", self.frequency_penalty, -2, 2),
            ("logprobs", self.logprobs or 0, 0, MAX_LOGPROBS),
            ("tokens in logit_bias", len(self.logit_bias), 0, MAX_BIASES),
            ("tokens in stop_token_ids", len(self.stop_token_ids), 0, MAX_STOP_TOKENS),
            *(("bias", bias, -100, 100) for _, bias in self.logit_bias),
        )
        for name, value, low, high in limits:
            if not low <= value <= high:
                bound = f"at least {low:.12g}" if high == math.inf else f"between {low:.12g} and {high:.12g}"
                raise RequestRejected(f"{name} is {value}; it must be {bound}")
        if self.min_tokens > self.max_tokens:
            raise RequestRejected(f"min_tokens is {self.min_tokens}, above max_tokens, which is {self.max_tokens}")
        if self.seed is not None and not -(2**63) <= self.seed < 2**63:
            raise RequestRejected(f"seed is {self.seed}; it must fit in 64 bits")
        if not 0 < self.top_p <= 1:
            raise RequestRejected(f"top_p is {self.top_p:g}; it must be above 0 and at most 1")
        named = [token for token, _ in self.logit_bias]
        if len(set(named)) < len(named):
            raise RequestRejected("logit_bias names a token twice; give each token one bias")
        for token in (*named, *self.stop_token_ids):
            if not 0 <= token < vocab_size:
                raise RequestRejected(f"token id {token} is outside the vocabulary of {vocab_size}")


@dataclass(frozen=True)
class Request:
    """One generation. Stop strings belong to the front, which sees text; it cancels with a reason of STOP."""

    id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    grammar: GrammarSpec | None = None
    priority: int = 0  # lower runs first; ages, see Sequence.key
    timeout_seconds: float | None = None
    cache_salt: str = ""  # requests with different salts share no cached prefix

    def __post_init__(self) -> None:
        """Raise RequestRejected for a priority that would wait for ever."""
        if not -MAX_PRIORITY <= self.priority <= MAX_PRIORITY:
            raise RequestRejected(f"priority is {self.priority}; it must be between -{MAX_PRIORITY} and {MAX_PRIORITY}")


@dataclass(frozen=True)
class TokenLogprob:
    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Usage:
    """Counted by the engine. `cached_tokens` are the part of `prompt_tokens` that was not computed again,
    `accepted_draft_tokens` the part of `completion_tokens` that was proposed and only had to be verified."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    accepted_draft_tokens: int = 0
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


class QueueFull(RequestRejected):
    """The waiting queue is at its limit. `retry_after` is in seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineStopped(RuntimeError):
    """The executor has been shut down and takes no more requests."""


class EngineDown(RuntimeError):
    """The core has crashed and is being started anew; the message says why. `retry_after` is in seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def check(request: Request, model: ModelInfo) -> None:
    """Raise RequestRejected for what can never run, the grammar aside."""
    prompt, sampling = len(request.prompt_token_ids), request.sampling
    limit, vocab = model.max_model_len, model.vocab_size
    if prompt < 1:
        raise RequestRejected("the prompt has no tokens; give at least one")
    sampling.check(vocab)
    if prompt + sampling.max_tokens > limit:
        raise RequestRejected(
            f"the prompt has {prompt} tokens and max_tokens is {sampling.max_tokens}, together "
            f"{prompt + sampling.max_tokens}; the limit is {limit}. Shorten the prompt or lower max_tokens"
        )
    bad = next((token for token in request.prompt_token_ids if not 0 <= token < vocab), None)
    if bad is not None:
        raise RequestRejected(f"token id {bad} is outside the vocabulary of {vocab}")
    if request.timeout_seconds is not None and not request.timeout_seconds > 0:
        raise RequestRejected(f"timeout_seconds is {request.timeout_seconds:g}; it must be above 0")
