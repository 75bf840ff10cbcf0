"""The time that leases are compared by: the database's where processes share one, else this process's own.

What people see (when a run began, when a message was sent) is in `luxx/infra/clock.py`.
"""

import time
from datetime import UTC, datetime, timedelta

import structlog
from sqlalchemy import ColumnElement, Connection, Double, cast, extract, func, literal, select
from sqlalchemy.orm import Session

from luxx.infra.clock import utc_now

MAX_CLOCK_SKEW = timedelta(hours=1)
"""How far two clocks may be from each other for what is old to be deleted by them."""

DATABASE_NOW = func.timezone("utc", func.clock_timestamp())
"""As SQL, on PostgreSQL: the time that all processes of the database agree on, as rows have it."""

logger = structlog.get_logger()


def database_time(connection: Connection) -> ColumnElement[float]:
    """Unix seconds, as SQL. On PostgreSQL no process's own clock counts, so one that jumps harms nobody."""
    if connection.dialect.name == "postgresql":
        return cast(extract("epoch", func.statement_timestamp()), Double)
    return literal(time.time())


def database_now(connection: Connection) -> datetime:
    """The time that all processes of the database agree on."""
    if connection.dialect.name == "postgresql":
        database_value: datetime = connection.execute(select(DATABASE_NOW)).scalar_one()
        return database_value.replace(tzinfo=UTC)
    return utc_now()


def deletion_time(session: Session) -> datetime | None:
    """Now, by the database's clock where there is one. None where this process's own is far from it: one of
    them is wrong, and what is deleted by it would be gone for good."""
    local_now, there = utc_now(), database_now(session.connection())
    if abs(there - local_now) > MAX_CLOCK_SKEW:
        logger.warning(
            "nothing_deleted", reason="clocks disagree", local_now=str(local_now), database=str(there)
        )
        return None
    return there
