"""The time that leases are compared by: the database's where processes share one, else this process's own.

What people see (when a run began, when a message was sent) is in `luxx/clock.py`.
"""

import time

from sqlalchemy import ColumnElement, Connection, Double, cast, extract, func, literal


def database_time(connection: Connection) -> ColumnElement[float]:
    """Unix seconds, as SQL. On PostgreSQL no process's own clock counts, so one that jumps harms nobody."""
    if connection.dialect.name == "postgresql":
        return cast(extract("epoch", func.statement_timestamp()), Double)
    return literal(time.time())
