"""Clients of streams that do not read lose what they may not see all the same; and how else a stream ends."""

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
from luxx.app.container import House
from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.changes import AccountChange, Because
from luxx.infra.clock import new_id, utc_now
from luxx.infra.config.schema import AppConfig, Config
from luxx.runs.streams.hub import RING, Frame
from luxx.runs.streams.watch import Watch
from luxx.wire.run import Run, RunKind, RunStatus
from luxx.wire.tool import CommandPermission

SECONDS = 20.0
CUT_SECONDS = 5.0
FRAME = b": " + b"x" * 32 * 1024 + b"\n\n"
CALLER = Caller(
    user_id=1, tenant_id=1, username="ann", permission_level=CommandPermission.READ_ONLY, sign_in_id="s"
)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """Not opened: nothing is read or written here."""
    made = House(
        Config(app=AppConfig(secret_key="a-secret-key-of-a-test-of-32-bytes"), data_dir=str(tmp_path))
    )
    yield made
    made.release()


class Line:
    """One client that reads only when told to, and the stream that it has."""

    def __init__(self, house: House, *, from_the_log: bool = False) -> None:
        self._house = house
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
        async def watch() -> Watch:
            made = Watch(self._house.hub, self._house.store, self.run)
            if not self._from_the_log:
                made.attach_first()
            return made

        followed = await self._house.streams.follow(CALLER, watch)
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


def test_a_stream_that_is_not_read_is_cut_when_its_user_loses_it(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        line = Line(house)

        async def talk() -> None:
            with house.hub.driven(line.run.id, 0) as channel:
                for _ in range(RING):
                    channel.publish(Frame(FRAME))
                    await asyncio.sleep(0)
                assert len(house.streams) == 1
                house.account_changes.tell(AccountChange(user_id=1, because=Because.DISABLED))
                async with asyncio.timeout(CUT_SECONDS):
                    await line.ended.wait()
                assert len(house.streams) == 0
                assert house.hub.watchers == 0

        await line.serve(talk)

    asyncio.run(work())
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_stream_ends_when_its_client_leaves(house: House) -> None:
    async def work() -> None:
        line = Line(house)

        async def talk() -> None:
            await asyncio.get_running_loop().sock_recv(line.client, 1)
            assert house.hub.watchers == 1
            line.client.close()
            await line.ended.wait()
            assert (len(house.streams), house.hub.watchers) == (0, 0)

        await line.serve(talk)

    asyncio.run(work())


def test_a_stream_whose_log_cannot_be_read_ends_whole_and_says_to_come_again(
    house: House,
) -> None:
    async def work() -> None:
        line = Line(house, from_the_log=True)
        heard = b""

        async def talk() -> None:
            nonlocal heard
            while not heard.endswith(b"0\r\n\r\n"):
                more = await asyncio.get_running_loop().sock_recv(line.client, 4096)
                assert more, "it was cut in the middle"
                heard += more
            await line.ended.wait()
            assert (len(house.streams), house.hub.watchers) == (0, 0)

        # Nobody has made its tables.
        await line.serve(talk)
        assert b"event: run\n" in heard
        assert b"retry: 1000\n\n" in heard

    asyncio.run(work())
