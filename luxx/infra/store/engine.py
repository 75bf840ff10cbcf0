"""One database, SQLite or PostgreSQL, and the rule that SQL runs in threads.

`read` and `write` take a function of a Session and run it in one transaction in a thread. No session outlives
the function, so none stays open across a model call. On SQLite one thread does all writes and commits all
queued ones together (group commit): with `synchronous=FULL` many writers share one disk flush, and no caller
gets "database is locked".
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

from sqlalchemy import ColumnElement, Connection, Engine, ExceptionContext, create_engine, event, func
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InternalError, OperationalError, SQLAlchemyError

from luxx.errors import ConfigError
from luxx.infra.observe import redact
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

MAX_ERROR_CHARS = 500
BUSY_TIMEOUT_MS = 10_000
READERS = 8
MAX_EXTERNAL_SESSIONS = 6
"""How many external sessions may hold a connection at once. Fewer than the pool has, so that slow ones never
use up all connections.
"""

CASEFOLD_FUNCTION = "luxx_caseless"
"""A function of SQLite connections that casefolds text in any language."""

POSTGRESQL_TIMEOUTS = {
    "connect_timeout": 10,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "target_session_attrs": "read-write",
}
"""Seconds; `tcp_user_timeout` in milliseconds. They detect a lost server and bound every wait. `read-write`
refuses a server that only reads: another one has replaced it.
"""

IDLE_TIMEOUT_CODE = "25P03"
"""PostgreSQL's error code for a transaction that it ended because it was idle for too long."""

READ_ONLY_CODE = "25006"
"""PostgreSQL's error code for a write on a server that became read-only after the connection was made."""

POSTGRESQL_READ = {"isolation_level": "REPEATABLE READ"}
"""All statements of a read see the same state, as on SQLite. The BEGIN sets it, so it needs no extra round
trip.
"""

SAVEPOINTS = "luxx_savepoints"
"""Key in `connection.info` of a SQLite connection: the names of the open savepoints, by depth.

SQLite gets the depth as the name. A unique name for each savepoint would be a new statement each time, which
SQLite has to parse and which evicts others from its statement cache.
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
    """The path of the database file; None for PostgreSQL."""
    return Path(str(url.database)) if url.get_backend_name() == "sqlite" else None


def database_error(error: SQLAlchemyError, url: URL | None = None) -> ConfigError:
    """One sentence, without secrets, for an error of the database outside of a request."""
    reason = redact(" ".join(str(getattr(error, "orig", None) or error).split()))[:MAX_ERROR_CHARS]
    where = "" if url is None else f" {url.render_as_string()}"
    return ConfigError(f"the database{where} cannot be used: {reason}; start it, or fix database.url")


def open_engine(url: URL, *, idle_timeout_seconds: float | None = None, reads: bool = False) -> Engine:
    """A SQLAlchemy engine with the required settings (WAL, FULL, foreign keys).

    `reads`: its transactions only read (see `reading`). `idle_timeout_seconds`: PostgreSQL ends a transaction
    that gets no statement for so long, so that a frozen process does not keep its locks.
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
        # Send many rows in one INSERT. The driver would pipeline one INSERT per row, and PostgreSQL does not
        # apply the idle timeout after a pipeline: a frozen process would keep its locks.
        engine.dialect.use_insertmanyvalues_wo_returning = True
        event.listen(engine, "handle_error", _disconnect_read_only)
        if idle_timeout_seconds is not None:
            event.listen(engine, "connect", partial(_set_idle_timeout, idle_timeout_seconds))
        return engine
    Path(str(url.database)).parent.mkdir(parents=True, exist_ok=True)
    # Parameters are whole messages, hashes and encrypted keys: keep them out of logs.
    engine = create_engine(url, pool_size=READERS + 2, max_overflow=READERS, hide_parameters=True)
    _use_driver_transactions(engine.dialect, "BEGIN" if reads else "BEGIN IMMEDIATE")
    event.listen(engine, "connect", _only_read if reads else _prepare_sqlite)
    return engine


def reading(engine: Engine) -> Engine:
    """An engine of the same database for read-only transactions, each with a consistent snapshot.

    On SQLite it is a second engine with its own connections; the caller disposes of it like the first.
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


def contains_text(dialect: str, column: Any, part: str) -> ColumnElement[bool]:
    """Whether a column of text contains a part, whatever the letter case, as the condition of a query."""
    text = cast("ColumnElement[str]", column)
    if dialect == "postgresql":
        return text.icontains(part, autoescape=True)
    return func.instr(getattr(func, CASEFOLD_FUNCTION)(text), part.casefold()) > 0


def _prepare_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None
    # SQLite's own `lower` handles only ASCII letters.
    connection.create_function(CASEFOLD_FUNCTION, 1, _casefold, deterministic=True)
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        f"busy_timeout={BUSY_TIMEOUT_MS}",
        "cache_size=-2000",
        # Overwrites what is deleted with zeros. Many builds of SQLite do not by default.
        "secure_delete=ON",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _only_read(connection: sqlite3.Connection, record: Any) -> None:
    _prepare_sqlite(connection, record)
    connection.execute("PRAGMA query_only=ON")


def _use_driver_transactions(dialect: Any, begin: str) -> None:
    """Sends BEGIN and savepoints straight to the driver.

    As SQLAlchemy statements, savepoints take a third of the time of a grouped write, and a listener for
    "begin" would make each statement look for listeners.
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


