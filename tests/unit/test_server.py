"""The HTTP front over a tiny real engine, seen through OpenAI's own client."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.request import FinishReason, Request, Response, SamplingParams, TokenLogprob, Usage
from inference.server.app import FrontConfig
from inference.server.generation import Delta, StopStrings, TextOf
from tests.tiny_models import byte_tokenizer, make_model, save
from tests.tiny_server import MODEL, Server, serve

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["bread", "cake"]}, "sweet": {"type": "boolean"}},
    "required": ["kind", "sweet"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return save(make_model("llama"), tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with serve(folder) as running:
        yield running


def ask(server: Server, text: str = "hello", **options: Any) -> Any:
    options = {"temperature": 0, "max_tokens": 24} | options
    messages: Any = [{"role": "user", "content": text}]
    return server.client().chat.completions.create(model=MODEL, messages=messages, **options)


def test_chat_answers_with_text_reason_and_usage(server: Server) -> None:
    answer = ask(server)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.prompt_tokens == len("<user>hello\n>")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0
    assert answer.quarry["device_seconds"] > 0


def test_a_stream_gives_the_same_text_as_one_answer_and_ends_with_usage(server: Server) -> None:
    whole = ask(server, "stream me")
    chunks = list(ask(server, "stream me", stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len(chunks) > 3


def test_the_async_client_runs_many_at_once_and_each_answer_is_its_own(server: Server) -> None:
    texts = [f"question {i}" for i in range(12)]
    alone = [ask(server, text).choices[0].message.content for text in texts]

    async def together() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            answers = await asyncio.gather(
                *(
                    client.chat.completions.create(
                        model=MODEL, messages=[{"role": "user", "content": text}], temperature=0, max_tokens=24
                    )
                    for text in texts
                )
            )
        return [answer.choices[0].message.content or "" for answer in answers]

    assert asyncio.run(together()) == alone


@pytest.mark.parametrize("stream", [False, True])
def test_a_json_schema_is_enforced(server: Server, stream: bool) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    answer = ask(server, response_format=form, max_tokens=60, stream=stream)
    if stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
    else:
        text = answer.choices[0].message.content
        assert answer.choices[0].finish_reason == "stop"
    found = json.loads(text)
    assert found["kind"] in ("bread", "cake")
    assert isinstance(found["sweet"], bool)


def test_logprobs_have_the_bytes_of_the_answer(server: Server) -> None:
    answer = ask(server, logprobs=True, top_logprobs=3)
    entries = answer.choices[0].logprobs.content
    raw = b"".join(bytes(entry.bytes) for entry in entries)
    assert raw.decode("utf-8", "replace") == answer.choices[0].message.content
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) == 3 for entry in entries)
    assert all(entry.logprob == pytest.approx(max(t.logprob for t in entry.top_logprobs)) for entry in entries)


def test_a_seed_repeats_and_another_differs(server: Server) -> None:
    first = ask(server, temperature=1.5, seed=1).choices[0].message.content
    assert ask(server, temperature=1.5, seed=1).choices[0].message.content == first
    assert ask(server, temperature=1.5, seed=2).choices[0].message.content != first


def test_a_stop_string_ends_the_text_before_it(server: Server) -> None:
    text = ask(server, extra_body={"ignore_eos": True}).choices[0].message.content
    stop = text[5:8]
    answer = ask(server, stop=[stop], extra_body={"ignore_eos": True})
    assert answer.choices[0].message.content == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    streamed = ask(server, stop=[stop], stream=True, extra_body={"ignore_eos": True})
    assert "".join(c.choices[0].delta.content or "" for c in streamed) == text[: text.index(stop)]


def test_completions_take_text_lists_and_token_ids(server: Server) -> None:
    client = server.client()
    options: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 8}
    one = client.completions.create(prompt="abc", **options)
    two = client.completions.create(prompt=["abc", "xyz"], **options)
    assert two.choices[0].text == one.choices[0].text
    assert [choice.index for choice in two.choices] == [0, 1]
    ids = byte_tokenizer().encode("abc")
    assert client.completions.create(prompt=ids, **options).choices[0].text == one.choices[0].text
    streamed = client.completions.create(prompt="abc", stream=True, **options)
    assert "".join(chunk.choices[0].text for chunk in streamed) == one.choices[0].text


def test_embeddings_come_in_order_as_floats_or_base64(server: Server) -> None:
    client = server.client()
    plain = client.embeddings.create(model="lengths", input=["a", "bbb"], encoding_format="float")
    assert [item.embedding for item in plain.data] == [[1.0, 0.5], [3.0, 0.5]]
    body = {"model": "lengths", "input": "abcd", "encoding_format": "base64"}
    packed = httpx.post(f"{server.url}/v1/embeddings", json=body).json()
    assert struct.unpack("<2f", base64.b64decode(packed["data"][0]["embedding"])) == (4.0, 0.5)


def test_models_health_metrics_and_tokenizer(server: Server) -> None:
    assert [model.id for model in server.client().models.list()] == [MODEL, "lengths"]
    assert server.client().models.retrieve(MODEL).max_model_len == 512  # type: ignore[attr-defined]
    assert httpx.get(f"{server.url}/health").json()["status"] == "ok"
    ask(server)
    metrics = httpx.get(f"{server.url}/metrics").text
    assert 'quarry_http_requests_total{endpoint="chat"' in metrics
    assert "quarry_engine_pages_total" in metrics
    assert httpx.get(f"{server.url}/tokenizer").json()["model"]["type"] == "BPE"


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"wibble": 1}, "wibble", "this field is not known here"),
        ({"max_token": 1}, "max_token", "did you mean max_tokens?"),
        ({"max_tokens": 600}, None, "the limit is 512"),
        ({"max_tokens": "12"}, "max_tokens", 'valid integer; it is "12"'),
        ({"max_completion_tokens": 5}, "max_tokens", "send one of them"),
        ({"n": 0}, "n", "greater than or equal to 1; it is 0"),
        ({"n": 200}, "n", "the limit is 128 choices"),
        ({"stop": [""]}, "stop.0", "at least 1 character"),
        ({"stop": ["x"] * 65}, "stop", "at most 64"),
        ({"top_logprobs": 3}, "top_logprobs", "needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
        ({"temperature": -1}, "temperature", "it is -1"),
        ({"presence_penalty": 3}, "presence_penalty", "less than or equal to 2"),
        ({"repetition_penalty": 0}, "repetition_penalty", "it is 0"),
        ({"min_p": 2}, "min_p", "less than or equal to 1"),
        ({"min_tokens": 30}, None, "min_tokens is 30, above max_tokens, which is 24"),
        ({"logit_bias": {"bread": 1}}, "logit_bias", "keys are token ids"),
        ({"logit_bias": {"9": 101}}, "logit_bias.9", "less than or equal to 100"),
        ({"logit_bias": {"9999": 1}}, None, "token id 9999 is outside the vocabulary of 257"),
        ({"stop_token_ids": [-1]}, None, "token id -1"),
        ({"seed": 2**64}, "seed", "less than 9223372036854775808"),
        ({"tools": [{"type": "function"}]}, "tools", "leave it out"),
        ({"stream_options": {"include_everything": True}}, "stream_options.include_everything", "not known"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0.type", "'text'"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "exactly one"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
            "both response_format and structured_outputs",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "nonsense"}}}},
            None,
            "nonsense",
        ),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("stream", [False, True])
def test_wrong_requests_are_refused_in_words(
    server: Server, change: dict[str, Any], param: str | None, words: str, stream: bool
) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 24, "stream": stream}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body | change)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert words in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


def test_after_refusals_the_engine_answers(server: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="wibble"):
        ask(server, extra_body={"wibble": 1})
    assert ask(server).choices[0].finish_reason in ("stop", "length")


def test_null_is_a_field_that_is_not_given(server: Server) -> None:
    names = ("temperature", "top_p", "n", "stop", "seed", "logit_bias", "logprobs", "tools", "stream_options", "user")
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x", "name": None}], "max_tokens": 2}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body | dict.fromkeys(names))
    assert answer.status_code == 200
    assert httpx.post(f"{server.url}/v1/chat/completions", json=body | {"wibble": None}).status_code == 400


def test_a_prompt_beyond_the_context_names_both_lengths(server: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="context length is 512") as refused:
        ask(server, "x" * 600, max_tokens=openai.NOT_GIVEN)
    assert refused.value.code == "context_length_exceeded"


def test_unknown_models_and_paths_are_404_in_openais_shape(server: Server) -> None:
    with pytest.raises(openai.NotFoundError, match="there is tiny"):
        server.client().chat.completions.create(model="huge", messages=[{"role": "user", "content": "x"}])
    assert httpx.get(f"{server.url}/v1/nothing").json()["error"]["code"] == "not_found"
    broken = httpx.post(f"{server.url}/v1/chat/completions", content=b"{nonsense")
    assert broken.status_code == 400
    assert "error" in broken.json()


def test_other_methods_and_what_went_wrong_inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(folder) as own:
        wrong = httpx.get(f"{own.url}/v1/completions")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
        assert "does not answer GET" in wrong.json()["error"]["message"]

        def broken(*_: Any) -> None:
            raise RuntimeError("secret detail")

        monkeypatch.setattr(own.core, "submit", broken)
        failed = httpx.post(f"{own.url}/v1/completions", json={"model": MODEL, "prompt": "x"})
        assert failed.status_code == 500
        assert failed.json()["error"]["type"] == "server_error"
        assert "secret" not in failed.text
        assert failed.headers["x-request-id"].startswith("req-")


def test_key_and_body_limit(folder: Path) -> None:
    with serve(folder, FrontConfig(api_key="secret", max_body_bytes=500)) as guarded:
        with pytest.raises(openai.AuthenticationError) as refused:
            ask(guarded)
        assert refused.value.code == "invalid_api_key"
        right = openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="secret", max_retries=0)
        assert right.models.list().data
        with pytest.raises(openai.APIStatusError, match="over 500 bytes"):
            right.completions.create(model=MODEL, prompt="x" * 600)
        assert httpx.get(f"{guarded.url}/health").status_code == 200
        for header in ("Basic secret", "secret", "Bearer secretly", "Bearer"):
            wrong = httpx.get(f"{guarded.url}/v1/models", headers={"Authorization": header})
            assert (wrong.status_code, wrong.headers["www-authenticate"]) == (401, "Bearer")
        assert httpx.get(f"{guarded.url}/v1/models", headers={"Authorization": "bearer secret"}).status_code == 200

        def undeclared() -> Iterator[bytes]:
            yield from (b"x" * 100 for _ in range(8))

        sent = httpx.post(
            f"{guarded.url}/v1/completions", content=undeclared(), headers={"Authorization": "Bearer secret"}
        )
        assert sent.status_code == 413


def test_a_request_may_bound_its_own_time(server: Server) -> None:
    body = {"model": MODEL, "prompt": "x", "max_tokens": 500, "ignore_eos": True, "timeout_seconds": 0.001}
    late = httpx.post(f"{server.url}/v1/completions", json=body)
    assert late.status_code == 504
    assert late.json()["error"]["code"] == "timeout"


def test_a_full_queue_answers_429_with_a_time_to_come_back(folder: Path) -> None:
    with serve(folder, max_num_seqs=1, max_waiting=1) as small, httpx.Client(timeout=60) as client:
        body = {"model": MODEL, "prompt": "x", "max_tokens": 400, "ignore_eos": True, "temperature": 0}
        answers = []

        def post() -> None:
            answers.append(client.post(f"{small.url}/v1/completions", json=body))

        threads = [threading.Thread(target=post) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses[:2] == [200, 200]
    assert statuses[-1] == 429
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["code"] == "queue_full"


def test_a_client_that_goes_away_frees_its_place(server: Server) -> None:
    body = {"model": MODEL, "prompt": "x", "max_tokens": 500, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as response:
        next(response.iter_lines())
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/v1/completions", json=body | {"stream": False}, timeout=0.05)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        stats = server.core.stats()
        if stats.running == stats.waiting == stats.pages_owned == 0:
            break
        time.sleep(0.02)
    assert stats.running == stats.waiting == stats.pages_owned == 0
    assert stats.pages_free + stats.pages_cached == stats.pages_total


def test_many_streams_with_random_disconnects_each_get_exactly_one_end(server: Server) -> None:
    rng = random.Random(5)
    leaving = {i: rng.randrange(1, 6) for i in rng.sample(range(50), 12)}

    async def one(client: httpx.AsyncClient, i: int) -> int:
        body = {"model": MODEL, "prompt": f"stream {i}", "max_tokens": 12, "stream": True, "temperature": 0}
        ends = chunks = 0
        async with client.stream("POST", f"{server.url}/v1/completions", json=body) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    chunks += 1
                    ends += json.loads(line[6:])["choices"][0]["finish_reason"] is not None
                if chunks >= leaving.get(i, 1000):
                    return -1
        return ends

    async def everyone() -> list[int]:
        limits = httpx.Limits(max_connections=64)
        async with httpx.AsyncClient(limits=limits, timeout=120) as client:
            return list(await asyncio.gather(*(one(client, i) for i in range(50))))

    ends = asyncio.run(everyone())
    assert all(end == 1 for i, end in enumerate(ends) if i not in leaving)
    deadline = time.monotonic() + 20
    while server.core.stats().pages_owned and time.monotonic() < deadline:
        time.sleep(0.02)
    stats = server.core.stats()
    assert stats.pages_free + stats.pages_cached == stats.pages_total


def test_stop_strings_are_found_across_pieces_and_only_what_might_begin_one_is_held_back() -> None:
    stopper = StopStrings(("END", "\n\n"))
    assert stopper.push("one E") == ("one ", False)
    assert stopper.push("N") == ("", False)
    assert stopper.push("d\n") == ("ENd", False)
    assert stopper.push("\nrest") == ("", True)
    kept = StopStrings(("END",))
    assert kept.push("the E") == ("the ", False)
    assert kept.flush() == "E"


# Tokens to text

TOKENIZER = byte_tokenizer()


def responses_of(tokens: list[int], sizes: list[int]) -> list[Response]:
    """An engine's responses, `sizes` tokens at a time, as drafts are accepted."""
    made, at = [], 0
    while at < len(tokens):
        size = sizes[len(made) % len(sizes)]
        piece = tuple(tokens[at : at + size])
        at += len(piece)
        logprobs = tuple(TokenLogprob(token, -0.5) for token in piece)
        reason = FinishReason.LENGTH if at == len(tokens) else None
        usage = Usage(prompt_tokens=3, completion_tokens=at, accepted_draft_tokens=at // 2)
        made.append(Response("r", piece, logprobs, reason, usage))
    return made


def text_of(responses: list[Response], stops: tuple[str, ...], min_tokens: int = 0) -> list[Delta]:
    request = Request("r", (1, 2, 3), SamplingParams(max_tokens=999, min_tokens=min_tokens))
    text, made = TextOf(request, TOKENIZER, stops, continues=False), []
    for response in responses:
        made.append(text.take(response))
        if made[-1].finish_reason is not None:
            break
    return made


PIECES = st.lists(st.sampled_from(["a", "b", "ab", "é", "€", "👩", " "]), min_size=1, max_size=20).map("".join)
STOPS = st.lists(st.sampled_from(["ab", "ba b", "é€", "👩", "bbb"]), max_size=2).map(tuple)


@given(PIECES, STOPS, st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 6))
@settings(max_examples=300, deadline=None)
def test_an_answer_does_not_depend_on_how_many_tokens_come_at_once(
    text: str, stops: tuple[str, ...], sizes: list[int], min_tokens: int
) -> None:
    tokens = TOKENIZER.encode(text)
    one_by_one, grouped = (text_of(responses_of(tokens, s), stops, min_tokens) for s in ([1], sizes))
    for part in (one_by_one, grouped):
        assert all("\ufffd" not in delta.text for delta in part)
        assert all(delta.finish_reason is None for delta in part[:-1])
    assert "".join(d.text for d in grouped) == "".join(d.text for d in one_by_one)
    assert [item for d in grouped for item in d.logprobs] == [item for d in one_by_one for item in d.logprobs]
    assert grouped[-1].finish_reason == one_by_one[-1].finish_reason
    assert grouped[-1].usage.completion_tokens == one_by_one[-1].usage.completion_tokens
    assert grouped[-1].usage.accepted_draft_tokens <= grouped[-1].usage.completion_tokens


