"""Connections to remote MCP servers with the official SDK, over a transport that obeys the rules of a `Link`.

Loaded only when the first connection is made, because the SDK is large and optional. A request that has no
answer gets an error of JSON-RPC as its answer: an exception would end all requests of the session.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, cast

import httpx2
import msgspec
from mcp import Client, ClientSession
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import Implementation

from luxx import __version__
from luxx.domain.mcp.inbox import MIB, MOST_BYTES, MOST_PARTS, parts
from luxx.domain.mcp.link import LOST, UNSENT, Link, LinkProblem
from luxx.domain.mcp.models import ServerTransport
from luxx.domain.mcp.sdk import AnswerItems
from luxx.domain.mcp.sign_in import Authorization, RefusedRequest
from luxx.domain.mcp.websocket import websocket_client

MOST_STREAM_BYTES = 16 * MIB
"""Bytes of the stream that answers one request; each message in it has at most MOST_BYTES."""

CONNECT_SECONDS = 10.0
STREAM_SECONDS = 300.0
"""How long a stream of events may be silent that is open between requests."""

_MOST_SHOWN = 200
_JSON = {"content-type": "application/json"}
_EVENTS = "text/event-stream"


@asynccontextmanager
async def open_session(
    link: Link, items: AnswerItems, seconds: float, elicit: Any
) -> AsyncGenerator[ClientSession]:
    """A session with the server. `seconds`: how long a response may be silent; `elicit`: the callback of the
    SDK for what the server asks the user."""
    info = Implementation(name="luxx", version=__version__)
    mode = "auto" if link.transport is ServerTransport.HTTP else "legacy"
    transport = _CheckedTransport(_transport(link, seconds), items)
    async with Client(
        cast(Any, transport), client_info=info, mode=mode, cache=None, elicitation_callback=elicit
    ) as client:
        yield client.session


def _transport(link: Link, seconds: float) -> AbstractAsyncContextManager[Any]:
    match link.transport:
        case ServerTransport.HTTP:
            return _streamable_http(link, seconds)
        case ServerTransport.SSE:

            def make_client(
                headers: dict[str, str] | None = None,
                timeout: httpx2.Timeout | None = None,
                auth: httpx2.Auth | None = None,
            ) -> httpx2.AsyncClient:
                return _http_client(link, STREAM_SECONDS)

            return sse_client(link.address.url, httpx_client_factory=make_client)
        case ServerTransport.WEBSOCKET:
            return websocket_client(link)
        case ServerTransport.STDIO:
            raise ValueError("a program has no URL")


@asynccontextmanager
async def _streamable_http(link: Link, seconds: float) -> AsyncGenerator[Any]:
    # The SDK does not close a client that it is given.
    async with (
        _http_client(link, seconds) as http_client,
        streamable_http_client(
            link.address.url, http_client=http_client, max_sse_event_size=MOST_BYTES
        ) as streams,
    ):
        yield streams


def _http_client(link: Link, seconds: float) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        transport=LinkTransport(link),
        headers={**link.headers, "user-agent": f"luxx/{__version__}", "accept-encoding": "identity"},
        timeout=httpx2.Timeout(CONNECT_SECONDS, read=seconds),
        trust_env=False,
    )


class LinkTransport(httpx2.AsyncBaseTransport):
    """Sends the requests of one session to checked addresses only, and bounds what comes back."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._inner = httpx2.AsyncHTTPTransport(trust_env=False)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            return await self._answer(request)
        except LinkProblem as problem:
            is_http = self._link.transport is ServerTransport.HTTP
            if is_http and request.method == "GET" and "last-event-id" not in request.headers:
                # No call waits for the stream of what the server asks and announces by itself.
                return httpx2.Response(405)
            return _error_response(self._link.failed(problem))

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _answer(self, request: httpx2.Request) -> httpx2.Response:
        endpoint = self._link.address.endpoint
        port = request.url.port or (443 if request.url.scheme == "https" else 80)
        if (request.url.scheme, request.url.host, port) != (
            endpoint.scheme,
            endpoint.host.strip("[]"),
            endpoint.port,
        ):
            raise LinkProblem("redirects to another address; correct its url")
        authorization = await self._link.authorization()
        response = await self._send(request, authorization)
        challenge = response.headers.get("www-authenticate", "")
        is_forbidden = response.status_code == 403 and "insufficient_scope" in challenge
        if response.status_code == 401 or is_forbidden:
            await response.aclose()
            version = None if authorization is None else authorization.version
            refusal = RefusedRequest(status=response.status_code, challenge=challenge, version=version)
            response = await self._send(request, await self._link.refused(refusal))
        return await self._bounded(request, response)

    async def _send(self, request: httpx2.Request, authorization: Authorization | None) -> httpx2.Response:
        headers = httpx2.Headers(request.headers)
        if authorization is not None:
            headers["authorization"] = authorization.header
        failure: Exception | None = None
        for address in await self._link.addresses():
            sent = httpx2.Request(
                request.method,
                request.url.copy_with(host=address),
                headers=headers,
                stream=request.stream,
                extensions={**request.extensions, "sni_hostname": request.url.host},
            )
            try:
                return await self._inner.handle_async_request(sent)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                failure = error
            except httpx2.TimeoutException as error:
                raise LinkProblem("did not answer in time", is_sent=True) from error
            except httpx2.HTTPError as error:
                raise LinkProblem("closed the connection before it answered", is_sent=True) from error
        reason = str(failure)[:_MOST_SHOWN] if failure is not None and str(failure) else "no connection"
        raise LinkProblem(f"cannot be reached: {reason}") from failure

    async def _bounded(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        """The response with a body within the bounds: read whole, unless it is a stream of events."""
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise LinkProblem("compresses its answers although it was asked not to", is_sent=True)
        kind = response.headers.get("content-type", "").lower()
        stream = cast(httpx2.AsyncByteStream, response.stream)
        if kind.startswith(_EVENTS) and response.status_code < 300:
            is_answer = request.method == "POST"
            bounded = _EventStream(stream, self._link, MOST_STREAM_BYTES if is_answer else None)
            return httpx2.Response(response.status_code, headers=response.headers, stream=bounded)
        body = await _read(stream)
        status = response.status_code
        if "mcp-session-id" in request.headers and _is_session_gone(status, body):
            # The SDK knows a lost session only by this answer.
            return httpx2.Response(404)
        if status >= 400 and not (kind.startswith("application/json") or status == 404):
            text = " ".join(body[: 4 * _MOST_SHOWN].decode("utf-8", "replace").split())
            said = "" if "html" in kind or not text else f": {text[:_MOST_SHOWN]}"
            raise LinkProblem(f"answered with the status {status}{said}", is_sent=status >= 500)
        headers = [
            (name, value)
            for name, value in response.headers.multi_items()
            if name not in ("content-length", "transfer-encoding")
        ]
        return httpx2.Response(status, headers=headers, content=body)


class _SessionlessAnswer(msgspec.Struct):
    """An error that answers no request. `id`: without a value or absent."""

    error: "_SessionlessError"
    id: None = None


class _SessionlessError(msgspec.Struct):
    message: str


_refusal = msgspec.json.Decoder(_SessionlessAnswer)


def _is_session_gone(status: int, body: bytes) -> bool:
    """Whether a server refused a request because it does not know its session: with 404, or as many servers
    do after a restart with 400 and an error that names the session and answers no request."""
    if status != 400:
        return status == 404
    try:
        return "session" in _refusal.decode(body).error.message.lower()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


async def _read(stream: httpx2.AsyncByteStream) -> bytes:
    body = bytearray()
    try:
        async for piece in stream:
            body += piece
            if len(body) > MOST_BYTES:
                raise LinkProblem(f"answered with more than {MOST_BYTES // MIB} MiB", is_sent=True)
    except httpx2.HTTPError as error:
        raise LinkProblem("closed the connection in the middle of its answer", is_sent=True) from error
    finally:
        await stream.aclose()
    if parts(bytes(body)) > MOST_PARTS:
        raise LinkProblem(f"answered with more than {MOST_PARTS:,} values", is_sent=True)
    return bytes(body)


def _error_response(problem: LinkProblem) -> httpx2.Response:
    error = {"code": -32000, "message": problem.message, "data": LOST if problem.is_sent else UNSENT}
    body = msgspec.json.encode({"jsonrpc": "2.0", "id": None, "error": error})
    return httpx2.Response(502, headers=_JSON, content=body)


def _end_of_events(pending: bytearray, start: int) -> int:
    """Where the last whole event ends; 0 if there is none."""
    return max(
        at + len(mark) if (at := pending.rfind(mark, start)) >= 0 else 0 for mark in (b"\n\n", b"\r\n\r\n")
    )


class _EventStream(httpx2.AsyncByteStream):
    """A stream of events, which are passed on whole. `most`: bytes in all; None: no limit."""

    def __init__(self, inner: httpx2.AsyncByteStream, link: Link, most: int | None) -> None:
        self._inner = inner
        self._link = link
        self._most = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pending, total = bytearray(), 0
        async for piece in self._inner:
            searched = max(len(pending) - 3, 0)
            pending += piece
            total += len(piece)
            if end := _end_of_events(pending, searched):
                event = bytes(pending[:end])
                del pending[:end]
                if parts(event) > MOST_PARTS:
                    raise self._too_large(f"answered with more than {MOST_PARTS:,} values")
                yield event
            is_too_long = self._most is not None and total > self._most
            if len(pending) > MOST_BYTES or is_too_long:
                raise self._too_large(f"answered with more than {MOST_BYTES // MIB} MiB")
            await asyncio.sleep(0)
        if pending:
            yield bytes(pending)

    def _too_large(self, message: str) -> httpx2.ReadError:
        self._link.failed(LinkProblem(message, is_sent=True))
        return httpx2.ReadError(message)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _CheckedTransport:
    """A transport of the SDK whose messages have no items that do not follow the protocol."""

    def __init__(self, inner: AbstractAsyncContextManager[Any], items: AnswerItems) -> None:
        self._inner = inner
        self._items = items

    async def __aenter__(self) -> tuple[Any, Any]:
        read_stream, write_stream = await self._inner.__aenter__()
        return _CheckedStream(read_stream, self._items), write_stream

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, traceback)


class _CheckedStream:
    def __init__(self, inner: Any, items: AnswerItems) -> None:
        self._inner = inner
        self._items = items

    @property
    def last_context(self) -> Any:
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> Any:
        return self._checked(await self._inner.receive())

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __aiter__(self) -> "_CheckedStream":
        return self

    async def __anext__(self) -> Any:
        return self._checked(await self._inner.__anext__())

    async def __aenter__(self) -> "_CheckedStream":
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *reason: Any) -> bool | None:
        return await self._inner.__aexit__(*reason)

    def _checked(self, received: Any) -> Any:
        message = getattr(received, "message", None)
        if message is not None:
            self._items.without_wrong_items(message)
        return received
