"""`luxx serve|worker|migrate|doctor|packages`: the processes of an installation, and its state."""

import argparse
import asyncio
import os
from pathlib import Path

import msgspec
import uvicorn
from litestar import Litestar
from sqlalchemy import Engine

from luxx.api.http.protocol import BoundedProtocol, socket_options
from luxx.app.application import create_app
from luxx.app.cli.command_line import configure, port
from luxx.app.cli.doctor.checks import examine_installation
from luxx.app.container import Services
from luxx.app.core_services import SEALED_COLUMNS
from luxx.app.serve import DRAIN_SECONDS, check_start, database_errors, run_worker, serve
from luxx.errors import Unavailable
from luxx.infra.config.schema import Config
from luxx.infra.secrets import Vault, find_secret
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.infra.store.upgrade import upgrade_database
from luxx.providers.queries import delete_unreadable_keys
from luxx.tools.sandbox.service import Sandbox, install_packages

RELOAD_VARIABLE = "LUXX_RELOAD_ARGUMENTS"
"""With `serve --reload` the parent process passes its arguments to the serving process in this variable."""


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host")
    parser.add_argument("--port", type=port)
    parser.add_argument("--reload", action="store_true", help="start again when the code changes")
    parser.set_defaults(run=_serve)


def add_worker_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--health-port", type=port, help="answer /health, /ready and /metrics on 127.0.0.1")
    parser.set_defaults(run=_worker)


def add_migrate_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--forget-sealed-keys",
        action="store_true",
        help="after app.secret_key was lost: delete the provider keys encrypted with it",
    )
    parser.set_defaults(run=_migrate)


def add_doctor_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_doctor)


def add_packages_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_packages)


@database_errors()
def _serve(options: argparse.Namespace) -> int:
    config = configure(options)
    if options.reload:
        return _serve_reloading(options, config)
    return 0 if serve(config) else 1


@database_errors()
def _worker(options: argparse.Namespace) -> int:
    run_worker(configure(options), options.health_port)
    return 0


def _serve_reloading(options: argparse.Namespace, config: Config) -> int:
    arguments = {
        key: str(value) for key, value in vars(options).items() if key in ("config", "data_dir") and value
    }
    os.environ[RELOAD_VARIABLE] = msgspec.json.encode(arguments).decode()
    print(f"Luxx will listen on http://{config.app.host}:{config.app.port}", flush=True)
    uvicorn.run(
        "luxx.app.cli.serving_commands:reloaded_app",
        factory=True,
        reload=True,
        host=config.app.host,
        port=config.app.port,
        http=BoundedProtocol,
        proxy_headers=False,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        **socket_options(),
    )
    return 0


def reloaded_app() -> Litestar:
    """The application of a process that `serve --reload` restarts after each code change."""
    arguments: dict[str, str] = msgspec.json.decode(os.environ.get(RELOAD_VARIABLE, "{}"))
    config_file = arguments.get("config")
    options = argparse.Namespace(
        config=Path(config_file) if config_file else None,
        data_dir=arguments.get("data_dir"),
        host=None,
        port=None,
    )
    return create_app(Services(configure(options)))


@database_errors()
def _migrate(options: argparse.Namespace) -> int:
    config = configure(options)
    check_start(config)
    engine = open_engine(resolve_url(config.database.url, Path(config.data_dir)))
    print(f"the database is at revision {upgrade_database(engine)}")
    if options.forget_sealed_keys:
        _forget_sealed_keys(config, engine)
    engine.dispose()
    return 0


def _forget_sealed_keys(config: Config, engine: Engine) -> None:
    secret = find_secret(
        config.app.secret_key, Path(config.data_dir), is_shared=engine.dialect.name != "sqlite"
    )
    vault = Vault(secret, previous=config.app.previous_secret_keys)
    store = Store(engine)
    try:
        count = store.write_now(lambda session: delete_unreadable_keys(session, vault, SEALED_COLUMNS))
    finally:
        store.close()
    print(f"deleted {count} secrets of providers and MCP servers; enter them again")


@database_errors()
def _doctor(options: argparse.Namespace) -> int:
    findings = asyncio.run(examine_installation(configure(options)))
    for finding in findings:
        print(finding)
    return 1 if any(finding.is_bad for finding in findings) else 0


@database_errors()
def _packages(options: argparse.Namespace) -> int:
    config = configure(options)
    sandbox = Sandbox(config.tools, Path(config.data_dir), Path(config.workspace.root))
    asyncio.run(sandbox.open())
    if sandbox.interpreter is None:
        raise Unavailable("Python does not start in the sandbox; run `luxx doctor` for the reason")
    install_packages(config.tools.packages, sandbox.interpreter.program, sandbox.packages)
    print(f"python_execute has {', '.join(sorted(config.tools.packages)) or 'no packages'}")
    return 0
