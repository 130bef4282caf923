"""The client that commands use, imported when one runs: `quarry --help` needs neither database driver nor queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.client import Client
    from pipeline.settings import Settings


def connect(settings: Settings | None = None) -> Client:
    """For `with connect() as client`. It opens connections when first used."""
    from pipeline.client import Client

    return Client(settings)
