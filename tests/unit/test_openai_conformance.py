"""What OpenAI's own client can ask and reads, sync and async, streamed and not, against a tiny real engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import openai
import pydantic
import pytest
import torch
from openai.types import Completion, CompletionUsage
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from inference.request import Usage
from inference.server.openai_objects import usage_object
from tests.tiny_models import END, byte_tokenizer, make_model, save
from tests.tiny_server import MODEL, Server, serve

UNICODE = "naïve 東京 👩‍👩‍👧 ½ עברית"
EVERY_SAMPLING: dict[str, Any] = {
    "temperature": 0.9,
    "top_p": 0.95,
    "presence_penalty": 0.4,
    "frequency_penalty": 0.3,
    "logit_bias": {"5": -100, "70": 2},
    "seed": 7,
    "extra_body": {"top_k": 80, "min_p": 0.01, "repetition_penalty": 1.1, "min_tokens": 6},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    torch.set_num_threads(1)
    with serve(save(make_model("llama"), tmp_path_factory.mktemp("tiny"))) as running:
        yield running


class Client:
    """One of the client's two faces; streams come as lists."""

    def __init__(self, url: str, *, sync: bool) -> None:
        self._url = f"{url}/v1"
        self._sync = sync

    def call(self, path: str, **options: Any) -> Any:
        """`path` is dotted, as `chat.completions.create`."""
        if self._sync:
            with openai.OpenAI(base_url=self._url, api_key="none", max_retries=0) as client:
                answer = self._method(client, path)(**options)
                return list(answer) if isinstance(answer, openai.Stream) else answer
        return asyncio.run(self._call_async(path, options))

    async def _call_async(self, path: str, options: dict[str, Any]) -> Any:
        async with openai.AsyncOpenAI(base_url=self._url, api_key="none", max_retries=0) as client:
            answer = await self._method(client, path)(**options)
            return [item async for item in answer] if isinstance(answer, openai.AsyncStream) else answer

    @staticmethod
    def _method(client: Any, path: str) -> Any:
        for name in path.split("."):
            client = getattr(client, name)
        return client

    def chat(self, text: str = "hello", **options: Any) -> Any:
        options = {"temperature": 0, "max_tokens": 24} | options
        messages = options.pop("messages", [{"role": "user", "content": text}])
        return self.call("chat.completions.create", model=MODEL, messages=messages, **options)

    def complete(self, prompt: Any = "hello", **options: Any) -> Any:
        options = {"temperature": 0, "max_tokens": 24} | options
        return self.call("completions.create", model=MODEL, prompt=prompt, **options)


@pytest.fixture(params=["sync", "async"])
def client(server: Server, request: pytest.FixtureRequest) -> Client:
    return Client(server.url, sync=request.param == "sync")


def texts_of(chunks: list[ChatCompletionChunk]) -> dict[int, str]:
    """The text of each choice of a stream, after checking what every stream must be like."""
    found: dict[int, str] = {}
    ended: set[int] = set()
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    for chunk in chunks:
        for choice in chunk.choices:
            assert choice.index not in ended, "something follows the end of a choice"
            assert (choice.delta.role == "assistant") == (choice.index not in found), "the role comes first, and once"
            found[choice.index] = found.get(choice.index, "") + (choice.delta.content or "")
            if choice.finish_reason is not None:
                ended.add(choice.index)
    assert ended == set(found)
    return found


def strict(answer: pydantic.BaseModel) -> None:
    """Read once more, this time by the types to the letter: the client itself forgives everything."""
    type(answer).model_validate_json(answer.model_dump_json(), strict=True)


def test_chat(client: Client) -> None:
    answer = client.chat()
    assert isinstance(answer, ChatCompletion)
    strict(answer)
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.refusal is None
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.accepted_prediction_tokens == 0
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer._request_id.startswith("req-")


def test_a_chat_streams_the_text_it_answers(client: Client) -> None:
    whole = client.chat(stream=False)
    chunks = client.chat(stream=True)
    assert texts_of(chunks) == {0: whole.choices[0].message.content}
    assert all(chunk.usage is None for chunk in chunks)
    for chunk in chunks:
        strict(chunk)


