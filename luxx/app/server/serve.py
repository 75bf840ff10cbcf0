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
from luxx.api.http.protocol import bounded_protocol, check_deadlines, socket_options
from luxx.app.application import create_app, create_probes
from luxx.app.container import Services
from luxx.app.server.startup import disable_gc, trim_memory
from luxx.errors import ConfigError
from luxx.infra.config.schema import Config, ServerConfig
from luxx.runs.engine.processes import ProcessKind

DRAIN_SECONDS = 3
"""How long a stop waits for open requests before it cuts them; clients attach again where they were."""

FORCED_EXIT_SECONDS = 1.0
"""What a second signal leaves for handing runs over."""

TRIM_MIN_CONNECTIONS = 50
"""When nine in ten of so many, or of more, are closed, the memory that they took is given back."""

TRIM_INTERVAL_SECONDS = 20.0
"""At most so often."""

LOOPBACK = "127.0.0.1"


class _MaintainedServer(uvicorn.Server):
    """Ends connections that are late, and returns memory once many are gone."""

    _peak = 0
    _trimmed_at = 0.0

    async def on_tick(self, counter: int) -> bool:
        # uvicorn comes by every tenth of a second.
        if counter % 10 == 0:
            now = asyncio.get_running_loop().time()
            check_deadlines(self.server_state.connections, now)
            self._trim_memory(len(self.server_state.connections), now)
        return await super().on_tick(counter)

    def _trim_memory(self, connections: int, now: float) -> None:
        self._peak = max(self._peak, connections)
        # Not while many stay: it holds the event loop up for tens of milliseconds.
        is_over = self._peak >= TRIM_MIN_CONNECTIONS and connections <= self._peak // 10
        if is_over and now - self._trimmed_at >= TRIM_INTERVAL_SECONDS:
            trim_memory()
            self._peak, self._trimmed_at = connections, now


class ApiServer(_MaintainedServer):
    """Opens and closes the house around serving, and says where it listens once it does."""

    def __init__(self, services: Services, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._services = services
        self._drain_task: asyncio.Task[None] | None = None

    async def startup(self, sockets: Any = None) -> None:
        # Not by ASGI's lifespan: what refuses the start is one sentence, not a traceback.
        self._loop = asyncio.get_running_loop()
        await self._services.open()
        await super().startup(sockets)
        if self.started:
            host = self.config.host
            port = self.servers[0].sockets[0].getsockname()[1]
            url_host = f"[{host}]" if ":" in host else host
            print(f"Luxx listens on http://{url_host}:{port}", flush=True)
            if token := await self._services.password_setup.token():
                where = setup_address(host, port, self._services.config.server.allowed_hosts)
                print(f"Set the administrator's password: {where}?token={token}", flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """While runs are given their time it goes on listening, and says that it is not ready."""
        if not self.started:
            super().handle_exit(sig, frame)
            return
        self._captured_signals.append(sig)
        is_first = len(self._captured_signals) == 1
        self._loop.call_soon_threadsafe(self._stop if is_first else self._exit_now)

    def _stop(self) -> None:
        self._services.stop_admitting()
        self._drain_task = asyncio.create_task(self._exit_after_drain())

    async def _exit_after_drain(self) -> None:
        await self._services.drain()
        self.should_exit = True

    def _exit_now(self) -> None:
        force_exit_soon()
        self._services.end_drain()
        self.should_exit = self.force_exit = True

    async def shutdown(self, sockets: Any = None) -> None:
        self._services.stop_admitting()
        await super().shutdown(sockets)
        await self._services.close()


def setup_address(host: str, port: int, allowed_hosts: Sequence[str]) -> str:
    """Where a browser on this machine opens the page that sets the first password."""
    name = {"0.0.0.0": LOOPBACK, "": LOOPBACK, "::": "::1"}.get(host, host)
    if allowed_hosts and not {"*", name}.intersection(allowed_hosts):
        # A request under another name than those would be refused.
        name, _, listed_port = allowed_hosts[0].removeprefix("*.").partition(":")
        port = int(listed_port) if listed_port.isdecimal() else port
    url_host = f"[{name}]" if ":" in name else name
    return f"http://{url_host}:{port}/setup"


class _ProbeServer(_MaintainedServer):
    """Answers beside a worker, which takes the signals itself."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def serve(config: Config) -> bool:
    """Serves clients until a signal; False where it could not start. Raises ConfigError with what to do."""
    disable_gc()
    services = Services(config)
    settings = _uvicorn_config(create_app(services), config.app.host, config.app.port, config.server)
    # Before anything is opened: a port that is taken must not cost a run its place.
    listen_socket = listen(config.app.host, config.app.port, settings.backlog)
    server = ApiServer(services, settings)
    with listen_socket:
        server.run(sockets=[listen_socket])
    return server.started


def run_worker(config: Config, health_port: int | None) -> None:
    """Drives runs until a signal. Raises ConfigError with what to do."""
    if config.database.type == "sqlite":
        raise ConfigError(
            "a worker shares a PostgreSQL database with the servers it works for; with SQLite the one server "
            "does the work itself: run `luxx serve`, or set database.url to postgresql://…"
        )
    disable_gc()
    services = Services(config, kind=ProcessKind.WORKER)
    settings = _uvicorn_config(create_probes(services), LOOPBACK, health_port or 0, config.server)
    listen_socket = None if health_port is None else listen(LOOPBACK, health_port, settings.backlog)
    with asyncio.Runner(loop_factory=settings.get_loop_factory()) as runner:
        runner.run(
            _run_worker(services, None if listen_socket is None else _ProbeServer(settings), listen_socket)
        )


async def _run_worker(
    services: Services, probes: _ProbeServer | None, listen_socket: socket.socket | None
) -> None:
    stop_event = asyncio.Event()

    def on_signal() -> None:
        if stop_event.is_set():
            force_exit_soon()
            services.end_drain()
        stop_event.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    await services.open()
    probe_task = None
    if probes is not None and listen_socket is not None:
        probe_task = asyncio.create_task(probes.serve(sockets=[listen_socket]))
        print(f"health on http://{LOOPBACK}:{listen_socket.getsockname()[1]}", flush=True)
    print(f"Luxx works as process {services.process}", flush=True)
    await stop_event.wait()
    services.stop_admitting()
    await services.drain()
    if probes is not None and probe_task is not None:
        probes.should_exit = True
        await probe_task
    await services.close()


def listen(host: str, port: int, backlog: int = 2048) -> socket.socket:
    """A socket that is bound. Raises ConfigError with what to do."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=backlog)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose another --port or --host"
        ) from error


def force_exit_soon() -> None:
    """Ends the process as a kill would, if it has not ended by then: whoever finds its runs goes on."""
    timer = threading.Timer(FORCED_EXIT_SECONDS, os._exit, (1,))
    timer.daemon = True
    timer.start()


def _uvicorn_config(app: Litestar, host: str, port: int, config: ServerConfig) -> uvicorn.Config:
    bounds = ConnectionBounds(config, raise_descriptor_limit())
    return uvicorn.Config(
        cast("Any", app),
        host=host,
        port=port,
        http=bounded_protocol(bounds),
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
