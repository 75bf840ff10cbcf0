"""Name resolution that hands out only addresses which may be reached: the answer to DNS rebinding.

The connector connects to what is returned here and never resolves again.
"""

import socket
from ipaddress import ip_address

from aiohttp.abc import AbstractResolver, ResolveResult

from luxx.errors import ProviderError
from luxx.providers.addresses import AddressGuard


class AddressRefused(OSError):
    """Carries the guard's error through the connector, which knows only OSError."""

    def __init__(self, reason: ProviderError) -> None:
        super().__init__(reason.message)
        self.reason = reason


class GuardedResolver(AbstractResolver):
    """For `aiohttp.TCPConnector(resolver=…)`; hosts that are addresses already never come here."""

    def __init__(self, guard: AddressGuard) -> None:
        self._guard = guard

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        try:
            addresses = await self._guard.check_connect(host, port)
        except ProviderError as error:
            raise AddressRefused(error) from error
        found = [_result(host, port, address) for address in addresses]
        return [one for one in found if family in (socket.AF_UNSPEC, one["family"])]

    async def close(self) -> None:
        """Holds nothing."""


def _result(host: str, port: int, address: str) -> ResolveResult:
    is_v6 = ip_address(address.partition("%")[0]).version == 6
    return ResolveResult(
        hostname=host,
        host=address,
        port=port,
        family=socket.AF_INET6 if is_v6 else socket.AF_INET,
        proto=socket.IPPROTO_TCP,
        flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
    )
