"""A proxy with its door on a port of this machine, and what a program says at it."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from luxx.infra.network.egress import Outing, Traveller
from luxx.infra.network.hosts import WebGuard
from luxx.infra.network.proxy import PolicyProxy, ProxyBounds
from luxx.infra.network.urls import AllowList
from web.conftest import Names

SECONDS = 30.0


class Door:
    """A proxy's door, and what a program says at it. `outing` tells what came of it."""

    def __init__(self, port: int, outing: Outing) -> None:
        self.port = port
        self.outing = outing

    def knock(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS)

    def say(self, words: bytes) -> bytes:
        """All that is answered."""
        with self.knock() as one:
            with suppress(BrokenPipeError, ConnectionResetError):
                one.sendall(words)
            return heard(one)

    def get(self, url: str, host: str = "") -> bytes:
        return self.say(f"GET {url} HTTP/1.1\r\nHost: {host or 'x'}\r\n\r\n".encode())

    def connect(self, target: str) -> bytes:
        return self.say(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())

    @property
    def kinds(self) -> set[str]:
        return {one.kind for one in self.outing.refused}


def heard(one: socket.socket) -> bytes:
    found = b""
    while True:
        try:
            piece = one.recv(65_536)
        except ConnectionResetError:
            return found
        if not piece:
            return found
        found += piece


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


def at_the_door(
    work: Callable[[Door], Any],
    allow: list[str],
    *,
    private: tuple[str, ...] = (),
    names: Names | None = None,
    **bounds: Any,
) -> Any:
    """What `work` gives, which runs in a thread beside the proxy."""

    async def run() -> Any:
        resolve = (names or Names()).resolve
        proxy = PolicyProxy(AllowList(allow), WebGuard(private, resolve=resolve), ProxyBounds(**bounds))
        outing = Outing(Traveller(user_id=7, call_id="c", tool="python_execute"))
        listener = socket.create_server(("127.0.0.1", 0))
        port = int(listener.getsockname()[1])
        async with asyncio.timeout(SECONDS), proxy.serving(listener, outing):
            return await asyncio.to_thread(work, Door(port, outing))

    return asyncio.run(run())
