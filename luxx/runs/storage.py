"""How many bytes the messages and logs of a user's runs take up, and the limit on it.

Each run keeps its own size, in the statements that write it anyway, so deleting it gives the space back.
"""

import time

from sqlalchemy import Connection, bindparam, func, select

from luxx.errors import TooLarge
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.runs.models import RunEventRow, RunResultRow, RunRow

MIB = 1024 * 1024

RECOUNT_SECONDS = 600.0
"""How long a user's sum is taken for true: other processes add to it, and deletions take from it."""

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
    """What users have stored, as far as this process knows; it counts anew before it refuses anybody.

    Several processes can together let a user pass the limit by what the others store in RECOUNT_SECONDS.
    """

    def __init__(self, store: Store, limit_mb: float) -> None:
        self._store = store
        self._limit_mb = limit_mb
        self._cached_sizes: dict[int, tuple[int, float]] = {}

    async def check(self, user_id: int, size: int) -> None:
        """Raises TooLarge where the user may not store so much more; a limit of 0 is none."""
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
                f"your messages and the logs of your runs would take up {(used + size) / MIB:.1f} MiB, and "
                f"this server gives a user {self._limit_mb:g} (limits.storage_mb_per_user); delete "
                "conversations that you do not need any more",
                kind="quota_exceeded",
            )

    def add(self, user_id: int, size: int) -> None:
        """So much more was stored."""
        if user_id in self._cached_sizes:
            used, counted_at = self._cached_sizes[user_id]
            self._cached_sizes[user_id] = (used + size, counted_at)


def subtract_event_bytes(connection: Connection, run_id: str, last: int) -> None:
    """Takes off the size of the events up to number `last` and of all tool outputs, which will be deleted."""
    key = {"run_id": run_id, "last": last}
    size = int(connection.scalar(_of_log, key) or 0) + int(connection.scalar(_of_results, key) or 0)
    connection.execute(_shrink, {"b_id": run_id, "size": size})
