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
from luxx.domain.backup.backup import DataPaths
from luxx.errors import LuxxError
from luxx.infra.store.engine import open_engine
from luxx.infra.store.lock import DataDirLock
from luxx.infra.store.upgrade import LOCK

RESTORE_LOCK = 7_402_119
"""The PostgreSQL advisory lock that lets one restore go on at a time."""

STAGING_SCHEMA_PREFIX = "luxx_restore_"
STAGING_PREFIX = ".restore-"
REPLACED_FOLDER = "replaced"
"""In such a folder what was there before, until it is deleted or put back."""

MAX_LISTED = 5
LOCK_TIMEOUT = "10s"
"""How long taking the place of tables waits for who reads them."""


class StagedDatabase:
    """An empty database aside. `engine` writes to it; `take_place` makes it the real one."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def replace_live(self, undo: ExitStack, move: Callable[[], None]) -> None:
        """The last step. `move` brings the files along, at a moment when nobody can use the database.

        What is pushed on `undo` brings back what was there.
        """
        raise NotImplementedError


@contextmanager
def staged_database(data_paths: DataPaths, name: str) -> Generator[StagedDatabase]:
    """A database aside for a restore of this name; gone at the end unless it took its place.

    Raises LuxxError where a server or another restore is using the real one.
    """
    with (
        _staged_sqlite(data_paths, name)
        if data_paths.is_sqlite
        else _staged_postgresql(data_paths, name) as made
    ):
        yield made


def remove_leftovers(folder: Path) -> None:
    """Removes what restores that were killed left in a folder, but for what they had moved away."""
    for left in folder.glob(f"{STAGING_PREFIX}*"):
        clear_staging(left)


def clear_staging(folder: Path) -> bool:
    """Removes what a restore made aside; False where it holds what had been moved away, which stays."""
    moved = folder / REPLACED_FOLDER
    if moved.is_dir() and any(moved.iterdir()):
        for made in folder.iterdir():
            if made != moved:
                shutil.rmtree(made, ignore_errors=True)
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return True


# SQLite


class _StagedFile(StagedDatabase):
    def __init__(self, data_paths: DataPaths, file: Path) -> None:
        super().__init__(open_engine(URL.create("sqlite", database=str(file))))
        self._data_paths = data_paths
        self._file = file

    def replace_live(self, undo: ExitStack, move: Callable[[], None]) -> None:
        move()
        _checkpoint_wal(self.engine)
        real, aside = self._data_paths.database_file, self._file.with_name("replaced.db")
        if real.exists():
            # Its log would be taken for the new file's. One that is damaged has nothing to keep.
            with suppress(SQLAlchemyError, sqlite3.Error):
                _checkpoint_wal(self._data_paths.engine)
            self._data_paths.close()
            for left in ("-wal", "-shm"):
                real.with_name(real.name + left).unlink(missing_ok=True)
            aside.hardlink_to(real)
            undo.callback(lambda: aside.replace(real))
        self._file.replace(real)
        sync_folder(real.parent)


@contextmanager
def _staged_sqlite(data_paths: DataPaths, name: str) -> Generator[StagedDatabase]:
    lock = DataDirLock(data_paths.data_dir, data_paths.database_file)
    lock.take()
    # Beside the file whose place it takes, so that it can be renamed.
    parent = data_paths.database_file.parent
    parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(parent)
    folder = parent / f"{STAGING_PREFIX}{name}"
    try:
        folder.mkdir(mode=0o700)
        made = _StagedFile(data_paths, folder / "luxx.db")
        try:
            yield made
        finally:
            made.engine.dispose()
    finally:
        clear_staging(folder)
        lock.release()


def _checkpoint_wal(engine: Engine) -> None:
    """Puts all of a database into its file; closing it then leaves no log beside it."""
    connection = engine.raw_connection()
    try:
        connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()
        engine.dispose()


# PostgreSQL


class _StagedSchema(StagedDatabase):
    def __init__(self, data_paths: DataPaths, schema: str) -> None:
        existing_options = data_paths.url.query.get("options", "")
        options = f"{existing_options if isinstance(existing_options, str) else ' '.join(existing_options)} -csearch_path={schema}".strip()
        super().__init__(open_engine(data_paths.url.update_query_dict({"options": options})))
        self._data_paths = data_paths
        self._schema = schema

    def replace_live(self, undo: ExitStack, move: Callable[[], None]) -> None:
        self.engine.dispose()
        try:
            with self._data_paths.engine.connect() as connection, connection.begin():
                connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'"))
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
        existing_tables = set(inspector.get_table_names(schema=real))
        new = inspector.get_table_names(schema=self._schema)
        old = ", ".join(f'"{real}"."{name}"' for name in new if name in existing_tables)
        if old:
            connection.execute(text(f"LOCK TABLE {old} IN ACCESS EXCLUSIVE MODE"))
        # From here on nobody comes up, nor writes: only now nothing can happen to files that are moved away.
        _check_no_live_processes(connection)
        move()
        if old:
            connection.execute(text(f"DROP TABLE {old} CASCADE"))
        for name in new:
            connection.execute(text(f'ALTER TABLE "{self._schema}"."{name}" SET SCHEMA "{real}"'))
        connection.execute(text(f'DROP SCHEMA "{self._schema}"'))


def _check_no_live_processes(connection: Connection) -> None:
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
        processes = ", ".join(f"{row.kind} {row.host}:{row.pid}" for row in alive[:MAX_LISTED])
        more = f" and {len(alive) - MAX_LISTED} more" if len(alive) > MAX_LISTED else ""
        raise LuxxError(
            f"the database is in use by {processes}{more}; stop all its servers and workers and try again, "
            "after a killed one some seconds later"
        )


@contextmanager
def _staged_postgresql(data_paths: DataPaths, name: str) -> Generator[StagedDatabase]:
    schema = f"{STAGING_SCHEMA_PREFIX}{name}"
    with data_paths.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as lock_connection:
        _check_no_live_processes(lock_connection)
        if not lock_connection.scalar(text("SELECT pg_try_advisory_lock(:lock)"), {"lock": RESTORE_LOCK}):
            raise LuxxError("another restore into this database is going on; wait for its end")
        for left in inspect(lock_connection).get_schema_names():
            if left.startswith(STAGING_SCHEMA_PREFIX):
                lock_connection.execute(text(f'DROP SCHEMA "{left}" CASCADE'))
        lock_connection.execute(text(f'CREATE SCHEMA "{schema}"'))
        made = _StagedSchema(data_paths, schema)
        try:
            yield made
        finally:
            made.engine.dispose()
            lock_connection.execute(text(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'))
            lock_connection.execute(text("SELECT pg_advisory_unlock(:lock)"), {"lock": RESTORE_LOCK})
