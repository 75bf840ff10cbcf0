"""For whom the web is visited: each user with lookups and turns of their own, so that none waits for another.

What a turn covers, the answer of a server and the reading of it, may take half a minute and megabytes.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from luxx.network.guard import Resolve

PER_USER = 6
"""Visits of one user at the same time; more wait for their turn."""


class _Gate:
    def __init__(self) -> None:
        self.places = asyncio.Semaphore(PER_USER)
        self.users = 0


class Visitors:
    """One per server."""

    def __init__(self, resolve_for: Callable[[int], Resolve]) -> None:
        self._resolve_for = resolve_for
        self._gates: dict[int, _Gate] = {}

    def of(self, user_id: int) -> "Visitor":
        return Visitor(self._gates, user_id, self._resolve_for(user_id))


class Visitor:
    """One user, with their lookup of names."""

    def __init__(self, gates: dict[int, _Gate], user_id: int, resolve: Resolve) -> None:
        self.resolve = resolve
        self.user_id = user_id
        self._gates = gates

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """Entered when it is their turn."""
        gate = self._gates.setdefault(self.user_id, _Gate())
        gate.users += 1
        try:
            async with gate.places:
                yield
        finally:
            gate.users -= 1
            if not gate.users:
                self._gates.pop(self.user_id, None)
