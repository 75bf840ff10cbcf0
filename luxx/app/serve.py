"""The processes `luxx serve` and `luxx worker`, which run until a signal ends them, and the checks of starts.

The checks come before anything is created or changed, so that a refused start leaves no files behind. The
first SIGTERM or SIGINT lets runs end within `runs.grace_seconds`; the second stops at once.
"""

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from types import FrameType
from typing import Any, cast

import uvicorn
from litestar import Litestar
from sqlalchemy.exc import SQLAlchemyError

from luxx.api.http.connection_limits import ConnectionBounds, raise_descriptor_limit
from luxx.api.http.protocol import bounded_protocol, check_deadlines, socket_options
from luxx.app.application import create_app, create_probes
from luxx.app.container import Services
from luxx.app.startup import disable_gc, trim_memory
from luxx.errors import ConfigError
from luxx.infra.config.schema import Config, ServerConfig
from luxx.infra.observe import output_stream
from luxx.infra.secrets import find_secret
from luxx.infra.store.engine import database_error, open_engine, resolve_url, sqlite_file
from luxx.infra.store.upgrade import current_step, known_steps, unknown_step_error
from luxx.runs.engine.processes import ProcessKind
from luxx.web.files import WebFiles

DRAIN_SECONDS = 3
"""How long a stop waits for open requests before it aborts them. Clients can resume their streams."""

FORCED_EXIT_SECONDS = 1.0
"""After the second signal, the time left to release runs to other processes."""

TRIM_MIN_CONNECTIONS = 50
"""Once nine in ten of at least this many connections are closed, free memory returns to the system."""

TRIM_INTERVAL_SECONDS = 20.0
"""The least time between two trims."""

LOOPBACK = "127.0.0.1"
DEFAULT_ADDRESS = f"http://{LOOPBACK}:8000"
"""Where the commands of the terminal look for a server."""


@contextmanager
def database_errors() -> Generator[None]:
    """Raises errors of the database as LuxxError, with one sentence."""
    try:
        yield
    except SQLAlchemyError as error:
        raise database_error(error) from error


class _MaintainedServer(uvicorn.Server):
    """Ends connections past their deadline, and trims memory after many connections closed."""

    _peak = 0
    _trimmed_at = 0.0

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        # uvicorn calls it every second, unless the last call was less than `timeout_notify` ago.
        config.callback_notify, config.timeout_notify = self._maintain, 0

    async def _maintain(self) -> None:
        now = asyncio.get_running_loop().time()
        check_deadlines(self.server_state.connections, now)
        self._trim_memory(len(self.server_state.connections), now)

    def _trim_memory(self, connections: int, now: float) -> None:
        self._peak = max(self._peak, connections)
        # Not while many are open: a trim blocks the event loop for tens of milliseconds.
        is_over = self._peak >= TRIM_MIN_CONNECTIONS and connections <= self._peak // 10
        if is_over and now - self._trimmed_at >= TRIM_INTERVAL_SECONDS:
            trim_memory()
            self._peak, self._trimmed_at = connections, now


