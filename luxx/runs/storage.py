"""The bytes that the messages and logs of a user's runs use, and their limit.

Each run's row has the size of the run, so deleting the run frees the bytes.
"""

import time

from sqlalchemy import Connection, bindparam, func, select

from luxx.errors import TooLarge
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.runs.models import RunEventRow, RunResultRow, RunRow

MIB = 1024 * 1024

RECOUNT_SECONDS = 600.0
"""How long a user's cached total is used; other processes and deletions change the real one."""

_runs, _events, _results = table_of(RunRow), table_of(RunEventRow), table_of(RunResultRow)
_of_user = select(func.coalesce(func.sum(_runs.c.stored_bytes), 0)).where(
    _runs.c.user_id == bindparam("user_id")
)
_of_log = select(
    func.coalesce(
        func.sum(func.length(_events.c.data) + func.coalesce(func.length(_events.c.internal), 0)), 0
    )
).where(_events.c.run_id == bindparam("run_id"), _events.c.seq <= bindparam("last"))
_of_results = select(func.coalesce(func.sum(func.length(_results.c.output)), 0)).where(
    _results.c.run_id == bindparam("run_id")
)
_shrink = (
    _runs.update()
    .where(_runs.c.id == bindparam("b_id"))
    .values(stored_bytes=_runs.c.stored_bytes - bindparam("size"))
)


class StorageUse:
    """The stored bytes of users, cached in this process; it recounts before it refuses anything.

    With several processes a user can exceed the limit by what the others store within RECOUNT_SECONDS.
    """

    def __init__(self, store: Store, limit_mb: float) -> None:
        self._store = store
        self._limit_mb = limit_mb
        self._cached_sizes: dict[int, tuple[int, float]] = {}

    async def check(self, user_id: int, size: int) -> None:
        """Raises TooLarge if `size` more bytes exceed the user's limit; a limit of 0 means none."""
        if not self._limit_mb:
            return
        limit = self._limit_mb * MIB
        used, counted_at = self._cached_sizes.get(user_id, (0, -RECOUNT_SECONDS))
        now = time.monotonic()
        if now - counted_at >= RECOUNT_SECONDS or used + size > limit:
            used = await self._store.read_rows(
                lambda connection: int(connection.scalar(_of_user, {"user_id": user_id}) or 0)
            )
            self._cached_sizes[user_id] = (used, now)
        if used + size > limit:
            raise TooLarge(
                f"your messages and the logs of your runs would use {(used + size) / MIB:.1f} MiB; the limit "
                f"is {self._limit_mb:g} MiB (limits.storage_mb_per_user); delete conversations that you no "
                "longer need",
                kind="quota_exceeded",
            )

    def add(self, user_id: int, size: int) -> None:
        """Counts `size` more stored bytes."""
        if user_id in self._cached_sizes:
            used, counted_at = self._cached_sizes[user_id]
            self._cached_sizes[user_id] = (used + size, counted_at)


def subtract_event_bytes(connection: Connection, run_id: str, last: int) -> None:
    """Subtracts the size of the events up to number `last` and of all tool outputs, before their deletion."""
    key = {"run_id": run_id, "last": last}
    size = int(connection.scalar(_of_log, key) or 0) + int(connection.scalar(_of_results, key) or 0)
    connection.execute(_shrink, {"b_id": run_id, "size": size})
