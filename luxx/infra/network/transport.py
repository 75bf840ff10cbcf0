"""The transport under every request that a user or a model can steer: it connects to checked addresses only.

A name is resolved once for each connection, its answers are judged, and the connection goes to one of
these addresses as such, so that nothing after the check resolves again; TLS verifies the name.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import cast

import httpcore
import msgspec

from luxx.infra.network.urls import WebUrl

READ_BYTES = 4096
HEAD_BYTES = 128 * 1024
"""What may come before the body: preliminary answers, and a head that may have 100 KB."""


class BoundedBackend(httpcore.AsyncNetworkBackend):
    """For the connection of one request."""

    def __init__(self) -> None:
        # Its type is that of a stand-in, for where the library's own library is missing.
        self._inner = cast(httpcore.AsyncNetworkBackend, httpcore.AnyIOBackend())
        self._before_body = 0
        self._has_head = False

    def head_received(self) -> None:
        """What comes from now on is the body, which others bound."""
        self._has_head = True

    def count_received(self, size: int) -> None:
        """Raises RemoteProtocolError where too much comes without a body."""
        self._before_body += size
        if not self._has_head and self._before_body > HEAD_BYTES:
            raise httpcore.RemoteProtocolError("too much before the body")

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        inner = await self._inner.connect_tcp(host, port, timeout, local_address, socket_options)
        return _Stream(inner, self)


class _Stream(httpcore.AsyncNetworkStream):
    def __init__(self, inner: httpcore.AsyncNetworkStream, wire: BoundedBackend) -> None:
        self._inner = inner
        self._wire = wire

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        # What has come already is handed over without a pause.
        await asyncio.sleep(0)
        data = await self._inner.read(min(max_bytes, READ_BYTES), timeout)
        self._wire.count_received(len(data))
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        return _Stream(await self._inner.start_tls(ssl_context, server_hostname, timeout), self._wire)

    def get_extra_info(self, info: str) -> object:
        return self._inner.get_extra_info(info)


CONNECT_SECONDS = 5.0
MOST_ADDRESSES = 4
"""Of one name that are tried in turn."""

_PIECES_WITHOUT_PAUSE = 64
"""After so many small pieces of a body others get their turn."""


class ConnectFailed(Exception):
    """There is no connection; its words say why."""


class ResponseTimeout(Exception):
    """Something did not come in time."""


class BadResponse(Exception):
    """What came is no answer, or it broke off."""


class WireRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A GET, or a POST of a `form` that is encoded already. `seconds` for each wait."""

    url: WebUrl
    headers: dict[str, str]
    form: bytes | None = None
    seconds: float


class WireAnswer:
    """The head of an answer; `pieces` reads its body, packed as it came."""

    def __init__(self, response: httpcore.Response) -> None:
        self.status = response.status
        self._response = response

    def values(self, name: str) -> list[str]:
        """Of all fields of that name, in lower case."""
        wanted = name.encode()
        return [_text(value) for field, value in self._response.headers if field.lower() == wanted]

    def value(self, name: str) -> str:
        """Of the first field of that name; empty where there is none."""
        return next(iter(self.values(name)), "")

    async def pieces(self) -> AsyncGenerator[bytes]:
        """Raises TooSlow and BadAnswer."""
        count = 0
        with _translated_errors():
            async for piece in self._response.aiter_stream():
                count += 1
                if count % _PIECES_WITHOUT_PAUSE == 0:
                    await asyncio.sleep(0)
                yield piece


@asynccontextmanager
async def open_response(
    request: WireRequest,
    addresses_of: Callable[[str, int], Awaitable[Sequence[str]]],
    tls: ssl.SSLContext,
) -> AsyncGenerator[WireAnswer]:
    """The answer of the first address that takes a connection. Cookies and proxies are not used.

    `addresses_of(host, port)` gives the addresses that may be connected to, or raises. Raises NotConnected,
    TooSlow and BadAnswer.
    """
    wire = BoundedBackend()
    # No connection is kept: one to an address, verified for a name, must not serve another name.
    async with httpcore.AsyncConnectionPool(tls, max_keepalive_connections=0, network_backend=wire) as pool:
        response = await _sent(pool, request, await addresses_of(request.url.host, request.url.port))
        wire.head_received()
        try:
            if response.status < 200:
                raise BadResponse(f"status {response.status}")
            yield WireAnswer(response)
        finally:
            with suppress(httpcore.NetworkError, OSError):
                await response.aclose()


async def _sent(
    pool: httpcore.AsyncConnectionPool, request: WireRequest, addresses: Sequence[str]
) -> httpcore.Response:
    failure = ConnectFailed("the name has no address")
    for address in addresses[:MOST_ADDRESSES]:
        try:
            with _translated_errors():
                return await pool.handle_async_request(_request_to_address(request, address))
        except ConnectFailed as error:
            failure = error
    raise failure


def _request_to_address(request: WireRequest, address: str) -> httpcore.Request:
    """The request to an address in place of a name."""
    url, form, wait = request.url, request.form, request.seconds
    headers = {"Host": url.authority, **request.headers}
    if form is not None:
        headers |= {
            "Content-Type": "application/x-www-form-urlencoded",
            "Content-Length": str(len(form)),
        }
    return httpcore.Request(
        "GET" if form is None else "POST",
        httpcore.URL(
            scheme=url.scheme.encode(), host=address.encode(), port=url.port, target=url.target_on_the_wire
        ),
        headers=[(name.encode(), value.encode()) for name, value in headers.items()],
        content=form,
        extensions={
            "sni_hostname": url.host,
            "timeout": {"connect": CONNECT_SECONDS, "read": wait, "write": wait, "pool": wait},
        },
    )


@contextmanager
def _translated_errors() -> Generator[None]:
    """Whatever the library, its parsers and TLS raise, as one of three."""
    try:
        yield
    except (httpcore.ConnectTimeout, httpcore.PoolTimeout) as error:
        raise ConnectFailed("connecting took too long") from error
    except httpcore.ConnectError as error:
        raise ConnectFailed(" ".join(str(error).split())[:200] or "no connection") from error
    except httpcore.TimeoutException as error:
        raise ResponseTimeout from error
    except (httpcore.NetworkError, httpcore.ProtocolError, OSError, ValueError) as error:
        # TLS that breaks after its handshake is an OSError.
        raise BadResponse(type(error).__name__) from error


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
