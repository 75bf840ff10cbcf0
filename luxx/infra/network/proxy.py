"""The proxy for sandboxed programs: it reaches only listed hosts, at addresses that the guard allows.

The proxy resolves names itself and connects to the checked addresses. A connection carries one request. Not
here: parsing and writing HTTP (`proxy_http`), the record of hosts and bytes (`egress`).
"""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import h11
import msgspec
import structlog

from luxx.errors import InvalidInput, NotAllowed, Unavailable
from luxx.infra.network.egress import ByteLimitExceeded, EgressSession, FairSlots, Traffic
from luxx.infra.network.hosts import WebGuard, join_host_port, parse_host_port
from luxx.infra.network.proxy_http import (
    PIECE,
    HttpPeer,
    SmallChunkThrottle,
    forward_body,
    forward_response,
    read_response_head,
    tunnel,
    upstream_request,
)
from luxx.infra.network.transport import CONNECT_SECONDS, MOST_ADDRESSES
from luxx.infra.network.urls import AllowList, WebUrl, parse_url

AT_ONCE = 256
"""Connections of all programs of a server process, shared between users; others wait."""
WAIT_SECONDS = 30.0
"""How long a connection may wait for a slot."""
ACCEPT_PAUSE_SECONDS = 0.2
"""Pause after `accept` has failed; usually this process has too many open files."""
NOT_LISTED = "host_not_listed"
TOO_MANY = "too_many_hosts"
"""Error codes for programs and logs; the API does not use them."""

logger = structlog.get_logger()


class ProxyBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one program: connections `at_once` and in all, `size` in bytes of both directions, seconds to
    send a request head, seconds without traffic.

    For all programs together: `total_connections` at once, and seconds of waiting for one.
    """

    at_once: int = 16
    connections: int = 1000
    size: int = 256 * 1024 * 1024
    head_seconds: float = 10.0
    idle_seconds: float = 60.0
    total_connections: int = AT_ONCE
    wait_seconds: float = WAIT_SECONDS


class PolicyProxy:
    """One per server, only if hosts are listed."""

    def __init__(self, allow: AllowList, guard: WebGuard, bounds: ProxyBounds | None = None) -> None:
        self.bounds = bounds or ProxyBounds()
        self._allow = allow
        self._guard = guard
        self.chunk_throttle = SmallChunkThrottle()
        self._slots = FairSlots(self.bounds.total_connections)

    @asynccontextmanager
    async def serving(self, listener: socket.socket, egress_session: EgressSession) -> AsyncGenerator[None]:
        """Serves connections to `listener` on behalf of the session; leaving the context aborts them all."""
        connection_tasks: set[asyncio.Task[None]] = set()
        accepting = asyncio.create_task(self._accept(listener, egress_session, connection_tasks))
        try:
            yield
        finally:
            accepting.cancel()
            await asyncio.gather(accepting, return_exceptions=True)
            listener.close()
            for task in list(connection_tasks):
                task.cancel()
            await asyncio.gather(*connection_tasks, return_exceptions=True)
            # asyncio closes aborted connections in the loop's next iteration, which may be its last.
            await asyncio.sleep(0)

    async def _accept(
        self,
        listener: socket.socket,
        egress_session: EgressSession,
        connection_tasks: set[asyncio.Task[None]],
    ) -> None:
        """Accepts up to `bounds.at_once` connections; others wait in the kernel's queue."""
        listener.setblocking(False)
        slots = asyncio.Semaphore(self.bounds.at_once)
        while egress_session.connections < self.bounds.connections:
            await slots.acquire()
            connection = await _accepted(listener)
            egress_session.connections += 1
            task = asyncio.create_task(self._serve_connection(connection, egress_session, slots))
            connection_tasks.add(task)
            task.add_done_callback(connection_tasks.discard)
        egress_session.record_refusal("", "too_many_connections", "the program opened too many connections")
        listener.close()

    async def _serve_connection(
        self, connection: socket.socket, egress_session: EgressSession, slots: asyncio.Semaphore
    ) -> None:
        try:
            proxy_connection = _ProxyConnection(self, egress_session, *await _opened(connection))
            await proxy_connection.run(
                self._slots.hold(egress_session.caller.user_id, self.bounds.wait_seconds)
            )
        except OSError:
            return
        finally:
            slots.release()

    async def addresses_of(self, host: str, port: int, egress_session: EgressSession) -> list[str]:
        """The addresses to connect to for a canonical host. Raises NotAllowed, Unavailable, InvalidInput."""
        host_port = join_host_port(host, port)
        if not self._allow.allows(host, port):
            raise NotAllowed(f"{host_port} is not one of the hosts that programs may reach", kind=NOT_LISTED)
        if not egress_session.may_connect(host_port):
            raise NotAllowed(f"{host_port} is one host more than a program may reach", kind=TOO_MANY)
        return await self._guard.addresses_of(host, port, egress_session.resolve)


