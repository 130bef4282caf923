"""A document's whole way, as a Langfuse server sees it: through the worker's flow, with a real database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from pipeline.client import Client
from pipeline.flow import Outcome, WorkerFlow
from pipeline.load import SourceDocument
from pipeline.settings import Settings
from tests.fake_engine import serve
from tests.otlp_receiver import Receiver, receiver

pytestmark = pytest.mark.services
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
STEPS = {"ingest", "clean", "chunk", "embed", "extract", "load", "retrieve", "generation", "ground", "write"}


@pytest.fixture
def langfuse() -> Iterator[Receiver]:
    with receiver() as server:
        yield server


def test_a_document_is_one_trace_of_nested_steps_with_the_figures_in_sql(
    database_url: str, broker_url: str, tmp_path: Path, langfuse: Receiver
) -> None:
    with serve() as engine:
        options: dict[str, Any] = {
            "LANGFUSE_PUBLIC_KEY": "pk-integration",
            "LANGFUSE_SECRET_KEY": "sk",
            "LANGFUSE_HOST": langfuse.url,
        }
        settings = Settings(
            home=tmp_path,
            database_url=database_url,
            broker_url=broker_url,
            engine_url=engine.url,
            model="fake",
            embedder="fake-embedder",
            **options,
        )
        worker = WorkerFlow(settings)
        try:
            with Client(settings) as client:
                client.add_schema("firm", SCHEMA)
                job = client.submit([SourceDocument("mill", b"name: Miller Ltd\n", "text/plain")], "firm").job_id
            with worker.engine.begin() as connection:
                item = connection.execute(text("SELECT id FROM quarry.job_item")).scalar_one()
            assert (worker.ingest(item), worker.extract(item)) == (Outcome.DONE, Outcome.DONE)
            with worker.engine.begin() as connection:
                stored = {row.id: row for row in connection.execute(text("SELECT * FROM quarry.span"))}
        finally:
            worker.close()
        spans = {span.span_id: span for span in langfuse.wait_for(len(STEPS))}

    assert {span.name for span in spans.values()} == STEPS
    assert len({span.trace_id for span in spans.values()}) == 1
    assert set(spans) == set(stored)
    names = {span.span_id: span.name for span in spans.values()}
    parents = {span.name: names.get(span.parent_id) for span in spans.values()}
    assert parents["clean"] == parents["chunk"] == parents["embed"] == "ingest"
    assert parents["load"] == parents["generation"] == parents["ground"] == parents["write"] == "extract"
    for span_id, span in spans.items():
        row, attributes = stored[span_id], span.attributes
        assert attributes["session.id"].startswith(f"job {job} (")
        assert attributes["langfuse.trace.tags"] == ["firm"]
        assert json.loads(attributes["langfuse.observation.cost_details"])["total"] == pytest.approx(
            float(row.cost_usd)
        )
        usage = json.loads(attributes.get("langfuse.observation.usage_details", "{}"))
        assert usage.get("input", 0) == row.input_tokens
        assert usage.get("output", 0) == row.output_tokens
