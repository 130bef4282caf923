"""The product with all its real parts: `quarry up` with a small language model, pages in, rows out, everything down."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from openai import OpenAI

from tests.conftest import MODELS_HOME

pytestmark = [pytest.mark.model, pytest.mark.services]

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "Name of the bread", "maxLength": 40, "x-key": True},
        "kind": {"enum": ["bread", "cake", "other"], "description": "What it is"},
        "minutes": {"type": ["integer", "null"], "minimum": 0, "maximum": 600, "description": "Baking time"},
    },
    "required": ["name", "kind", "minutes"],
}
PAGES = {
    "rye.html": "<html><head><title>Rye bread</title></head><body><h1>Rye bread</h1>"
    "<p>This rye bread is a dark bread. Bake the rye bread for 50 minutes.</p></body></html>",
    "plain.txt": "Corn bread\n\nCorn bread is a yellow bread. It bakes for 25 minutes.\n",
    "dump.jsonl": json.dumps({"url": "http://example.org/soda", "text": "Soda bread. Bake for 40 minutes."})
    + "\nbroken\n",
}


class Product:
    """`quarry` in a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("QUARRY_", "LANGFUSE_"))},
            "QUARRY_HOME": str(home),
            "QUARRY_MODEL": "smollm2-135m-instruct",
            "QUARRY_LEASE_SECONDS": "5",
        }

    def run(self, *words: str, status: int = 0) -> str:
        command = [sys.executable, "-m", "cli.main", *words]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, timeout=240)
        assert done.returncode == status, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def rows(self, *words: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.run(*words, "--format", "jsonl").splitlines()]

    def processes(self) -> list[psutil.Process]:
        """Everything that runs in this home."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("QUARRY_HOME") == str(self.home) and process.pid != os.getpid():
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        return found


@pytest.fixture(scope="module")
def product(smollm2_dir: Path, minilm_dir: Path) -> Iterator[Product]:
    assert smollm2_dir.parent == minilm_dir.parent == MODELS_HOME / "models"
    with tempfile.TemporaryDirectory(prefix="quarry-e2e-") as folder:
        home = Path(folder)
        (home / "models").symlink_to(MODELS_HOME / "models")
        product = Product(home)
        try:
            product.run("up")
            yield product
        finally:
            product.run("down")
        deadline = time.monotonic() + 10
        while (left := product.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert left == []


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    for name, text in PAGES.items():
        (folder / name).write_text(text)
    return folder


def test_pages_become_rows_with_sources_and_costs(product: Product, pages: Path, tmp_path: Path) -> None:
    schema = tmp_path / "bread.json"
    schema.write_text(json.dumps(SCHEMA))
    product.run("schema", "add", str(schema))
    job = product.run("submit", str(pages), "--schema", "bread", "--watch", status=1).strip()  # one line is broken

    rows = product.rows("sql", "SELECT name, kind, minutes, _source_uri, _grounded FROM entities.bread ORDER BY 4")
    assert len(rows) == 3
    assert {row["kind"] for row in rows} <= {"bread", "cake", "other"}
    assert all(row["minutes"] is None or isinstance(row["minutes"], int) for row in rows)
    (failure,) = product.rows("failures", job)
    assert failure["reason"] == "bad_line"

    spans = product.rows("entities", "bread", "--spans")
    assert {span["path"] for span in spans} >= {"/name", "/kind"}
    dsn = product.run("dsn").strip()
    with psycopg.connect(dsn) as connection:
        wrong = connection.execute(
            "SELECT count(*) FROM quarry.chunk c JOIN quarry.clean_text t ON t.id = c.clean_text_id "
            'WHERE substr(t.text, (c.start + 1)::int, (c."end" - c.start)::int) <> c.text'
        ).fetchone()
        assert wrong == (0,)
    steps = {row["step"]: row for row in product.rows("costs", "--by", "step")}
    assert {"clean", "chunk", "embed", "generation", "ground", "write"} <= set(steps)
    assert float(str(steps["generation"]["cost_usd"])) > 0
    assert product.rows("search", "dark rye", "-k", "1")[0]["source"].endswith("rye.html")  # type: ignore[attr-defined]


def test_the_same_pages_again_are_not_processed_again(product: Product, pages: Path) -> None:
    before = product.rows("costs", "--by", "step")
    product.run("submit", str(pages / "rye.html"), str(pages / "plain.txt"), "--schema", "bread", "--watch")
    assert product.rows("costs", "--by", "step") == before
    newest = product.rows("jobs")[0]
    assert (newest["reused"], newest["done"]) == (2, 2)


def test_a_killed_extract_worker_loses_and_doubles_nothing(product: Product, pages: Path) -> None:
    query = "SELECT name, kind, minutes, _source_uri FROM entities.bread ORDER BY _source_uri"
    before = product.rows("sql", query)
    job = product.run("submit", str(pages), "--schema", "bread", "--force", status=1).strip()
    state = json.loads((product.home / "run" / "state.json").read_text())
    worker = next(unit for unit in state["units"] if unit["name"] == "extract")
    time.sleep(random.Random(1).uniform(0.2, 1.0))
    psutil.Process(worker["pid"]).kill()
    product.run("watch", job, status=1)
    assert product.rows("sql", query) == before
    assert len(product.rows("failures", job)) == 1


def test_openais_client_streams_from_the_engine(product: Product) -> None:
    endpoints = json.loads((product.home / "run" / "endpoints.json").read_text())
    client = OpenAI(base_url=f"{endpoints['engine_url']}/v1", api_key="none")
    chunks = client.chat.completions.create(
        model="smollm2-135m-instruct",
        messages=[{"role": "user", "content": "Say hello."}],
        max_tokens=12,
        temperature=0,
        stream=True,
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks).strip()
