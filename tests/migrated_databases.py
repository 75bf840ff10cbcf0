"""Databases as an earlier start left them: made once by their steps, copied for each test that needs one.

Steps take a second of work each time; what they do has tests of its own (`tests/store`).
"""

import asyncio
import atexit
import shutil
import tempfile
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine, make_url, text

import luxx.app.container  # noqa: F401  (all tables: a foreign key may name one of a package not imported yet)
from luxx.app.core_services import CoreServices
from luxx.domain.accounts.passwords import Passwords
from luxx.infra.config.schema import Config, WorkspaceConfig
from luxx.infra.store.engine import open_engine, resolve_url
from luxx.infra.store.migrate import migrate

NAME = "luxx.db"
POSTGRESQL_HEAVY = ("sqlite", pytest.param("postgresql", marks=pytest.mark.heavy))
"""Both databases, where `make test` runs only one of them: `make test-heavy` runs the other."""

READY = "luxx_ready"
"""The database of a PostgreSQL server that others are copies of."""


def prepare(data_dir: Path, admin_password: str = "") -> None:
    """Puts the database into a data directory that has none; with a password, it has the user `admin`."""
    _copy_to(data_dir / NAME, admin_password)


def prepare_at(url: str) -> str:
    """Makes an empty database a ready one, while nobody uses it; gives its URL back."""
    resolved = resolve_url(url, Path.cwd())
    if resolved.get_backend_name() == "sqlite":
        _copy_to(Path(str(resolved.database)))
    else:
        _replace(resolved)
    return url


def new_ready_database(server_url: str, name: str) -> str:
    """Creates a ready database on a PostgreSQL server. Returns its URL as an operator writes it."""
    named = make_url(server_url).set(drivername="postgresql", database=name)
    url = named.render_as_string(hide_password=False)
    server = resolve_url(url, Path.cwd()).set(database="postgres")
    _prepare_server(server)
    _administer(server, f'CREATE DATABASE "{name}" TEMPLATE {READY}')
    return url


def make_ready(engine: Engine) -> None:
    """`prepare_at` for an engine that has not been used."""
    engine.dispose()
    prepare_at(engine.url.render_as_string(hide_password=False))


def _copy_to(target: Path, admin_password: str = "") -> None:
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_prepared(admin_password), target)


@cache
def _prepared(admin_password: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="luxx-prepared-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if admin_password:
        prepare(folder)
        _add_admin(folder, admin_password)
    else:
        _take_steps(make_url(f"sqlite:///{folder / NAME}"))
    return folder / NAME


def _add_admin(data_dir: Path, password: str) -> None:
    """Adds the first user, with a hash that takes a millisecond to check instead of 65."""
    config = Config(data_dir=str(data_dir), workspace=WorkspaceConfig(root=str(data_dir / "workspaces")))
    services = CoreServices(config)
    passwords = Passwords(cost=4)
    operator = replace(services.operator, resources=replace(services.account_resources, passwords=passwords))
    assert _run_beside_a_loop(operator.ensure_first_user(password))
    passwords.close()
    services.store.close()


def _run_beside_a_loop(work: Coroutine[Any, Any, bool]) -> bool:
    """In a thread, because the caller's may have a running event loop."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, work).result()


def _take_steps(url: URL) -> None:
    engine = open_engine(url)
    migrate(engine)
    engine.dispose()


def _replace(url: URL) -> None:
    server = url.set(database="postgres")
    _prepare_server(server)
    _administer(
        server, f'DROP DATABASE "{url.database}"', f'CREATE DATABASE "{url.database}" TEMPLATE {READY}'
    )


@cache
def _prepare_server(server: URL) -> None:
    _administer(server, f"CREATE DATABASE {READY}")
    _take_steps(server.set(database=READY))


def _administer(server: URL, *statements: str) -> None:
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()
