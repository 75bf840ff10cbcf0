"""The one way out of a jail: a proxy that reaches listed hosts only, at addresses that the guard lets pass.

It resolves names itself and connects to what was judged. Each request is judged by itself, and a connection
carries one. Not here: how requests are read and written (proxy_speech), what is told of it (outing).
"""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import h11
import msgspec
import structlog

from luxx.errors import InvalidInput, NotAllowed, Unavailable
from luxx.infra.network.egress import Outing, Places, TooMuch, Traffic
from luxx.infra.network.hosts import WebGuard, join_host_port, parse_host_port
from luxx.infra.network.proxy_http import (
    PIECE,
    Crumbs,
    Side,
    answer_head,
    pass_answer,
    pass_body,
    request_towards,
    tunnel,
)
from luxx.infra.network.urls import AllowList, WebUrl, parse_url

CONNECT_SECONDS = 5.0
MOST_ADDRESSES = 4
AT_ONCE = 256
"""Connections of all jails of a server process together, shared out by user; more wait."""
WAIT_SECONDS = 30.0
"""For a place among these."""
ACCEPT_PAUSE_SECONDS = 0.2
"""Where the kernel gives no connection; mostly this process has too many files open."""
NOT_LISTED = "host_not_listed"
TOO_MANY = "too_many_hosts"
"""What programs and logs are told; no answer of the API has it."""

logger = structlog.get_logger()


class ProxyBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Of one program: connections at once and in all, bytes both ways; seconds of a head, and of silence.

    Of all of them: connections `altogether`, and seconds of waiting for one of these.
    """

    at_once: int = 16
    connections: int = 1000
    size: int = 256 * 1024 * 1024
    head_seconds: float = 10.0
    idle_seconds: float = 60.0
    altogether: int = AT_ONCE
    wait_seconds: float = WAIT_SECONDS


class PolicyProxy:
    """One per server, made only where hosts are listed."""

    def __init__(self, allow: AllowList, guard: WebGuard, bounds: ProxyBounds | None = None) -> None:
        self.bounds = bounds or ProxyBounds()
        self._allow = allow
        self._guard = guard
        self.crumbs = Crumbs()
        self._places = Places(self.bounds.altogether)

    @asynccontextmanager
    async def serving(self, listener: socket.socket, outing: Outing) -> AsyncGenerator[None]:
        """Whoever connects to `listener` goes out as `outing`, until this is left; then all is broken off."""
        talks: set[asyncio.Task[None]] = set()
        accepting = asyncio.create_task(self._accept(listener, outing, talks))
        try:
            yield
        finally:
            accepting.cancel()
            await asyncio.gather(accepting, return_exceptions=True)
            listener.close()
            for task in list(talks):
                task.cancel()
            await asyncio.gather(*talks, return_exceptions=True)
            # What is broken off is closed at the loop's next turn, which may be its last.
            await asyncio.sleep(0)

    async def _accept(self, listener: socket.socket, outing: Outing, talks: set[asyncio.Task[None]]) -> None:
        """One after the other; what is more than may be at once waits outside, in the kernel's own queue."""
        listener.setblocking(False)
        places = asyncio.Semaphore(self.bounds.at_once)
        while outing.connections < self.bounds.connections:
            await places.acquire()
            connection = await _accepted(listener)
            outing.connections += 1
            task = asyncio.create_task(self._talk(connection, outing, places))
            talks.add(task)
            task.add_done_callback(talks.discard)
        outing.was_refused("", "too_many_connections", "the program opened too many connections")
        listener.close()

    async def _talk(self, connection: socket.socket, outing: Outing, places: asyncio.Semaphore) -> None:
        try:
            talk = _Talk(self, outing, *await _opened(connection))
            await talk.run(self._places.one(outing.traveller.user_id, self.bounds.wait_seconds))
        except OSError:
            return
        finally:
            places.release()

    async def addresses_of(self, host: str, port: int, outing: Outing) -> list[str]:
        """Where to connect for a canonical host. Raises NotAllowed, Unavailable, InvalidInput."""
        where = join_host_port(host, port)
        if not self._allow.allows(host, port):
            raise NotAllowed(f"{where} is not one of the hosts that programs may reach", kind=NOT_LISTED)
        if not outing.may_try(where):
            raise NotAllowed(f"{where} is one host more than a program may reach", kind=TOO_MANY)
        return await self._guard.addresses_of(host, port, outing.resolve)


