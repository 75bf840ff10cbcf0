"""Time and ids: the nondeterministic inputs of the server, in one module so that tests can replace them.

Times that people see come from this process. Leases are compared by the clock that all processes share; it is
in `store/tables.py`, so that a process without a database does not load SQLAlchemy for an id.
"""

import secrets
import time
import uuid
from datetime import UTC, datetime
from functools import lru_cache

import uuid_utils


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