def test_usage_comes_in_a_chunk_of_its_own_at_the_end(client: Client) -> None:
    whole = client.chat("count me")
    chunks = client.chat("count me", stream=True, stream_options={"include_usage": True})
    *others, last = chunks
    assert last.choices == []
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (
        whole.usage.prompt_tokens, whole.usage.completion_tokens,
    )  # fmt: skip
    assert all(chunk.usage is None and "usage" in chunk.model_fields_set for chunk in others)
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    counts = [chunk.usage.completion_tokens for chunk in client.chat("count me", stream=True, stream_options=options)]
    assert counts == sorted(counts)
    assert counts[-1] == whole.usage.completion_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_every_sampling_field_counts_and_a_seed_repeats(client: Client, stream: bool) -> None:
    def text(**changes: Any) -> str:
        answer = client.chat(stream=stream, max_tokens=48, **(EVERY_SAMPLING | changes))
        return texts_of(answer)[0] if stream else answer.choices[0].message.content

    base = text()
    assert text() == base
    for name, value in {
        "temperature": 3.0, "top_p": 0.1, "presence_penalty": 2.0, "frequency_penalty": 2.0,
        "logit_bias": {"70": 100}, "seed": 8,
    }.items():  # fmt: skip
        assert text(**{name: value}) != base, name
    extra = EVERY_SAMPLING["extra_body"]
    for name, value in {"top_k": 1, "min_p": 0.9, "repetition_penalty": 3.0}.items():
        assert text(extra_body=extra | {name: value}) != base, name


def test_min_and_max_tokens(client: Client) -> None:
    eager = {"logit_bias": {str(END): 100}, "max_tokens": openai.NOT_GIVEN}
    at_once = client.chat(**eager)
    assert (at_once.choices[0].message.content, at_once.choices[0].finish_reason) == ("", "stop")
    assert at_once.usage.completion_tokens == 1
    later = client.chat(**eager, extra_body={"min_tokens": 9})
    assert (later.usage.completion_tokens, later.choices[0].finish_reason) == (10, "stop")
    cut = client.chat(max_tokens=openai.NOT_GIVEN, max_completion_tokens=5, extra_body={"ignore_eos": True})
    assert (cut.usage.completion_tokens, cut.choices[0].finish_reason) == (5, "length")


@pytest.mark.parametrize("stream", [False, True])
def test_n_choices_of_one_prompt(server: Server, client: Client, stream: bool) -> None:
    text = f"{stream} {client._sync}: a prompt of several pages, which is computed once. {'So it is. ' * 20}"
    before = server.core.stats()
    options: dict[str, Any] = {"n": 4, "seed": 3, "temperature": 1.2}
    if stream:
        chunks = client.chat(text, stream=True, stream_options={"include_usage": True}, **options)
        texts, usage = texts_of(chunks), chunks[-1].usage
    else:
        answer = client.chat(text, **options)
        strict(answer)
        texts, usage = {c.index: c.message.content for c in answer.choices}, answer.usage
    assert sorted(texts) == [0, 1, 2, 3]
    assert len(set(texts.values())) == 4
    after = server.core.stats()
    # The pages of the prompt are shared: each further choice computes less than a page of it.
    assert after.cached_tokens - before.cached_tokens >= 3 * (usage.prompt_tokens - 32)
    assert usage.prompt_tokens < 300
    assert usage.prompt_tokens_details.cached_tokens < 32
    assert usage.completion_tokens <= 4 * 24
    again = client.chat(text, **options)
    assert {c.index: c.message.content for c in again.choices} == texts
    assert client.chat(text, **options | {"n": 1}).choices[0].message.content == texts[0]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_is_not_shown_and_counts(client: Client, stream: bool) -> None:
    free = client.chat(extra_body={"ignore_eos": True}).choices[0].message.content
    stop = free[7:10]
    answer = client.chat(stop=stop, stream=stream, extra_body={"ignore_eos": True})
    text = texts_of(answer)[0] if stream else answer.choices[0].message.content
    assert text == free[: free.index(stop)]
    reason = answer[-1].choices[0].finish_reason if stream else answer.choices[0].finish_reason
    assert reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_characters_of_several_tokens_arrive_whole(client: Client, stream: bool) -> None:
    only: Any = {"structured_outputs": {"choice": [UNICODE]}}
    answer = client.chat(max_tokens=100, stream=stream, logprobs=True, top_logprobs=2, extra_body=only)
    if stream:
        assert all("\ufffd" not in (c.choices[0].delta.content or "") for c in answer)
        entries = [e for c in answer for e in c.choices[0].logprobs.content]
        text = texts_of(answer)[0]
    else:
        entries, text = answer.choices[0].logprobs.content, answer.choices[0].message.content
    assert text == UNICODE
    assert b"".join(bytes(entry.bytes) for entry in entries) == UNICODE.encode()
    assert all(len(entry.top_logprobs) == 2 for entry in entries)


