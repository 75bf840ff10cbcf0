"""The transport under every request that a user or a model can steer: it connects to checked addresses only.

A name is resolved once for each connection, its answers are judged, and the connection goes to one of
these addresses as such, so that nothing after the check resolves again; TLS verifies the name.
"""

import ssl
from collections.abc import Awaitable, Callable

import httpx

from luxx.network.hosts import DEFAULT_PORTS

MOST_ADDRESSES = 4
"""Of one name that are tried in turn."""


class GuardedTransport(httpx.AsyncBaseTransport):
    """For `httpx.AsyncClient(transport=…, trust_env=False)`; proxies are not used.

    `addresses_of(host, port)` gives the addresses that may be connected to, or raises.
    """

    def __init__(self, addresses_of: Callable[[str, int], Awaitable[list[str]]], tls: ssl.SSLContext) -> None:
        self._addresses_of = addresses_of
        # No connection is kept: one to an address, verified for a name, must not serve another name.
        limits = httpx.Limits(max_connections=10, max_keepalive_connections=0)
        self._inner = httpx.AsyncHTTPTransport(verify=tls, limits=limits, trust_env=False)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Raises what the guard raises, and httpx's errors of the last address that was tried."""
        host = request.url.raw_host.decode("ascii")
        port = request.url.port or DEFAULT_PORTS[request.url.scheme]
        failure: httpx.TransportError | None = None
        for address in (await self._addresses_of(host, port))[:MOST_ADDRESSES]:
            try:
                return await self._inner.handle_async_request(_towards(request, host, address))
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failure = error
        raise failure or httpx.ConnectError("the name has no address")

    async def aclose(self) -> None:
        await self._inner.aclose()


def _towards(request: httpx.Request, host: str, address: str) -> httpx.Request:
    """The same request, `Host` header and all, to an address in place of a name."""
    return httpx.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": host},
    )
