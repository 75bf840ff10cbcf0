"""Streams whose clients do not read end when the user loses access; and the other ways in which a stream
ends.
"""

import asyncio
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from litestar import Request

from luxx.api.http.protocol import BoundedProtocol
from luxx.app.container import Services
from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.rights import AccountChange, RevocationReason
from luxx.infra.clock import new_id, utc_now
from luxx.infra.config.schema import AppConfig, Config
from luxx.runs.log.channel import RING_FRAMES, Frame
from luxx.runs.streams.watch import RunWatch
from luxx.wire.run import Run, RunKind, RunStatus
from luxx.wire.tool import CommandPermission

SECONDS = 20.0
CUT_SECONDS = 5.0
FRAME = b": " + b"x" * 32 * 1024 + b"\n\n"
CALLER = Caller(
    user_id=1, tenant_id=1, username="ann", permission_level=CommandPermission.READ_ONLY, sign_in_id="s"
)


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    """Not opened: nothing is read or written."""
    services = Services(
        Config(app=AppConfig(secret_key="a-secret-key-of-a-test-of-32-bytes"), data_dir=str(tmp_path))
    )
    yield services
    services.release()


class SlowClient:
    """One client and its stream; the client reads only when the test lets it."""

    def __init__(self, services: Services, *, from_the_log: bool = False) -> None:
        self._services = services
        self._from_the_log = from_the_log
        self.run = Run(
            id=new_id(),
            kind=RunKind.CHAT,
            subject_id="s",
            status=RunStatus.RUNNING,
            created_at=utc_now(),
        )
        self.began = asyncio.Event()
        self.ended = asyncio.Event()
        self.client = socket.socket()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def watch() -> RunWatch:
            watch = RunWatch(self._services.hub, self._services.store, self.run)
            if not self._from_the_log:
                watch.attach_before_start()
            return watch

        followed = await self._services.streams.follow(CALLER, watch)
        self.began.set()
        await followed.to_asgi_response(None, Request(scope))(scope, receive, send)
        self.ended.set()

    async def serve(self, talk: Any) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(
            self,  # type: ignore[arg-type]
            http=BoundedProtocol,
            log_config=None,
            lifespan="off",
            access_log=False,
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        self.client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.client.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(SECONDS):
                await loop.sock_connect(self.client, listener.getsockname())
                await loop.sock_sendall(self.client, b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
                await self.began.wait()
                await talk()
        finally:
            self.client.close()
            server.should_exit = True
            await serving


async def test_an_unread_stream_ends_when_its_user_loses_access(
    services: Services, caplog: pytest.LogCaptureFixture
) -> None:
    slow_client = SlowClient(services)

    async def talk() -> None:
        with services.hub.driven(slow_client.run.id, 0) as channel:
            for _ in range(RING_FRAMES):
                channel.publish(Frame(FRAME))
                await asyncio.sleep(0)
            assert len(services.streams) == 1
            services.account_changes.publish(AccountChange(user_id=1, because=RevocationReason.DISABLED))
            async with asyncio.timeout(CUT_SECONDS):
                await slow_client.ended.wait()
            assert len(services.streams) == 0
            assert services.hub.watchers == 0

    await slow_client.serve(talk)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_stream_ends_when_its_client_leaves(services: Services) -> None:
    slow_client = SlowClient(services)

    async def talk() -> None:
        await asyncio.get_running_loop().sock_recv(slow_client.client, 1)
        assert services.hub.watchers == 1
        slow_client.client.close()
        await slow_client.ended.wait()
        assert (len(services.streams), services.hub.watchers) == (0, 0)

    await slow_client.serve(talk)


async def test_a_stream_whose_log_cannot_be_read_ends_with_a_whole_frame_that_asks_to_retry(
    services: Services,
) -> None:
    slow_client = SlowClient(services, from_the_log=True)
    received_bytes = b""

    async def talk() -> None:
        nonlocal received_bytes
        while not received_bytes.endswith(b"0\r\n\r\n"):
            more = await asyncio.get_running_loop().sock_recv(slow_client.client, 4096)
            assert more, "it was cut in the middle"
            received_bytes += more
        await slow_client.ended.wait()
        assert (len(services.streams), services.hub.watchers) == (0, 0)

    # The database has no tables.
    await slow_client.serve(talk)
    assert b"event: run\n" in received_bytes
    assert b"retry: 1000\n\n" in received_bytes
