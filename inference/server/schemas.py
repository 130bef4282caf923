"""What may be asked, field by field. A field that is not here is refused: nothing is accepted and then ignored."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from inference.request import GrammarKind, GrammarSpec, SamplingParams
from inference.server.errors import ApiError

Temperature = Annotated[float, Field(ge=0, le=100)]
T = TypeVar("T", bound=BaseModel)
TopP = Annotated[float, Field(gt=0, le=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class TextPart(_Strict):
    type: Literal["text"]
    text: str


class Message(_Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None

    def plain(self) -> dict[str, str]:
        """Role and text, as chat templates take them."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class JsonSchemaFormat(_Strict):
    name: str
    schema_: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(_Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StreamOptions(_Strict):
    include_usage: bool = False


class _Generation(_Strict):
    """Fields that chat and plain completions share. The last five are extensions, named as other servers name them."""

    model: str
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: Temperature = 1.0
    top_p: TopP = 1.0
    n: Literal[1] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    user: str | None = None  # for the caller's own records, as in OpenAI's interface
    response_format: ResponseFormat | None = None
    top_k: int = Field(default=0, ge=0)
    ignore_eos: bool = False
    stop_token_ids: list[int] = Field(default_factory=list)
    priority: int = 0
    cache_salt: str = ""

    def stops(self) -> tuple[str, ...]:
        listed = [self.stop] if isinstance(self.stop, str) else (self.stop or [])
        if any(not word for word in listed):
            raise ApiError(400, "a stop string is empty; leave it out", param="stop")
        return tuple(listed)

    def grammar(self) -> GrammarSpec | None:
        chosen = self.response_format
        if chosen is None or chosen.type == "text":
            return None
        if chosen.type == "json_object":
            return GrammarSpec(GrammarKind.JSON_OBJECT, "")
        if chosen.json_schema is None:
            raise ApiError(400, "response_format is json_schema without one", param="response_format.json_schema")
        source = json.dumps(chosen.json_schema.schema_, ensure_ascii=False)
        return GrammarSpec(GrammarKind.JSON_SCHEMA, source, strict=bool(chosen.json_schema.strict))

    def sampling(self, max_tokens: int, logprobs: int | None) -> SamplingParams:
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            logprobs=logprobs,
            ignore_eos=self.ignore_eos,
            stop_token_ids=tuple(self.stop_token_ids),
        )


class ChatRequest(_Generation):
    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=20)

    def wanted_logprobs(self) -> int | None:
        if self.top_logprobs and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None

    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


class CompletionRequest(_Generation):
    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = Field(default=None, ge=0, le=20)


class EmbeddingRequest(_Strict):
    model: str
    input: str | list[str]
    encoding_format: Literal["float", "base64"] = "float"
    user: str | None = None


def parse(kind: type[T], body: bytes) -> T:
    """Read a request body. Raises ApiError 400 that names the field and what is wrong with it."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "body"
        words = "this field is not known here" if first["type"] == "extra_forbidden" else first["msg"]
        raise ApiError(400, f"{field}: {words}", param=field) from error
