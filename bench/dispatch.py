"""What the way through the front, the core and back costs, with the model's forward taken away.

Front, tokenizer, messages, scheduler, pages and sampling are the product's own, in its two processes; in place of the
forward stand logits made once. Each request asks for one token, one request at a time. Beside it, in the same run: a
bare echo of as many bytes by another process over the same kind of socket.
"""

from __future__ import annotations

import asyncio
import json
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
from rich.console import Console
from rich.table import Table
from starlette.types import ASGIApp, Receive, Scope, Send

from inference.config import EngineConfig
from inference.core.client import CoreClient
from inference.core.messages import Start, TokenizerData
from inference.core.process import CoreProcess
from inference.core.process import main as core_main
from inference.server.app import Front, FrontConfig
from inference.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from inference.embedder import Embedder
    from inference.runner import Runner

WARM_UP = 50
ECHO_BYTES = 512  # about what a request of a few tokens takes as a message
AIM_MILLISECONDS = 1.0
_ECHO = """
import socket, sys
with socket.socket(fileno=int(sys.argv[1])) as end:
    while data := end.recv(65536):
        end.sendall(data)
"""


@dataclass(frozen=True)
class Result:
    name: str
    median_ms: float
    p99_ms: float

    @classmethod
    def of(cls, name: str, seconds: list[float]) -> Result:
        ordered = sorted(seconds[WARM_UP:])
        return cls(name, 1e3 * statistics.median(ordered), 1e3 * ordered[int(0.99 * (len(ordered) - 1))])


def run(path: Path, *, requests: int, as_json: bool) -> list[Result]:
    """Measure and print: a table, or JSON on standard output."""
    console = Console(stderr=True)
    with console.status("dispatching"):
        results = [
            Result.of("front in → core → front out", asyncio.run(_dispatch(path, requests + WARM_UP))),
            Result.of(f"bare echo of {ECHO_BYTES} bytes", asyncio.run(_echo(requests + WARM_UP))),
        ]
    if as_json:
        print(json.dumps({"model": str(path), "requests": requests, "results": [asdict(r) for r in results]}))
        return results
    table = Table(title=f"Dispatch without the model, {requests} requests")
    for name in ("", "median ms", "p99 ms"):
        table.add_column(name, justify="right" if name else "left")
    for result in results:
        table.add_row(result.name, f"{result.median_ms:.3f}", f"{result.p99_ms:.3f}")
    Console().print(table)
    Console().print(f"Aim: a median below {AIM_MILLISECONDS:g} ms.")
    return results


async def _dispatch(path: Path, requests: int) -> list[float]:
    """Seconds of each request, from the call of the front to the last byte of its answer."""
    tokenizer = load_tokenizer(path)
    config = EngineConfig(path, kv_cache_bytes=64 << 20, prefix_cache=False)
    data = TokenizerData(tokenizer.json, tokenizer.vocab_size, tokenizer.eos_token_ids)
    core = CoreClient(Start(config, data), lambda: CoreProcess(("-m", "bench.dispatch")))
    await core.start()
    try:
        timed = _Timed(Front(core, tokenizer, FrontConfig()).app())
        body = {"model": core.model_info.name, "prompt": "What is in the page?", "max_tokens": 1}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(timed), base_url="http://front") as client:
            for _ in range(requests):
                (await client.post("/v1/completions", json=body)).raise_for_status()
        return timed.seconds
    finally:
        await core.shutdown()


class _Timed:
    """Around an application: how long each answer took, its client's own time left out."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.seconds: list[float] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        await self._app(scope, receive, send)
        self.seconds.append(time.perf_counter() - started)


async def _echo(rounds: int) -> list[float]:
    loop, (ours, theirs) = asyncio.get_running_loop(), socket.socketpair()
    with theirs:
        number = theirs.fileno()
        echo = subprocess.Popen([sys.executable, "-c", _ECHO, str(number)], pass_fds=(number,))
    ours.setblocking(False)
    seconds, message = [], b"x" * ECHO_BYTES
    try:
        for _ in range(rounds):
            started = time.perf_counter()
            await loop.sock_sendall(ours, message)
            got = 0
            while got < len(message):
                got += len(await loop.sock_recv(ours, 65536))
            seconds.append(time.perf_counter() - started)
    finally:
        ours.close()
        echo.wait()
    return seconds


def _without_forward(start: Start) -> tuple[Runner, Embedder | None]:
    """What the core loads here: the model for its shape, its forward taken away."""
    import torch

    from inference.plan import Plan
    from inference.runner import Runner

    class Idle(Runner):
        def forward(self, plan: Plan) -> torch.Tensor:
            return torch.zeros(len(plan.logits), self.model.config.vocab_size)

    return Idle(start.config, start.tokenizer.vocab_size), None


if __name__ == "__main__":
    sys.exit(core_main(sys.argv[1:], _without_forward))
