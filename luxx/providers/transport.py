"""The HTTP client for all providers, with its timeouts; HTTP and network errors become ProviderErrors.

httpx is the interface. aiohttp is the engine, because it costs a quarter of httpx's own (measured).
The adapters handle dialects, `client.py` retries.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from urllib.request import getproxies

import aiohttp
import httpx
import msgspec
from aiohttp.abc import AbstractResolver
from httpx_aiohttp import AiohttpTransport

from luxx import __version__
from luxx.errors import (
    MalformedStream,
    ProviderError,
    ProviderRefused,
    StreamInterrupted,
    StreamStalled,
    Unreachable,
)
from luxx.infra.config.schema import ProvidersConfig
from luxx.providers.adapter import UpstreamRequest
from luxx.providers.addresses import AddressGuard, AddressRefused, GuardedResolver
from luxx.providers.failures import as_provider_error, read_error_body, redact, retry_after_seconds, truncate

MAX_ERROR_BODY_BYTES = 64 * 1024
MAX_FETCH_BYTES = 16 * 1024 * 1024
MAX_HEADER_BYTES = 32 * 1024
KEEPALIVE_SECONDS = 30.0
SEND_BYTES = 64 * 1024
MAX_PIECE_BYTES = 16 * 1024
"""Of a response, which are parsed at once: at worst this takes some tens of milliseconds."""

CHECKS_PER_TIMEOUT = 4
"""Idle checks per idle timeout: a stalled server is detected at most a quarter of the timeout late."""

EMPTY_STREAM = httpx.ByteStream(b"")
_RAW_RESPONSE_KEY = "luxx_raw_response"

_PORTS = {"http": 80, "https": 443}
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class Transport:
    """One per process, created and closed in the event loop that uses it.

    It follows no redirects, stores no cookies and verifies TLS. Proxies come from the environment.
    With a `guard`, it connects only to addresses that the guard allows, whatever a name resolves to.
    """

    def __init__(self, config: ProvidersConfig, guard: AddressGuard | None = None) -> None:
        self._guard = guard
        resolver = None if guard is None else GuardedResolver(guard)

        make_transport = partial(_make_transport, resolver, httpx.create_ssl_context())
        self._idle_seconds = config.idle_timeout_seconds
        self._start_seconds = config.connect_timeout_seconds + config.idle_timeout_seconds
        self._client = httpx.AsyncClient(
            transport=make_transport(None),
            mounts=_proxy_mounts(make_transport),
            timeout=httpx.Timeout(
                config.idle_timeout_seconds,
                connect=config.connect_timeout_seconds,
                pool=config.connect_timeout_seconds,
            ),
            # A cookie that one user's provider sets must not be sent with another user's request.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            headers={"user-agent": f"luxx/{__version__}", "accept-encoding": "identity"},
            follow_redirects=False,
            trust_env=False,
        )

    async def aclose(self) -> None:
        await self._client.aclose()

    async def open(
        self, request: UpstreamRequest, *, secret: str, on_sent: Callable[[], None] | None = None
    ) -> "ResponseBody":
        """Sends the request, waits for a successful head and returns the body, which the caller closes.

        `on_sent` is called once a request with a body is written, which may be long before the head arrives.
        Raises ProviderError; `secret` is redacted from its message.
        """
        response = await self._send(request, secret, on_sent)
        return ResponseBody(response, idle_seconds=self._idle_seconds, secret=secret)

    async def fetch(self, request: UpstreamRequest, *, secret: str) -> bytes:
        """The complete body of a short response. Raises ProviderError, MalformedStream past 16 MB."""
        response_body = await self.open(request, secret=secret)
        body = bytearray()
        try:
            while piece := await response_body.read():
                body += piece
                if len(body) > MAX_FETCH_BYTES:
                    raise MalformedStream(f"The provider sent more than {MAX_FETCH_BYTES} bytes.")
        finally:
            await response_body.aclose()
        return bytes(body)

    async def _send(
        self, request: UpstreamRequest, secret: str, on_sent: Callable[[], None] | None
    ) -> httpx.Response:
        try:
            if request.body:
                headers = {**request.headers, "content-length": str(len(request.body))}
                content = _stream_body(request.body, on_sent)
                http_request = self._client.build_request(
                    "POST", request.url, headers=headers, content=content
                )
            else:
                http_request = self._client.build_request("GET", request.url, headers=request.headers)
            if self._guard is not None:
                port = http_request.url.port or _PORTS[http_request.url.scheme]
                await self._guard.check_literal(http_request.url.host, port, secret)
            # aiohttp's read timeout starts once the request is written; without this one, a server that
            # does not read the request would block forever.
            async with asyncio.timeout(self._start_seconds):
                response = await self._client.send(http_request, stream=True)
        except TimeoutError as error:
            raise _no_response_error(self._idle_seconds) from error
        except httpx.InvalidURL as error:
            raise ProviderRefused("The provider's base_url is not a usable address.") from error
        except (httpx.HTTPError, aiohttp.ClientError, ValueError) as error:
            # `from None`: aiohttp's errors refer to the request, which contains the key.
            raise self._connect_error(error, secret) from None
        try:
            await self._check(response, secret)
        except BaseException:
            await response.aclose()
            raise
        return response

    async def _check(self, response: httpx.Response, secret: str) -> None:
        status = response.status_code
        if "," in (encoding := response.headers.get("content-encoding", "")):
            # Each of several compressions multiplies the size by up to a thousand.
            raise MalformedStream(f"The provider compressed its response twice: {truncate(encoding)}")
        if 300 <= status < 400:
            location = redact(response.headers.get("location", "nowhere"), secret)
            raise ProviderRefused(
                f"The provider redirects (status {status}) to {truncate(location)}; correct its base_url.",
                status=status,
            )
        if status >= 400:
            raise await self._http_error(response, secret)
        if response.headers.get("content-type", "").startswith("text/html"):
            raise MalformedStream(
                "The provider sent a web page instead of a completion; is its base_url right?"
            )

    async def _http_error(self, response: httpx.Response, secret: str) -> ProviderError:
        body = b""
        response_body = ResponseBody(response, idle_seconds=self._idle_seconds, secret=secret)
        try:
            async with asyncio.timeout(min(self._idle_seconds, 10)):
                while len(body) < MAX_ERROR_BODY_BYTES and (piece := await response_body.read()):
                    body += piece
        except (TimeoutError, ProviderError):
            pass  # The status is enough; a partial body may still have a message.
        finally:
            await response_body.aclose()
        upstream_error = read_error_body(body[:MAX_ERROR_BODY_BYTES])
        upstream_error = msgspec.structs.replace(
            upstream_error, message=redact(upstream_error.message, secret), status=response.status_code
        )
        wait = retry_after_seconds(response.headers.get("retry-after"))
        return as_provider_error(upstream_error, retry_after=wait)

    def _connect_error(self, error: Exception, secret: str) -> ProviderError:
        if isinstance(error, httpx.UnsupportedProtocol):
            return ProviderRefused("The provider's base_url is not a usable address.")
        cause = error if isinstance(error, aiohttp.ClientError) else error.__cause__ or error
        detail = truncate(redact(str(cause) or type(cause).__name__, secret))
        match cause:
            case aiohttp.SocketTimeoutError():
                return _no_response_error(self._idle_seconds)
            case aiohttp.ServerTimeoutError():
                return Unreachable("The provider cannot be reached: connecting took too long.")
            case aiohttp.ClientConnectorError(os_error=AddressRefused(reason=reason)):
                return reason
            case aiohttp.ClientConnectorError() | aiohttp.ServerFingerprintMismatch():
                return Unreachable(f"The provider cannot be reached: {detail}")
            case aiohttp.ClientHttpProxyError():
                return Unreachable(f"The proxy refused the connection to the provider: {detail}")
            case aiohttp.ClientConnectionError():
                return StreamInterrupted("The provider closed the connection before it responded.")
            case aiohttp.InvalidURL():
                return ProviderRefused("The provider's base_url is not a usable address.")
            case aiohttp.ClientResponseError():
                detail = truncate(redact(cause.message, secret))
                return MalformedStream(f"The provider sent an invalid HTTP response: {detail}")
            case _:
                return Unreachable(f"The provider cannot be reached: {detail}")


async def _stream_body(body: bytes, on_sent: Callable[[], None] | None) -> AsyncGenerator[bytes, None]:
    # Writing a long prompt at once would block the event loop.
    for at in range(0, len(body), SEND_BYTES):
        yield body[at : at + SEND_BYTES]
    # aiohttp asks for the next piece only after the connection has accepted the previous one.
    if on_sent is not None:
        on_sent()


def _make_transport(
    resolver: AbstractResolver | None, ssl_context: ssl.SSLContext, proxy: str | None
) -> "RawResponseTransport":

    def session() -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, ssl=ssl_context, keepalive_timeout=KEEPALIVE_SECONDS, resolver=resolver
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            max_field_size=MAX_HEADER_BYTES,
            max_line_size=MAX_HEADER_BYTES,
        )

    return RawResponseTransport(
        verify=ssl_context, client=session, proxy=httpx.Proxy(proxy) if proxy is not None else None
    )


def _proxy_mounts(
    make_transport: Callable[[str | None], httpx.AsyncBaseTransport],
) -> dict[str, httpx.AsyncBaseTransport | None]:
    """The proxies of the environment; never for loopback, where a local model listens."""
    proxies = getproxies()
    mounts: dict[str, httpx.AsyncBaseTransport | None] = {}
    for scheme in ("http", "https"):
        proxy = proxies.get(scheme) or proxies.get("all")
        if proxy:
            mounts[f"{scheme}://"] = make_transport(proxy if "://" in proxy else f"http://{proxy}")
    if not mounts:
        return {}
    exempt = [host.strip() for host in proxies.get("no", "").split(",") if host.strip()]
    if "*" in exempt:
        return {}
    for host in (*exempt, *_LOOPBACK):
        mounts[f"all://*{host}" if host.startswith(".") else f"all://{host}"] = None
    return mounts


class RawResponseTransport(AiohttpTransport):
    """httpx-aiohttp's transport; it also puts aiohttp's response into the httpx response's extensions."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        raw_response = getattr(response.stream, "_aiohttp_response", None)
        if isinstance(raw_response, aiohttp.ClientResponse):
            response.extensions[_RAW_RESPONSE_KEY] = raw_response
        return response


