"""The server as a process: what a signal does to it, to its core, and to clients in the middle of an answer."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.tiny_models import make_model, save_with_tokenizer

ROOT = Path(__file__).parents[2]
BODY: dict[str, Any] = {"model": "tiny", "prompt": "x", "ignore_eos": True}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its context is long enough to keep the engine at work for as long as a test takes."""
    model = make_model("qwen2", max_position_embeddings=1 << 16, num_hidden_layers=1)
    return save_with_tokenizer(model, tmp_path_factory.mktemp("model"))


@dataclass
class Server:
    url: str
    process: subprocess.Popen[str]

    def core(self) -> psutil.Process:
        found: list[psutil.Process] = []

        def appeared() -> bool:
            found[:] = psutil.Process(self.process.pid).children()
            return bool(found)

        wait(appeared, "the core's process")
        return found[0]

    def health(self) -> dict[str, Any]:
        try:
            answer = httpx.get(f"{self.url}/health", timeout=10)
        except httpx.TransportError:
            return {"status": "nobody", "code": None}
        return answer.json() | {"code": answer.status_code}

    def complete(self, **fields: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/completions", json=BODY | fields, timeout=60)


def wait(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.02)


@contextmanager
def running(checkpoint: Path, *flags: str) -> Iterator[Server]:
    """The server's process, which a test ends. Whoever is left of it is killed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "inference.server", "--model", str(checkpoint), "--served-name", "tiny"]
    command += ["--dtype", "float32", "--threads", "1", "--port", str(port), *flags]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    family = []
    try:
        server = Server(f"http://127.0.0.1:{port}", process)
        family = [server.core()]
        yield server
        assert not family[0].is_running() or family[0].status() == psutil.STATUS_ZOMBIE, "the core is still there"
    finally:
        process.kill()
        process.communicate()
        for core in family:
            if core.is_running():
                core.kill()


def events(lines: Iterator[str]) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def test_at_sigterm_what_runs_is_finished_and_what_is_new_is_refused(checkpoint: Path) -> None:
    with running(checkpoint) as server:
        wait(lambda: server.health()["status"] == "ok", "the engine")
        body = BODY | {"stream": True, "max_tokens": 400}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as stream:
            lines = stream.iter_lines()
            next(lines)
            server.core().suspend()  # so that the request is under way for as long as this takes
            server.process.send_signal(signal.SIGTERM)
            wait(lambda: server.health()["status"] == "stopping", "the signal to be heard")
            health = server.health()
            assert health["code"] == 503
            assert "shutting down" in health["reason"]
            refused = server.complete(max_tokens=1)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "shutting_down"
            assert "shutting down" in refused.json()["error"]["message"]
            assert int(refused.headers["retry-after"]) >= 1
            server.core().resume()
            chunks = events(lines)
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(60) == 0


@pytest.mark.parametrize(("seconds", "signals"), [("0.3", 1), ("600", 2)], ids=["deadline", "second signal"])
def test_what_is_not_finished_in_time_ends_with_a_reason(seconds: str, signals: int, checkpoint: Path) -> None:
    with running(checkpoint, "--drain-seconds", seconds) as server:
        wait(lambda: server.health()["status"] == "ok", "the engine")
        body = BODY | {"stream": True, "max_tokens": 60_000}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as stream:
            lines = stream.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            if signals == 2:
                wait(lambda: server.health()["status"] == "stopping", "the first signal to be heard")
                server.process.send_signal(signal.SIGTERM)
            chunks = events(lines)
        assert "the engine is shutting down" in chunks[-1]["error"]["message"]
        assert all("choices" in chunk for chunk in chunks[:-1])
        assert server.process.wait(60) == 0


def test_sigterm_while_the_model_is_loaded_ends_both(checkpoint: Path) -> None:
    with running(checkpoint) as server:
        server.core().suspend()  # it will never have loaded
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
