"""What every table shares: the declarative base with its naming convention, and column types.

The tables are in the `models.py` of their features.
"""

from datetime import UTC, datetime
from typing import Any, cast

from sqlalchemy import DateTime, Dialect, MetaData, Table
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import TypeDecorator

NAMING = {
    "ix": "ix_%(column_0_N_label)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}


TEXT_LENGTH = len("2026-01-31 12:30:59.123456")
"""Length of a time on SQLite, which stores it as text without a zone."""


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
        return _in_utc(value).replace(tzinfo=None)

    def bind_processor(self, dialect: Dialect) -> Any:
        """SQLite: SQLAlchemy's own conversion to text takes ten times as long."""
        return _text_of if dialect.name == "sqlite" else super().bind_processor(dialect)

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        return _time_of if dialect.name == "sqlite" else super().result_processor(dialect, coltype)

    def process_result_value(self, value: datetime | None, dialect: Any) -> datetime | None:
        return None if value is None else value.replace(tzinfo=UTC)


def _text_of(value: datetime | None) -> str | None:
    if value is None:
        return None
    if value.tzinfo is not UTC:
        value = _in_utc(value)
    return value.isoformat(" ", "microseconds")[:TEXT_LENGTH]


def _time_of(value: str | None) -> datetime | None:
    return None if value is None else datetime.fromisoformat(value).replace(tzinfo=UTC)


def _in_utc(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError("a time must have a time zone")
    return value.astimezone(UTC)
