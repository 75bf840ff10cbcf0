"""Time and ids: the nondeterministic inputs of the server, in one module so that tests can replace them.

Times that people see come from this process. Leases are compared by the clock that all processes share: the
database's on PostgreSQL, this process's own on SQLite.
"""

import secrets
import time
import uuid
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import structlog
import uuid_utils
from sqlalchemy import ColumnElement, Connection, Double, cast, extract, func, literal, select
from sqlalchemy.orm import Session


def utc_now() -> datetime:
    """The current time, timezone-aware UTC."""
    return datetime.now(UTC)


def timestamp() -> str:
    """The current time as ISO 8601 UTC with milliseconds and `Z`."""
    return _millisecond(int(time.time() * 1000))


@lru_cache(maxsize=2)
def _millisecond(milliseconds: int) -> str:
    # Cached: a busy server formats dozens of timestamps per millisecond.
    seconds, rest = divmod(milliseconds, 1000)
    return f"{_second(seconds)}.{rest:03d}Z"


@lru_cache(maxsize=2)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def new_id() -> str:
    """A new time-ordered id: UUIDv7 in its 36-character form."""
    return str(uuid_utils.uuid7())


def id_at(milliseconds: int, sequence: int) -> str:
    """A new UUIDv7 for that Unix time; `sequence` (below 4096) orders ids of one millisecond.

    Imported objects keep their order in time this way.
    """
    value = (milliseconds & (2**48 - 1)) << 80 | 0x7 << 76 | (sequence & 0xFFF) << 64 | 0b10 << 62
    return str(uuid.UUID(int=value | secrets.randbits(62)))


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
            "cleanup_skipped", reason="clocks disagree", local=str(local_now), database=str(database_value)
        )
        return None
    return database_value
