"""ASGI middleware that checks Host, Origin, header size and body size, and adds security headers.

It wraps the whole application (`app.asgi_handler = protection(…)(app.asgi_handler)`) to cover unknown paths
too, and answers refused requests without Litestar. `authentication.py` checks sign-ins.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import msgspec
import structlog
from litestar.types import ASGIApp
from litestar.utils import normalize_path

from luxx.api.http.authentication import REQUEST_ID, parse_address
from luxx.api.http.cross_origin import CrossOrigin, RawHeaders, is_same_host
from luxx.api.http.envelope import failure_at
from luxx.errors import TooLarge
from luxx.infra.clock import new_id
from luxx.infra.config.schema import Config, ServerConfig
from luxx.infra.observe import Metrics

MIB = 1024 * 1024
UPLOAD_PATHS = re.compile(r"/files|/conversations/import|/knowledge/[^/]{1,64}/documents")
"""A POST to these may have a body of up to `files.max_upload_mb`."""

PUBLIC_POST_PATHS = ("/auth/login", "/auth/register", "/auth/refresh", "/setup")
"""A POST to these needs no sign-in, so its body may have at most PUBLIC_BODY_BYTES."""

PUBLIC_BODY_BYTES = 64 * 1024

HEAD_TOO_LARGE = "head_too_large"
MAX_HEADERS = 200
MAX_HEADER_BYTES = 64 * 1024
MAX_URL_BYTES = 16 * 1024
MAX_HOST_CHARS = 300
"""At least the limits of other servers. Each header and query parameter costs time and memory."""

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
METHODS = SAFE_METHODS | {"POST", "PUT", "PATCH", "DELETE"}
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
FIXED_HEADERS = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"))
POLICY_HEADER = (b"content-security-policy", CONTENT_SECURITY_POLICY.encode())
RAW_SEND_KEY = "luxx.raw_send"
"""Scope key of the server's own `send`. A stream uses it after the start of its response."""

DETACHED_STREAM_KEY = "luxx.detached_stream"
"""Scope key of the coroutine function that sends a long stream, called with the scope and `send`."""

KEPT_SCOPE_KEYS = frozenset(
    (
        *("type", "asgi", "http_version", "server", "client", "scheme", "method", "root_path", "path"),
        *("raw_path", "query_string", "headers", "path_template"),
    )
)
"""The scope keys that a long stream keeps, besides those of Luxx: the server may read them at the response
start, and the request metrics need the template."""

AUTHORITY = re.compile(r"(?P<name>\[[0-9a-f:.]{2,45}\]|[a-z0-9_.-]{1,253})(?::(?P<port>[0-9]{1,5}))?")

ASGIScope = MutableMapping[str, Any]
ASGIMessage = dict[str, Any]
ASGIReceive = Callable[[], Awaitable[ASGIMessage]]
ASGISend = Callable[[ASGIMessage], Awaitable[None]]
ASGIApplication = Callable[[ASGIScope, ASGIReceive, ASGISend], Awaitable[None]]


def protection(config: Config, metrics: Metrics) -> Callable[[ASGIApp], ASGIApp]:
    """The middleware, as a function that wraps an ASGI application."""

    def wrap(app: ASGIApp) -> ASGIApp:
        return cast("ASGIApp", _ProtectionMiddleware(cast("ASGIApplication", app), config, metrics))

    return wrap


