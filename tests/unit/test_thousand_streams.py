"""A thousand clients at once over HTTP, a tenth of whom go away at a random moment."""

from __future__ import annotations

import asyncio
import json
import random
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiny_models import make_model, save
from tests.tiny_server import MODEL, Server, serve

CLIENTS = 1000
TOKENS = 6
CONNECTING_AT_ONCE = 100  # more would only wait in the kernel's queue of connections


@pytest.fixture
def many_files() -> Iterator[None]:
    """Both ends of every connection are ours."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4 * CLIENTS)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def stream(server: Server, client: int, leave_after: int | None, turn: asyncio.Semaphore) -> list[str]:
    """The reasons for an end that the client was told, `[DONE]` among them; it hangs up after so many events."""
    port = int(server.url.rsplit(":", 1)[1])
    prompt = f"{client % 8} of the beginnings, shared; then client {client}"
    body = json.dumps({"model": MODEL, "prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True, "stream": True})
    async with turn:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write((head + body).encode())
    ends: list[str] = []
    events = 0
    try:
        while leave_after is None or events < leave_after:
            line = await reader.readline()
            if not line:
                return ends
            if line.startswith(b"data: [DONE]"):
                ends.append("[DONE]")
            elif line.startswith(b"data: "):
                events += 1
                reason = json.loads(line[6:])["choices"][0]["finish_reason"]
                ends += [reason] if reason else []
        return ["left"]
    finally:
        writer.close()


def test_each_of_a_thousand_streams_gets_exactly_one_end_and_no_page_is_lost(tmp_path: Path, many_files: None) -> None:
    rng = random.Random(11)
    leaving = {client: rng.randrange(TOKENS // 2) for client in rng.sample(range(CLIENTS), CLIENTS // 10)}
    small = make_model("llama", num_hidden_layers=1)
    # Pages for a fraction of them: they wait, share and are preempted.
    engine = {"max_num_seqs": 64, "max_num_batched_tokens": 512, "page_size": 8, "kv_cache_bytes": 1 << 19}
    with serve(save(small, tmp_path), process=True, num_threads=1, **engine) as server:

        async def everyone() -> list[list[str]]:
            turn = asyncio.Semaphore(CONNECTING_AT_ONCE)
            return await asyncio.gather(*(stream(server, n, leaving.get(n), turn) for n in range(CLIENTS)))

        ends = asyncio.run(everyone())
        deadline = time.monotonic() + 60
        while (stats := server.core.stats()).running or stats.waiting or stats.pages_owned:
            assert time.monotonic() < deadline, stats
            time.sleep(0.02)
    assert stats.pages_free + stats.pages_cached == stats.pages_total
    whole = ["length", "[DONE]"]
    assert all(got == whole for client, got in enumerate(ends) if client not in leaving)
    # Bytes that are no characters yet make no event: some have their end before they would have left.
    left = [ends[client] for client in leaving]
    assert all(got in (["left"], whole) for got in left)
    assert left.count(["left"]) > len(left) // 2
