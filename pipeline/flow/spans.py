"""Spans of an item: collected by the trace, stored in the transaction of the step that they measure."""

from __future__ import annotations

from sqlalchemy import Connection, insert

from db.models import Span
from pipeline.flow.item import Item
from pipeline.gate import clean_value
from pipeline.tracing import Trace


def store_spans(connection: Connection, item: Item, trace: Trace) -> None:
    """What finished since the last call, failed tries included: they cost as well."""
    rows = [
        {
            "id": record.id,
            "trace_id": record.trace_id,
            "parent_id": record.parent_id,
            "item_id": item.id,
            "document_id": item.document_id,
            "job_id": item.job_id,
            "schema_id": item.schema_id,
            "name": record.name,
            "started_at": record.started_at,
            "ended_at": record.ended_at,
            "model": record.model,
            "input_tokens": record.input_tokens,
            "cached_tokens": record.cached_tokens,
            "output_tokens": record.output_tokens,
            "device_seconds": record.device_seconds,
            "cost_usd": record.cost_usd,
            "status": record.status,
            "attributes": clean_value(record.attributes),
        }
        for record in trace.take()
    ]
    if rows:
        connection.execute(insert(Span), rows)
