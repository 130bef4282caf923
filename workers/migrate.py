"""Brings the database to the newest revision: `python -m workers.migrate`. Several at once are safe."""

from __future__ import annotations

import sys

from sqlalchemy.exc import SQLAlchemyError

from db import migrate
from db.session import describe
from pipeline.settings import NotConfigured, get_settings


def main() -> int:
    """0 when the database is current."""
    try:
        url = get_settings().endpoint("database_url")
        before = migrate.current(url)
        migrate.upgrade(url)
    except NotConfigured as error:
        print(error, file=sys.stderr)
        return 1
    except SQLAlchemyError as error:
        words = str(getattr(error, "orig", None) or error).strip()
        print(f"{describe(url)} can't be migrated: {words}", file=sys.stderr)
        return 1
    head = migrate.head()
    print(f"database at revision {head}" + ("" if before == head else f", was at {before or 'none'}"), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
