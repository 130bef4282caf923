"""What may be asked, field by field. A field that is not here is refused: nothing is accepted and then ignored.

Fields of OpenAI's interface that the engine has no use for are here with the one value that changes nothing, because
clients send them.
"""

from __future__ import annotations

import difflib
import json
import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from inference.request import (
    MAX_BIASES,
    MAX_LOGPROBS,
    MAX_PRIORITY,
    MAX_STOP_TOKENS,
    GrammarKind,
    GrammarSpec,
    SamplingParams,
)
from inference.server.errors import ApiError

MAX_STOPS = 64
MAX_STOP_LENGTH = 1024  # characters
SHOWN_VALUE = 80  # characters of a value that an error repeats

Empty = Annotated[list[Any], Field(max_length=0)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Bias = Annotated[float, Field(ge=-100, le=100)]
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]
T = TypeVar("T", bound=BaseModel)
_TYPE_NAME = re.compile(r"str|int|none|constrained-.*|.*\[.*\]")


class _Strict(BaseModel):
    """JSON types are taken as they are, unknown fields are refused, and null means that a field is not given."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {name: value for name, value in given.items() if value is not None or name not in known}


class TextPart(_Strict):
    type: Literal["text"]
    text: str


class Message(_Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None
    # What a client hands back with an answer that it was given; there is never anything in them.
    refusal: None = None
    tool_calls: Empty | None = None
    function_call: None = None
    annotations: Empty | None = None
    audio: None = None

    def plain(self) -> dict[str, str]:
        """Role and text, as chat templates take them."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class JsonSchemaFormat(_Strict):
    name: str
    schema_: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool = False


class ResponseFormat(_Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    def grammar(self) -> GrammarSpec | None:
        if self.type == "text":
            return None
        if self.type == "json_object":
            return GrammarSpec(GrammarKind.JSON_OBJECT, "")
        if self.json_schema is None:
            raise ApiError(400, "response_format is json_schema without one", param="response_format.json_schema")
        return _json_grammar(self.json_schema.schema_, strict=self.json_schema.strict)


class StructuredOutputs(_Strict):
    """vLLM's field for grammars that `response_format` has no name for. One of them."""

    json_: dict[str, Any] | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    json_object: Literal[True] | None = None

    def grammar(self) -> GrammarSpec:
        if len(self.model_fields_set) != 1:
            words = "structured_outputs takes exactly one of json, regex, choice and json_object"
            raise ApiError(400, words, param="structured_outputs")
        if self.json_ is not None:
            return _json_grammar(self.json_, strict=False)
        if self.regex is not None:
            return GrammarSpec(GrammarKind.REGEX, self.regex)
        if self.choice is not None:
            return GrammarSpec(GrammarKind.CHOICE, json.dumps(self.choice, ensure_ascii=False))
        return GrammarSpec(GrammarKind.JSON_OBJECT, "")


def _json_grammar(schema: dict[str, Any], *, strict: bool) -> GrammarSpec:
    return GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(schema, ensure_ascii=False), strict=strict)


class StreamOptions(_Strict):
    include_usage: bool = False
    continuous_usage_stats: bool = False  # vLLM's: in every chunk
    include_obfuscation: Literal[False] = False


