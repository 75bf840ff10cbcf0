"""For whom the web is visited: each user with lookups and turns of their own, so that none waits for another.

What a turn covers, the answer of a server and the reading of it, may take half a minute and megabytes.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from luxx.errors import ToolFailed, Unavailable
from luxx.infra.network.hosts import RESOLVE_SECONDS, Resolve
from luxx.tools.workers import Overrun, Workers

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


_PER_USER = 8
_IN_ALL = 64


class Lookups:
    """One per server."""

    def __init__(self) -> None:
        self._workers = Workers(_PER_USER, _IN_ALL)

    def of(self, user_id: int) -> Resolve:
        """The lookup of one user; it raises Unavailable."""

        async def resolve(host: str, port: int) -> list[str]:
            def work(_is_overrun: Callable[[], bool]) -> list[str]:
                found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                return list(dict.fromkeys(str(entry[4][0]) for entry in found))

            try:
                return await self._workers.run(user_id, work, RESOLVE_SECONDS)
            except (OSError, UnicodeError, Overrun) as error:
                raise Unavailable(
                    f"the host '{host}' cannot be found; check its spelling and the network"
                ) from error
            except ToolFailed as error:
                raise Unavailable(error.message) from error

        return resolve
