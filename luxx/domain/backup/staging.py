"""A complete database in a staging area that replaces the live one in one step.

On SQLite it is another file, which is renamed; on PostgreSQL another schema, whose tables change places in
one transaction. An error before that leaves the live database unchanged.
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
from luxx.infra.data_permissions import DataDirLock
from luxx.infra.store.engine import open_engine
from luxx.infra.store.tables import Lock, lock_until_commit

STAGING_SCHEMA_PREFIX = "luxx_restore_"
STAGING_PREFIX = ".restore-"
REPLACED_FOLDER = "replaced"
"""Subfolder of a staging folder: the replaced files, until they are deleted or moved back."""

MAX_LISTED = 5
LOCK_TIMEOUT = "10s"
"""How long replacing tables waits for their readers."""


class StagedDatabase:
    """An empty staging database. Write to `engine`; `replace_live` makes it the live one."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def replace_live(self, undo: ExitStack, move: Callable[[], None]) -> None:
        """The last step. Calls `move`, which moves the files, while no process can use the database.

        The callbacks on `undo` restore the previous state.
        """
        raise NotImplementedError


@contextmanager
def staged_database(data_paths: DataPaths, name: str) -> Generator[StagedDatabase]:
    """A staging database for a restore of this name; deleted at the end unless it replaced the live one.

    Raises LuxxError if a server or another restore uses the live database.
    """
    with (
        _staged_sqlite(data_paths, name)
        if data_paths.is_sqlite
        else _staged_postgresql(data_paths, name) as staged
    ):
        yield staged


def remove_leftovers(folder: Path) -> None:
    """Removes what killed restores left in a folder, except replaced files."""
    for left in folder.glob(f"{STAGING_PREFIX}*"):
        clear_staging(left)


def clear_staging(folder: Path) -> bool:
    """Removes a staging folder; False if it holds replaced files, which stay."""
    replaced = folder / REPLACED_FOLDER
    if replaced.is_dir() and any(replaced.iterdir()):
        for path in folder.iterdir():
            if path != replaced:
                shutil.rmtree(path, ignore_errors=True)
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
        live_file, replaced_file = self._data_paths.database_file, self._file.with_name("replaced.db")
        if live_file.exists():
            # SQLite would apply the old WAL to the new file. A damaged database has nothing to keep.
            with suppress(SQLAlchemyError, sqlite3.Error):
                _checkpoint_wal(self._data_paths.engine)
            self._data_paths.close()
            for left in ("-wal", "-shm"):
                live_file.with_name(live_file.name + left).unlink(missing_ok=True)
            replaced_file.hardlink_to(live_file)
            undo.callback(lambda: replaced_file.replace(live_file))
        self._file.replace(live_file)
        sync_folder(live_file.parent)


@contextmanager
def _staged_sqlite(data_paths: DataPaths, name: str) -> Generator[StagedDatabase]:
    lock = DataDirLock(data_paths.data_dir, data_paths.database_file)
    lock.take()
    # In the folder of the live file, so that renaming works.
    parent = data_paths.database_file.parent
    parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(parent)
    folder = parent / f"{STAGING_PREFIX}{name}"
    try:
        folder.mkdir(mode=0o700)
        staged = _StagedFile(data_paths, folder / "luxx.db")
        try:
            yield staged
        finally:
            staged.engine.dispose()
    finally:
        clear_staging(folder)
        lock.release()


def _checkpoint_wal(engine: Engine) -> None:
    """Writes the whole WAL into the database file; closing it then leaves no WAL."""
    connection = engine.raw_connection()
    try:
        connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()
        engine.dispose()


# PostgreSQL


_trigger_functions = text(
    "SELECT proname FROM pg_proc JOIN pg_namespace ON pg_namespace.oid = pronamespace "
    "WHERE nspname = :schema AND prorettype = CAST('trigger' AS regtype)"
)


class _StagedSchema(StagedDatabase):
    def __init__(self, data_paths: DataPaths, schema: str) -> None:
        existing = data_paths.url.query.get("options", "")
        existing_options = existing if isinstance(existing, str) else " ".join(existing)
        options = f"{existing_options} -csearch_path={schema}".strip()
        super().__init__(open_engine(data_paths.url.update_query_dict({"options": options})))
        self._data_paths = data_paths
        self._schema = schema

    def replace_live(self, undo: ExitStack, move: Callable[[], None]) -> None:
        self.engine.dispose()
        try:
            with self._data_paths.engine.connect() as connection, connection.begin():
                connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'"))
                lock_until_commit(connection, Lock.MIGRATION)
                self._swap(connection, move)
        except OperationalError as error:
            raise LuxxError(
                "the tables are in use; stop all servers of this database and try again"
            ) from error

    def _swap(self, connection: Connection, move: Callable[[], None]) -> None:
        inspector = inspect(connection)
        live_schema = connection.scalar(text("SELECT current_schema()"))
        if live_schema is None:
            raise LuxxError("the database has no schema that its user may write to")
        existing_tables = set(inspector.get_table_names(schema=live_schema))
        new = inspector.get_table_names(schema=self._schema)
        old = ", ".join(f'"{live_schema}"."{name}"' for name in new if name in existing_tables)
        if old:
            connection.execute(text(f"LOCK TABLE {old} IN ACCESS EXCLUSIVE MODE"))
        # The locks now block every start and every write, so files can be moved without risk.
        _check_no_live_processes(connection)
        move()
        if old:
            connection.execute(text(f"DROP TABLE {old} CASCADE"))
        for name in new:
            connection.execute(text(f'ALTER TABLE "{self._schema}"."{name}" SET SCHEMA "{live_schema}"'))
        # The functions of triggers, which follow them to the tables by their own ids, not by name.
        for name in connection.scalars(_trigger_functions, {"schema": self._schema}).all():
            connection.execute(text(f'DROP FUNCTION IF EXISTS "{live_schema}"."{name}"()'))
            moved = f'ALTER FUNCTION "{self._schema}"."{name}"() SET SCHEMA "{live_schema}"'
            connection.execute(text(moved))
        connection.execute(text(f'DROP SCHEMA "{self._schema}"'))


def _check_no_live_processes(connection: Connection) -> None:
    """Raises LuxxError if a process has a valid lease; a killed process counts for some seconds more."""
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
            "some seconds later if one was killed"
        )


@contextmanager
def _staged_postgresql(data_paths: DataPaths, name: str) -> Generator[StagedDatabase]:
    schema = f"{STAGING_SCHEMA_PREFIX}{name}"
    with data_paths.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as lock_connection:
        _check_no_live_processes(lock_connection)
        lock = {"lock": Lock.RESTORE.value}
        if not lock_connection.scalar(text("SELECT pg_try_advisory_lock(:lock)"), lock):
            raise LuxxError("another restore of this database is running; wait until it finishes")
        for left in inspect(lock_connection).get_schema_names():
            if left.startswith(STAGING_SCHEMA_PREFIX):
                lock_connection.execute(text(f'DROP SCHEMA "{left}" CASCADE'))
        lock_connection.execute(text(f'CREATE SCHEMA "{schema}"'))
        staged = _StagedSchema(data_paths, schema)
        try:
            yield staged
        finally:
            staged.engine.dispose()
            lock_connection.execute(text(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'))
            lock_connection.execute(text("SELECT pg_advisory_unlock(:lock)"), lock)
