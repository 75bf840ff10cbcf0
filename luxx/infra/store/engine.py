"""One database, SQLite or PostgreSQL, and the rule that SQL runs in threads.

`read` and `write` take a function of a Session and run it whole in one transaction in a thread; no
session outlives it, so none stays open across a model call. On SQLite all writes go through one
thread that commits what has queued up together (group commit): with `synchronous=FULL` the disk is
asked once for many writers, and nobody ever sees "database is locked".
"""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, Engine, ExceptionContext, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    InternalError,
    OperationalError,
)

from luxx.errors import ConfigError
from luxx.infra.store.writer import (
    GroupWriter,
    LoopWaiter,
    RowWork,
    ThreadConnections,
    ThreadWaiter,
    Work,
    WorkRunner,
    in_session,
    with_rows,
    with_session,
)

T = TypeVar("T")

BUSY_TIMEOUT_MS = 10_000
READERS = 8
MAX_EXTERNAL_SESSIONS = 6
"""How many at once may hold a connection that are not the house's: never all of them, whoever is slow."""

CASEFOLD_FUNCTION = "luxx_caseless"
"""A function of SQLite connections: a text without capitals, of any language."""

POSTGRESQL_TIMEOUTS = {
    "connect_timeout": 10,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "target_session_attrs": "read-write",
}
"""Seconds, and milliseconds: a server that is gone is noticed, and nothing waits for it for ever. One that
only reads is not the one that is wanted: it has been replaced."""

IDLE_TIMEOUT_CODE = "25P03"
"""PostgreSQL's code for a transaction that it ended because nothing was asked in it for too long."""

READ_ONLY_CODE = "25006"
"""Its code for a write at a server that has been replaced by another since it was connected to."""

POSTGRESQL_READ = {"isolation_level": "REPEATABLE READ"}
"""All statements of a read see one state, as on SQLite. Said in the BEGIN: it costs no question more."""

SAVEPOINTS = "luxx_savepoints"
"""Of a SQLite connection: the names of the savepoints that are open, by depth.

They are told to SQLite by their depth. A name of its own for each would be a statement of its own, which
SQLite has to read, and which pushes one that is needed again out of what it has read.
"""