class ApiServer(_MaintainedServer):
    """Opens the services before it listens and closes them afterwards; prints its URL once it listens."""

    def __init__(self, services: Services, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._services = services
        self._drain_task: asyncio.Task[None] | None = None
        self._signals = 0

    async def startup(self, sockets: Any = None) -> None:
        # Not in ASGI's lifespan: uvicorn would print a traceback where the start is refused.
        self._loop = asyncio.get_running_loop()
        await self._services.open()
        await super().startup(sockets)
        if self.started:
            host = self.config.host
            port = self.servers[0].sockets[0].getsockname()[1]
            url_host = f"[{host}]" if ":" in host else host
            local = local_address(host, port, self._services.config.server.allowed_hosts)
            announce(
                f"Luxx listens on http://{url_host}:{port}",
                "Open it in a browser, or chat in another terminal: "
                f"luxx chat{'' if local == DEFAULT_ADDRESS else f' --url {local}'}",
            )
            problem = WebFiles().problem()
            if problem:
                announce(f"The web UI is missing: {problem}")
            # Whoever reads this on the terminal signs in at the address above; a log is read elsewhere.
            is_at_hand = problem is None and sys.stdout.isatty() and is_loopback(host)
            token = None if is_at_hand else await self._services.password_setup.token()
            if token:
                announce(f"Set the administrator's password: {local}/setup?token={token}")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Starts the stop. The server keeps listening while runs drain, and reports that it is not ready."""
        before = self.should_exit, self.force_exit
        # uvicorn keeps the signal, to raise it again after the stop.
        super().handle_exit(sig, frame)
        if not self.started:
            return
        self.should_exit, self.force_exit = before
        self._signals += 1
        self._loop.call_soon_threadsafe(self._stop if self._signals == 1 else self._exit_now)

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


def announce(*lines: str) -> None:
    """Prints lines on stdout, whose reader may be gone."""
    output_stream(sys.stdout).write("".join(f"{line}\n" for line in lines))


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def local_address(host: str, port: int, allowed_hosts: Sequence[str]) -> str:
    """The URL of the server for clients on this machine."""
    name = {"0.0.0.0": LOOPBACK, "": LOOPBACK, "::": "::1"}.get(host, host)
    if allowed_hosts and not {"*", name}.intersection(allowed_hosts):
        # The server refuses requests with another host name.
        name, _, listed_port = allowed_hosts[0].removeprefix("*.").partition(":")
        port = int(listed_port) if listed_port.isdecimal() else port
    url_host = f"[{name}]" if ":" in name else name
    return f"http://{url_host}:{port}"


class _ProbeServer(_MaintainedServer):
    """Serves the probes of a worker. The worker handles the signals."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def serve(config: Config) -> bool:
    """Serves clients until a signal. Returns False if it could not start. Raises LuxxError."""
    disable_gc()
    check_start(config)
    bounds = ConnectionBounds(config.server, raise_descriptor_limit())
    # Before the services: a process that fails to listen must not write files or claim runs first.
    with listen(config.app.host, config.app.port, bounds.backlog) as listen_socket:
        services = Services(config)
        settings = _uvicorn_config(
            create_app(services), config.app.host, config.app.port, config.server, bounds
        )
        server = ApiServer(services, settings)
        server.run(sockets=[listen_socket])
    return server.started


def run_worker(config: Config, health_port: int | None) -> None:
    """Drives runs until a signal. Raises LuxxError, also with a SQLite database."""
    if config.database.type == "sqlite":
        raise ConfigError(
            "`luxx worker` needs a PostgreSQL database that it shares with the servers; with SQLite the "
            "server drives all runs itself: run `luxx serve`, or set database.url to postgresql://…"
        )
    disable_gc()
    check_start(config)
    bounds = ConnectionBounds(config.server, raise_descriptor_limit())
    listen_socket = None if health_port is None else listen(LOOPBACK, health_port, bounds.backlog)
    services = Services(config, kind=ProcessKind.WORKER)
    settings = _uvicorn_config(create_probes(services), LOOPBACK, health_port or 0, config.server, bounds)
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
        announce(f"health on http://{LOOPBACK}:{listen_socket.getsockname()[1]}")
    announce(f"Luxx worker runs as process {services.process_id}")
    await stop_event.wait()
    services.stop_admitting()
    await services.drain()
    if probes is not None and probe_task is not None:
        probes.should_exit = True
        await probe_task
    await services.close()


def listen(host: str, port: int, backlog: int = 2048) -> socket.socket:
    """A listening socket. Raises ConfigError if the address is not available."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=backlog)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose another --port or --host"
        ) from error


def force_exit_soon() -> None:
    """Exits after FORCED_EXIT_SECONDS without cleaning up. Other processes then recover the runs."""
    timer = threading.Timer(FORCED_EXIT_SECONDS, os._exit, (1,))
    timer.daemon = True
    timer.start()


def _uvicorn_config(
    app: Litestar, host: str, port: int, config: ServerConfig, bounds: ConnectionBounds
) -> uvicorn.Config:
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
        # `api/http/authentication.py` finds the peer behind a proxy, with server.trusted_proxies.
        proxy_headers=False,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        server_header=False,
        **socket_options(),
    )


def check_start(config: Config, *, needs_data: bool = False) -> None:
    """Raises ConfigError, DatabaseTooNew or DatabaseTooOld with what has to be changed; changes nothing.

    `needs_data`: the command works on the data of a server, so a missing or empty database is refused.
    """
    data_dir = Path(config.data_dir)
    _check_directory(data_dir, "the data directory", "give another one with --data-dir")
    root, fix = Path(config.workspace.root), "set workspace.root to a directory that the server may write"
    _check_directory(root, "workspace.root", fix)
    url = resolve_url(config.database.url, data_dir)
    file = sqlite_file(url)
    if config.app.secret_key or file is None:
        find_secret(config.app.secret_key, data_dir, is_shared=file is None)
    if file is not None:
        _check_file(file)
    if file is not None and not file.exists():
        if needs_data:
            raise ConfigError(_no_database(str(file)))
        return
    step = _step_of_database(config, data_dir)
    if step is not None and step not in known_steps():
        raise unknown_step_error(step)
    if step is None and needs_data:
        raise ConfigError(_no_database(str(file) if file else f"database '{url.database}' on {url.host}"))


def _step_of_database(config: Config, data_dir: Path) -> str | None:
    engine = open_engine(resolve_url(config.database.url, data_dir))
    try:
        return current_step(engine)
    except SQLAlchemyError as error:
        raise database_error(error, engine.url) from error
    finally:
        engine.dispose()


def _no_database(name: str) -> str:
    return (
        f"there is no Luxx database at {name}; give the data directory of the server with --data-dir, or "
        "start the server once before"
    )


def _check_directory(path: Path, name: str, fix: str) -> None:
    try:
        existing = next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())
    except OSError as error:
        raise ConfigError(f"{name} {path}: {error.strerror or error}; {fix}") from error
    if not existing.is_dir():
        raise ConfigError(f"{name} {path}: {existing} is a file, not a directory; {fix}")
    if not os.access(existing, os.R_OK | os.W_OK | os.X_OK if path.exists() else os.W_OK | os.X_OK):
        problem = "is not writable" if path.exists() else f"cannot be created in {existing}"
        raise ConfigError(f"{name} {path} {problem} for this user; {fix}")


def _check_file(file: Path) -> None:
    fix = "change database.url, or give another --data-dir"
    if file.is_dir():
        raise ConfigError(f"the database {file} is a directory, not a file; {fix}")
    if file.exists() and not os.access(file, os.R_OK | os.W_OK):
        raise ConfigError(f"the database {file} is not writable for this user; {fix}")
    if not file.exists():
        _check_directory(file.parent, "the directory of the database", fix)