def test_what_is_no_text_streams_as_it_is_answered(client: Client) -> None:
    """A random model's bytes: mostly broken characters."""
    options: dict[str, Any] = {"temperature": 3.0, "max_tokens": 120, "extra_body": {"ignore_eos": True}}
    for seed in range(3):
        whole = client.chat(seed=seed, logprobs=True, **options).choices[0]
        data = b"".join(bytes(entry.bytes) for entry in whole.logprobs.content if entry.token != "<|end|>")
        assert "\ufffd" in whole.message.content
        assert whole.message.content == data.decode("utf-8", "replace")
        assert texts_of(client.chat(seed=seed, stream=True, **options))[0] == whole.message.content


def test_logprobs_up_to_twenty(client: Client) -> None:
    answer = client.chat(logprobs=True, top_logprobs=20, temperature=1.0, seed=1)
    strict(answer)
    entries = answer.choices[0].logprobs.content
    shown = answer.usage.completion_tokens - (answer.choices[0].finish_reason == "stop")
    assert len(entries) == shown
    for entry in entries:
        values = [top.logprob for top in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert len(values) == 20
    assert client.chat(logprobs=True).choices[0].logprobs.content[0].top_logprobs == []
    assert client.chat().choices[0].logprobs is None


def test_completions(client: Client) -> None:
    answer = client.complete(logprobs=3)
    assert isinstance(answer, Completion)
    strict(answer)
    assert answer.object == "text_completion"
    logprobs = answer.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset)
    assert all(token in top for token, top in zip(logprobs.tokens, logprobs.top_logprobs, strict=True))
    assert all(3 <= len(top) <= 4 for top in logprobs.top_logprobs)
    assert logprobs.text_offset[0] == 0


def test_completions_of_several_prompts_in_every_form(client: Client) -> None:
    texts = ["one", "another one", "a third"]
    alone = [client.complete(text).choices[0].text for text in texts]
    ids = [byte_tokenizer().encode(text) for text in texts]
    for prompts in (texts, ids):
        answer = client.complete(prompts)
        assert [choice.text for choice in answer.choices] == alone
        assert answer.usage.prompt_tokens == sum(map(len, texts))
        pieces = {index: "" for index in range(3)}
        for chunk in client.complete(prompts, stream=True):
            for choice in chunk.choices:
                pieces[choice.index] += choice.text
        assert list(pieces.values()) == alone
    assert client.complete(ids[0]).choices[0].text == alone[0]
    two = client.complete(texts, n=2, seed=4, temperature=1.0)
    assert [choice.index for choice in two.choices] == list(range(6))
    assert len({choice.text for choice in two.choices}) == 6


class Cake(pydantic.BaseModel):
    kind: Literal["sponge", "cheese"]
    sweet: bool
    layers: list[Literal[1, 2, 3]]


@pytest.mark.parametrize("stream", [False, True])
def test_a_pydantic_model_is_parsed(server: Server, stream: bool) -> None:
    with server.client() as client:
        options: dict[str, Any] = {
            "model": MODEL, "messages": [{"role": "user", "content": "cake?"}], "response_format": Cake,
            "temperature": 0, "max_tokens": 200,
        }  # fmt: skip
        if stream:
            with client.chat.completions.stream(**options) as events:
                kinds = [event.type for event in events]
                answer = events.get_final_completion()
            assert kinds[-1] == "content.done"
        else:
            answer = client.chat.completions.parse(**options)
    assert isinstance(answer.choices[0].message.parsed, Cake)


