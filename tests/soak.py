"""`make soak`: an hour of random traffic over HTTP, after which memory and pages must be where they were.

Plain and constrained requests, sampled or not, streamed or not; some have deadlines, some are left half way. `python -m
tests.soak MINUTES SEED`; not part of the tests.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
from rich.console import Console
from rich.table import Table

from inference.core.process import CoreProcess
from tests.tiny_models import make_model, save
from tests.tiny_server import MODEL, Server, serve

CLIENTS = 32
SAMPLES = 12  # lines of the table
WARM_UP = 0.5  # of the time: allocators fill, and the cache of grammars
MAY_GROW = 0.10  # of the memory after the warm-up


@dataclass(frozen=True)
class Sample:
    minutes: float
    requests: int
    front_mib: float  # this process: the front and its clients
    core_mib: float
    pages_lost: int  # neither free, nor cached, nor held by a request


def random_request(rng: random.Random) -> dict[str, Any]:
    text = f"{rng.randrange(20)} begins alike. " + "x" * rng.randrange(150)
    body: dict[str, Any] = {"model": MODEL, "prompt": text, "max_tokens": rng.randrange(1, 60)}
    body |= {"ignore_eos": True, "temperature": rng.choice([0, 0, 0.8, 2]), "stream": rng.random() < 0.5}
    if rng.random() < 0.3:
        body["structured_outputs"] = {"regex": f"[a-{rng.choice('bcdefgh')}]{{1,{rng.randrange(2, 40)}}}"}
    if rng.random() < 0.1:
        body["timeout_seconds"] = rng.uniform(0.001, 1)
    if rng.random() < 0.2:
        body["logprobs"] = rng.randrange(1, 6)
    return body


async def client(http: httpx.AsyncClient, rng: random.Random, stop: float, done: list[int]) -> None:
    """Requests one after the other. Raises AssertionError for an answer that there should not be."""
    while time.monotonic() < stop:
        leave_after = rng.randrange(6) if rng.random() < 0.15 else None
        async with http.stream("POST", "/v1/completions", json=random_request(rng)) as answer:
            assert answer.status_code in (200, 429, 504), (answer.status_code, await answer.aread())
            events = 0
            async for _ in answer.aiter_lines():
                events += 1
                if leave_after is not None and events > leave_after:
                    break
        done[0] += 1


def sample(server: Server, started: float, done: int) -> Sample:
    assert isinstance(server.core.core, CoreProcess)
    stats = server.core.stats()
    front, core = (psutil.Process(pid).memory_info().rss / 2**20 for pid in (os.getpid(), server.core.core.pid))
    lost = stats.pages_total - stats.pages_free - stats.pages_cached - stats.pages_owned
    return Sample((time.monotonic() - started) / 60, done, front, core, lost)


async def traffic(server: Server, minutes: float, seed: int) -> list[Sample]:
    started, done, samples = time.monotonic(), [0], [sample(server, time.monotonic(), 0)]
    stop = started + 60 * minutes
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as http:
        clients = [
            asyncio.create_task(client(http, random.Random(seed * 1000 + n), stop, done)) for n in range(CLIENTS)
        ]
        while time.monotonic() < stop:
            await asyncio.sleep(min(60 * minutes / SAMPLES, max(0.0, stop - time.monotonic())))
            samples.append(sample(server, started, done[0]))
            print(samples[-1], file=sys.stderr, flush=True)
        await asyncio.gather(*clients)
    return samples


def faults(samples: list[Sample]) -> list[str]:
    """What is not flat, in words."""
    warm = next(s for s in samples if s.minutes >= WARM_UP * samples[-1].minutes)
    found = [f"{s.pages_lost} pages lost after {s.minutes:.1f} min" for s in samples if s.pages_lost]
    for name in ("front_mib", "core_mib"):
        before, after = getattr(warm, name), getattr(samples[-1], name)
        if after > before * (1 + MAY_GROW):
            found.append(f"{name} grew from {before:.0f} to {after:.0f}")
    return found


def main(minutes: float, seed: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        model = save(make_model("llama"), Path(folder))
        # Pages for a part of the requests only, so that some are preempted.
        limits = {"max_num_seqs": 24, "page_size": 8, "kv_cache_bytes": 1 << 20, "num_threads": 1}
        with serve(model, process=True, **limits) as server:
            samples = asyncio.run(traffic(server, minutes, seed))
            held, stop = server.core.stats(), time.monotonic() + 30
            while held.pages_owned and time.monotonic() < stop:
                time.sleep(0.05)
                held = server.core.stats()
    table = Table(title=f"Soak, seed {seed}")
    for name in ("minutes", "requests", "front MiB", "core MiB", "pages lost"):
        table.add_column(name, justify="right")
    for s in samples:
        table.add_row(f"{s.minutes:.1f}", str(s.requests), f"{s.front_mib:.0f}", f"{s.core_mib:.0f}", str(s.pages_lost))
    Console().print(table)
    found = faults(samples)
    if held.pages_owned or server.core.restarts:
        found.append(f"{held.pages_owned} pages are held by nobody's request; {server.core.restarts} crashes")
    Console().print("\n".join(found) or "Memory and pages are flat.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1))