@given(PIECES, STOPS)
@settings(max_examples=300, deadline=None)
def test_the_text_ends_before_the_first_stop_string(text: str, stops: tuple[str, ...]) -> None:
    """Of those that end first; of those that end together, the one that begins first."""
    deltas = text_of(responses_of(TOKENIZER.encode(text), [1]), stops)
    ends = [(text.index(stop) + len(stop), text.index(stop)) for stop in stops if stop in text]
    expected = text[: min(ends)[1]] if ends else text
    assert "".join(delta.text for delta in deltas) == expected
    assert deltas[-1].finish_reason == (FinishReason.STOP if ends else FinishReason.LENGTH)
    used = len(text[: min(ends)[0]].encode()) if ends else len(text.encode())
    assert deltas[-1].usage.completion_tokens == used


def test_a_stop_string_within_min_tokens_ends_nothing() -> None:
    deltas = text_of(responses_of(TOKENIZER.encode("abcabcabc"), [2]), ("abc",), min_tokens=4)
    assert "".join(delta.text for delta in deltas) == "abcabc"
    assert deltas[-1].usage.completion_tokens == 9


def test_offsets_count_complete_characters() -> None:
    deltas = text_of(responses_of(TOKENIZER.encode("a€b"), [3]), ())
    assert [item.offset for delta in deltas for item in delta.logprobs] == [0, 1, 1, 1, 2]
