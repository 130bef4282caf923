"""What the tables can't say: chunks are slices, clean text is final, casts that give NULL, the reader's rights.

Revision: 0002, after 0001
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    connection = op.get_bind().connection.driver_connection
    assert connection is not None
    connection.execute(Path(__file__).with_suffix(".sql").read_text("utf-8"))


def downgrade() -> None:
    connection = op.get_bind().connection.driver_connection
    assert connection is not None
    connection.execute(
        """
        DROP SCHEMA entities CASCADE;
        DROP TRIGGER chunk_is_slice_insert ON quarry.chunk;
        DROP TRIGGER chunk_is_slice_update ON quarry.chunk;
        DROP TRIGGER clean_text_is_final ON quarry.clean_text;
        DROP FUNCTION quarry.check_slices, quarry.refuse_change, quarry.to_bigint, quarry.to_numeric,
            quarry.to_boolean, quarry.to_date, quarry.to_timestamptz, quarry.to_text_array, quarry.any_word;
        """
    )
