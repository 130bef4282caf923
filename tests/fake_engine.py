"""A small OpenAI-compatible server with fixed answers: what the pipeline needs of an engine, without a model.

Embeddings are bags of hashed words. A chat completion fills the asked JSON Schema from lines `field: value` of the
prompt's last message, the same each time. Faults are set from outside.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

DIM = 16


@dataclass
class FakeEngine:
    """`hold` makes chats wait until it is set; `refuse` holds (status, how often) answers to give first."""

    url: str = ""
    calls: Counter[str] = field(default_factory=Counter)
    prompts: list[str] = field(default_factory=list)
    hold: threading.Event = field(default_factory=threading.Event)
    refuse: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.hold.set()

    def _refusal(self) -> JSONResponse | None:
        for place, (status, times) in enumerate(self.refuse):
            if times > 0:
                self.refuse[place] = (status, times - 1)
                return JSONResponse({"error": {"message": f"told to answer {status}"}}, status)
        return None

    async def chat(self, request: Request) -> JSONResponse:
        body = await request.json()
        self.calls["chat"] += 1
        if refusal := self._refusal():
            return refusal
        prompt = str(body["messages"][-1]["content"])
        self.prompts.append(prompt)
        while not self.hold.is_set():
            if await request.is_disconnected():
                return JSONResponse({}, 499)
            await asyncio.sleep(0.01)
        schema = body["response_format"]["json_schema"]["schema"]
        text = json.dumps(fill(schema, prompt))
        usage = {"prompt_tokens": len(prompt) // 4, "completion_tokens": len(text) // 4}
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        seconds = {"device_seconds": 0.01}
        return JSONResponse({"model": body["model"], "choices": [choice], "usage": usage, "quarry": seconds})

    async def embeddings(self, request: Request) -> JSONResponse:
        body = await request.json()
        self.calls["embed"] += 1
        self.calls["embedded_texts"] += len(body["input"])
        data = [{"index": n, "embedding": vector(text)} for n, text in enumerate(body["input"])]
        usage = {"prompt_tokens": sum(len(text) // 4 for text in body["input"])}
        return JSONResponse({"model": body.get("model"), "data": data, "usage": usage})

    async def models(self, request: Request) -> JSONResponse:
        return JSONResponse({"data": [{"id": "fake"}]})

    async def health(self, request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"})


def vector(text: str) -> list[float]:
    """A bag of hashed words; never all zeros."""
    found = [0.01] * DIM
    for word in re.findall(r"\w+", text.lower()):
        found[hashlib.sha256(word.encode()).digest()[0] % DIM] += 1.0
    return found


def fill(schema: dict[str, Any], prompt: str) -> Any:
    """The value that `schema` asks for, from the prompt's lines `field: value`; a root array has one item per `---`."""
    if schema.get("type") == "array":
        return [fill(schema["items"], part) for part in prompt.split("---") if "name:" in part]
    answer: dict[str, Any] = {}
    for name, about in schema.get("properties", {}).items():
        lines = re.findall(rf"^{re.escape(name)}: (.+)$", prompt, re.MULTILINE)
        value = lines[-1].strip() if lines else None
        kinds = about.get("type", "string")
        answer[name] = int(value) if value and "integer" in kinds else value
    return answer


@contextmanager
def serve(engine: FakeEngine | None = None) -> Iterator[FakeEngine]:
    """The engine on a free port, in a thread of this process."""
    engine = engine or FakeEngine()
    routes = [
        Route("/v1/chat/completions", engine.chat, methods=["POST"]),
        Route("/v1/embeddings", engine.embeddings, methods=["POST"]),
        Route("/v1/models", engine.models),
        Route("/health", engine.health),
    ]
    config = uvicorn.Config(Starlette(routes=routes), host="127.0.0.1", port=0, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        threading.Event().wait(0.01)
    engine.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        yield engine
    finally:
        engine.hold.set()
        server.should_exit = True
        thread.join(timeout=5)
