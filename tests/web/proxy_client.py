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

    def say(self, words: bytes) -> bytes:
        """Sends the bytes and returns the whole answer."""
        with self.connect_socket() as one:
            with suppress(BrokenPipeError, ConnectionResetError):
                one.sendall(words)
            return read_all(one)

    def get(self, url: str, host: str = "") -> bytes:
        return self.say(f"GET {url} HTTP/1.1\r\nHost: {host or 'x'}\r\n\r\n".encode())

    def connect(self, target: str) -> bytes:
        return self.say(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())

    @property
    def kinds(self) -> set[str]:
        return {one.kind for one in self.egress_session.refused}


def read_all(one: socket.socket) -> bytes:
    received = b""
    while True:
        try:
            piece = one.recv(65_536)
        except ConnectionResetError:
            return received
        if not piece:
            return received
        received += piece


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


def with_proxy(
    work: Callable[[ProxyClient], Any],
    allow: list[str],
    *,
    private: tuple[str, ...] = (),
    names: FakeResolver | None = None,
    **bounds: Any,
) -> Any:
    """Runs the proxy, and `work` in a thread beside it. Returns the result of `work`."""

    async def run() -> Any:
        resolve = (names or FakeResolver()).resolve
        proxy = PolicyProxy(AllowList(allow), WebGuard(private, resolve=resolve), ProxyBounds(**bounds))
        egress_session = EgressSession(EgressCaller(user_id=7, call_id="c", tool="python_execute"))
        listener = socket.create_server(("127.0.0.1", 0))
        port = int(listener.getsockname()[1])
        async with asyncio.timeout(SECONDS), proxy.serving(listener, egress_session):
            return await asyncio.to_thread(work, ProxyClient(port, egress_session))

    return asyncio.run(run())