def _leave_savepoint(statement: str, keep_count: int, connection: Connection, name: str) -> None:
    open_: list[str] = connection.info[SAVEPOINTS]
    depth = open_.index(name) + 1
    del open_[depth - 1 + keep_count :]
    _execute_savepoint(connection, statement, depth)


def _execute_savepoint(connection: Connection, statement: str, depth: int) -> None:
    driver: Any = connection.connection.driver_connection
    driver.execute(f"{statement} luxx_{depth}")


def _casefold(text: str | None) -> str | None:
    return None if text is None else text.casefold()


class Store:
    """Runs work against the database. One per process. `on_write` gets the seconds that each write took."""

    def __init__(self, engine: Engine, *, on_write: Callable[[float], None] | None = None) -> None:
        self.engine = engine
        self._on_write = on_write
        self.is_sqlite = engine.dialect.name == "sqlite"
        self.reading = reading(engine)
        self._connections = ThreadConnections(self.reading) if self.is_sqlite else None
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="store")
        self.external_sessions = threading.BoundedSemaphore(MAX_EXTERNAL_SESSIONS)
        """Limits long-running work on external threads: acquire it before such work."""
        self._priority_threads = ThreadPoolExecutor(1, thread_name_prefix="store-first")
        self._writer = GroupWriter(engine) if self.is_sqlite else None

    async def read(self, work: Work[T]) -> T:
        """Runs `work(session)` in a read transaction. It must not write."""
        return await self.read_rows(partial(in_session, work))

    async def write(self, work: Work[T]) -> T:
        """Runs `work(session)` in a write transaction and returns once it is on disk. An exception rolls back
        this work only.

        Cancelling the caller does not stop the work: it still commits or fails.
        """
        return await self._write(with_session, work)

    async def write_rows(self, work: RowWork[T]) -> T:
        """Like `write`, for work that uses only statements: without a Session it costs two thirds."""
        return await self._write(with_rows, work)

    async def write_urgent_rows(self, work: RowWork[T]) -> T:
        """Like `write_rows`, but bypasses the thread queue: for the small writes that show that the process
        is alive."""
        return await self._write(with_rows, work, self._priority_threads)

    async def _write(
        self, runner: WorkRunner, work: Callable[[Any], T], threads: ThreadPoolExecutor | None = None
    ) -> T:
        started = time.perf_counter()
        if self._writer is None:
            loop = asyncio.get_running_loop()
            pending = loop.run_in_executor(threads or self._threads, self._write_alone, runner, work)
            # Once the caller is cancelled, nobody else asks for an error of the work.
            pending.add_done_callback(lambda done: done.cancelled() or done.exception())
            value = await asyncio.shield(pending)
        else:
            waiter = LoopWaiter()
            self._writer.submit(runner, work, waiter)
            value = await waiter.future
        if self._on_write is not None:
            self._on_write(time.perf_counter() - started)
        return value

    async def read_rows(self, work: RowWork[T]) -> T:
        """Like `read`, for work that uses only statements: cheaper."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._read_kept, work)

    def read_rows_now(self, work: RowWork[T]) -> T:
        """Like `read_rows`, for a caller that runs in its own thread; it keeps no connection.

        On PostgreSQL it reads a second time if the connection was lost during the read: the process was
        frozen, or the database restarted.
        """
        try:
            with self.reading.begin() as connection:
                return work(connection)
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
        with self.reading.begin() as connection:
            return work(connection)

    def _read_kept(self, work: RowWork[T]) -> T:
        """Runs in one of the store's threads; on SQLite each of them keeps its connection."""
        if self._connections is None:
            return self.read_rows_now(work)
        try:
            connection = self._connections.current()
            with connection.begin():
                return work(connection)
        except DBAPIError as error:
            self._connections.drop_if_broken(error)
            raise

    def read_now(self, work: Work[T]) -> T:
        """Like `read`, for a caller that runs in its own thread."""
        return self.read_rows_now(partial(in_session, work))

    def write_now(self, work: Work[T]) -> T:
        """Like `write`, for a caller that runs in its own thread."""
        return self._write_now(with_session, work)

    def write_rows_now(self, work: RowWork[T]) -> T:
        """Like `write_rows`, for a caller that runs in its own thread."""
        return self._write_now(with_rows, work)

    def _write_now(self, runner: WorkRunner, work: Callable[[Any], T]) -> T:
        if self._writer is None:
            return self._write_alone(runner, work)
        waiter = ThreadWaiter()
        self._writer.submit(runner, work, waiter)
        return cast("T", waiter.result())

    def _write_alone(self, runner: WorkRunner, work: Callable[[Any], T]) -> T:
        try:
            with self.engine.begin() as connection:
                return runner(connection, work, in_savepoint=False)
        except InternalError as error:
            if getattr(error.orig, "sqlstate", None) not in (IDLE_TIMEOUT_CODE, READ_ONLY_CODE):
                raise
            # The process was frozen, or another server took over: report a lost connection to the caller.
            raise OperationalError(
                error.statement, error.params, cast("BaseException", error.orig)
            ) from error

    def close(self) -> None:
        """Finishes the queued work, then ends the threads and closes the connections."""
        if self._writer is not None:
            self._writer.close()
        self._threads.shutdown(wait=True)
        self._priority_threads.shutdown(wait=True)
        if self._connections is not None:
            self._connections.close()
            self.reading.dispose()
        self.engine.dispose()
