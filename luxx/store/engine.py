"""One database, SQLite or PostgreSQL, and the rule that SQL runs in threads.

`read` and `write` take a function of a Session and run it whole in one transaction in a thread; no
session outlives it, so none stays open across a model call. On SQLite all writes go through one
thread that commits what has queued up together (group commit): with `synchronous=FULL` the disk is
asked once for many writers, and nobody ever sees "database is locked".
"""

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, Dialect, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    InternalError,
    OperationalError,
    ResourceClosedError,
    SQLAlchemyError,
)
from sqlalchemy.orm import Session

from luxx.errors import ConfigError

T = TypeVar("T")
Work = Callable[[Session], T]

BUSY_TIMEOUT_MS = 10_000
READERS = 8
CASELESS = "luxx_caseless"
"""A function of SQLite connections: a text without capitals, of any language."""

POSTGRESQL_PATIENCE = {"connect_timeout": 10, "keepalives_idle": 15, "tcp_user_timeout": 30_000}
"""Seconds, seconds and milliseconds: a server that is gone is noticed, and nothing waits for it for ever."""

TOO_SILENT = "25P03"
"""PostgreSQL's code for a transaction that it ended because nothing was asked in it for too long."""

SQLITE_READ = {"luxx_read": True}
POSTGRESQL_READ = {"isolation_level": "REPEATABLE READ"}
"""All statements of a read see one state, as on SQLite. Said in the BEGIN: it costs no question more."""

SAVEPOINTS = {
    "do_savepoint": "SAVEPOINT ",
    "do_release_savepoint": "RELEASE ",
    "do_rollback_to_savepoint": "ROLLBACK TO ",
}
GROUP_LIMIT = 64
"""Most writes in one commit, so that the first of them does not wait long."""


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


def open_engine(url: URL, *, silence_seconds: float | None = None) -> Engine:
    """A SQLAlchemy engine with the settings that the house relies on (WAL, FULL, foreign keys).

    `silence_seconds`: PostgreSQL ends a transaction in which it was asked nothing for so long. A process that
    is frozen in the middle of one would keep its locks from all others.
    """
    if url.get_backend_name() == "postgresql":
        engine = create_engine(
            url,
            pool_size=READERS,
            max_overflow=READERS,
            pool_pre_ping=True,
            hide_parameters=True,
            connect_args=POSTGRESQL_PATIENCE,
        )
        if silence_seconds is not None:
            event.listen(engine, "connect", partial(_bound_silence, silence_seconds))
        return engine
    Path(str(url.database)).parent.mkdir(parents=True, exist_ok=True)
    # Parameters are whole messages, hashes and sealed keys: they do not belong in a log.
    engine = create_engine(url, pool_size=READERS + 2, max_overflow=READERS, hide_parameters=True)
    _shorten_savepoints(engine.dialect)
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _bound_silence(seconds: float, connection: Any, _record: Any) -> None:
    connection.autocommit = True
    connection.execute(f"SET idle_in_transaction_session_timeout = {int(seconds * 1000)}")
    connection.autocommit = False


def _prepare_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None
    # SQLite's own `lower` knows no letters but those of English.
    connection.create_function(CASELESS, 1, _caseless, deterministic=True)
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        f"busy_timeout={BUSY_TIMEOUT_MS}",
        "cache_size=-2000",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _shorten_savepoints(dialect: Dialect) -> None:
    """Savepoints straight to the driver: made as statements, they are a third of a write in a group."""

    def plainly(statement: str) -> Callable[[Connection, str], None]:
        def run(connection: Connection, name: str) -> None:
            driver: Any = connection.connection.driver_connection
            driver.execute(statement + name)

        return run

    for name, statement in SAVEPOINTS.items():
        setattr(dialect, name, plainly(statement))


def _caseless(text: str | None) -> str | None:
    return None if text is None else text.casefold()