@pytest.mark.parametrize(
    ("grammar", "right"),
    [
        ({"regex": "[ab]{3}"}, lambda text: len(text) == 3 and set(text) <= {"a", "b"}),
        ({"choice": ["yes", "no"]}, lambda text: text in ("yes", "no")),
        ({"json": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 3}}, json.loads),
        ({"json_object": True}, lambda text: text.startswith("{")),
    ],
    ids=["regex", "choice", "json", "json_object"],
)
def test_grammars_beyond_response_format(client: Client, grammar: Any, right: Any) -> None:
    answer = client.chat(extra_body={"structured_outputs": grammar})
    assert right(answer.choices[0].message.content) is not False


def test_an_answer_goes_back_as_it_came(client: Client) -> None:
    first = client.chat("one")
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "!"}]},
        first.choices[0].message,
        {"role": "user", "content": "and two?"},
    ]
    assert client.chat(messages=messages).choices[0].finish_reason in ("stop", "length")


def test_models_and_embeddings(client: Client) -> None:
    models = client.call("models.list")
    assert [model.id for model in models.data] == [MODEL, "lengths"]
    assert client.call("models.retrieve", model=MODEL).owned_by == "quarry"
    for form in ("float", openai.NOT_GIVEN):  # what is not given is base64, which the client unpacks
        answer = client.call("embeddings.create", model="lengths", input=["a", "bbb"], encoding_format=form)
        assert [item.embedding for item in answer.data] == [[1.0, 0.5], [3.0, 0.5]]
        assert answer.usage.prompt_tokens == 4
    assert client.call("embeddings.create", model="lengths", input="a", dimensions=2).data[0].index == 0
    with pytest.raises(openai.BadRequestError, match="dimensions is 1"):
        client.call("embeddings.create", model="lengths", input="a", dimensions=1)


def test_errors_are_the_clients_own(client: Client) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat(extra_body={"wibble": 1})
    assert (refused.value.param, refused.value.type) == ("wibble", "invalid_request_error")
    with pytest.raises(openai.NotFoundError) as missing:
        client.call("chat.completions.create", model="gpt", messages=[{"role": "user", "content": "x"}])
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat("x" * 600, max_tokens=openai.NOT_GIVEN, stream=True)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.InternalServerError, match="not finished within"):
        client.chat(max_tokens=400, extra_body={"ignore_eos": True, "timeout_seconds": 0.001})


def test_a_stream_that_fails_says_so(server: Server) -> None:
    """The client raises what the engine said in the middle of a stream."""
    with server.client() as client:
        stream = client.completions.create(
            model=MODEL, prompt="x", max_tokens=480, stream=True,
            extra_body={"ignore_eos": True, "timeout_seconds": 0.2},
        )  # fmt: skip
        with pytest.raises(openai.APIError, match="not finished within"):
            for _ in stream:
                pass


def test_leaving_a_stream_frees_its_place(server: Server) -> None:
    with server.client() as client:
        stream = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x"}], stream=True, n=3, max_tokens=450,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        next(iter(stream))
        stream.close()
    for _ in range(1000):
        stats = httpx.get(f"{server.url}/health").json()
        if stats["running"] == stats["waiting"] == 0:
            return
    pytest.fail("choices go on after their client left")


def test_a_stream_is_plain_server_sent_events(server: Server) -> None:
    body = {"model": MODEL, "prompt": "x", "max_tokens": 3, "stream": True, "ignore_eos": True, "temperature": 0}
    answer = httpx.post(f"{server.url}/v1/completions", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(json.loads(event.removeprefix("data: "))["choices"] for event in events[:-2])


def test_the_clients_types_have_a_place_for_all_of_usage() -> None:
    read = CompletionUsage.model_validate(usage_object(Usage(10, 4, 5, 3)))
    prompt, completion = read.prompt_tokens_details, read.completion_tokens_details
    assert prompt is not None
    assert completion is not None
    assert (prompt.cached_tokens, completion.accepted_prediction_tokens) == (4, 3)
    assert not any(part.model_extra for part in (read, prompt, completion))
