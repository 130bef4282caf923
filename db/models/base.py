"""What every table shares: the schema, names for constraints, and the column types used again and again."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from sqlalchemy import BigInteger, DateTime, Identity, MetaData, Text, func
from sqlalchemy.orm import DeclarativeBase, mapped_column

SCHEMA = "quarry"

# Names are given so that migrations can refer to them and so that both ways of building the database agree.
NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    metadata = MetaData(schema=SCHEMA, naming_convention=NAMES)
    type_annotation_map = {str: Text, int: BigInteger, datetime: DateTime(timezone=True)}  # noqa: RUF012


Id = Annotated[int, mapped_column(BigInteger, Identity(), primary_key=True)]
CreatedAt = Annotated[datetime, mapped_column(DateTime(timezone=True), server_default=func.now())]
