"""Exports: one at a time per user, few for all users, and ended for a client that does not read."""

import asyncio
import logging
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn
from api.client import ApiClient
from migrated_databases import make_ready
from sample_user import add_user

from luxx.api.http.files import SEND_BYTES, TempFileASGIResponse
from luxx.api.http.protocol import STALLED_CLIENT_SECONDS, BoundedProtocol
from luxx.domain.accounts.caller import Caller
from luxx.domain.transfer.service import MOST_EXPORTS, TransferService
from luxx.errors import NotFound, TooMany
from luxx.infra.config.schema import FilesConfig
from luxx.infra.store.engine import READERS, Store, open_engine, resolve_url
from luxx.runs.service import delete_runs
from luxx.wire.tool import CommandPermission
from transfer.imports import import_data

SECONDS = 30.0
MIB = 1024 * 1024


def large_chat(megabytes: int) -> dict[str, Any]:
    messages = [
        {"uuid": f"m{position}", "sender": ("human", "assistant")[position % 2], "text": "x" * 999_999}
        for position in range(megabytes)
    ]
    return {"uuid": "c", "name": "large", "chat_messages": messages}


@contextmanager
def not_reading(person: ApiClient, path: str) -> Iterator[socket.socket]:
    """A connection that requests the path and reads only what fits into a minimal buffer."""
    address = urlsplit(person.server.url)
    with closing(socket.socket()) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(SECONDS)
        connection.connect((address.hostname, address.port))
        head = f"GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {person.token}\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(12) == b"HTTP/1.1 200"
        yield connection


def test_another_export_waits_for_the_end_of_the_first(ann: ApiClient, ben: ApiClient) -> None:
    (large,) = import_data(ann, large_chat(24))["conversation_ids"]
    path = f"/conversations/{large}/export"
    with not_reading(ann, path):
        for asked in (path, f"{path}?format=md"):
            response = ann.ask("GET", asked)
            assert response.status_code == 429
            assert response.json()["detail"]["kind"] == "export_active"
            assert int(response.headers["retry-after"]) > 0
        (small,) = import_data(ben, large_chat(1))["conversation_ids"]
        assert ben.ask("GET", f"/conversations/{small}/export").is_success
    end = time.monotonic() + SECONDS
    while (response := ann.ask("GET", path)).status_code == 429:
        assert time.monotonic() < end
    assert len(response.content) > 24 * 999_999


def test_a_failed_export_frees_its_slot(ann: ApiClient) -> None:
    for _ in range(3):
        ann.bad("GET", "/conversations/none/export", 404)


def caller(user_id: int) -> Caller:
    return Caller(
        user_id=user_id,
        tenant_id=1,
        username="u",
        permission_level=CommandPermission.READ_ONLY,
        sign_in_id="",
    )


async def test_few_exports_are_written_at_a_time(tmp_path: Path) -> None:
    """An export counts as long as it uses a thread, also if its client has left."""
    engine = open_engine(resolve_url("sqlite:///./t.db", tmp_path))
    make_ready(engine)
    store = Store(engine)
    store.write_now(add_user)
    transfer = TransferService(store, tmp_path, FilesConfig(), delete_runs=delete_runs)
    free = threading.Event()

    async def work() -> None:
        busy = [asyncio.create_task(store.read(lambda _: free.wait(SECONDS))) for _ in range(READERS)]
        await asyncio.sleep(0)
        exports = [
            asyncio.create_task(transfer.export_json(caller(id_), "none")) for id_ in range(MOST_EXPORTS)
        ]
        await asyncio.sleep(0)
        exports[0].cancel()
        await asyncio.wait(exports[:1])
        with pytest.raises(TooMany) as refusal:
            await transfer.export_markdown(caller(MOST_EXPORTS), "none")
        assert refusal.value.kind == "export_active"
        free.set()
        await asyncio.gather(*busy)
        with pytest.raises(NotFound):
            await exports[1]
        for id_ in (0, 1, MOST_EXPORTS):
            with pytest.raises(NotFound):
                await transfer.export_json(caller(id_), "none")

    try:
        await asyncio.wait_for(work(), SECONDS)
    finally:
        free.set()
        store.close()


class SlowFileServer:
    """A server of one large file with a time limit on each piece."""

    def __init__(self, seconds: float) -> None:
        self.closed = asyncio.Event()
        self._seconds = seconds
        self.protocols: set[Any] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with tempfile.TemporaryFile() as file:
            file.write(b"x" * 32 * MIB)
            file.seek(0)
            headers = {"content-type": "text/plain", "content-length": str(32 * MIB)}
            answer = TempFileASGIResponse(file, headers, close=self.closed.set, stalled_seconds=self._seconds)
            await answer(scope, receive, send)

    async def serve(self, talk: Any) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(self, http=BoundedProtocol, log_config=None, lifespan="off", access_log=False)
        server = uvicorn.Server(config)
        self.protocols = server.server_state.connections
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_connect(client, listener.getsockname())
            await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
            async with asyncio.timeout(SECONDS):
                await talk(client)
        finally:
            client.close()
            server.should_exit = True
            await serving


async def test_a_client_that_does_not_read_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    stall = SlowFileServer(0.3)

    async def talk(client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        await stall.closed.wait()
        received = 0
        while data := await loop.sock_recv(client, MIB):
            received += len(data)
        assert received < 32 * MIB

    await stall.serve(talk)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_client_that_reads_slowly_gets_all_of_it() -> None:
    stall = SlowFileServer(5.0)

    async def talk(client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        received = 0
        while received < 32 * MIB:
            received += len(await loop.sock_recv(client, SEND_BYTES))
        await stall.closed.wait()

    await stall.serve(talk)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has no such bound")
async def test_the_system_drops_a_client_that_reads_no_answer() -> None:
    stall = SlowFileServer(SECONDS)

    async def talk(client: socket.socket) -> None:
        await asyncio.get_running_loop().sock_recv(client, 1)
        (protocol,) = stall.protocols
        raw_socket = protocol.transport.get_extra_info("socket")
        milliseconds = raw_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert milliseconds == STALLED_CLIENT_SECONDS * 1000

    await stall.serve(talk)
