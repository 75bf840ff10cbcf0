"""How many bytes the messages and logs of a user's runs take up, and the limit on it.

Each run keeps its own size, so deleting it gives the space back. The sum for a user is kept beside them and
only grows: it is counted anew from the runs where it has come to the limit, so no deletion has to know of it.
"""

from sqlalchemy import BigInteger, Connection, ForeignKey, bindparam, func, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, mapped_column

from luxx.errors import TooLarge
from luxx.runs.models import RunEventRow, RunResultRow, RunRow
from luxx.store.tables import Base, table_of

MIB = 1024 * 1024


class UserStorageRow(Base):
    """`bytes` is at least what the user's runs hold."""

    __tablename__ = "user_storage"

    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), primary_key=True)
    bytes: Mapped[int] = mapped_column(BigInteger)


_storage, _runs = table_of(UserStorageRow), table_of(RunRow)
_events, _results = table_of(RunEventRow), table_of(RunResultRow)
_mine = _storage.c.user_id == bindparam("b_user")
_add = (
    _storage.update()
    .where(_mine)
    .values(bytes=_storage.c.bytes + bindparam("size"))
    .returning(_storage.c.bytes)
)
_set = _storage.update().where(_mine).values(bytes=bindparam("size"))
_insert = insert(_storage)
_count = select(func.coalesce(func.sum(_runs.c.stored_bytes), 0)).where(_runs.c.user_id == bindparam("user"))
_of_log = select(
    func.coalesce(
        func.sum(func.length(_events.c.data) + func.coalesce(func.length(_events.c.internal), 0)), 0
    )
).where(_events.c.run_id == bindparam("run_id"))
_of_results = select(func.coalesce(func.sum(func.length(_results.c.output)), 0)).where(
    _results.c.run_id == bindparam("run_id")
)
_of_run = select(_of_log.scalar_subquery() + _of_results.scalar_subquery())
_grow = (
    _runs.update()
    .where(_runs.c.id == bindparam("b_id"))
    .values(stored_bytes=_runs.c.stored_bytes + bindparam("size"))
)


def admit_bytes(connection: Connection, user_id: int, size: int, limit_mb: float) -> None:
    """Counts what a new run of the user stores at once. Raises TooLarge past the limit; 0 is none."""
    held = _added(connection, user_id, size)
    if not limit_mb or held <= limit_mb * MIB:
        return
    held = int(connection.scalar(_count, {"user": user_id}) or 0) + size
    if held > limit_mb * MIB:
        raise TooLarge(
            f"your messages and the logs of your runs would take up {held / MIB:.1f} MiB, and this server "
            f"gives a user {limit_mb:g} (limits.storage_mb_per_user); delete conversations that you do not "
            "need any more",
            kind="quota_exceeded",
        )
    connection.execute(_set, {"b_user": user_id, "size": held})


def count_ended(connection: Connection, user_id: int, run_id: str, message: int) -> None:
    """Counts what a run that ends has stored: its log, whole outputs of tools, and `message` bytes."""
    size = message + int(connection.scalar(_of_run, {"run_id": run_id}) or 0)
    grow(connection, run_id, size)
    _added(connection, user_id, size)


def grow(connection: Connection, run_id: str, size: int) -> None:
    """Changes the size of a run, by a negative one where some of it was deleted."""
    connection.execute(_grow, {"b_id": run_id, "size": size})


def size_of_log(connection: Connection, run_id: str, last: int) -> int:
    """What the events of a run take up, up to that of the number `last`."""
    return int(connection.scalar(_of_log.where(_events.c.seq <= last), {"run_id": run_id}) or 0)


def _added(connection: Connection, user_id: int, size: int) -> int:
    """The user's sum with so much more."""
    held = connection.execute(_add, {"b_user": user_id, "size": size}).scalar()
    if held is not None:
        return int(held)
    # Nothing was counted for this user since the upgrade.
    held = int(connection.scalar(_count, {"user": user_id}) or 0) + size
    try:
        with connection.begin_nested():
            connection.execute(_insert, {"user_id": user_id, "bytes": held})
    except IntegrityError:
        # Another server did, in this moment.
        return int(connection.execute(_add, {"b_user": user_id, "size": size}).scalar() or held)
    return held
