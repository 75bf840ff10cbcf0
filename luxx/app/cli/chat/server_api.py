"""The API client of `luxx chat`: calls, token refresh and stream frames."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

import httpx
import msgspec

from luxx.api.http.envelope import Failure, Success
from luxx.app.cli.chat.transcript import StreamFrame
from luxx.errors import LuxxError, NotSignedIn, Unavailable

T = TypeVar("T")


class TokenPair(msgspec.Struct, frozen=True, kw_only=True):
    access_token: str
    refresh_token: str


class ObjectWithId(msgspec.Struct, frozen=True, kw_only=True):
    """The id of any object."""

    id: str


class ChatApi:
    """Sends requests. Refreshes an expired token once per request."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self._http = http
        self._url = url
        self._tokens: TokenPair | None = None

    async def sign_in(self, username: str, password: str) -> None:
        body = {"username": username, "password": password}
        self._tokens = await self.call("POST", "/auth/login", TokenPair, body)

    async def call(self, method: str, path: str, kind: type[T], body: object = None, **query: str) -> T:
        """The `data` of the response. Raises LuxxError with the server's message, httpx.TransportError."""
        for is_last in (False, True):
            request = self._request(method, path, body, query, {"accept": "application/json"})
            response = await self._http.send(request)
            if await self._is_accepted(response, is_last=is_last):
                return _decoded(response, Success[kind]).data
        raise AssertionError("unreachable: the second try returns or raises")

    async def frames(
        self, method: str, path: str, body: object = None, after: int = 0
    ) -> AsyncGenerator[StreamFrame, None]:
        """The frames of a stream until it ends. Raises the errors of `call`."""
        headers = {"accept": "text/event-stream", **({"last-event-id": str(after)} if after else {})}
        for is_last in (False, True):
            request = self._request(method, path, body, {}, headers)
            response = await self._http.send(request, stream=True)
            try:
                if not response.is_success:
                    await response.aread()
                if await self._is_accepted(response, is_last=is_last):
                    async for frame in _read_frames(response):
                        yield frame
                    return
            finally:
                await response.aclose()

    def _request(
        self, method: str, path: str, body: object, query: dict[str, str], headers: dict[str, str]
    ) -> httpx.Request:
        if self._tokens is not None:
            headers["authorization"] = f"Bearer {self._tokens.access_token}"
        if body is not None:
            headers["content-type"] = "application/json"
        content = None if body is None else msgspec.json.encode(body)
        return self._http.build_request(method, path, content=content, params=query, headers=headers)

    async def _is_accepted(self, response: httpx.Response, *, is_last: bool) -> bool:
        """Whether the response is a success. Returns False after refreshing an expired token."""
        if response.is_success:
            return True
        error = _error_of(response, self._url)
        if is_last or error.kind != "token_expired" or self._tokens is None:
            raise error
        old, self._tokens = self._tokens, None
        try:
            body = {"refresh_token": old.refresh_token}
            old = await self.call("POST", "/auth/refresh", TokenPair, body)
        finally:
            self._tokens = old
        return False


def _decoded(response: httpx.Response, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(response.content, type=kind)
    except msgspec.DecodeError as error:
        raise LuxxError("the response is not from a Luxx server; is the address right?") from error


def _error_of(response: httpx.Response, url: str) -> LuxxError:
    try:
        failure = msgspec.json.decode(response.content, type=Failure)
    except msgspec.DecodeError:
        kind = Unavailable if response.status_code >= 500 else LuxxError
        return kind(f"{url} answered {response.status_code} and is not a Luxx server; is the address right?")
    detail = failure.detail if isinstance(failure.detail, dict) else {}
    kind = str(detail.get("kind", "error"))
    if failure.code == 401:
        return NotSignedIn(failure.error, kind=kind)
    return (Unavailable if failure.code >= 500 else LuxxError)(failure.error, kind=kind, detail=detail)


async def _read_frames(response: httpx.Response) -> AsyncGenerator[StreamFrame, None]:
    """Splits at line feeds only, because JSON text may contain other line separators."""
    buffer, seq = bytearray(), 0
    async for piece in response.aiter_bytes():
        buffer += piece
        *lines, rest = bytes(buffer).split(b"\n")
        buffer = bytearray(rest)
        for line in lines:
            field, _, value = line.partition(b": ")
            if field == b"id":
                seq = int(value)
            elif field == b"data":
                yield msgspec.structs.replace(msgspec.json.decode(value, type=StreamFrame), seq=seq)
                seq = 0


async def with_pauses(
    frames: AsyncGenerator[StreamFrame, None], seconds: Callable[[], float | None]
) -> AsyncGenerator[StreamFrame | None, None]:
    """The frames, and None after each pause of `seconds()`; if that is None, it waits for the next frame."""
    next_frame: asyncio.Future[StreamFrame | None] | None = None
    try:
        while True:
            next_frame = next_frame or asyncio.ensure_future(anext(frames, None))
            done, _ = await asyncio.wait({next_frame}, timeout=seconds())
            if not done:
                yield None
                continue
            frame, next_frame = next_frame.result(), None
            if frame is None:
                return
            yield frame
    finally:
        if next_frame is not None:
            next_frame.cancel()
            await asyncio.wait({next_frame})
