"""The HTTP client for all providers, with its timeouts; HTTP and network errors become ProviderErrors.

httpx is the interface. aiohttp is the engine, because it costs a quarter of httpx's own (measured).
The adapters handle dialects, `answer.py` retries.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from http.cookiejar import CookieJar, DefaultCookiePolicy
from ipaddress import ip_address
from urllib.request import getproxies

import aiohttp
import httpx
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult

from luxx import __version__
from luxx.errors import MalformedStream, ProviderError, ProviderRefused, StreamInterrupted, Unreachable
from luxx.infra.config.schema import ProvidersConfig
from luxx.providers.adapter import UpstreamRequest
from luxx.providers.addresses import AddressGuard
from luxx.providers.body import RawResponseTransport, ResponseBody, no_response_error
from luxx.providers.failures import (
    as_provider_error,
    read_error_body,
    redact,
    retry_after_seconds,
    truncate,
)


class AddressRefused(OSError):
    """Carries the guard's error through aiohttp's connector, which handles only OSError."""

    def __init__(self, reason: ProviderError) -> None:
        super().__init__(reason.message)
        self.reason = reason


class GuardedResolver(AbstractResolver):
    """For `aiohttp.TCPConnector(resolver=…)`, which does not call it for hosts that are IP addresses."""

    def __init__(self, guard: AddressGuard) -> None:
        self._guard = guard

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        try:
            addresses = await self._guard.check_connect(host, port)
        except ProviderError as error:
            raise AddressRefused(error) from error
        results = [_result(host, port, address) for address in addresses]
        return [result for result in results if family in (socket.AF_UNSPEC, result["family"])]

    async def close(self) -> None:
        """Nothing to close."""


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


MAX_ERROR_BODY_BYTES = 64 * 1024
MAX_FETCH_BYTES = 16 * 1024 * 1024
MAX_HEADER_BYTES = 32 * 1024
KEEPALIVE_SECONDS = 30.0
SEND_BYTES = 64 * 1024

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

        def make_transport(proxy: str | None) -> RawResponseTransport:
            return _make_transport(proxy, resolver)

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
    ) -> ResponseBody:
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
            http_request = self._client.build_request(
                "POST" if request.body else "GET",
                request.url,
                headers={**request.headers, "content-length": str(len(request.body))}
                if request.body
                else request.headers,
                content=_stream_body(request.body, on_sent) if request.body else None,
            )
            if self._guard is not None:
                await self._guard.check_literal(
                    http_request.url.host, http_request.url.port or _PORTS[http_request.url.scheme]
                )
            # aiohttp's read timeout starts once the request is written; without this one, a server that
            # does not read the request would block forever.
            async with asyncio.timeout(self._start_seconds):
                response = await self._client.send(http_request, stream=True)
        except TimeoutError as error:
            raise no_response_error(self._idle_seconds) from error
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
                return no_response_error(self._idle_seconds)
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


def _make_transport(proxy: str | None, resolver: AbstractResolver | None) -> RawResponseTransport:
    ssl_context = httpx.create_ssl_context()

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
    make_transport: Callable[[str | None], RawResponseTransport],
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
