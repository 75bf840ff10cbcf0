"""How work runs on a SQLite connection: kept connections, and the thread that commits writes in groups.

`engine.py` holds the choice of database and the public interface.
"""

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import OperationalError, ResourceClosedError, SQLAlchemyError
from sqlalchemy.orm import Session

WriteOutcome = tuple["Waiter", Any, BaseException | None]
"""The waiter, the value that the work returned, and the exception that it raised."""


class Waiter(Protocol):
    """Receives the outcome of a write. `loop`: the event loop that must call `resolve`; None: any thread."""

    loop: asyncio.AbstractEventLoop | None

    def resolve(self, value: Any, failure: BaseException | None) -> None:
        """Called once."""
        ...


class ThreadWaiter:
    """Lets a thread wait for the outcome, on a bare lock."""

    __slots__ = ("_failure", "_lock", "_value", "loop")

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._value: Any = None
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._lock.acquire()

    def resolve(self, value: Any, failure: BaseException | None) -> None:
        self._value, self._failure = value, failure
        self._lock.release()

    def result(self) -> Any:
        """Waits for the outcome; call it once. Raises what the work raised."""
        self._lock.acquire()
        failure, self._failure = self._failure, None
        if failure is None:
            return self._value
        try:
            raise failure
        finally:
            # The traceback refers to this frame: a reference cycle that would live until the next gc.
            del failure


class LoopWaiter:
    """Lets a coroutine of the running loop await `future`. A cancelled future gets no outcome."""

    __slots__ = ("future", "loop")

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()

    def resolve(self, value: Any, failure: BaseException | None) -> None:
        if self.future.done():
            return
        if failure is None:
            self.future.set_result(value)
        else:
            self.future.set_exception(failure)


def resolve_all(outcomes: list[WriteOutcome]) -> None:
    """Resolves each waiter in its loop or thread; each loop is woken only once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[WriteOutcome]] = {}
    for waiter, value, failure in outcomes:
        if waiter.loop is None:
            waiter.resolve(value, failure)
        else:
            by_loop.setdefault(waiter.loop, []).append((waiter, value, failure))
    for loop, loop_outcomes in by_loop.items():
        # RuntimeError: the loop is closed, so nothing waits any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_resolve_in_loop, loop_outcomes)


def _resolve_in_loop(outcomes: list[WriteOutcome]) -> None:
    for waiter, value, failure in outcomes:
        waiter.resolve(value, failure)


T = TypeVar("T")
Work = Callable[[Session], T]
RowWork = Callable[[Connection], T]

GROUP_LIMIT = 64
"""Maximum writes per commit, so that the first of them does not wait long."""

CLOSED = "the store is closed"

ROWS = "luxx_rows"
"""The name of the savepoint of a write without a Session."""


class WorkRunner(Protocol):
    """Runs work on a connection. `in_savepoint`: in its own savepoint, else in the current transaction."""

    def __call__(self, connection: Connection, work: Callable[[Any], T], *, in_savepoint: bool) -> T: ...


_QueuedWrite = tuple[WorkRunner, Callable[[Any], Any], Waiter]


class ThreadConnections:
    """One kept SQLite connection per thread: taking one from the pool costs more than a query."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._local = threading.local()
        self._all: list[Connection] = []

    def current(self) -> Connection:
        """The calling thread's connection."""
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._engine.connect()
            self._all.append(connection)
        return connection

    def drop_if_broken(self, error: BaseException) -> None:
        """Drops the thread's connection after a failure of the database; the next work opens a new one."""
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is not None and isinstance(error, OperationalError | ResourceClosedError):
            self._local.connection = None
            self._all.remove(connection)
            with suppress(SQLAlchemyError):
                connection.close()

    def close(self) -> None:
        """Closes all connections; no thread may be using one."""
        for connection in self._all:
            connection.close()


def in_session(work: Work[T], connection: Connection) -> T:
    """Runs work that only reads, with a Session in the caller's transaction."""
    with Session(connection, expire_on_commit=False, join_transaction_mode="rollback_only") as session:
        return work(session)


class GroupWriter:
    """The one thread that writes to SQLite: takes all queued work, commits once, then resolves waiters."""

    def __init__(self, engine: Engine) -> None:
        self._connections = ThreadConnections(engine)
        self._queue: queue.SimpleQueue[_QueuedWrite | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._closed = False
        self._thread.start()

    def submit(self, runner: WorkRunner, work: Callable[[Any], Any], waiter: Waiter) -> None:
        """Queues the work and resolves `waiter` once it is on disk. Raises RuntimeError after `close`."""
        if self._closed:
            raise RuntimeError(CLOSED)
        self._queue.put((runner, work, waiter))

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
            # Otherwise the group's objects would live until the next write.
            del group
        self._connections.close()
        self._reject_late()

    def _reject_late(self) -> None:
        """Fails the work that was queued while the store was closing, so that its caller does not wait for
        ever."""
        with suppress(queue.Empty):
            while True:
                rejected = self._queue.get_nowait()
                if rejected is not None:
                    resolve_all([(rejected[-1], None, RuntimeError(CLOSED))])

    def _take(self) -> tuple[list[_QueuedWrite], bool]:
        group: list[_QueuedWrite] = []
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

    def _commit(self, group: list[_QueuedWrite]) -> None:
        outcomes: list[WriteOutcome] = []
        try:
            connection = self._connections.current()
            with connection.begin():
                is_only = len(group) == 1
                for runner, work, waiter in group:
                    outcomes.append((waiter, *_run_one(connection, runner, work, is_only_write=is_only)))
        except BaseException as error:
            failure: BaseException = error
            if isinstance(error, sqlite3.Error):
                # The savepoint is gone with its transaction: SQLite itself rolls back on a full disk.
                failure = OperationalError(None, None, error)
            self._connections.drop_if_broken(failure)
            outcomes = [(waiter, None, failure) for _form, _work, waiter in group]
        resolve_all(outcomes)
        # An error's traceback refers to this frame: the outcomes would live until the next gc.
        outcomes.clear()


def with_session(connection: Connection, work: Work[T], *, in_savepoint: bool) -> T:
    mode = "create_savepoint" if in_savepoint else "rollback_only"
    with Session(connection, expire_on_commit=False, join_transaction_mode=mode) as session:
        try:
            value = work(session)
            session.commit()
        except BaseException:
            session.rollback()
            raise
        return value


def with_rows(connection: Connection, work: RowWork[T], *, in_savepoint: bool) -> T:
    if not in_savepoint:
        return work(connection)
    driver: Any = connection.connection.driver_connection
    driver.execute(f"SAVEPOINT {ROWS}")
    try:
        value = work(connection)
    except BaseException:
        # On a full disk SQLite has ended the whole transaction.
        if driver.in_transaction:
            driver.execute(f"ROLLBACK TO {ROWS}")
            driver.execute(f"RELEASE {ROWS}")
        raise
    driver.execute(f"RELEASE {ROWS}")
    return value


def _run_one(
    connection: Connection, runner: WorkRunner, work: Callable[[Any], Any], *, is_only_write: bool
) -> tuple[Any, BaseException | None]:
    """One write of a group. The only write of a group owns the transaction; others run in a savepoint, so
    that a failure stays their own."""
    try:
        return runner(connection, work, in_savepoint=not is_only_write), None
    except BaseException as error:
        driver: Any = connection.connection.driver_connection
        if is_only_write or not driver.in_transaction:
            raise
        return None, error
