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


class _UserLimit:
    def __init__(self) -> None:
        self.semaphore = asyncio.Semaphore(PER_USER)
        self.usage_count = 0


class WebClients:
    """One per server."""

    def __init__(self, resolve_for: Callable[[int], Resolve]) -> None:
        self._resolve_for = resolve_for
        self._user_limits: dict[int, _UserLimit] = {}

    def for_user(self, user_id: int) -> "WebClient":
        return WebClient(self._user_limits, user_id, self._resolve_for(user_id))


class WebClient:
    """One user, with their lookup of names."""

    def __init__(self, user_limits: dict[int, _UserLimit], user_id: int, resolve: Resolve) -> None:
        self.resolve = resolve
        self.user_id = user_id
        self._user_limits = user_limits

    @asynccontextmanager
    async def slot(self) -> AsyncGenerator[None]:
        """Entered when it is their turn."""
        user_limit = self._user_limits.setdefault(self.user_id, _UserLimit())
        user_limit.usage_count += 1
        try:
            async with user_limit.semaphore:
                yield
        finally:
            user_limit.usage_count -= 1
            if not user_limit.usage_count:
                self._user_limits.pop(self.user_id, None)


_PER_USER = 8
_IN_ALL = 64


class DnsLookups:
    """One per server."""

    def __init__(self) -> None:
        self._workers = Workers(_PER_USER, _IN_ALL)

    def for_user(self, user_id: int) -> Resolve:
        """The lookup of one user; it raises Unavailable."""

        async def resolve(host: str, port: int) -> list[str]:
            def work(_is_overrun: Callable[[], bool]) -> list[str]:
                addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                return list(dict.fromkeys(str(entry[4][0]) for entry in addresses))

            try:
                return await self._workers.run(user_id, work, RESOLVE_SECONDS)
            except (OSError, UnicodeError, Overrun) as error:
                raise Unavailable(
                    f"the host '{host}' cannot be found; check its spelling and the network"
                ) from error
            except ToolFailed as error:
                raise Unavailable(error.message) from error

        return resolve
