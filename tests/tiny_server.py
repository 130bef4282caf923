"""The HTTP front over a tiny real engine, for tests that speak to it as clients do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import openai
import uvicorn

from inference.config import EngineConfig
from inference.executor import Executor
from inference.server.app import Front, FrontConfig
from tests.tiny_models import byte_tokenizer

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)
MODEL = "tiny"


class LengthEmbedder:
    """Two numbers per text: enough to see order and encoding."""

    name = "lengths"
    dimension = 2

    def embed(self, texts: list[str]) -> tuple[list[list[float]], int]:
        return [[float(len(text)), 0.5] for text in texts], sum(map(len, texts))


@dataclass(frozen=True)
class Server:
    url: str
    executor: Executor

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, **options)


@contextmanager
def serve(folder: Path, config: FrontConfig | None = None, **engine: Any) -> Iterator[Server]:
    tokenizer = replace(byte_tokenizer(), chat_template=TEMPLATE)
    settings = EngineConfig(folder, served_name=MODEL, device="cpu", dtype="float32", **engine)
    executor = Executor(settings, tokenizer)
    front = Front(executor, tokenizer, LengthEmbedder(), config or FrontConfig())  # type: ignore[arg-type]
    server = uvicorn.Server(uvicorn.Config(front.app(), host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield Server(f"http://127.0.0.1:{port}", executor)
    finally:
        server.should_exit = True
        thread.join()
        executor.shutdown()
