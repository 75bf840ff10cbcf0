"""What every table shares: the declarative base with its naming convention, and column types.

The tables themselves live with their features.
"""

from datetime import UTC, datetime
from typing import Any, cast

from sqlalchemy import DateTime, MetaData, Table
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import TypeDecorator

NAMING = {
    "ix": "ix_%(column_0_N_label)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """Base of all rows. Foreign keys are named by string; no `relationship()` across features."""

    metadata = MetaData(naming_convention=NAMING)


def table_of(row: type[Base]) -> Table:
    """The table of a row's class, for statements on hot paths, which bypass the ORM."""
    return cast("Table", row.__table__)


class UtcDateTime(TypeDecorator[datetime]):
    """A timezone-aware UTC datetime, stored without zone so that SQLite and PostgreSQL agree."""

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Any) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a time must carry its zone")
        return value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Any) -> datetime | None:
        return None if value is None else value.replace(tzinfo=UTC)