def _begin_sqlite(connection: Connection) -> None:
    reading = connection.get_execution_options().get("luxx_read", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


class Store:
    """Runs work against the database. One per process; `on_write` is told the seconds that writes took."""

    def __init__(self, engine: Engine, *, on_write: Callable[[float], None] | None = None) -> None:
        self.engine = engine
        self._on_write = on_write
        self.is_sqlite = engine.dialect.name == "sqlite"
        self._reading = engine.execution_options(**(SQLITE_READ if self.is_sqlite else POSTGRESQL_READ))
        self._kept = _KeptConnections(self._reading) if self.is_sqlite else None
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="store")
        self._writer = _GroupWriter(engine) if self.is_sqlite else None

    async def read(self, work: Work[T]) -> T:
        """`work(session)` in a read transaction. Do not write in it."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.read_now, work)

    async def write(self, work: Work[T]) -> T:
        """`work(session)` in a write transaction; returns once it is on disk. An exception undoes it alone.

        Cancelling the caller does not stop the work: it commits or fails as it would have.
        """
        started = time.perf_counter()
        if self._writer is None:
            loop = asyncio.get_running_loop()
            value = await asyncio.shield(loop.run_in_executor(self._threads, self._write_alone, work))
        else:
            value = await asyncio.shield(asyncio.wrap_future(self._writer.submit(work)))
        if self._on_write is not None:
            self._on_write(time.perf_counter() - started)
        return value

    def read_now(self, work: Work[T]) -> T:
        """`read` for a caller that is in a thread of its own."""
        if self._kept is None:
            with Session(self._reading, expire_on_commit=False) as session:
                return work(session)
        try:
            connection = self._kept.mine()
            with connection.begin(), _session_in(connection) as session:
                return work(session)
        except DBAPIError as error:
            self._kept.drop_if_broken(error)
            raise

    def write_now(self, work: Work[T]) -> T:
        """`write` for a caller that is in a thread of its own."""
        return self._write_alone(work) if self._writer is None else self._writer.submit(work).result()

    def _write_alone(self, work: Work[T]) -> T:
        try:
            with Session(self.engine, expire_on_commit=False) as session, session.begin():
                return work(session)
        except InternalError as error:
            if getattr(error.orig, "sqlstate", None) != TOO_SILENT:
                raise
            # This process was frozen, or far too slow: to whoever asked, the database went away.
            raise OperationalError(
                error.statement, error.params, cast("BaseException", error.orig)
            ) from error

    def close(self) -> None:
        """Ends the threads after what they hold is done."""
        if self._writer is not None:
            self._writer.close()
        self._threads.shutdown(wait=True)
        if self._kept is not None:
            self._kept.close()
        self.engine.dispose()


class _KeptConnections:
    """One SQLite connection per thread, kept: taking one from the pool costs more than a query."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._local = threading.local()
        self._all: list[Connection] = []

    def mine(self) -> Connection:
        """The calling thread's connection."""
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._engine.connect()
            self._all.append(connection)
        return connection

    def drop_if_broken(self, error: BaseException) -> None:
        """After a failure of the database itself the next work begins with a new connection."""
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is not None and isinstance(error, OperationalError | ResourceClosedError):
            self._local.connection = None
            self._all.remove(connection)
            with suppress(SQLAlchemyError):
                connection.close()

    def close(self) -> None:
        """Closes all of them; no thread may be using one."""
        for connection in self._all:
            connection.close()


def _session_in(connection: Connection) -> Session:
    """A Session in a transaction that somebody else begins and ends."""
    return Session(connection, expire_on_commit=False, join_transaction_mode="rollback_only")


class _GroupWriter:
    """The one thread that writes to SQLite: takes all that has queued, commits once, then answers."""

    def __init__(self, engine: Engine) -> None:
        self._kept = _KeptConnections(engine)
        self._queue: queue.SimpleQueue[tuple[Work[Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._closed = False
        self._thread.start()

    def submit(self, work: Work[T]) -> "Future[T]":
        if self._closed:
            raise RuntimeError("the store is closed")
        future: Future[T] = Future()
        self._queue.put((work, future))
        return future

    def close(self) -> None:
        self._closed = True
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        ends = False
        while not ends:
            group, ends = self._take()
            if group:
                self._commit(group)
            # Else what it holds would live until the next write.
            del group
        self._kept.close()
        self._refuse_late()

    def _refuse_late(self) -> None:
        """Whoever put work in as the store was being closed is told, and does not wait for ever."""
        with suppress(queue.Empty):
            while True:
                late = self._queue.get_nowait()
                if late is not None:
                    late[1].set_exception(RuntimeError("the store is closed"))

    def _take(self) -> tuple[list[tuple[Work[Any], Future[Any]]], bool]:
        group: list[tuple[Work[Any], Future[Any]]] = []
        item = self._queue.get()
        while True:
            if item is None:
                return group, True
            group.append(item)
            if len(group) >= GROUP_LIMIT:
                return group, False
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return group, False

    def _commit(self, group: list[tuple[Work[Any], Future[Any]]]) -> None:
        answers: list[tuple[Future[Any], Any, BaseException | None]] = []
        try:
            connection = self._kept.mine()
            with connection.begin():
                for work, future in group:
                    answers.append((future, *_one(connection, work, alone=len(group) == 1)))
        except BaseException as error:
            self._kept.drop_if_broken(error)
            for _work, future in group:
                future.set_exception(error)
            return
        for future, value, failure in answers:
            if failure is not None:
                future.set_exception(failure)
            else:
                future.set_result(value)


def _one(connection: Connection, work: Work[Any], *, alone: bool) -> tuple[Any, BaseException | None]:
    """One write of a group: alone it owns the transaction, else a savepoint keeps its failure to itself."""
    mode = "rollback_only" if alone else "create_savepoint"
    with Session(connection, expire_on_commit=False, join_transaction_mode=mode) as session:
        try:
            value = work(session)
            session.commit()
            return value, None
        except BaseException as error:
            if alone:
                raise
            session.rollback()
            return None, error
