"""Processes that run until a signal ends them: `luxx serve`, which answers clients, and `luxx worker`.

The first SIGTERM or SIGINT stops with grace, the second at once.
"""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, cast

import uvicorn
from litestar import Litestar

from luxx.api.http.connections import ConnectionBounds, raise_descriptor_limit
from luxx.api.http.protocol import bounded, check_deadlines, socket_options
from luxx.app.application import create_app, create_probes
from luxx.app.container import House
from luxx.app.server.startup import begin, give_back
from luxx.errors import ConfigError
from luxx.infra.config.schema import Config, ServerConfig
from luxx.runs.engine.processes import ProcessKind

DRAIN_SECONDS = 3
"""How long a stop waits for open requests before it cuts them; clients attach again where they were."""

LAST_SECONDS = 1.0
"""What a second signal leaves for handing runs over."""

MANY_CONNECTIONS = 50
"""When nine in ten of so many, or of more, are closed, the memory that they took is given back."""

GIVE_BACK_SECONDS = 20.0
"""At most so often."""

LOOPBACK = "127.0.0.1"


class _Timed(uvicorn.Server):
    """Ends connections that are late, and returns memory once many are gone."""

    _peak = 0
    _given_back = 0.0

    async def on_tick(self, counter: int) -> bool:
        # uvicorn comes by every tenth of a second.
        if counter % 10 == 0:
            now = asyncio.get_running_loop().time()
            check_deadlines(self.server_state.connections, now)
            self._give_back(len(self.server_state.connections), now)
        return await super().on_tick(counter)

    def _give_back(self, connections: int, now: float) -> None:
        self._peak = max(self._peak, connections)
        # Not while many stay: it holds the event loop up for tens of milliseconds.
        is_over = self._peak >= MANY_CONNECTIONS and connections <= self._peak // 10
        if is_over and now - self._given_back >= GIVE_BACK_SECONDS:
            give_back()
            self._peak, self._given_back = connections, now


class Server(_Timed):
    """Opens and closes the house around serving, and says where it listens once it does."""

    def __init__(self, house: House, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._house = house
        self._leaving: asyncio.Task[None] | None = None

    async def startup(self, sockets: Any = None) -> None:
        # Not by ASGI's lifespan: what refuses the start is one sentence, not a traceback.
        self._loop = asyncio.get_running_loop()
        await self._house.open()
        await super().startup(sockets)
        if self.started:
            host = self.config.host
            port = self.servers[0].sockets[0].getsockname()[1]
            shown = f"[{host}]" if ":" in host else host
            print(f"Luxx listens on http://{shown}:{port}", flush=True)
            if token := await self._house.password_setup.token():
                where = setup_address(host, port, self._house.config.server.allowed_hosts)
                print(f"Set the administrator's password: {where}?token={token}", flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """While runs are given their time it goes on listening, and says that it is not ready."""
        if not self.started:
            super().handle_exit(sig, frame)
            return
        self._captured_signals.append(sig)
        is_first = len(self._captured_signals) == 1
        self._loop.call_soon_threadsafe(self._leave if is_first else self._leave_at_once)

    def _leave(self) -> None:
        self._house.leave()
        self._leaving = asyncio.create_task(self._leave_when_done())

    async def _leave_when_done(self) -> None:
        await self._house.drain()
        self.should_exit = True

    def _leave_at_once(self) -> None:
        end_soon()
        self._house.hurry()
        self.should_exit = self.force_exit = True

    async def shutdown(self, sockets: Any = None) -> None:
        self._house.leave()
        await super().shutdown(sockets)
        await self._house.close()


def setup_address(host: str, port: int, allowed_hosts: Sequence[str]) -> str:
    """Where a browser on this machine opens the page that sets the first password."""
    name = {"0.0.0.0": LOOPBACK, "": LOOPBACK, "::": "::1"}.get(host, host)
    if allowed_hosts and not {"*", name}.intersection(allowed_hosts):
        # A request under another name than those would be refused.
        name, _, listed_port = allowed_hosts[0].removeprefix("*.").partition(":")
        port = int(listed_port) if listed_port.isdecimal() else port
    shown = f"[{name}]" if ":" in name else name
    return f"http://{shown}:{port}/setup"


class _Probes(_Timed):
    """Answers beside a worker, which takes the signals itself."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def serve(config: Config) -> bool:
    """Serves clients until a signal; False where it could not start. Raises ConfigError with what to do."""
    begin()
    house = House(config)
    settings = _settings(create_app(house), config.app.host, config.app.port, config.server)
    # Before anything is opened: a port that is taken must not cost a run its place.
    listening = listen(config.app.host, config.app.port, settings.backlog)
    server = Server(house, settings)
    with listening:
        server.run(sockets=[listening])
    return server.started


def work(config: Config, health_port: int | None) -> None:
    """Drives runs until a signal. Raises ConfigError with what to do."""
    if config.database.type == "sqlite":
        raise ConfigError(
            "a worker shares a PostgreSQL database with the servers it works for; with SQLite the one server "
            "does the work itself: run `luxx serve`, or set database.url to postgresql://…"
        )
    begin()
    house = House(config, kind=ProcessKind.WORKER)
    settings = _settings(create_probes(house), LOOPBACK, health_port or 0, config.server)
    listening = None if health_port is None else listen(LOOPBACK, health_port, settings.backlog)
    with asyncio.Runner(loop_factory=settings.get_loop_factory()) as runner:
        runner.run(_work(house, None if listening is None else _Probes(settings), listening))


async def _work(house: House, probes: _Probes | None, listening: socket.socket | None) -> None:
    ends = asyncio.Event()

    def take_signal() -> None:
        if ends.is_set():
            end_soon()
            house.hurry()
        ends.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, take_signal)
    await house.open()
    answering = None
    if probes is not None and listening is not None:
        answering = asyncio.create_task(probes.serve(sockets=[listening]))
        print(f"health on http://{LOOPBACK}:{listening.getsockname()[1]}", flush=True)
    print(f"Luxx works as process {house.process}", flush=True)
    await ends.wait()
    house.leave()
    await house.drain()
    if probes is not None and answering is not None:
        probes.should_exit = True
        await answering
    await house.close()


def listen(host: str, port: int, backlog: int = 2048) -> socket.socket:
    """A socket that is bound. Raises ConfigError with what to do."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=backlog)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose another --port or --host"
        ) from error


def end_soon() -> None:
    """Ends the process as a kill would, if it has not ended by then: whoever finds its runs goes on."""
    timer = threading.Timer(LAST_SECONDS, os._exit, (1,))
    timer.daemon = True
    timer.start()


def _settings(app: Litestar, host: str, port: int, config: ServerConfig) -> uvicorn.Config:
    bounds = ConnectionBounds(config, raise_descriptor_limit())
    return uvicorn.Config(
        cast("Any", app),
        host=host,
        port=port,
        http=bounded(bounds),
        backlog=bounds.backlog,
        timeout_keep_alive=config.keep_alive_seconds,
        log_config=None,
        access_log=False,
        lifespan="off",
        # Who the peer is behind a proxy is judged in `api/guards.py`, by server.trusted_proxies.
        proxy_headers=False,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        server_header=False,
        **socket_options(),
    )
