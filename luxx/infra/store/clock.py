"""The clock that leases are compared by: the database's on PostgreSQL, this process's own on SQLite.

Times that people see (when a run began, when a message was sent) come from `luxx/infra/clock.py`.
"""

import time
from datetime import UTC, datetime, timedelta

import structlog
from sqlalchemy import ColumnElement, Connection, Double, cast, extract, func, literal, select
from sqlalchemy.orm import Session

from luxx.infra.clock import utc_now

MAX_CLOCK_SKEW = timedelta(hours=1)
"""The largest difference between the two clocks at which cleanup still deletes old rows."""

DATABASE_NOW = func.timezone("utc", func.clock_timestamp())
"""SQL, PostgreSQL only: the current time of the database, without zone as the columns store it."""

logger = structlog.get_logger()


def database_time(connection: Connection) -> ColumnElement[float]:
    """Unix seconds, as SQL. PostgreSQL uses its own clock, so a process whose clock jumps does no harm."""
    if connection.dialect.name == "postgresql":
        return cast(extract("epoch", func.statement_timestamp()), Double)
    return literal(time.time())


def database_now(connection: Connection) -> datetime:
    """The current time that all processes of the database share."""
    if connection.dialect.name == "postgresql":
        database_value: datetime = connection.execute(select(DATABASE_NOW)).scalar_one()
        return database_value.replace(tzinfo=UTC)
    return utc_now()


def deletion_time(session: Session) -> datetime | None:
    """The current time for deleting old rows. None if the two clocks differ by more than MAX_CLOCK_SKEW: one
    of them is wrong, and a deletion cannot be undone."""
    local_now, database_value = utc_now(), database_now(session.connection())
    if abs(database_value - local_now) > MAX_CLOCK_SKEW:
        logger.warning(
            "cleanup_skipped",
            reason="clocks disagree",
            local=str(local_now),
            database=str(database_value),
        )
        return None
    return database_value
