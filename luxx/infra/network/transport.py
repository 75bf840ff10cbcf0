"""The HTTP transport of requests whose URL a user or a model chooses: it connects to checked addresses only.

The caller resolves and checks the name once per request. The connection goes to one of these addresses, so
nothing resolves the name again after the check (DNS rebinding). TLS verifies the name.
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
"""Bytes before the body: informational responses, and a head of up to 100 KB."""


class BoundedBackend(httpcore.AsyncNetworkBackend):
    """A network backend for one request, which bounds the bytes before the body."""

    def __init__(self) -> None:
        # httpcore declares a placeholder type for the case that anyio is missing.
        self._inner = cast(httpcore.AsyncNetworkBackend, httpcore.AnyIOBackend())
        self._before_body = 0
        self._has_head = False

    def head_received(self) -> None:
        """Stop counting: what follows is the body, which the caller bounds."""
        self._has_head = True

    def count_received(self, size: int) -> None:
        """Raises RemoteProtocolError if too many bytes precede the body."""
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
    def __init__(self, inner: httpcore.AsyncNetworkStream, backend: BoundedBackend) -> None:
        self._inner = inner
        self._backend = backend

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        # Buffered data would be returned without giving other tasks a chance to run.
        await asyncio.sleep(0)
        data = await self._inner.read(min(max_bytes, READ_BYTES), timeout)
        self._backend.count_received(len(data))
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        return _Stream(await self._inner.start_tls(ssl_context, server_hostname, timeout), self._backend)

    def get_extra_info(self, info: str) -> object:
        return self._inner.get_extra_info(info)


CONNECT_SECONDS = 5.0
MOST_ADDRESSES = 4
"""How many addresses of a name are tried."""

_PIECES_WITHOUT_PAUSE = 64
"""After this many small pieces of a body, other tasks may run."""


class ConnectFailed(Exception):
    """There is no connection; the message says why."""


class ResponseTimeout(Exception):
    """The server did not answer in time."""


class BadResponse(Exception):
    """The server sent no valid HTTP response, or an incomplete one."""


class WireRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A GET, or a POST of the encoded `form` of the type `form_type`. `seconds`: the timeout of each wait."""

    url: WebUrl
    headers: dict[str, str]
    form: bytes | None = None
    form_type: str = "application/x-www-form-urlencoded"
    seconds: float


class WireAnswer:
    """The head of an answer; `pieces` reads its body without decompressing it."""

    def __init__(self, response: httpcore.Response) -> None:
        self.status = response.status
        self._response = response

    def values(self, name: str) -> list[str]:
        """The values of all headers with this name, which is in lower case."""
        wanted = name.encode()
        return [_text(value) for field, value in self._response.headers if field.lower() == wanted]

    def value(self, name: str) -> str:
        """The value of the first header with this name; empty if there is none."""
        return next(iter(self.values(name)), "")

    async def pieces(self) -> AsyncGenerator[bytes]:
        """Raises ResponseTimeout and BadResponse."""
        count = 0
        with _translated_errors():
            async for piece in self._response.aiter_stream():
                count += 1
                if count % _PIECES_WITHOUT_PAUSE == 0:
                    await asyncio.sleep(0)
                yield piece


@asynccontextmanager
async def open_response(
    request: WireRequest, addresses_of: Callable[[str, int], Awaitable[Sequence[str]]], tls: ssl.SSLContext
) -> AsyncGenerator[WireAnswer]:
    """The answer from the first address that accepts a connection. Uses neither cookies nor proxies.

    `addresses_of(host, port)` returns the checked addresses, or raises. Raises ConnectFailed,
    ResponseTimeout and BadResponse.
    """
    backend = BoundedBackend()
    # No keep-alive: a connection to an address, verified for one name, must not serve another name.
    async with httpcore.AsyncConnectionPool(
        tls, max_keepalive_connections=0, network_backend=backend
    ) as pool:
        response = await _sent(pool, request, await addresses_of(request.url.host, request.url.port))
        backend.head_received()
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
    """The httpcore request, with the address in place of the name in its URL."""
    url, form, wait = request.url, request.form, request.seconds
    headers = {"Host": url.authority, **request.headers}
    if form is not None:
        headers |= {"Content-Type": request.form_type, "Content-Length": str(len(form))}
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
    """Translates errors of httpcore, its parsers and TLS to one of this module's three."""
    try:
        yield
    except (httpcore.ConnectTimeout, httpcore.PoolTimeout) as error:
        raise ConnectFailed("connecting took too long") from error
    except httpcore.ConnectError as error:
        raise ConnectFailed(" ".join(str(error).split())[:200] or "no connection") from error
    except httpcore.TimeoutException as error:
        raise ResponseTimeout from error
    except (httpcore.NetworkError, httpcore.ProtocolError, OSError, ValueError) as error:
        # A TLS failure after the handshake is an OSError.
        raise BadResponse(type(error).__name__) from error


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
