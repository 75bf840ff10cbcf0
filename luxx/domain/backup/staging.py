"""A database that is made aside, whole, and takes the place of the real one in one step.

On SQLite another file, which is renamed; on PostgreSQL another schema, whose tables change places in one
transaction. Whatever goes wrong before that leaves what was there as it was.
"""

import shutil
import sqlite3
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from sqlalchemy import URL, Connection, Engine, inspect, text
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from luxx.domain.backup.archive import sync_folder
from luxx.domain.backup.backup import Home
from luxx.errors import LuxxError
from luxx.infra.store.engine import open_engine
from luxx.infra.store.lock import DataDirLock
from luxx.infra.store.upgrade import LOCK

RESTORE_LOCK = 7_402_119
"""The PostgreSQL advisory lock that lets one restore go on at a time."""

SCHEMA = "luxx_restore_"
FOLDER = ".restore-"
MOVED = "replaced"
"""In such a folder what was there before, until it is deleted or put back."""

SHOWN = 5
PATIENCE = "10s"
"""How long taking the place of tables waits for who reads them."""


class Staged:
    """An empty database aside. `engine` writes to it; `take_place` makes it the real one."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def take_place(self, undo: ExitStack, move: Callable[[], None]) -> None:
        """The last step. `move` brings the files along, at a moment when nobody can use the database.

        What is pushed on `undo` brings back what was there.
        """
        raise NotImplementedError


@contextmanager
def staged(home: Home, name: str) -> Generator[Staged]:
    """A database aside for a restore of this name; gone at the end unless it took its place.

    Raises LuxxError where a server or another restore is using the real one.
    """
    with _staged_sqlite(home, name) if home.is_sqlite else _staged_postgresql(home, name) as made:
        yield made


def sweep(folder: Path) -> None:
    """Removes what restores that were killed left in a folder, but for what they had moved away."""
    for left in folder.glob(f"{FOLDER}*"):
        clear(left)


def clear(folder: Path) -> bool:
    """Removes what a restore made aside; False where it holds what had been moved away, which stays."""
    moved = folder / MOVED
    if moved.is_dir() and any(moved.iterdir()):
        for made in folder.iterdir():
            if made != moved:
                shutil.rmtree(made, ignore_errors=True)
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return True


# SQLite


class _StagedFile(Staged):
    def __init__(self, home: Home, file: Path) -> None:
        super().__init__(open_engine(URL.create("sqlite", database=str(file))))
        self._home = home
        self._file = file

    def take_place(self, undo: ExitStack, move: Callable[[], None]) -> None:
        move()
        _empty_log(self.engine)
        real, aside = self._home.database_file, self._file.with_name("replaced.db")
        if real.exists():
            # Its log would be taken for the new file's. One that is damaged has nothing to keep.
            with suppress(SQLAlchemyError, sqlite3.Error):
                _empty_log(self._home.engine)
            self._home.close()
            for left in ("-wal", "-shm"):
                real.with_name(real.name + left).unlink(missing_ok=True)
            aside.hardlink_to(real)
            undo.callback(lambda: aside.replace(real))
        self._file.replace(real)
        sync_folder(real.parent)


@contextmanager
def _staged_sqlite(home: Home, name: str) -> Generator[Staged]:
    lock = DataDirLock(home.data_dir, home.database_file)
    lock.take()
    # Beside the file whose place it takes, so that it can be renamed.
    parent = home.database_file.parent
    parent.mkdir(parents=True, exist_ok=True)
    sweep(parent)
    folder = parent / f"{FOLDER}{name}"
    try:
        folder.mkdir(mode=0o700)
        made = _StagedFile(home, folder / "luxx.db")
        try:
            yield made
        finally:
            made.engine.dispose()
    finally:
        clear(folder)
        lock.release()


def _empty_log(engine: Engine) -> None:
    """Puts all of a database into its file; closing it then leaves no log beside it."""
    connection = engine.raw_connection()
    try:
        connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()
        engine.dispose()


# PostgreSQL


class _StagedSchema(Staged):
    def __init__(self, home: Home, schema: str) -> None:
        given = home.url.query.get("options", "")
        options = f"{given if isinstance(given, str) else ' '.join(given)} -csearch_path={schema}".strip()
        super().__init__(open_engine(home.url.update_query_dict({"options": options})))
        self._home = home
        self._schema = schema

    def take_place(self, undo: ExitStack, move: Callable[[], None]) -> None:
        self.engine.dispose()
        try:
            with self._home.engine.connect() as connection, connection.begin():
                connection.execute(text(f"SET LOCAL lock_timeout = '{PATIENCE}'"))
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
                self._swap(connection, move)
        except OperationalError as error:
            raise LuxxError(
                "the tables are in use; stop all servers of this database and try again"
            ) from error

    def _swap(self, connection: Connection, move: Callable[[], None]) -> None:
        inspector = inspect(connection)
        real = connection.scalar(text("SELECT current_schema()"))
        if real is None:
            raise LuxxError("the database has no schema that its user may write to")
        there = set(inspector.get_table_names(schema=real))
        new = inspector.get_table_names(schema=self._schema)
        old = ", ".join(f'"{real}"."{name}"' for name in new if name in there)
        if old:
            connection.execute(text(f"LOCK TABLE {old} IN ACCESS EXCLUSIVE MODE"))
        # From here on nobody comes up, nor writes: only now nothing can happen to files that are moved away.
        _check_nobody_is_up(connection)
        move()
        if old:
            connection.execute(text(f"DROP TABLE {old} CASCADE"))
        for name in new:
            connection.execute(text(f'ALTER TABLE "{self._schema}"."{name}" SET SCHEMA "{real}"'))
        connection.execute(text(f'DROP SCHEMA "{self._schema}"'))


def _check_nobody_is_up(connection: Connection) -> None:
    """By their leases, so that one that was killed counts for some seconds more."""
    if not inspect(connection).has_table("processes"):
        return
    alive = connection.execute(
        text(
            "SELECT kind, host, pid FROM processes "
            "WHERE lease_until >= extract(epoch FROM clock_timestamp()) ORDER BY started_at"
        )
    ).all()
    if alive:
        told = ", ".join(f"{row.kind} {row.host}:{row.pid}" for row in alive[:SHOWN])
        more = f" and {len(alive) - SHOWN} more" if len(alive) > SHOWN else ""
        raise LuxxError(
            f"the database is in use by {told}{more}; stop all its servers and workers and try again, "
            "after a killed one some seconds later"
        )


@contextmanager
def _staged_postgresql(home: Home, name: str) -> Generator[Staged]:
    schema = f"{SCHEMA}{name}"
    with home.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as holder:
        _check_nobody_is_up(holder)
        if not holder.scalar(text("SELECT pg_try_advisory_lock(:lock)"), {"lock": RESTORE_LOCK}):
            raise LuxxError("another restore into this database is going on; wait for its end")
        for left in inspect(holder).get_schema_names():
            if left.startswith(SCHEMA):
                holder.execute(text(f'DROP SCHEMA "{left}" CASCADE'))
        holder.execute(text(f'CREATE SCHEMA "{schema}"'))
        made = _StagedSchema(home, schema)
        try:
            yield made
        finally:
            made.engine.dispose()
            holder.execute(text(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'))
            holder.execute(text("SELECT pg_advisory_unlock(:lock)"), {"lock": RESTORE_LOCK})
