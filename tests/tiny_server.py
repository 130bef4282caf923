"""The HTTP front over a tiny real engine, for tests that speak to it as clients do."""

from __future__ import annotations

import asyncio
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
from inference.core.client import CoreClient
from inference.core.messages import Start, TokenizerData
from inference.core.process import CoreProcess, CoreThread
from inference.runner import Runner
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
    core: CoreClient

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, **options)


def load(start: Start) -> tuple[Runner, Any]:
    return Runner(start.config), LengthEmbedder()


@contextmanager
def serve(
    folder: Path,
    config: FrontConfig | None = None,
    *,
    process: bool = False,
    embedder: Path | None = None,
    **engine: Any,
) -> Iterator[Server]:
    """The front in a thread; its core in another with a LengthEmbedder, or with `process` where it belongs, with the
    embedder in the folder `embedder`."""
    tokenizer = replace(byte_tokenizer(), chat_template=TEMPLATE)
    settings = EngineConfig(folder, served_name=MODEL, device="cpu", dtype="float32", **engine)
    data = TokenizerData(tokenizer.json, tokenizer.vocab_size, tokenizer.eos_token_ids)
    start = Start(settings, data, embedder=embedder, embedder_name=embedder.name if embedder else "lengths")
    core = CoreClient(start, CoreProcess if process else lambda: CoreThread(load))
    servers: list[uvicorn.Server] = []

    async def run() -> None:
        await core.start()
        front = Front(core, tokenizer, config or FrontConfig()).app()
        servers.append(uvicorn.Server(uvicorn.Config(front, host="127.0.0.1", port=0, log_level="error", backlog=2048)))
        await servers[0].serve()

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    while not (servers and servers[0].started):
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.01)
    port = servers[0].servers[0].sockets[0].getsockname()[1]
    try:
        yield Server(f"http://127.0.0.1:{port}", core)
    finally:
        servers[0].should_exit = True
        thread.join()
