"""Databases as an earlier start left them: made once by their steps, copied for each test that needs one.

Steps take a second of work each time; what they do has tests of its own (`tests/store`).
"""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

import pytest
from sqlalchemy import URL, Engine, create_engine, make_url, text

import luxx.app.container  # noqa: F401  (all tables: a foreign key may name one of a package not imported yet)
from luxx.infra.store.engine import open_engine, resolve_url
from luxx.infra.store.migrate import migrate

NAME = "luxx.db"
POSTGRESQL_HEAVY = ("sqlite", pytest.param("postgresql", marks=pytest.mark.heavy))
"""Both databases, where `make test` runs only one of them: `make test-heavy` runs the other."""

READY = "luxx_ready"
"""The database of a PostgreSQL server that others are copies of."""


def prepare(data_dir: Path) -> None:
    """Puts the database into a data directory that has none."""
    _copy_to(data_dir / NAME)


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


def _copy_to(target: Path) -> None:
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_prepared(), target)


@cache
def _prepared() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="luxx-prepared-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _take_steps(make_url(f"sqlite:///{folder / NAME}"))
    return folder / NAME


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
