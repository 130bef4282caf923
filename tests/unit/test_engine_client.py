import json

import httpx
import pytest

from pipeline.engine_client import EMBED_BATCH, EngineClient, EngineUsage, TokenLogprob
from pipeline.errors import DocumentError, TransientError
from pipeline.settings import Settings

ANSWER = {
    "model": "tiny",
    "choices": [
        {
            "finish_reason": "stop",
            "message": {"content": '{"a": "é"}'},
            "logprobs": {
                "content": [
                    {"token": '{"a": "', "logprob": -0.5, "bytes": list(b'{"a": "')},
                    {"token": "\\xc3", "logprob": -1.0, "bytes": [0xC3]},
                    {"token": "\\xa9", "logprob": -0.1, "bytes": [0xA9]},
                    {"token": '"}', "logprob": 0.0},
                ]
            },
        }
    ],
    "usage": {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 60}},
    "quarry": {"device_seconds": 0.25},
}


def client(handler, **options):
    return EngineClient("http://engine:1/v1/", model="tiny", transport=httpx.MockTransport(handler), **options)


def test_a_chat_is_sent_and_read():
    seen = {}

    def handler(request):
        seen.update(url=str(request.url), body=json.loads(request.content), auth=request.headers.get("authorization"))
        return httpx.Response(200, json=ANSWER)

    completion = client(handler, api_key="secret").chat(
        [{"role": "user", "content": "hi"}], json_schema={"type": "object"}, max_tokens=9, seed=3, logprobs=True
    )
    assert seen["url"] == "http://engine:1/v1/chat/completions"
    assert seen["auth"] == "Bearer secret"
    assert seen["body"] == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 9,
        "temperature": 0.0,
        "seed": 3,
        "logprobs": True,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": False},
        },
    }
    assert (completion.text, completion.finish_reason, completion.model) == ('{"a": "é"}', "stop", "tiny")
    assert completion.usage == EngineUsage(40, 60, 7, 0.25)
    assert completion.tokens[1:] == (TokenLogprob(b"\xc3", -1.0), TokenLogprob(b"\xa9", -0.1), TokenLogprob(b'"}', 0.0))


@pytest.mark.parametrize(
    ("status", "headers", "body", "error", "reason", "retry_after"),
    [
        (400, {}, {"error": {"message": "context length is 4,096 tokens"}}, DocumentError, "too_long", None),
        (413, {}, {}, DocumentError, "too_long", None),
        (422, {}, {"error": {"message": "unknown field"}}, DocumentError, "engine_refused", None),
        (401, {}, {"detail": "no key"}, DocumentError, "engine_refused", None),
        (429, {"retry-after": "7"}, {}, TransientError, "engine_busy", 7.0),
        (429, {"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, {}, TransientError, "engine_busy", 0.0),
        (503, {}, {"error": "starting"}, TransientError, "engine_unavailable", None),
        (500, {"retry-after": "soon"}, {}, TransientError, "engine_unavailable", None),
    ],
)
def test_failures_are_sorted_into_for_good_and_for_now(status, headers, body, error, reason, retry_after):
    engine = client(lambda request: httpx.Response(status, headers=headers, json=body))
    with pytest.raises(error) as caught:
        engine.chat([], max_tokens=1)
    assert caught.value.reason == reason
    assert str(status) in caught.value.detail
    assert getattr(caught.value, "retry_after", None) == retry_after


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (httpx.ConnectError("refused"), "engine_unavailable"),
        (httpx.ReadTimeout("slow"), "engine_timeout"),
        (httpx.RemoteProtocolError("closed"), "engine_unavailable"),
    ],
)
def test_a_broken_connection_is_transient(problem, reason):
    def handler(request):
        raise problem

    with pytest.raises(TransientError) as caught:
        client(handler).chat([], max_tokens=1)
    assert caught.value.reason == reason


@pytest.mark.parametrize("answer", [b"<html>proxy</html>", b"[]", b'{"choices": []}'])
def test_an_answer_that_is_no_completion_is_transient(answer):
    with pytest.raises(TransientError):
        client(lambda request: httpx.Response(200, content=answer)).chat([], max_tokens=1)


def test_embeddings_are_batched_and_put_in_order():
    sizes = []

    def handler(request):
        texts = json.loads(request.content)["input"]
        sizes.append(len(texts))
        data = [{"index": number, "embedding": [float(text)]} for number, text in enumerate(texts)]
        return httpx.Response(200, json={"data": data[::-1], "model": "mini", "usage": {"prompt_tokens": len(texts)}})

    found = client(handler, embedder="mini").embed([str(number) for number in range(EMBED_BATCH + 3)])
    assert sizes == [EMBED_BATCH, 3]
    assert found.vectors == [[float(number)] for number in range(EMBED_BATCH + 3)]
    assert (found.model, found.usage.input_tokens) == ("mini", EMBED_BATCH + 3)


@pytest.mark.parametrize("data", [[], [{"index": 0, "embedding": [float("nan")]}], [{"index": 0, "embedding": "no"}]])
def test_missing_or_broken_vectors_are_an_error(data):
    body = json.dumps({"data": data}).encode()
    with pytest.raises(TransientError):
        client(lambda request: httpx.Response(200, content=body)).embed(["a"])


def test_servers_without_our_endpoints_still_work():
    def handler(request):
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m"}]})
        return httpx.Response(404, json={"error": "not found"})

    engine = client(handler)
    assert engine.tokenizer_json() is None
    assert engine.health() == {"status": "ok", "models": ["m"]}
    assert client(lambda request: httpx.Response(200, content=b'{"model": {}}')).tokenizer_json() == b'{"model": {}}'


def test_one_client_per_settings():
    settings = Settings(engine_url="http://engine:1")
    assert EngineClient.from_settings(settings) is EngineClient.from_settings(Settings(engine_url="http://engine:1"))
    assert EngineClient.from_settings(settings) is not EngineClient.from_settings(Settings(engine_url="http://other:1"))