class _Talk:
    """One connection of a jail."""

    def __init__(
        self, proxy: PolicyProxy, outing: Outing, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._outing = outing
        self._traffic = Traffic(outing, proxy.bounds.size)
        self._jail = Side(h11.SERVER, reader, writer, self._traffic, proxy.bounds.idle_seconds, proxy.crumbs)

    async def run(self, place: AbstractAsyncContextManager[None]) -> None:
        """Never raises but when cancelled. Nothing is read before there is a `place` for it."""
        try:
            await self._serve_at(place)
        except TooMuch:
            self._outing.was_refused("", "too_many_bytes", "the program moved too many bytes")
            self._jail.abort()
        except (OSError, TimeoutError, h11.ProtocolError):
            self._jail.abort()
        except Exception:
            logger.exception("egress_failed")
            self._jail.abort()
        except BaseException:
            self._jail.abort()
            raise

    async def _serve_at(self, place: AbstractAsyncContextManager[None]) -> None:
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(place)
            except TimeoutError:
                await self._refuse(503, "", "too_busy", "too many programs are outside; try again later")
            else:
                await self._serve()
            await self._jail.close()

    async def _serve(self) -> None:
        try:
            async with asyncio.timeout(self._proxy.bounds.head_seconds):
                request = await self._jail.next()
        except TimeoutError:
            await self._refuse(408, "", "slow_request", "the request did not come in time")
            return
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint, "", "bad_request", f"this is no request: {error}")
            return
        if isinstance(request, h11.Request):
            await self._judge(request)

    async def _judge(self, request: h11.Request) -> None:
        target = request.target.decode("latin-1")
        is_tunnel = request.method == b"CONNECT"
        try:
            if is_tunnel:
                url, (host, port) = None, parse_host_port(target)
            else:
                url = _plain(target)
                host, port = url.host, url.port
        except InvalidInput as error:
            await self._refuse(400, target, "bad_request", error.message)
            return
        where = join_host_port(host, port)
        try:
            addresses = await self._proxy.addresses_of(host, port, self._outing)
            reader, writer = await _connected(addresses, port)
        except NotAllowed as error:
            await self._refuse(403, where, error.kind, error.message)
            return
        except (Unavailable, InvalidInput) as error:
            await self._refuse(502, where, error.kind, error.message)
            return
        self._traffic.place = self._outing.has_reached(where)
        bounds = self._proxy.bounds
        there = Side(h11.CLIENT, reader, writer, self._traffic, bounds.idle_seconds, self._proxy.crumbs)
        try:
            if url is None:
                await self._jail.say(h11.Response(status_code=200, headers=[], reason=b"Connected"))
                await tunnel(self._jail, there)
            else:
                await self._forward(url, request, there)
        finally:
            there.abort()

    async def _forward(self, url: WebUrl, request: h11.Request, there: Side) -> None:
        try:
            await there.say(request_towards(url, request))
        except h11.ProtocolError as error:
            words = f"this is no request: {error}"
            await self._refuse(error.error_status_hint, url.authority, "bad_request", words)
            return
        sending = asyncio.create_task(pass_body(self._jail, there))
        answering = asyncio.create_task(self._answer(url, there))
        try:
            await asyncio.wait({sending, answering}, return_when=asyncio.FIRST_COMPLETED)
            if (broken := _broken_off(sending)) is None or answering.done():
                await answering
                return
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            if isinstance(broken, TooMuch):
                raise broken
            await self._refuse(400, url.authority, "bad_request", f"this is no request: {broken}")
        finally:
            sending.cancel()
            answering.cancel()
            await asyncio.gather(sending, answering, return_exceptions=True)

    async def _answer(self, url: WebUrl, there: Side) -> None:
        try:
            answer = await answer_head(there)
        except (OSError, TimeoutError, h11.RemoteProtocolError) as error:
            await self._refuse(502, url.authority, "bad_answer", f"{url.host} gave no answer: {error}")
            return
        await pass_answer(answer, there, self._jail)

    async def _refuse(self, status: int, where: str, kind: str, reason: str) -> None:
        self._outing.was_refused(where, kind, reason)
        if self._jail.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self._jail.abort()
            return
        words = reason.encode("ascii", "replace")
        headers = [
            (b"content-type", b"text/plain"),
            (b"content-length", b"%d" % len(words)),
            (b"connection", b"close"),
        ]
        await self._jail.say(h11.Response(status_code=status, headers=headers, reason=_line(words)))
        await self._jail.say(h11.Data(data=words))
        await self._jail.say(h11.EndOfMessage())


def _broken_off(sending: asyncio.Task[None]) -> Exception | None:
    """What is wrong with a request that ended; a host that takes no more of it may have answered."""
    error = sending.exception() if sending.done() else None
    return error if isinstance(error, TooMuch | h11.RemoteProtocolError) else None


async def _accepted(listener: socket.socket) -> socket.socket:
    """The next connection. What the kernel cannot give now it may give later, so there is no failure."""
    loop, is_told = asyncio.get_running_loop(), False
    while True:
        try:
            connection, _ = await loop.sock_accept(listener)
        except OSError as error:
            if not is_told:
                logger.warning("egress_not_accepted", error=str(error))
            is_told = True
            await asyncio.sleep(ACCEPT_PAUSE_SECONDS)
        else:
            return connection


async def _opened(connection: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """From here on the socket is the streams' to close."""
    try:
        return await asyncio.open_connection(sock=connection, limit=PIECE)
    except BaseException:
        connection.close()
        raise


def _plain(target: str) -> WebUrl:
    """The URL of a request that is not for a tunnel. Raises InvalidInput."""
    if not target.lower().startswith("http://"):
        raise InvalidInput("a proxy takes http:// addresses, and CONNECT for everything else")
    return parse_url(target)


async def _connected(addresses: list[str], port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the first address that takes one. Raises Unavailable."""
    words = "the name has no address"
    for address in addresses[:MOST_ADDRESSES]:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await asyncio.open_connection(address, port, limit=PIECE)
        except TimeoutError:
            words = "connecting took too long"
        except OSError as error:
            words = error.strerror or "no connection"
    raise Unavailable(f"there is no connection: {words}")


def _line(words: bytes) -> bytes:
    """What a reason phrase may hold."""
    return bytes(one if 32 <= one < 127 else 63 for one in words[:200])
