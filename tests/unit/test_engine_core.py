"""A core in a process of its own: what its end, or its client's, does to the other."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest

from bench.dispatch import run as run_dispatch
from inference.config import EngineConfig
from inference.core import client as client_module
from inference.core.client import CoreClient, StartFailed, State, pause
from inference.core.messages import (
    Embedded,
    Frames,
    Ping,
    Pong,
    Progress,
    Ready,
    Start,
    Stop,
    Submit,
    TokenizerData,
    frame,
    from_core,
    to_core,
)
from inference.core.outbox import Outbox
from inference.core.process import CoreProcess
from inference.executor import EngineDown, EngineStopped, Executor
from inference.request import FinishReason, GrammarKind, GrammarSpec, Request, Response, SamplingParams
from inference.stats import ModelInfo
from tests.tiny_models import byte_tokenizer, collect, generate, make_model, save_with_tokenizer
from tests.tiny_server import MODEL, serve

ROOT = Path(__file__).parents[2]
ENDLESS = SamplingParams(max_tokens=400, ignore_eos=True)
SHORT = SamplingParams(max_tokens=5, ignore_eos=True)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_with_tokenizer(make_model("qwen2"), tmp_path_factory.mktemp("model"))


def tiny(path: Path) -> EngineConfig:
    return EngineConfig(path, dtype="float32", num_threads=1)


@pytest.fixture
def executor(checkpoint: Path) -> Iterator[Executor]:
    made = Executor(tiny(checkpoint), byte_tokenizer())
    try:
        yield made
    finally:
        made.shutdown()


def pid_of(executor: Executor) -> int:
    core = executor._client.core
    assert isinstance(core, CoreProcess)
    return core.pid


def gone(pid: int, seconds: float = 20.0) -> bool:
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def generate_when_up(executor: Executor, request: Request) -> list[tuple[tuple[int, ...], Response]]:
    """As `generate`; while the core is down, again after what it says to wait, or sooner."""
    stop = time.monotonic() + 60
    while True:
        try:
            return generate(executor, request)
        except EngineDown as error:
            if error.retry_after < 1 or time.monotonic() > stop:
                raise
            time.sleep(0.1)


def test_a_killed_core_fails_its_requests_with_a_reason_and_is_started_anew(executor: Executor) -> None:
    before = generate(executor, Request("before", (1, 2, 3), SHORT))
    first = pid_of(executor)
    for index in range(3):
        executor.enqueue_request(Request(str(index), (index, 7), ENDLESS))
    assert executor.await_responses("0")
    os.kill(first, signal.SIGKILL)
    for responses in collect(executor, ["0", "1", "2"]).values():
        assert responses[-1].finish_reason is FinishReason.ERROR
        assert "was ended by SIGKILL; it is being started anew" in str(responses[-1].error)
        assert sum(response.finished for response in responses) == 1
    after = generate_when_up(executor, Request("after", (1, 2, 3), SHORT))
    assert pid_of(executor) != first
    assert after[0][0] == before[0][0]
    assert executor._client.restarts == 1


def test_a_core_that_hangs_fails_its_requests_and_is_killed_and_started_anew(checkpoint: Path) -> None:
    """A stopped process stands for whatever never comes back to the loop: its socket stays open and silent."""
    made = Executor(replace(tiny(checkpoint), stall_seconds=3.0), byte_tokenizer())
    try:
        before = generate(made, Request("before", (1, 2, 3), SHORT))
        first = pid_of(made)
        for index in range(3):
            made.enqueue_request(Request(str(index), (index, 7), ENDLESS))
        assert made.await_responses("0")
        os.kill(first, signal.SIGSTOP)
        for responses in collect(made, ["0", "1", "2"]).values():
            assert responses[-1].finish_reason is FinishReason.ERROR
            assert "made no turn for 3 s and was killed; it is being started anew" in str(responses[-1].error)
            assert sum(response.finished for response in responses) == 1
        after = generate_when_up(made, Request("after", (1, 2, 3), SHORT))
        assert gone(first)
        assert after[0][0] == before[0][0]
        assert made._client.restarts == 1
    finally:
        made.shutdown()


def test_a_core_that_hangs_while_it_loads_is_killed(checkpoint: Path) -> None:
    launched: list[CoreProcess] = []

    def stopped() -> CoreProcess:
        launched.append(CoreProcess())
        os.kill(launched[0].pid, signal.SIGSTOP)
        return launched[0]

    with pytest.raises(StartFailed, match=r"did not load its models within 0\.5 s and was killed"):
        Executor(replace(tiny(checkpoint), start_seconds=0.5), byte_tokenizer(), stopped)
    assert gone(launched[0].pid)


class Played:
    """A core that a test plays: says that it is ready, then answers `answers` pings."""

    def __init__(self, answers: int | None) -> None:
        self.connection, self._theirs = socket.socketpair()
        self._answers = answers
        self.pings = 0
        self.killed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        frames = Frames()
        with self._theirs:
            while data := self._theirs.recv(1 << 20):
                for content in frames.push(data):
                    match to_core.decode(content):
                        case Start():
                            info = ModelInfo("m", "a", 9, 9, "float32", "cpu", 1, 16, 1)
                            self._theirs.sendall(frame(Ready(info, None)))
                        case Ping():
                            self.pings += 1
                            if self._answers is None or self.pings <= self._answers:
                                self._theirs.sendall(frame(Pong()))
                        case Stop():
                            return

    def kill(self) -> None:
        self.killed = True

    def end(self) -> str:
        self._thread.join()
        return "ended"


def test_a_core_that_answers_is_left_alone_however_little_it_makes(checkpoint: Path) -> None:
    tokenizer = byte_tokenizer()
    data = TokenizerData(tokenizer.json, tokenizer.vocab_size, tokenizer.eos_token_ids)
    cores: list[Played] = []

    def launch() -> Played:
        cores.append(Played(answers=None if cores else 2))
        return cores[-1]

    async def scenario() -> None:
        client = CoreClient(Start(replace(tiny(checkpoint), stall_seconds=0.4), data), launch)
        await client.start()
        got: list[Response] = []
        await client.submit(Request("a", (1, 2), SamplingParams(max_tokens=2)), got.append)
        while not got:
            await asyncio.sleep(0.01)
        assert "made no turn for 0.4 s" in str(got[0].error)
        assert client.state is State.DOWN
        assert "made no turn" in client.why_down
        assert (cores[0].pings, cores[0].killed) == (3, True)
        while len(cores) < 2 or cores[1].pings < 5:  # the second is asked for longer than the limit, and answers
            await asyncio.sleep(0.01)
        assert client.state is State.UP
        assert not cores[1].killed
        await client.shutdown()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_core_ends_when_its_client_is_killed(checkpoint: Path) -> None:
    """Also in the middle of a step, and without a word."""
    script = f"""
