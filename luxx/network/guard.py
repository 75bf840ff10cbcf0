"""Which addresses may be reached for a user or a model: public ones, and what the operator listed.

The rule itself is `hosts.py`'s; that every connection asks it is `transport.py`'s.
"""

from collections.abc import Awaitable, Callable, Collection

from luxx.errors import ConfigError, InvalidInput, NotAllowed, Unavailable, Unreachable
from luxx.network.hosts import Reach, join_host_port, judge, parse_host_port, reach_of_name, resolve_host

Resolve = Callable[[str, int], Awaitable[list[str]]]


class WebGuard:
    """`allow_private`: exact `host:port` entries that may be private; raises ConfigError for a wrong one."""

    def __init__(self, allow_private: Collection[str] = (), *, resolve: Resolve = resolve_host) -> None:
        self._resolve = resolve
        self._allowed = frozenset(_entry(text) for text in allow_private)

    async def addresses_of(self, host: str, port: int, resolve: Resolve | None = None) -> list[str]:
        """The addresses to connect to, in order, and no others. `resolve` stands in for the guard's own.

        Raises NotAllowed for what may not be reached, Unavailable where the name cannot be resolved,
        InvalidInput for what is no host.
        """
        # Whether there is such a name inside is nobody's business, so it is not looked up.
        self._refuse(reach_of_name(host), join_host_port(host, port))
        try:
            judged = await judge(host, port, resolve or self._resolve)
        except Unreachable as error:
            raise Unavailable(error.message) from error
        self._refuse(judged.reach, judged.host_port)
        return judged.addresses

    def _refuse(self, reach: Reach | None, host_port: str) -> None:
        if reach is Reach.FORBIDDEN:
            raise NotAllowed(
                f"{host_port} is a metadata or link-local address and is never reached",
                kind="address_forbidden",
            )
        if reach is Reach.PRIVATE and host_port not in self._allowed:
            raise NotAllowed(
                f"{host_port} is not on the public internet; only public addresses are reached",
                kind="private_address",
            )


def _entry(text: str) -> str:
    try:
        host, port = parse_host_port(text)
    except InvalidInput as error:
        raise ConfigError(f"tools.web_allow_private: {error.message}") from error
    if reach_of_name(host) is Reach.FORBIDDEN:
        raise ConfigError(f"tools.web_allow_private: '{text}' is a metadata or link-local address; remove it")
    return join_host_port(host, port)