class ResponseBody:
    """The body of an open response. The caller must close it, even after the end: that frees the socket.

    A read that gets no bytes for `idle_seconds` raises StreamStalled. `secret` is redacted from errors.
    """

    def __init__(self, response: httpx.Response, *, idle_seconds: float, secret: str) -> None:
        self._idle_seconds = idle_seconds
        self._secret = secret
        self._has_begun = False
        self._rest = memoryview(b"")
        self._read_count = 0
        self._last_read_count = self._silent_checks = 0
        self._is_timed_out = False
        self._raw_response: aiohttp.ClientResponse | None = None
        self._response: httpx.Response | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._content: aiohttp.StreamReader | None = None
        self._pieces: AsyncIterator[bytes] | None = None
        raw_response = response.extensions.get(_RAW_RESPONSE_KEY)
        encoding = response.headers.get("content-encoding", "identity")
        if encoding == "identity" and isinstance(raw_response, aiohttp.ClientResponse):
            # The iterators of httpx and httpx-aiohttp cost more per piece than splitting and parsing it.
            self._content = raw_response.content
            self._raw_response = raw_response
            self._start_idle_timer(raw_response)
            # The stream refers to the request, whose memory is not needed while the body is read.
            response.stream = EMPTY_STREAM
        else:
            self._response = response
            self._pieces = response.aiter_bytes()

    async def read(self) -> bytes:
        """The next piece, empty at the end. Raises StreamInterrupted, StreamStalled, MalformedStream."""
        if self._rest:
            # Other tasks run between the parts of a large piece.
            await asyncio.sleep(0)
            return self._next_part(self._rest)
        self._read_count += 1
        try:
            if self._content is not None:
                piece = await self._content.readany()
            else:
                piece = await self._read_decoded()
        except (httpx.HTTPError, aiohttp.ClientError) as error:
            raise self._read_error(error) from error
        self._read_count += 1
        self._has_begun = True
        return piece if len(piece) <= MAX_PIECE_BYTES else self._next_part(memoryview(piece))

    def _next_part(self, piece: memoryview) -> bytes:
        self._rest = piece[MAX_PIECE_BYTES:]
        return bytes(piece[:MAX_PIECE_BYTES])

    async def aclose(self) -> None:
        """Closes the body without waiting for bytes that have not arrived."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if self._raw_response is not None:
            self._raw_response.release()
            await self._raw_response.wait_for_close()
        if self._response is not None:
            await self._response.aclose()
            # Response and stream refer to each other; this breaks the cycle without the garbage collector.
            self._response.stream = EMPTY_STREAM

    def _start_idle_timer(self, raw_response: aiohttp.ClientResponse) -> None:
        """Replaces aiohttp's read timeout, which sets a new timer for every piece."""
        connection = raw_response.connection
        if connection is None or connection.protocol is None:
            return  # The whole body has arrived.
        connection.protocol.read_timeout = None
        self._schedule_idle_check()

    def _schedule_idle_check(self) -> None:
        self._idle_timer = asyncio.get_running_loop().call_later(
            self._idle_seconds / CHECKS_PER_TIMEOUT, self._check_idle
        )

    def _check_idle(self) -> None:
        # An odd count: a read is waiting. The same count as at the last check: it is the same read.
        self._silent_checks = (
            self._silent_checks + 1
            if self._read_count == self._last_read_count and self._last_read_count % 2
            else 0
        )
        self._last_read_count = self._read_count
        if self._silent_checks < CHECKS_PER_TIMEOUT:
            self._schedule_idle_check()
            return
        self._idle_timer = None
        self._is_timed_out = True
        if self._raw_response is not None:
            self._raw_response.close()

    async def _read_decoded(self) -> bytes:
        assert self._pieces is not None
        with suppress(StopAsyncIteration):
            while not (piece := await anext(self._pieces)):
                pass
            return piece
        return b""

    def _read_error(self, error: Exception) -> ProviderError:
        cause = error.__cause__ or error
        if self._is_timed_out or isinstance(cause, aiohttp.ServerTimeoutError):
            if not self._has_begun:
                return _no_response_error(self._idle_seconds)
            return StreamStalled(
                f"The provider sent nothing for {self._idle_seconds:g} s in the middle of its response."
            )
        if isinstance(error, httpx.DecodingError):
            detail = truncate(redact(str(error), self._secret))
            return MalformedStream(f"The provider's response cannot be decompressed: {detail}")
        phase = "in the middle of its response" if self._has_begun else "before its response began"
        return StreamInterrupted(f"The provider closed the connection {phase}.")


def _no_response_error(idle_seconds: float) -> StreamStalled:
    """The error for a server that accepts the request and sends no response."""
    return StreamStalled(f"The provider did not start to respond within {idle_seconds:g} s.")
