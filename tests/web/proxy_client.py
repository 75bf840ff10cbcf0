"""The egress proxy on a port of this machine, and a client that talks to it."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from luxx.infra.network.egress import EgressCaller, EgressSession
from luxx.infra.network.hosts import WebGuard
from luxx.infra.network.proxy import PolicyProxy, ProxyBounds
from luxx.infra.network.urls import AllowList
from web.conftest import FakeResolver

SECONDS = 30.0


class ProxyClient:
    """Sends requests to the proxy. `egress_session` records their outcomes."""

    def __init__(self, port: int, egress_session: EgressSession) -> None:
        self.port = port
        self.egress_session = egress_session

    def connect_socket(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS)

    def send(self, request: bytes) -> bytes:
        """Sends the bytes and returns the whole answer."""
        with self.connect_socket() as connection:
            # The proxy may refuse the request before it has read all of it.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(request)
            return read_all(connection)

    def get(self, url: str, host: str = "") -> bytes:
        return self.send(f"GET {url} HTTP/1.1\r\nHost: {host or 'x'}\r\n\r\n".encode())

    def connect(self, target: str) -> bytes:
        return self.send(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())

    @property
    def refusal_kinds(self) -> set[str]:
        return {refusal.kind for refusal in self.egress_session.refused}


def read_all(connection: socket.socket) -> bytes:
    received = b""
    while True:
        try:
            piece = connection.recv(65_536)
        except ConnectionResetError:
            return received
        if not piece:
            return received
        received += piece


def status(answer: bytes) -> int:
    """The HTTP status; 0 if the proxy closed the connection without an answer."""
    return int(answer.split(b" ", 2)[1]) if answer else 0


def run_with_proxy(
    use_proxy: Callable[[ProxyClient], Any],
    allow: list[str],
    *,
    allow_private: tuple[str, ...] = (),
    resolver: FakeResolver | None = None,
    **bounds: Any,
) -> Any:
    """Runs the proxy, calls `use_proxy` in a thread and returns its result.

    `allow` are the hosts that the proxy allows, `allow_private` those that may have private addresses.
    """

    async def run() -> Any:
        resolve = (resolver or FakeResolver()).resolve
        proxy = PolicyProxy(AllowList(allow), WebGuard(allow_private, resolve=resolve), ProxyBounds(**bounds))
        egress_session = EgressSession(EgressCaller(user_id=7, call_id="c", tool="python_execute"))
        listener = socket.create_server(("127.0.0.1", 0))
        port = int(listener.getsockname()[1])
        async with asyncio.timeout(SECONDS), proxy.serving(listener, egress_session):
            return await asyncio.to_thread(use_proxy, ProxyClient(port, egress_session))

    return asyncio.run(run())
