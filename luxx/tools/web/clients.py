"""Per-user limits for web requests and DNS lookups, so that no user waits for another.

A request with the parsing of its answer may take half a minute and megabytes of memory.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from luxx.errors import ToolFailed, Unavailable
from luxx.infra.network.hosts import RESOLVE_SECONDS, Resolve
from luxx.tools.workers import Overrun, Workers

PER_USER = 6
"""Concurrent requests of one user; further ones wait."""


class _UserLimit:
    def __init__(self) -> None:
        self.semaphore = asyncio.Semaphore(PER_USER)
        self.usage_count = 0


class WebClients:
    """Makes the web client of each user. One per server."""

    def __init__(self, resolve_for: Callable[[int], Resolve]) -> None:
        self._resolve_for = resolve_for
        self._user_limits: dict[int, _UserLimit] = {}

    def for_user(self, user_id: int) -> "WebClient":
        return WebClient(self._user_limits, user_id, self._resolve_for(user_id))


class WebClient:
    """The request limit and the DNS lookup of one user."""

    def __init__(self, user_limits: dict[int, _UserLimit], user_id: int, resolve: Resolve) -> None:
        self.resolve = resolve
        self.user_id = user_id
        self._user_limits = user_limits

    @asynccontextmanager
    async def slot(self) -> AsyncGenerator[None]:
        """Hold one of the user's request slots."""
        user_limit = self._user_limits.setdefault(self.user_id, _UserLimit())
        user_limit.usage_count += 1
        try:
            async with user_limit.semaphore:
                yield
        finally:
            user_limit.usage_count -= 1
            if not user_limit.usage_count:
                self._user_limits.pop(self.user_id, None)


_LOOKUPS_PER_USER = 8
_MAX_LOOKUPS = 64


class DnsLookups:
    """Resolves host names in threads, limited per user. One per server."""

    def __init__(self) -> None:
        self._workers = Workers(_LOOKUPS_PER_USER, _MAX_LOOKUPS)

    def for_user(self, user_id: int) -> Resolve:
        """The lookup function of one user; it raises Unavailable."""

        async def resolve(host: str, port: int) -> list[str]:
            def work(_is_overrun: Callable[[], bool]) -> list[str]:
                addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                return list(dict.fromkeys(str(entry[4][0]) for entry in addresses))

            try:
                return await self._workers.run(user_id, work, RESOLVE_SECONDS)
            except (OSError, UnicodeError, Overrun) as error:
                raise Unavailable(
                    f"the host '{host}' cannot be resolved; check its spelling and the network"
                ) from error
            except ToolFailed as error:
                raise Unavailable(error.message) from error

        return resolve
