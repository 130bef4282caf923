"""Work done before: its rows serve again, under the same document or copied to another with the same content."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from db.named import Queries

_RESULTS = Queries("results")


def reuse(connection: Connection, item_ids: Sequence[int]) -> list[int]:
    """Finish those of the items whose work key is done elsewhere, in the caller's transaction; returns their ids."""
    items = {"item_ids": list(item_ids)}
    connection.execute(_RESULTS.lock_documents, items)
    reused = connection.execute(_RESULTS.reuse, items).all()
    copies = [(row.id, row.source_item_id) for row in reused if row.rows_item_id == row.id]
    if copies:
        pairs = {"item_ids": [item for item, _ in copies], "source_ids": [source for _, source in copies]}
        connection.execute(_RESULTS.copy_entities, pairs)
        connection.execute(_RESULTS.copy_merges, pairs)
        connection.execute(_RESULTS.copy_mentions, pairs)
    if reused:
        connection.execute(_RESULTS.supersede_reused, {"item_ids": [row.id for row in reused]})
    return [row.id for row in reused]
