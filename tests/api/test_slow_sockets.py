"""Socket clients that do not read: the server stores one flag a session, and later sends the newest state."""

import asyncio
import json
import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvicorn
from litestar.exceptions import WebSocketDisconnect

from api.client import ApiClient
from api.server_process import ServerProcess
from api.socket_client import new_ticket, open_socket
from luxx.api.http import websockets as module
from luxx.api.http.protocol import socket_options
from luxx.api.http.websockets import MAX_PENDING_NOTIFICATIONS, SIGN_IN_ENDED, Socket
from luxx.domain.accounts.caller import Caller, RateLimit
from luxx.infra.bus.core import Bus
from luxx.infra.store.engine import Store
from luxx.runs.streams.notices import Notices
from luxx.wire.socket import NotificationData, SessionState, SessionStatus
from luxx.wire.tool import CommandPermission

SECONDS = 10.0
MIB = 1024 * 1024
UPGRADE = (
    b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
CALLER = Caller(
    user_id=1, tenant_id=1, username="ann", permission_level=CommandPermission.READ_ONLY, sign_in_id="s"
)


class Rows(Notices):
    """Notices whose rows the test sets."""

    def __init__(self) -> None:
        super().__init__(NO_STORE, Bus("here"), is_watched=lambda run_id: False)
        self.titles: dict[str, str] = {}
        self.reads = 0

    async def states(self, user_id: int, session_ids: list[str]) -> dict[str, SessionState]:
        self.reads += 1
        await asyncio.sleep(0)
        return {
            name: SessionState(status=SessionStatus.IDLE, title=self.titles[name])
            for name in session_ids
            if name in self.titles
        }


class NoStore(Store):
    """A store that must not be used."""

    def __init__(self) -> None:
        pass


NO_STORE = NoStore()


class Client:
    """The client side: `reads` lets messages of the server through."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.received: list[dict[str, Any]] = []
        self.closed: tuple[int, str] | None = None
        self._says: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._news = asyncio.Event()

    def say(self, **message: str) -> None:
        self._says.put_nowait({"type": "websocket.receive", "text": json.dumps(message)})

    def leave(self) -> None:
        self._says.put_nowait({"type": "websocket.disconnect", "code": 1000})

    async def receive(self) -> dict[str, Any]:
        return await self._says.get()

    async def send(self, message: dict[str, Any]) -> None:
        await self.reads.wait()
        if message["type"] == "websocket.close":
            self.closed = (message["code"], message["reason"])
            self.leave()
        else:
            self.received.append(json.loads(message["text"]))
        self._news.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not is_so():
                self._news.clear()
                await self._news.wait()


def start_socket(client: Client, rows: Rows) -> tuple[Socket, asyncio.Task[None]]:
    limit = RateLimit(100_000, "too many")
    started = Socket(CALLER, rows, limit, receive=client.receive, send=client.send)
    return started, asyncio.create_task(started.serve())


async def yield_to_loop(count: int = 50) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_client_that_does_not_read_gets_the_newest_state_once_when_it_does() -> None:
    client, rows = Client(), Rows()
    line, serving = start_socket(client, rows)
    names = [f"talk {number}" for number in range(300)]
    for name in names:
        rows.titles[name] = "old"
        client.say(type="subscribe", session_id=name)
    await yield_to_loop(1000)
    for number in range(50):
        for name in names:
            rows.titles[name] = f"title {number}"
            line.mark_changed(name)
        await yield_to_loop()
    assert rows.reads <= 2, "nothing is read that could not be sent"
    client.reads.set()
    await client.until(lambda: {each["session_id"] for each in client.received} == set(names))
    await yield_to_loop(500)
    newest = {each["session_id"]: each["data"]["title"] for each in client.received}
    assert set(newest.values()) == {"title 49"}
    assert len(client.received) <= len(names) + module.IDS_PER_QUERY
    client.leave()
    await asyncio.wait_for(serving, SECONDS)


async def test_of_many_notifications_a_slow_client_gets_the_newest() -> None:
    client, rows = Client(), Rows()
    line, serving = start_socket(client, rows)
    await yield_to_loop()
    for number in range(1000):
        notification = NotificationData(
            title="t", message=str(number), session_id="s", run_id="r", status=SessionStatus.COMPLETED
        )
        line.add_notification(notification)
        if number == 0:
            await yield_to_loop()  # One is already being sent.
    client.reads.set()
    await client.until(lambda: len(client.received) == MAX_PENDING_NOTIFICATIONS + 1)
    assert [each["data"]["message"] for each in client.received[1:]] == [
        str(number) for number in range(1000 - MAX_PENDING_NOTIFICATIONS, 1000)
    ]
    client.leave()
    await asyncio.wait_for(serving, SECONDS)


async def test_a_client_that_does_not_read_is_disconnected_when_it_loses_rights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CLOSE_TIMEOUT_SECONDS", 0.05)

    client, rows = Client(), Rows()
    line, serving = start_socket(client, rows)
    rows.titles["a talk"] = "t"
    client.say(type="subscribe", session_id="a talk")
    await yield_to_loop()
    line.force_close(SIGN_IN_ENDED)
    await asyncio.wait_for(serving, SECONDS)
    assert client.closed is None
    client.reads.set()
    await yield_to_loop()
    assert client.received == [], "nothing is said once it is cut"


async def test_a_deleted_session_is_reported_and_changes_without_a_hint_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "REFRESH_SECONDS", 0.05)

    client, rows = Client(), Rows()
    client.reads.set()
    _line, serving = start_socket(client, rows)
    rows.titles |= {"a talk": "old", "another": "same"}
    client.say(type="subscribe", session_id="a talk")
    client.say(type="subscribe", session_id="another")
    await client.until(lambda: len(client.received) == 2)
    rows.titles["a talk"] = "new"
    await client.until(lambda: len(client.received) == 3)
    assert client.received[2]["data"]["title"] == "new"
    del rows.titles["a talk"]
    await client.until(lambda: len(client.received) == 4)
    assert client.received[3]["detail"]["kind"] == "session_not_found"
    rows.titles["a talk"] = "there again"
    reads_before = rows.reads
    while rows.reads < reads_before + 3:  # noqa: ASYNC110 - bounded by the test's own limit
        await asyncio.sleep(0.01)
    assert len(client.received) == 4, "a deleted session is reported once"
    client.leave()
    await asyncio.wait_for(serving, SECONDS)


@pytest.mark.parametrize("error", [OSError("gone"), WebSocketDisconnect(detail="gone")])
async def test_a_client_that_vanishes_ends_its_socket(error: Exception) -> None:
    client, rows = Client(), Rows()

    async def send(message: dict[str, Any]) -> None:
        raise error

    socket = Socket(CALLER, rows, RateLimit(0, ""), receive=client.receive, send=send)
    serving = asyncio.create_task(socket.serve())
    client.say(type="ping")
    await asyncio.wait_for(serving, SECONDS)


async def test_a_connection_whose_client_took_not_even_a_close_is_dropped() -> None:
    async def talk(_scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        with suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                while True:
                    await send({"type": "websocket.send", "text": "x" * 16 * 1024})

    listener = socket.create_server(("127.0.0.1", 0))
    options = socket_options() | {"log_config": None, "lifespan": "off", "access_log": False}
    server = uvicorn.Server(uvicorn.Config(talk, **options))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        with socket.create_connection(listener.getsockname()) as raw:
            raw.sendall(UPGRADE % b"/")
            connections = server.server_state.connections
            async with asyncio.timeout(SECONDS):
                while not connections:  # noqa: ASYNC110 - uvicorn calls nobody back
                    await asyncio.sleep(0.01)
                while connections:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
    finally:
        server.should_exit = True
        await serving


# --- a real server ----------------------------------------------------------------------------------


def masked(opcode: int, payload: bytes) -> bytes:
    """A frame as clients send it, with a mask that changes nothing."""
    assert len(payload) < 126
    return struct.pack("!BB", 0x80 | opcode, 0x80 | len(payload)) + bytes(4) + payload


@pytest.mark.parametrize("what", ["pings", "messages"])
def test_a_client_that_sends_without_reading_fills_no_memory_of_the_server(tmp_path: Path, what: str) -> None:
    """Unread answers would fill the server's memory; it stops reading instead."""
    frame = masked(0x9, b"x" * 100) if what == "pings" else masked(0x1, b'{"type":"nope"}' + b" " * 80)
    with ServerProcess(tmp_path) as server, ApiClient(server, None).sign_in() as person:
        with open_socket(person) as line:
            line.drain()
        process = psutil.Process(server.process.pid)
        host, port = server.url.removeprefix("http://").split(":")
        before = process.memory_info().rss
        with socket.create_connection((host, int(port)), timeout=2) as raw:
            raw.sendall(UPGRADE % f"/ws?token={new_ticket(person)}".encode())
            assert raw.recv(4096).startswith(b"HTTP/1.1 101")
            sent = sent_until_stuck(raw, frame * 500, 200 * MIB)
        assert sent < 100 * MIB, "the server took whatever came"
        assert process.memory_info().rss - before < 20 * MIB
        with open_socket(person) as line:
            assert line.drain() == [], "others are served"
        assert '"level":"error"' not in server.output


def sent_until_stuck(raw: socket.socket, data: bytes, most: int) -> int:
    """Sends until the server reads no more or closes. Returns the number of bytes sent."""
    sent = 0
    try:
        while sent < most:
            sent += raw.send(data)
    except OSError:
        pass
    return sent


@pytest.mark.heavy
def test_an_open_socket_costs_less_than_50_kb(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server, ApiClient(server, None).sign_in() as admin:
        count, per_person = 200, 20
        people = [admin]
        for number in range(count // per_person - 1):
            people.append(ApiClient(server, None).register(f"user{number}"))
        process = psutil.Process(server.process.pid)
        lines: list[Any] = []
        try:
            for _ in range(3):
                # The first sockets also allocate what all later ones share.
                lines.append(open_line(admin))
            before = process.memory_info().rss
            for person in people:
                for _ in range(per_person - (3 if person is admin else 0)):
                    lines.append(open_line(person))
            grown = (process.memory_info().rss - before) / (len(lines) - 3)
        finally:
            for opening in lines:
                opening.__exit__(None, None, None)
            for person in people[1:]:
                person.http.close()
        print(f"{grown / 1024:.1f} kB each, by {os.cpu_count()} cores")
        assert grown < 50 * 1024


def open_line(person: ApiClient) -> Any:
    opening = open_socket(person)
    opening.__enter__().drain()
    return opening
