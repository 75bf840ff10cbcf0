"""Per-user limits for web requests and DNS lookups, so that no user waits for another.

A request with the parsing of its answer may take half a minute and megabytes of memory.
"""

import asyncio
import socket
from collections.abc import Callable
from weakref import WeakValueDictionary

import msgspec

from luxx.errors import ToolFailed, Unavailable
from luxx.infra.network.hosts import RESOLVE_SECONDS, Resolve
from luxx.tools.workers import Overrun, Workers

PER_USER = 6
"""Concurrent requests of one user; further ones wait."""


class WebClient(msgspec.Struct, frozen=True, kw_only=True):
    """The DNS lookup and the request slots of one user. A request holds one of the `slots`."""

    user_id: int
    resolve: Resolve
    slots: asyncio.Semaphore


class WebClients:
    """Makes the web client of each user. One per server."""

    def __init__(self, resolve_for: Callable[[int], Resolve]) -> None:
        self._resolve_for = resolve_for
        # The slots of a user live as long as one of their clients.
        self._slots: WeakValueDictionary[int, asyncio.Semaphore] = WeakValueDictionary()

    def for_user(self, user_id: int) -> WebClient:
        slots = self._slots.setdefault(user_id, asyncio.Semaphore(PER_USER))
        return WebClient(user_id=user_id, resolve=self._resolve_for(user_id), slots=slots)


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