def resolve_url(url: str, data_dir: Path) -> URL:
    """The database URL with a relative SQLite path made relative to the data directory.

    Raises ConfigError for a URL that is neither SQLite nor PostgreSQL.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise ConfigError(
            f"database.url: '{url}' is not a database URL; write sqlite:///./luxx.db"
        ) from error
    if parsed.get_backend_name() == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        raise ConfigError("database.url: only sqlite:///PATH and postgresql://… are supported")
    path = Path(parsed.database)
    return parsed if path.is_absolute() else parsed.set(database=str(data_dir / path))


def sqlite_file(url: URL) -> Path | None:
    """Where the database is; None for PostgreSQL."""
    return Path(str(url.database)) if url.get_backend_name() == "sqlite" else None


def open_engine(url: URL, *, idle_timeout_seconds: float | None = None, reads: bool = False) -> Engine:
    """A SQLAlchemy engine with the settings that the house relies on (WAL, FULL, foreign keys).

    `reads`: its transactions only read (see `reading`). `silence_seconds`: PostgreSQL ends a transaction in
    which it was asked nothing for so long: a process that is frozen in the middle of one would keep its locks
    from all others.
    """
    if url.get_backend_name() == "postgresql":
        engine = create_engine(
            url,
            pool_size=READERS,
            max_overflow=READERS,
            pool_pre_ping=True,
            hide_parameters=True,
            connect_args=POSTGRESQL_TIMEOUTS,
        )
        # Many rows in one INSERT. The driver would send one for each, in a pipeline, after which PostgreSQL
        # does not count how long a transaction is silent: a frozen process would keep its locks.
        engine.dialect.use_insertmanyvalues_wo_returning = True
        event.listen(engine, "handle_error", _disconnect_read_only)
        if idle_timeout_seconds is not None:
            event.listen(engine, "connect", partial(_set_idle_timeout, idle_timeout_seconds))
        return engine
    Path(str(url.database)).parent.mkdir(parents=True, exist_ok=True)
    # Parameters are whole messages, hashes and sealed keys: they do not belong in a log.
    engine = create_engine(url, pool_size=READERS + 2, max_overflow=READERS, hide_parameters=True)
    _use_driver_transactions(engine.dialect, "BEGIN" if reads else "BEGIN IMMEDIATE")
    event.listen(engine, "connect", _only_read if reads else _prepare_sqlite)
    return engine


def reading(engine: Engine) -> Engine:
    """An engine of the same database for transactions that only read, each of one state of it.

    On SQLite it is another, with connections of its own, to be disposed of like the first.
    """
    if engine.dialect.name == "sqlite":
        return open_engine(engine.url, reads=True)
    return engine.execution_options(**POSTGRESQL_READ)


def _disconnect_read_only(context: ExceptionContext) -> None:
    if getattr(context.original_exception, "sqlstate", None) == READ_ONLY_CODE:
        context.is_disconnect = True


def _set_idle_timeout(seconds: float, connection: Any, _record: Any) -> None:
    connection.autocommit = True
    connection.execute(f"SET idle_in_transaction_session_timeout = {int(seconds * 1000)}")
    connection.autocommit = False


def _prepare_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None
    # SQLite's own `lower` knows no letters but those of English.
    connection.create_function(CASEFOLD_FUNCTION, 1, _casefold, deterministic=True)
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        f"busy_timeout={BUSY_TIMEOUT_MS}",
        "cache_size=-2000",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _only_read(connection: sqlite3.Connection, record: Any) -> None:
    _prepare_sqlite(connection, record)
    connection.execute("PRAGMA query_only=ON")


def _use_driver_transactions(dialect: Any, begin: str) -> None:
    """BEGIN and savepoints straight to the driver.

    Made as statements, savepoints are a third of a write in a group; and a listener for "begin" would make
    each statement look for listeners of its own.
    """

    def do_begin(connection: Any) -> None:
        connection.info[SAVEPOINTS] = []
        connection.driver_connection.execute(begin)

    dialect.do_begin = do_begin
    dialect.do_savepoint = _savepoint
    dialect.do_release_savepoint = partial(_leave_savepoint, "RELEASE", 0)
    dialect.do_rollback_to_savepoint = partial(_leave_savepoint, "ROLLBACK TO", 1)


def _savepoint(connection: Connection, name: str) -> None:
    open_: list[str] = connection.info[SAVEPOINTS]
    open_.append(name)
    _execute_savepoint(connection, "SAVEPOINT", len(open_))


def _leave_savepoint(statement: str, kept: int, connection: Connection, name: str) -> None:
    open_: list[str] = connection.info[SAVEPOINTS]
    depth = open_.index(name) + 1
    del open_[depth - 1 + kept :]
    _execute_savepoint(connection, statement, depth)


def _execute_savepoint(connection: Connection, statement: str, depth: int) -> None:
    driver: Any = connection.connection.driver_connection
    driver.execute(f"{statement} luxx_{depth}")


def _casefold(text: str | None) -> str | None:
    return None if text is None else text.casefold()


class Store:
    """Runs work against the database. One per process; `on_write` is told the seconds that writes took."""

    def __init__(self, engine: Engine, *, on_write: Callable[[float], None] | None = None) -> None:
        self.engine = engine
        self._on_write = on_write
        self.is_sqlite = engine.dialect.name == "sqlite"
        self.reading = reading(engine)
        self._connections = ThreadConnections(self.reading) if self.is_sqlite else None
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="store")
        self.external_sessions = threading.BoundedSemaphore(MAX_EXTERNAL_SESSIONS)
        """Whoever runs what may take long, in threads that are not the store's, takes a place first."""
        self._priority_threads = ThreadPoolExecutor(1, thread_name_prefix="store-first")
        self._writer = GroupWriter(engine) if self.is_sqlite else None

    async def read(self, work: Work[T]) -> T:
        """`work(session)` in a read transaction. Do not write in it."""
        return await self.read_rows(partial(in_session, work))

    async def write(self, work: Work[T]) -> T:
        """`work(session)` in a write transaction; returns once it is on disk. An exception undoes it alone.

        Cancelling the caller does not stop the work: it commits or fails as it would have.
        """
        return await self._write(with_session, work)

    async def write_rows(self, work: RowWork[T]) -> T:
        """`write` for work that needs no objects, only statements: without a Session it costs two thirds."""
        return await self._write(with_rows, work)

    async def first(self, work: RowWork[T]) -> T:
        """`write_rows` past all that waits for a thread: for the little that shows that the process lives."""
        return await self._write(with_rows, work, self._priority_threads)

    async def _write(
        self, form: WorkRunner, work: Callable[[Any], T], threads: ThreadPoolExecutor | None = None
    ) -> T:
        started = time.perf_counter()
        if self._writer is None:
            loop = asyncio.get_running_loop()
            pending = loop.run_in_executor(threads or self._threads, self._write_alone, form, work)
            value = await asyncio.shield(pending)
        else:
            waiter = LoopWaiter()
            self._writer.submit(form, work, waiter)
            value = await waiter.future
        if self._on_write is not None:
            self._on_write(time.perf_counter() - started)
        return value

    async def read_rows(self, work: RowWork[T]) -> T:
        """`read` for work that needs no objects, only statements: cheaper."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._read_kept, work)

    def read_rows_now(self, work: RowWork[T]) -> T:
        """`read_rows` for a caller that is in a thread of its own, which keeps no connection.

        On PostgreSQL it is read a second time where the connection was lost in the middle.
        """
        return self._read_twice(work)

    def _read_kept(self, work: RowWork[T]) -> T:
        """In one of the store's own threads: on SQLite each of these keeps its connection."""
        if self._connections is None:
            return self._read_twice(work)
        try:
            connection = self._connections.current()
            with connection.begin():
                return work(connection)
        except DBAPIError as error:
            self._connections.drop_if_broken(error)
            raise

    def _read_twice(self, work: RowWork[T]) -> T:
        """This process was frozen, or the database began anew: whoever asked only to read need not know."""
        try:
            with self.reading.begin() as connection:
                return work(connection)
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
        with self.reading.begin() as connection:
            return work(connection)

    def read_now(self, work: Work[T]) -> T:
        """`read` for a caller that is in a thread of its own."""
        return self.read_rows_now(partial(in_session, work))

    def write_now(self, work: Work[T]) -> T:
        """`write` for a caller that is in a thread of its own."""
        return self._write_now(with_session, work)

    def write_rows_now(self, work: RowWork[T]) -> T:
        """`write_rows` for a caller that is in a thread of its own."""
        return self._write_now(with_rows, work)

    def _write_now(self, form: WorkRunner, work: Callable[[Any], T]) -> T:
        if self._writer is None:
            return self._write_alone(form, work)
        waiter = ThreadWaiter()
        self._writer.submit(form, work, waiter)
        return cast("T", waiter.result())

    def _write_alone(self, form: WorkRunner, work: Callable[[Any], T]) -> T:
        try:
            with self.engine.begin() as connection:
                return form(connection, work, own=False)
        except InternalError as error:
            if getattr(error.orig, "sqlstate", None) not in (IDLE_TIMEOUT_CODE, READ_ONLY_CODE):
                raise
            # This process was frozen, or the database is another now: to whoever asked, it went away.
            raise OperationalError(
                error.statement, error.params, cast("BaseException", error.orig)
            ) from error

    def close(self) -> None:
        """Ends the threads after what they hold is done."""
        if self._writer is not None:
            self._writer.close()
        self._threads.shutdown(wait=True)
        self._priority_threads.shutdown(wait=True)
        if self._connections is not None:
            self._connections.close()
            self.reading.dispose()
        self.engine.dispose()
