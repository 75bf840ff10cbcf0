"""Names resolved in threads of their own, a few per user: a slow name server costs only who asked for it.

The pool that the database's work shares is not used: it could be filled with such waits.
"""

import socket
from collections.abc import Callable

from luxx.errors import ToolFailed, Unavailable
from luxx.network.guard import Resolve
from luxx.network.hosts import RESOLVE_SECONDS
from luxx.tools.workers import Overrun, Workers

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