import sys, time
from pathlib import Path
from inference.config import EngineConfig
from inference.executor import Executor
from inference.request import Request, SamplingParams
from inference.tokenizer import load_tokenizer
path = Path({str(checkpoint)!r})
executor = Executor(EngineConfig(path, dtype="float32", num_threads=1), load_tokenizer(path))
executor.enqueue_request(Request("a", (1, 2), SamplingParams(max_tokens=500, ignore_eos=True)))
print(executor._client.core.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert psutil.pid_exists(pid)
        parent.kill()
    assert gone(pid)


def test_a_core_killed_while_it_drains_ends_its_requests_and_the_drain(checkpoint: Path) -> None:
    made = Executor(tiny(checkpoint), byte_tokenizer())
    made.enqueue_request(Request("a", (1, 2), ENDLESS))
    pid = pid_of(made)
    os.kill(pid, signal.SIGSTOP)
    draining = threading.Thread(target=made.shutdown, args=(True,))
    draining.start()
    while made._client.state is not State.STOPPING:
        time.sleep(0.01)
    with pytest.raises(EngineStopped):
        made.enqueue_request(Request("b", (1, 2), SHORT))
    os.kill(pid, signal.SIGKILL)
    draining.join()
    assert made._client.state is State.STOPPED
    last = made.await_responses("a")[-1]
    assert last.finish_reason is FinishReason.ERROR
    assert "was ended by SIGKILL; the engine is shutting down" in str(last.error)


def test_no_core_is_left_behind_by_a_shutdown(checkpoint: Path) -> None:
    made = Executor(tiny(checkpoint), byte_tokenizer())
    made.enqueue_request(Request("a", (1, 2), ENDLESS))
    pid = pid_of(made)
    made.shutdown()
    assert gone(pid)
    (last,) = [response for response in made.await_responses("a") if response.finished]
    assert last.finish_reason is FinishReason.CANCELLED


def test_a_core_that_cannot_load_says_why(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match=re.escape(str(tmp_path))):
        Executor(EngineConfig(tmp_path), byte_tokenizer())


def test_what_is_refused_or_given_up_leaves_nothing_open(checkpoint: Path) -> None:

    tokenizer = byte_tokenizer()

    async def scenario() -> None:
        core = CoreClient(
            Start(tiny(checkpoint), TokenizerData(tokenizer.json, tokenizer.vocab_size, tokenizer.eos_token_ids))
        )
        await core.start()
        try:
            assert core.state is State.UP
            bad = Request("bad", (1,), SamplingParams(max_tokens=3), GrammarSpec(GrammarKind.REGEX, "([a"))
            with pytest.raises(client_module.RequestRejected, match=r"grammar|regex|pattern"):
                await core.submit(bad, lambda _: None)
            stream = core.generate(Request("left", (1, 2), ENDLESS))
            assert isinstance(await anext(stream), Response)
            await stream.aclose()
            stats = core.stats()
            for _ in range(200):
                stats = core.stats()
                if not core._open and stats.pages_owned == 0:
                    break
                await asyncio.sleep(0.05)
            assert stats.pages_free + stats.pages_cached == stats.pages_total
        finally:
            await core.shutdown()
        assert core.state is State.STOPPED

    asyncio.run(scenario())


def test_the_front_loads_no_torch() -> None:
    script = "import sys\nimport inference.server.__main__, inference.executor\nassert 'torch' not in sys.modules"
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_frames_may_come_in_any_pieces() -> None:
    messages = [Submit(Request(str(n), tuple(range(n)), SamplingParams(seed=n))) for n in range(20)]
    stream = b"".join(map(frame, messages))
    for size in (1, 7, 64, len(stream)):
        frames, got = Frames(), []
        for at in range(0, len(stream), size):
            got += [to_core.decode(content) for content in frames.push(stream[at : at + size])]
        assert got == messages


def test_pauses_grow_to_a_limit() -> None:
    pauses = [pause(crashes) for crashes in range(1, 12)]
    assert pauses == sorted(pauses)
    assert pauses[0] == client_module.FIRST_PAUSE_SECONDS
    assert pauses[-1] == client_module.LONGEST_PAUSE_SECONDS


def test_what_a_slow_client_leaves_is_merged_and_bounded() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        outbox = Outbox(ours, limit=1000)
        filler = Embedded(1, vectors=bytes(1 << 22))  # more than the socket holds
        outbox.say(filler)
        outbox.flush()
        for token in range(300):
            for name in ("a", "b", "c"):
                outbox.put([Response(name, (token,))])
            outbox.flush()
        assert outbox.overdue() == []
        outbox.put([Response("c", finish_reason=FinishReason.LENGTH), Response("d", tuple(range(200)))])
        assert outbox.overdue() == ["a", "b", "d"]
        for name in ("a", "b", "d"):
            outbox.put([Response(name, finish_reason=FinishReason.CANCELLED)])
        theirs.setblocking(False)
        frames, got = Frames(), []
        while len(got) < 2:
            outbox.flush()
            got += [from_core.decode(content) for content in frames.push(theirs.recv(1 << 20))]
    assert got[0] == filler
    assert isinstance(got[1], Progress)
    ends = {response.request_id: response for response in got[1].responses}
    assert ends["c"].token_ids == tuple(range(300))
    assert all(ends[name].token_ids == () and ends[name].finished for name in ("a", "b", "d"))


def test_over_http_a_crash_is_an_error_of_openais_shape_and_health_tells(checkpoint: Path) -> None:
    body = {"model": MODEL, "prompt": "x", "max_tokens": 500, "ignore_eos": True}
    with serve(checkpoint, process=True, num_threads=1) as server:
        assert isinstance(server.core.core, CoreProcess)
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body | {"stream": True}, timeout=60) as stream:
            lines = stream.iter_lines()
            next(lines)
            os.kill(server.core.core.pid, signal.SIGKILL)
            told = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert "SIGKILL" in told[-1]["error"]["message"]
        health = httpx.get(f"{server.url}/health")
        assert health.status_code == 503
        assert "SIGKILL" in health.json()["reason"]
        refused = httpx.post(f"{server.url}/v1/completions", json=body)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "engine_down"
        assert int(refused.headers["retry-after"]) >= 1
        stop = time.monotonic() + 60
        while httpx.get(f"{server.url}/health").status_code != 200:
            assert time.monotonic() < stop
            time.sleep(0.05)
        assert httpx.post(f"{server.url}/v1/completions", json=body | {"max_tokens": 2}).status_code == 200


def test_the_dispatch_bench_measures_the_way_and_an_echo(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dispatch(checkpoint, requests=100, as_json=True)
    printed = json.loads(capsys.readouterr().out)
    way, echo = printed["results"]
    assert 0 < way["median_ms"] <= way["p99_ms"]
    assert 0 < echo["median_ms"] <= echo["p99_ms"]
