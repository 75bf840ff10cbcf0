"""The time that leases are compared by: the database's where processes share one, else this process's own.

What people see (when a run began, when a message was sent) is in `luxx/clock.py`.
"""

import time
from datetime import datetime, timedelta

import structlog
from sqlalchemy import ColumnElement, Connection, Double, cast, extract, func, literal, select
from sqlalchemy.orm import Session

from luxx.clock import utc_now

APART = timedelta(hours=1)
"""How far two clocks may be from each other for what is old to be deleted by them."""

logger = structlog.get_logger()


def database_time(connection: Connection) -> ColumnElement[float]:
    """Unix seconds, as SQL. On PostgreSQL no process's own clock counts, so one that jumps harms nobody."""
    if connection.dialect.name == "postgresql":
        return cast(extract("epoch", func.statement_timestamp()), Double)
    return literal(time.time())


def time_to_delete_by(session: Session) -> datetime | None:
    """Now, by the database's clock where there is one. None where this process's own is far from it: one of
    them is wrong, and what is deleted by it would be gone for good."""
    here, connection = utc_now(), session.connection()
    if connection.dialect.name != "postgresql":
        return here
    seconds = connection.execute(select(database_time(connection))).scalar_one()
    there = datetime.fromtimestamp(seconds, here.tzinfo)
    if abs(there - here) > APART:
        logger.warning("nothing_deleted", reason="clocks disagree", here=str(here), database=str(there))
        return None
    return there