class Generation(_Strict):
    """Fields that chat and plain completions share. Ranges are those of `SamplingParams`."""

    model: str
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=100)
    top_p: float = Field(default=1.0, gt=0, le=1)
    n: int = Field(default=1, ge=1)
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: Annotated[dict[str, Bias], Field(max_length=MAX_BIASES)] = Field(default_factory=dict)
    user: str | None = None  # for the caller's own records, as in OpenAI's interface
    # Of OpenAI's completions and chats, with the value that changes nothing.
    store: Literal[False] = False
    service_tier: Literal["auto", "default"] = "auto"

    # Extensions, named as other servers name them.
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    top_k: int = Field(default=0, ge=-1, lt=2**31)  # -1 is 0, no limit, for clients of vLLM
    min_p: float = Field(default=0.0, ge=0, le=1)
    repetition_penalty: float = Field(default=1.0, ge=0.01, le=100)
    min_tokens: int = Field(default=0, ge=0)
    ignore_eos: bool = False
    stop_token_ids: list[int] = Field(default_factory=list, max_length=MAX_STOP_TOKENS)
    priority: int = Field(default=0, ge=-MAX_PRIORITY, le=MAX_PRIORITY)
    timeout_seconds: float | None = Field(default=None, gt=0)
    cache_salt: str = Field(default="", max_length=256)

    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def grammar(self) -> GrammarSpec | None:
        wanted = self.response_format.grammar() if self.response_format else None
        if self.structured_outputs is None:
            return wanted
        if wanted is not None:
            words = "both response_format and structured_outputs ask for a format; send one of them"
            raise ApiError(400, words, param="structured_outputs")
        return self.structured_outputs.grammar()

    def limit(self) -> int | None:
        """Tokens of the answer; None: as many as the context has room for."""
        return self.max_tokens

    def wanted_logprobs(self) -> int | None:
        raise NotImplementedError

    def sampling(self, room: int) -> SamplingParams:
        """`room` is what the context leaves for the answer."""
        return SamplingParams(
            max_tokens=self.limit() or room,
            min_tokens=self.min_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(0, self.top_k),
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=self._biases(),
            seed=self.seed,
            logprobs=self.wanted_logprobs(),
            ignore_eos=self.ignore_eos,
            stop_token_ids=tuple(self.stop_token_ids),
        )

    def _biases(self) -> tuple[tuple[int, float], ...]:
        wrong = next((token for token in self.logit_bias if not (token.isascii() and token.isdecimal())), None)
        if wrong is not None:
            raise ApiError(400, f"logit_bias has the key {wrong!r}; keys are token ids", param="logit_bias")
        return tuple((int(token), bias) for token, bias in self.logit_bias.items())


class ChatRequest(Generation):
    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    tools: Empty | None = None
    tool_choice: Literal["none", "auto"] | None = None
    modalities: list[Literal["text"]] | None = None

    def wanted_logprobs(self) -> int | None:
        if self.top_logprobs and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None

    def limit(self) -> int | None:
        old, new = self.max_tokens, self.max_completion_tokens
        if old is not None and new is not None and old != new:
            words = f"max_tokens is {old} and max_completion_tokens {new}; send one of them"
            raise ApiError(400, words, param="max_tokens")
        return old if new is None else new


class CompletionRequest(Generation):
    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    echo: Literal[False] = False
    best_of: int | None = None
    suffix: Literal[""] | None = None

    def wanted_logprobs(self) -> int | None:
        return self.logprobs

    @model_validator(mode="after")
    def _best_of_n(self) -> CompletionRequest:
        if self.best_of not in (None, self.n):
            raise ValueError(f"best_of is {self.best_of}; all choices are returned, so it must be n, which is {self.n}")
        return self


class EmbeddingRequest(_Strict):
    model: str
    input: str | list[str]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    user: str | None = None


def parse(kind: type[T], body: bytes) -> T:
    """Read a request body. Raises ApiError 400 that names the field and what is wrong with it."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        name, words = _told(kind, error)
        raise ApiError(400, f"{name}: {words}", code=None, param=name) from error


def _told(kind: type[BaseModel], error: ValidationError) -> tuple[str, str]:
    """The field at fault and what is wrong with it. Where a value may be of several types, the one that fits furthest
    says it best."""
    errors = error.errors(include_url=False)
    same = [found for found in errors if found["loc"][:1] == errors[0]["loc"][:1]]
    worst = max(same, key=lambda found: (len(found["loc"]), not found["type"].endswith("_type")))
    # Pydantic puts the alternatives of a union into the path, by the names of their types.
    path = [str(part) for part in worst["loc"] if not _TYPE_NAME.fullmatch(str(part))]
    name = ".".join(path) or "body"
    if worst["type"] == "extra_forbidden":
        close = difflib.get_close_matches(name, kind.model_fields, n=1) if len(path) == 1 else []
        return name, "this field is not known here" + (f"; did you mean {close[0]}?" if close else "")
    if worst["type"] == "too_long" and worst["ctx"]["max_length"] == 0:
        return name, "nothing is known to do with it here; leave it out, or empty"
    value = worst["input"]
    words = worst["msg"].removeprefix("Value error, ")
    shown = isinstance(value, str | int | float) and path and len(repr(value)) <= SHOWN_VALUE
    return name, words + (f"; it is {json.dumps(value, ensure_ascii=False)}" if shown else "")