class _ProxyConnection:
    """One connection of a program."""

    def __init__(
        self,
        proxy: PolicyProxy,
        egress_session: EgressSession,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._egress_session = egress_session
        self._traffic = Traffic(egress_session, proxy.bounds.size)
        self._client = HttpPeer(
            h11.SERVER, reader, writer, self._traffic, proxy.bounds.idle_seconds, proxy.chunk_throttle
        )

    async def run(self, slot: AbstractAsyncContextManager[None]) -> None:
        """Serves the connection once it has its slot. Raises nothing but CancelledError."""
        try:
            await self._serve_at(slot)
        except ByteLimitExceeded:
            self._egress_session.record_refusal("", "too_many_bytes", "the program moved too many bytes")
            self._client.abort()
        except (OSError, TimeoutError, h11.ProtocolError):
            self._client.abort()
        except Exception:
            logger.exception("egress_failed")
            self._client.abort()
        except BaseException:
            self._client.abort()
            raise

    async def _serve_at(self, slot: AbstractAsyncContextManager[None]) -> None:
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(slot)
            except TimeoutError:
                await self._refuse(503, "", "too_busy", "too many programs use the network; try again later")
            else:
                await self._serve()
            await self._client.close()

    async def _serve(self) -> None:
        try:
            async with asyncio.timeout(self._proxy.bounds.head_seconds):
                request = await self._client.next()
        except TimeoutError:
            await self._refuse(408, "", "slow_request", "the request did not come in time")
            return
        except h11.RemoteProtocolError as error:
            text = f"the request is not valid HTTP: {error}"
            await self._refuse(error.error_status_hint, "", "bad_request", text)
            return
        if isinstance(request, h11.Request):
            await self._handle_request(request)

    async def _handle_request(self, request: h11.Request) -> None:
        target = request.target.decode("latin-1")
        is_tunnel = request.method == b"CONNECT"
        try:
            if is_tunnel:
                url, (host, port) = None, parse_host_port(target)
            else:
                url = _request_url(target)
                host, port = url.host, url.port
        except InvalidInput as error:
            await self._refuse(400, target, "bad_request", error.message)
            return
        host_port = join_host_port(host, port)
        try:
            addresses = await self._proxy.addresses_of(host, port, self._egress_session)
            reader, writer = await _connected(addresses, port)
        except NotAllowed as error:
            await self._refuse(403, host_port, error.kind, error.message)
            return
        except (Unavailable, InvalidInput) as error:
            await self._refuse(502, host_port, error.kind, error.message)
            return
        self._traffic.reached_host = self._egress_session.record_connection(host_port)
        bounds = self._proxy.bounds
        upstream = HttpPeer(
            h11.CLIENT, reader, writer, self._traffic, bounds.idle_seconds, self._proxy.chunk_throttle
        )
        try:
            if url is None:
                await self._client.send(h11.Response(status_code=200, headers=[], reason=b"Connected"))
                await tunnel(self._client, upstream)
            else:
                await self._forward(url, request, upstream)
        finally:
            upstream.abort()

    async def _forward(self, url: WebUrl, request: h11.Request, upstream: HttpPeer) -> None:
        try:
            await upstream.send(upstream_request(url, request))
        except h11.ProtocolError as error:
            text = f"the request is not valid HTTP: {error}"
            await self._refuse(error.error_status_hint, url.authority, "bad_request", text)
            return
        sending = asyncio.create_task(forward_body(self._client, upstream))
        answering = asyncio.create_task(self._answer(url, upstream))
        try:
            await asyncio.wait({sending, answering}, return_when=asyncio.FIRST_COMPLETED)
            if (error := _request_error(sending)) is None or answering.done():
                await answering
                return
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            if isinstance(error, ByteLimitExceeded):
                raise error
            text = f"the request is not valid HTTP: {error}"
            await self._refuse(400, url.authority, "bad_request", text)
        finally:
            sending.cancel()
            answering.cancel()
            await asyncio.gather(sending, answering, return_exceptions=True)

    async def _answer(self, url: WebUrl, upstream: HttpPeer) -> None:
        try:
            answer = await read_response_head(upstream)
        except (OSError, TimeoutError, h11.RemoteProtocolError) as error:
            await self._refuse(502, url.authority, "bad_answer", f"{url.host} did not answer: {error}")
            return
        await forward_response(answer, upstream, self._client)

    async def _refuse(self, status: int, host_port: str, kind: str, reason: str) -> None:
        """Records the refusal and answers with it, or aborts if the answer has begun."""
        self._egress_session.record_refusal(host_port, kind, reason)
        if self._client.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self._client.abort()
            return
        text = reason.encode("ascii", "replace")
        headers = [
            (b"content-type", b"text/plain"),
            (b"content-length", b"%d" % len(text)),
            (b"connection", b"close"),
        ]
        await self._client.send(
            h11.Response(status_code=status, headers=headers, reason=_reason_phrase(text))
        )
        await self._client.send(h11.Data(data=text))
        await self._client.send(h11.EndOfMessage())


def _request_error(sending: asyncio.Task[None]) -> Exception | None:
    """The error of the program's request body, if any. An error of the host is none: it may have answered."""
    error = sending.exception() if sending.done() else None
    return error if isinstance(error, ByteLimitExceeded | h11.RemoteProtocolError) else None


async def _accepted(listener: socket.socket) -> socket.socket:
    """The next connection. Retries if `accept` fails, because the kernel's shortage may pass."""
    loop, is_logged = asyncio.get_running_loop(), False
    while True:
        try:
            connection, _ = await loop.sock_accept(listener)
        except OSError as error:
            if not is_logged:
                logger.warning("egress_not_accepted", error=str(error))
            is_logged = True
            await asyncio.sleep(ACCEPT_PAUSE_SECONDS)
        else:
            return connection


async def _opened(connection: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Streams on the socket; closing them closes the socket."""
    try:
        return await asyncio.open_connection(sock=connection, limit=PIECE)
    except BaseException:
        connection.close()
        raise


def _request_url(target: str) -> WebUrl:
    """The URL of a request other than CONNECT. Raises InvalidInput."""
    if not target.lower().startswith("http://"):
        raise InvalidInput("the proxy accepts http:// URLs, and CONNECT for everything else")
    return parse_url(target)


async def _connected(addresses: list[str], port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the first address that accepts one. Raises Unavailable."""
    text = "the name has no address"
    for address in addresses[:MOST_ADDRESSES]:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await asyncio.open_connection(address, port, limit=PIECE)
        except TimeoutError:
            text = "connecting took too long"
        except OSError as error:
            text = error.strerror or "no connection"
    raise Unavailable(f"the connection failed: {text}")


def _reason_phrase(text: bytes) -> bytes:
    """The text cut to 200 characters, with `?` for those that a reason phrase must not contain."""
    return bytes(byte if 32 <= byte < 127 else 63 for byte in text[:200])
