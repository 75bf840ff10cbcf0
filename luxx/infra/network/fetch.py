"""One HTTP request for a user or a model: to checked addresses, with one deadline and bounds on the answer.

Callers interpret the bytes; nothing here knows pages, tools or searches.
"""

import asyncio
import ssl
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import Protocol
from urllib.parse import urlencode

import httpx
import msgspec

from luxx import __version__
from luxx.errors import InvalidInput, Unavailable
from luxx.infra.network.hosts import Resolve, WebGuard
from luxx.infra.network.transport import (
    BadResponse,
    ConnectFailed,
    ResponseTimeout,
    WireAnswer,
    WireRequest,
    open_response,
)
from luxx.infra.network.urls import WebUrl, next_url, parse_url

ENCODINGS = "gzip, deflate"
"""The Accept-Encoding of requests; other encodings, or several combined, are not decoded."""


class DecompressionError(Exception):
    """The body is damaged, or has an unsupported encoding."""


_GZIP = b"\x1f\x8b"
_HEAD_BYTES = 2
_MOST_PARTS = 1000


class _Decompress(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class Inflater:
    """Decompresses a body piece by piece, up to `limit` bytes; `is_full`: there was more."""

    def __init__(self, encoding: str, limit: int) -> None:
        self._encoding = _known_encoding(encoding)
        self._limit = limit
        self._pending = b""
        self._inflate: _Decompress | None = None
        self._parts = 0
        self._has_ended = False
        self.data = bytearray()
        self.is_full = False

    @property
    def is_whole(self) -> bool:
        """Whether the body is complete: nothing was dropped, and the compressed data have ended."""
        if self.is_full or self._pending:
            return False
        return self._has_ended or self._inflate is None or self._inflate.eof

    def feed(self, piece: bytes) -> None:
        """Raises DecompressionError."""
        if self.is_full or self._has_ended or not piece:
            return
        if not self._encoding:
            self._add(piece[: self._remaining])
            return
        rest = self._pending + piece
        self._pending = b""
        while rest and not (self.is_full or self._has_ended):
            rest = self._decompress(rest)

    @property
    def _remaining(self) -> int:
        """One byte more than the limit allows, which shows whether the body is longer."""
        return self._limit - len(self.data) + 1

    def _add(self, data: bytes) -> None:
        self.data += data
        if len(self.data) > self._limit:
            del self.data[self._limit :]
            self.is_full = True

    def _decompress(self, data: bytes) -> bytes:
        """Decompresses one member; returns the data after it, because gzip allows several members."""
        if self._inflate is None or self._inflate.eof:
            if len(data) < _HEAD_BYTES:
                self._pending = data
                return b""
            # Data after a member that start no other one are padding.
            if self._parts and not (self._encoding == "gzip" and data.startswith(_GZIP)):
                self._has_ended = True
                return b""
            self._parts += 1
            if self._parts > _MOST_PARTS:
                self.is_full = True
                return b""
            self._inflate = _inflate(self._encoding, data)
        try:
            self._add(self._inflate.decompress(data, self._remaining))
        except zlib.error as error:
            if self._parts == 1:
                raise DecompressionError("its compressed body is damaged") from error
            self._has_ended = True
            return b""
        return self._inflate.unused_data


def _known_encoding(encoding: str) -> str:
    """`gzip`, `deflate`, or an empty text for no encoding. Raises DecompressionError for another one."""
    match encoding.strip().lower():
        case "" | "identity":
            return ""
        case "gzip" | "x-gzip":
            return "gzip"
        case "deflate":
            return "deflate"
        case other:
            raise DecompressionError(f"its body has the encoding {other[:40]!r}, which is not supported")


def _inflate(encoding: str, beginning: bytes) -> _Decompress:
    if encoding == "gzip":
        return zlib.decompressobj(16 + zlib.MAX_WBITS)
    # "deflate" means zlib's format, but many servers send raw deflate data.
    method, check = beginning[0], int.from_bytes(beginning[:_HEAD_BYTES])
    is_wrapped = method & 0x0F == zlib.DEFLATED and check % 31 == 0
    return zlib.decompressobj(zlib.MAX_WBITS if is_wrapped else -zlib.MAX_WBITS)


USER_AGENT = f"Mozilla/5.0 (compatible; Luxx/{__version__})"
AT_ONCE = 48
"""Requests of one server process; others wait, within their deadline."""

SMALL_CHUNK_BYTES = 256
MAX_SMALL_CHUNKS = 4000
"""Pieces of a body that may be smaller than that. After them reading stops, because each piece costs time."""

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TIMEOUT_TEXT = "did not answer in full"


class FetchBounds(msgspec.Struct, frozen=True, kw_only=True):
    """`seconds` for the whole request with its redirects; `size`: bytes of the body, compressed or not."""

    seconds: float = 25.0
    redirects: int = 5
    size: int = 5 * 1024 * 1024


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """An answer. `content_type` has no parameters, is in lower case, and may be empty.

    `body` is empty for a status from 400 on, and if the request wanted none of it. `is_cut`: the body is
    incomplete. `length` is the server's Content-Length.
    """

    url: str
    status: int
    content_type: str
    charset: str = ""
    length: int | None = None
    body: bytes = b""
    is_cut: bool = False

    @property
    def status_words(self) -> str:
        try:
            return f"{self.status} {HTTPStatus(self.status).phrase}"
        except ValueError:
            return str(self.status)


def open_tls() -> ssl.SSLContext:
    """The settings of TLS with the usual authorities; takes milliseconds, so keep what it returns."""
    return httpx.create_ssl_context()


CheckRedirect = Callable[[str, str], Awaitable[None]]


async def allow_all_redirects(url: str, target: str) -> None:
    """The `check_redirect` of a request whose redirects only the guard checks."""


class FetchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A GET, or a POST of the `form`. `size_of(content_type)` returns the maximum bytes to read.

    `check_redirect(url, target)` is awaited before a redirect is followed; an exception ends the request.
    """

    url: str
    form: Mapping[str, str] | None = None
    accept: str = "*/*"
    size_of: Callable[[str], int] | None = None
    check_redirect: CheckRedirect = allow_all_redirects


class Fetcher:
    """One per server. Tests with their own certificate authority pass `tls`."""

    def __init__(
        self,
        guard: WebGuard,
        bounds: FetchBounds | None = None,
        *,
        tls: Callable[[], ssl.SSLContext] = open_tls,
    ) -> None:
        self._guard = guard
        self._bounds = bounds or FetchBounds()
        self._make_tls = tls
        self._tls: ssl.SSLContext | None = None
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def fetch(self, request: FetchRequest, resolve: Resolve | None = None) -> Fetched:
        """The answer of any status, after redirects. `resolve` replaces the guard's DNS lookup.

        Raises InvalidInput for a bad URL, NotAllowed for an address that may not be reached, Unavailable if
        the server cannot be reached or does not answer properly.
        """
        url = parse_url(request.url)
        try:
            async with asyncio.timeout(self._bounds.seconds), self._slots:
                return await self._fetch(url, request, resolve)
        except TimeoutError as error:
            raise Unavailable(
                f"{url.host} {_TIMEOUT_TEXT} within {self._bounds.seconds:g} seconds"
            ) from error

    async def _fetch(self, url: WebUrl, request: FetchRequest, resolve: Resolve | None) -> Fetched:
        form = None if request.form is None else urlencode(request.form).encode()
        for _ in range(self._bounds.redirects + 1):
            try:
                answer = await self._ask(url, form, request, resolve)
            except (ConnectFailed, ResponseTimeout, BadResponse, DecompressionError) as error:
                raise _failure(url, error) from error
            if isinstance(answer, Fetched):
                return answer
            await request.check_redirect(url.text, answer.text)
            # A form is sent to the first server only.
            url, form = answer, None
        raise Unavailable(f"{url.host} redirects more than {self._bounds.redirects} times")

    async def _ask(
        self, url: WebUrl, form: bytes | None, request: FetchRequest, resolve: Resolve | None
    ) -> Fetched | WebUrl:
        """The answer to one request, or the URL that it redirects to."""

        async def addresses_of(host: str, port: int) -> list[str]:
            return await self._guard.addresses_of(host, port, resolve)

        if self._tls is None:
            self._tls = self._make_tls()
        headers = {"User-Agent": USER_AGENT, "Accept": request.accept, "Accept-Encoding": ENCODINGS}
        wire_request = WireRequest(url=url, headers=headers, form=form, seconds=self._bounds.seconds)
        async with open_response(wire_request, addresses_of, self._tls) as answer:
            location = answer.value("location")
            if answer.status in _REDIRECTS and location:
                return _redirected(url, location)
            return await self._read(url, answer, request.size_of)

    async def _read(self, url: WebUrl, answer: WireAnswer, size_of: Callable[[str], int] | None) -> Fetched:
        kind, charset = _content_type(answer.value("content-type"))
        length = answer.value("content-length")
        fetched = Fetched(
            url=url.text,
            status=answer.status,
            content_type=kind,
            charset=charset,
            length=int(length) if length.isascii() and length.isdigit() and len(length) < 16 else None,
        )
        size = self._bounds.size if size_of is None else size_of(kind)
        if size <= 0 or answer.status >= 400:
            return fetched
        body = Inflater(", ".join(answer.values("content-encoding")), size)
        is_whole = await _read_body(body, answer.pieces(), size)
        return msgspec.structs.replace(fetched, body=bytes(body.data), is_cut=not is_whole)


async def _read_body(body: Inflater, pieces: AsyncGenerator[bytes], size: int) -> bool:
    """Whether all of it was read: it is not too long, has not too many small pieces, and is complete."""
    received = count = 0
    async with aclosing(pieces):
        async for piece in pieces:
            received += len(piece)
            count += 1
            body.feed(piece)
            if body.is_full or received > size or count > MAX_SMALL_CHUNKS + received // SMALL_CHUNK_BYTES:
                return False
    return body.is_whole


def _redirected(url: WebUrl, location: str) -> WebUrl:
    try:
        return next_url(url, location)
    except InvalidInput as error:
        raise Unavailable(f"{url.host} redirects to a URL that cannot be fetched: {error.message}") from error


def _content_type(header: str) -> tuple[str, str]:
    kind, _, parameters = header[:1000].partition(";")
    charset = ""
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            charset = value.strip().strip("\"'").lower()[:40]
    return kind.strip().lower()[:100], charset


def _failure(url: WebUrl, error: Exception) -> Unavailable:
    match error:
        case ConnectFailed():
            return Unavailable(f"{url.host} cannot be reached: {error}")
        case ResponseTimeout():
            return Unavailable(f"{url.host} {_TIMEOUT_TEXT} in time")
        case DecompressionError():
            return Unavailable(f"{url.host} cannot be read: {error}")
        case _:
            return Unavailable(f"{url.host} sent no valid HTTP response, or closed the connection early")
