"""One request for a user or a model: guarded, with a deadline over all of it, and bounds on all it may bring.

What the bytes mean is for those who asked; nothing here knows pages, tools or searches.
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
"""What is asked for; another one, or several on top of each other, is not unpacked."""


class DecompressionError(Exception):
    """The body is damaged, or packed in a way that was not asked for."""


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
    """Unpacks a body as it comes, up to `limit` bytes; `is_full` says that there was more."""

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
        """Whether what came is all of it: nothing was left out, and nothing ends in its middle."""
        if self.is_full or self._pending:
            return False
        return self._has_ended or self._inflate is None or self._inflate.eof

    def feed(self, piece: bytes) -> None:
        """Raises NotUnpacked."""
        if self.is_full or self._has_ended or not piece:
            return
        if not self._encoding:
            self._add(piece[: self._remaining])
            return
        rest = self._pending + piece
        self._pending = b""
        while rest and not (self.is_full or self._has_ended):
            rest = self._unpack(rest)

    @property
    def _remaining(self) -> int:
        """One byte more than there is room for tells whether there is more."""
        return self._limit - len(self.data) + 1

    def _add(self, unpacked: bytes) -> None:
        self.data += unpacked
        if len(self.data) > self._limit:
            del self.data[self._limit :]
            self.is_full = True

    def _unpack(self, packed: bytes) -> bytes:
        """What is left of it for the part that follows, as gzip may have several."""
        if self._inflate is None or self._inflate.eof:
            if len(packed) < _HEAD_BYTES:
                self._pending = packed
                return b""
            # What follows and is no such part is padding.
            if self._parts and not (self._encoding == "gzip" and packed.startswith(_GZIP)):
                self._has_ended = True
                return b""
            self._parts += 1
            if self._parts > _MOST_PARTS:
                self.is_full = True
                return b""
            self._inflate = _inflate(self._encoding, packed)
        try:
            self._add(self._inflate.decompress(packed, self._remaining))
        except zlib.error as error:
            if self._parts == 1:
                raise DecompressionError("its compressed body is damaged") from error
            self._has_ended = True
            return b""
        return self._inflate.unused_data


def _known_encoding(encoding: str) -> str:
    """`gzip`, `deflate`, or nothing."""
    match encoding.strip().lower():
        case "" | "identity":
            return ""
        case "gzip" | "x-gzip":
            return "gzip"
        case "deflate":
            return "deflate"
        case other:
            raise DecompressionError(f"its body is packed as {other[:40]!r}, which was not asked for")


def _inflate(encoding: str, beginning: bytes) -> _Decompress:
    if encoding == "gzip":
        return zlib.decompressobj(16 + zlib.MAX_WBITS)
    # "deflate" means zlib's format, and many servers send the bare one.
    method, check = beginning[0], int.from_bytes(beginning[:_HEAD_BYTES])
    is_wrapped = method & 0x0F == zlib.DEFLATED and check % 31 == 0
    return zlib.decompressobj(zlib.MAX_WBITS if is_wrapped else -zlib.MAX_WBITS)


USER_AGENT = f"Mozilla/5.0 (compatible; Luxx/{__version__})"
AT_ONCE = 48
"""Requests of one server process; more wait for their turn, within their deadline."""

SMALL_CHUNK_BYTES = 256
MAX_SMALL_CHUNKS = 4000
"""Pieces of a body that may be smaller than that; after them the rest is left unread, as each costs time."""

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TIMEOUT_WORDS = "did not answer in full"


class FetchBounds(msgspec.Struct, frozen=True, kw_only=True):
    """`seconds` for all of it, redirects and the slowest drip included; `size` in bytes, packed or not."""

    seconds: float = 25.0
    redirects: int = 5
    size: int = 5 * 1024 * 1024


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """An answer. `content_type` without parameters, in lower case, empty where there is none.

    `body` is empty where its reading was not wanted, and of a failure; `is_cut`: there was more than was
    read. `length` as the server gave it.
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


CheckRedirect = Callable[[str, str], Awaitable[None]]


async def allow_all_redirects(url: str, target: str) -> None:
    """The `check_redirect` of a request whose redirects only the guard judges."""


class FetchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A GET, or with a `form` a POST of it. `size_of` says, by content type, how much is read at most.

    `check_redirect(url, target)` is awaited before a redirect is followed; what it raises ends the request.
    """

    url: str
    form: Mapping[str, str] | None = None
    accept: str = "*/*"
    size_of: Callable[[str], int] | None = None
    check_redirect: CheckRedirect = allow_all_redirects


class Fetcher:
    """One per server. `tls` is for tests with a certificate authority of their own."""

    def __init__(
        self,
        guard: WebGuard,
        bounds: FetchBounds | None = None,
        *,
        tls: Callable[[], ssl.SSLContext] = httpx.create_ssl_context,
    ) -> None:
        self._guard = guard
        self._bounds = bounds or FetchBounds()
        self._make_tls = tls
        self._tls: ssl.SSLContext | None = None
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def fetch(self, request: FetchRequest, resolve: Resolve | None = None) -> Fetched:
        """The answer, whatever its status, after its redirects. `resolve` stands in for the guard's own.

        Raises InvalidInput for a bad URL, NotAllowed for an address that may not be reached, Unavailable for
        what the server or the way to it does not give.
        """
        url = parse_url(request.url)
        try:
            async with asyncio.timeout(self._bounds.seconds), self._slots:
                return await self._fetch(url, request, resolve)
        except TimeoutError as error:
            raise Unavailable(
                f"{url.host} {_TIMEOUT_WORDS} within {self._bounds.seconds:g} seconds"
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
            # A form is for the server it was meant for.
            url, form = answer, None
        raise Unavailable(f"{url.host} redirects more than {self._bounds.redirects} times")

    async def _ask(
        self, url: WebUrl, form: bytes | None, request: FetchRequest, resolve: Resolve | None
    ) -> Fetched | WebUrl:
        """The answer to one request, or where it leads on."""

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
    """Whether all of it was read: it is not too long, did not come in crumbs, and unpacks to its end."""
    taken = count = 0
    async with aclosing(pieces):
        async for piece in pieces:
            taken += len(piece)
            count += 1
            body.feed(piece)
            if body.is_full or taken > size or count > MAX_SMALL_CHUNKS + taken // SMALL_CHUNK_BYTES:
                return False
    return body.is_whole


def _redirected(url: WebUrl, location: str) -> WebUrl:
    try:
        return next_url(url, location)
    except InvalidInput as error:
        raise Unavailable(f"{url.host} redirects to what cannot be fetched: {error.message}") from error


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
            return Unavailable(f"{url.host} {_TIMEOUT_WORDS} in time")
        case DecompressionError():
            return Unavailable(f"{url.host} cannot be read: {error}")
        case _:
            return Unavailable(f"{url.host} does not speak HTTP as it should, or broke off")
