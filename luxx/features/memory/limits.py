"""How many facts and entities a scope may have, checked without counting them at each write."""

from sqlalchemy import Connection, Table, func, select

from luxx.errors import Conflict

MAX_SCOPES = 10_000
"""Scopes whose remaining rows are kept in memory."""


class RowLimit:
    """A limit of rows of a scope. One per process.

    After a count, an eighth of what is left is given out before the next one: far from the limit a write
    costs nothing, and several processes together still stop near it.
    """

    def __init__(self, most: int, noun: str) -> None:
        self._most = most
        self._noun = noun
        self._left: dict[int, int] = {}

    def take(self, connection: Connection, table: Table, scope_id: int) -> None:
        """Call before one row is inserted. Raises Conflict at the limit."""
        left = self._left.get(scope_id, 0)
        if left <= 0:
            counted = select(func.count()).select_from(table).where(table.c.scope_id == scope_id)
            remaining = self._most - (connection.scalar(counted) or 0)
            if remaining <= 0:
                raise Conflict(
                    f"{self._most:,} {self._noun} are remembered in this scope, which is the limit; delete "
                    "some of them first",
                    kind="memory_full",
                )
            left = remaining // 8 + 1
            if len(self._left) >= MAX_SCOPES:
                self._left.clear()
        self._left[scope_id] = left - 1