class _Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a refused request. `kind` becomes `detail.kind`."""

    status: int
    kind: str
    error: str


class _RequestHeaders(msgspec.Struct, kw_only=True):
    """The headers that the checks need, collected in one pass."""

    host: bytes = b""
    host_count: int = 0
    size: int = 0
    origin: bytes | None = None
    length: bytes | None = None
    is_chunked: bool = False


def _read_headers(headers: RawHeaders) -> _RequestHeaders:
    request_headers = _RequestHeaders()
    size = 0
    for name, value in headers:
        size += len(name) + len(value)
        if name == b"host":
            request_headers.host = value
            request_headers.host_count += 1
        elif name == b"origin":
            request_headers.origin = value
        elif name == b"content-length":
            request_headers.length = value
        elif name == b"transfer-encoding":
            request_headers.is_chunked = True
    request_headers.size = size
    return request_headers


class _ProtectionMiddleware:
    def __init__(self, app: ASGIApplication, config: Config, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._hosts = _AllowedHostCheck(config.server, config.app.host)
        self._cross_origin = CrossOrigin(config.server)
        self._body_limit = int(config.server.max_body_mb * MIB)
        self._upload_limit = int(config.files.max_upload_mb * MIB)

    async def __call__(self, scope: ASGIScope, receive: ASGIReceive, send: ASGISend) -> None:
        if scope["type"] == "http":
            await self._handle_request(scope, receive, send)
        elif scope["type"] == "websocket" and (
            refusal := self._request_refusal(scope, _read_headers(scope["headers"]))
        ):
            await _refuse_socket(scope, receive, send, refusal)
        else:
            await self._app(scope, receive, send)

    async def _handle_request(self, scope: ASGIScope, receive: ASGIReceive, send: ASGISend) -> None:
        started, request_id = time.perf_counter(), new_id()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        scope[REQUEST_ID] = request_id
        request_headers = _read_headers(scope["headers"])
        origin = request_headers.origin
        cors = [] if origin is None else self._cross_origin.headers(scope["path"], origin)
        response = _ResponseSender(send, request_id, cors)
        scope[RAW_SEND_KEY] = send
        limit = self._limit(scope["method"], scope["path"])
        refusal = self._request_refusal(scope, request_headers) or _length_refusal(
            request_headers.length, limit
        )
        route = "refused"
        try:
            if refusal is not None:
                await _refuse(response.send, refusal, scope["path"])
            elif cors and (start := self._cross_origin.preflight(scope)):
                await _send_all(response.send, start, {"type": "http.response.body"})
            elif request_headers.is_chunked or (
                request_headers.length is None and scope["method"] not in SAFE_METHODS
            ):
                await _run_limited(self._app, scope, receive, response, limit)
            else:
                await self._app(scope, receive, response.send)
            if DETACHED_STREAM_KEY in scope:
                await _run_detached(scope, response.send)
        except asyncio.CancelledError:
            # Only a server that stops cancels a request.
            if response.began:
                raise
            await _refuse(response.send, SERVER_STOPPING, scope["path"])
        finally:
            # `send` references the scope; without this cycle, reference counting frees both at once.
            del scope[RAW_SEND_KEY]
            if refusal is None:
                # Litestar stores the template in the scope when it has found the route.
                route = scope.get("path_template", "unknown") or "mounted"
            method = scope["method"] if scope["method"] in METHODS else "OTHER"
            began = response.began or time.perf_counter()
            self._metrics.count_request(method, route, response.status, began - started)

    def _limit(self, method: str, path: str) -> int:
        if method != "POST":
            return self._body_limit
        path = normalize_path(path)  # The router accepts `//files/` as `/files`.
        if path in PUBLIC_POST_PATHS:
            return min(PUBLIC_BODY_BYTES, self._body_limit)
        return self._upload_limit if UPLOAD_PATHS.fullmatch(path) else self._body_limit

    def _request_refusal(self, scope: ASGIScope, request_headers: _RequestHeaders) -> _Refusal | None:
        refusal = _head_refusal(scope, request_headers) or self._hosts.check(
            request_headers, scope.get("server")
        )
        if refusal is None and ("\0" in scope["path"] or b"%00" in scope.get("query_string", b"")):
            refusal = NUL_REFUSED
        if refusal is not None or request_headers.origin is None:
            return refusal
        if scope["type"] == "http" and scope["method"] in SAFE_METHODS:
            return None
        origin = request_headers.origin
        if is_same_host(origin, request_headers.host) or self._cross_origin.allows(scope["path"], origin):
            return None
        return ORIGIN_NOT_ALLOWED


@dataclass(slots=True, eq=False)
class _ResponseSender:
    """Forwards messages to the server, adds headers to the response start and records its status."""

    _send: ASGISend
    _request_id: str
    _cors: RawHeaders
    status: int = 500
    began: float = 0.0

    def send(self, message: ASGIMessage) -> Awaitable[None]:
        # Not a coroutine: a streamed body calls this for each chunk.
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.began = time.perf_counter()
            headers: RawHeaders = [*message["headers"], *FIXED_HEADERS, *self._cors]
            if not any(name == b"content-security-policy" for name, _ in headers):
                headers.append(POLICY_HEADER)
            headers.append((b"x-request-id", self._request_id.encode()))
            message["headers"] = headers
        return self._send(message)


async def _run_detached(scope: ASGIScope, send: ASGISend) -> None:
    """Sends a stream after Litestar has returned, so that its stack frames and request objects are freed."""
    for name in [name for name in scope if name not in KEPT_SCOPE_KEYS and not name.startswith("luxx.")]:
        del scope[name]
    await scope.pop(DETACHED_STREAM_KEY)(scope, send)


class _LimitedBody:
    """Counts the bytes of a body of unknown length; `receive` raises TooLarge past the limit."""

    def __init__(self, receive: ASGIReceive, send: ASGISend, limit: int) -> None:
        self._receive = receive
        self._send = send
        self._limit = limit
        self._remaining = limit
        self.is_exceeded = False

    async def receive(self) -> ASGIMessage:
        if not self.is_exceeded:
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            self._remaining -= len(message.get("body", b""))
            self.is_exceeded = self._remaining < 0
            if not self.is_exceeded:
                return message
        raise TooLarge(_too_large(self._limit).error)

    async def send(self, message: ASGIMessage) -> None:
        if not self.is_exceeded:
            await self._send(message)


async def _run_limited(
    app: ASGIApplication, scope: ASGIScope, receive: ASGIReceive, response: _ResponseSender, limit: int
) -> None:
    limited = _LimitedBody(receive, response.send, limit)
    try:
        await app(scope, limited.receive, limited.send)
    except Exception:
        # Past the limit the response is the same, however the application handles TooLarge.
        if not limited.is_exceeded:
            raise
    if limited.is_exceeded and not response.began:
        await _refuse(response.send, _too_large(limit), scope["path"])


class _AllowedHostCheck:
    """Checks the Host header against `server.allowed_hosts`, to prevent DNS rebinding."""

    def __init__(self, config: ServerConfig, bound_host: str) -> None:
        self._allowed = [entry.lower().rstrip(".") for entry in config.allowed_hosts]
        self._bound_host = bound_host.lower()
        self._cached_check = lru_cache(maxsize=1024)(self._check_host)

    def check(
        self, request_headers: _RequestHeaders, server: tuple[str, int | None] | None
    ) -> _Refusal | None:
        if request_headers.host_count != 1 or len(request_headers.host) > MAX_HOST_CHARS:
            return INVALID_HOST
        return self._cached_check(request_headers.host, server[0] if server else "")

    def _check_host(self, header: bytes, server: str) -> _Refusal | None:
        host = header.decode("latin-1").lower()
        match = AUTHORITY.fullmatch(host)
        if match is None:
            return INVALID_HOST
        name = match["name"].strip("[]").rstrip(".")
        is_allowed = self._is_allowed(host, name) if self._allowed else self._is_own(name, server)
        return None if is_allowed else HOST_NOT_ALLOWED

    def _is_allowed(self, host: str, name: str) -> bool:
        return any(
            entry in ("*", host, name, f"[{name}]") or (entry.startswith("*.") and name.endswith(entry[1:]))
            for entry in self._allowed
        )

    def _is_own(self, name: str, server: str) -> bool:
        """Without a list: loopback, the bound host, or the local IP address of the connection."""
        if name in ("localhost", self._bound_host) or name.endswith(".localhost"):
            return True
        address = parse_address(name)
        return address is not None and (address.is_loopback or name == server.lower())


URL_TOO_LONG = _Refusal(
    status=414,
    kind=HEAD_TOO_LARGE,
    error=f"the URL of the request has more than {MAX_URL_BYTES // 1024} KiB; shorten its query",
)
HEADERS_TOO_LARGE = _Refusal(
    status=431,
    kind=HEAD_TOO_LARGE,
    error=f"the request has more than {MAX_HEADERS} headers, or more than {MAX_HEADER_BYTES // 1024} KiB "
    "of them; send less",
)
INVALID_HOST = _Refusal(
    status=400, kind="invalid_host", error="the request needs exactly one valid Host header"
)
NUL_REFUSED = _Refusal(
    status=400, kind="invalid_input", error="the URL of a request must not contain the character NUL"
)
SERVER_STOPPING = _Refusal(
    status=503,
    kind="unavailable",
    error="the server stopped before this was done; check the state after it restarts, and try again",
)
HOST_NOT_ALLOWED = _Refusal(
    status=403,
    kind="host_not_allowed",
    error="this server does not accept this host name; an operator can add it to server.allowed_hosts",
)
ORIGIN_NOT_ALLOWED = _Refusal(
    status=403,
    kind="origin_not_allowed",
    error="a page of another site may not send this request; open Luxx under its own address",
)


def _head_refusal(scope: ASGIScope, request_headers: _RequestHeaders) -> _Refusal | None:
    if len(scope.get("raw_path") or scope["path"]) + len(scope.get("query_string", b"")) > MAX_URL_BYTES:
        return URL_TOO_LONG
    if request_headers.size > MAX_HEADER_BYTES or len(scope["headers"]) > MAX_HEADERS:
        return HEADERS_TOO_LARGE
    return None


def _length_refusal(length: bytes | None, limit: int) -> _Refusal | None:
    if length is None or (len(length) < 20 and length.isdigit() and int(length) <= limit):
        return None
    return _too_large(limit)


def _too_large(limit: int) -> _Refusal:
    return _Refusal(
        status=413, kind="too_large", error=f"the request is larger than {limit / MIB:g} MiB; send less"
    )


def _refusal_messages(refusal: _Refusal, prefix: str, path: str) -> tuple[ASGIMessage, ASGIMessage]:
    failure = failure_at(path, refusal.status, refusal.error, refusal.kind)
    body = msgspec.json.encode(failure)
    headers: RawHeaders = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),  # the rest of the body is not read
    ]
    start = {"type": f"{prefix}.start", "status": refusal.status, "headers": headers}
    return start, {"type": f"{prefix}.body", "body": body, "more_body": False}


async def _send_all(send: ASGISend, *messages: ASGIMessage) -> None:
    for message in messages:
        await send(message)


async def _refuse(send: ASGISend, refusal: _Refusal, path: str) -> None:
    await _send_all(send, *_refusal_messages(refusal, "http.response", path))


async def _refuse_socket(scope: ASGIScope, receive: ASGIReceive, send: ASGISend, refusal: _Refusal) -> None:
    """Refuses before the handshake: with an HTTP response if the server supports that, else a plain 403."""
    await receive()
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": 1008, "reason": refusal.error})
        return
    for message in _refusal_messages(refusal, "websocket.http.response", scope["path"]):
        await send(message)
