"""How work is done on a SQLite connection: kept connections, and the one thread that commits in groups.

Which database there is, and who may ask it, is in `engine.py`.
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
"""Who is answered, with what the work gave, or what it raised."""


class Waiter(Protocol):
    """`loop` is where it is to be answered; None: in any thread."""

    loop: asyncio.AbstractEventLoop | None

    def answer(self, value: Any, failure: BaseException | None) -> None:
        """Once."""
        ...


class ThreadWaiter:
    """A thread that sleeps on a bare lock."""

    __slots__ = ("_failure", "_lock", "_value", "loop")

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._value: Any = None
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._lock.acquire()

    def answer(self, value: Any, failure: BaseException | None) -> None:
        """See `Waiter`."""
        self._value, self._failure = value, failure
        self._lock.release()

    def result(self) -> Any:
        """Sleeps until the answer is there; once. Raises what the work raised."""
        self._lock.acquire()
        failure, self._failure = self._failure, None
        if failure is None:
            return self._value
        try:
            raise failure
        finally:
            # Its traceback knows this frame: a circle that would stay until the collector comes by.
            del failure


class LoopWaiter:
    """A coroutine of the running loop, which awaits `future`. Cancelled, it is not answered."""

    __slots__ = ("future", "loop")

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()

    def answer(self, value: Any, failure: BaseException | None) -> None:
        """See `Waiter`."""
        if self.future.done():
            return
        if failure is None:
            self.future.set_result(value)
        else:
            self.future.set_exception(failure)


def resolve_all(outcomes: list[WriteOutcome]) -> None:
    """Answers each where it waits; a loop is woken once for all of its own."""
    by_loop: dict[asyncio.AbstractEventLoop, list[WriteOutcome]] = {}
    for waiter, value, failure in outcomes:
        if waiter.loop is None:
            waiter.answer(value, failure)
        else:
            by_loop.setdefault(waiter.loop, []).append((waiter, value, failure))
    for loop, loop_outcomes in by_loop.items():
        # A loop that has been closed: nobody waits any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_resolve_in_loop, loop_outcomes)


def _resolve_in_loop(outcomes: list[WriteOutcome]) -> None:
    for waiter, value, failure in outcomes:
        waiter.answer(value, failure)


T = TypeVar("T")
Work = Callable[[Session], T]
RowWork = Callable[[Connection], T]

GROUP_LIMIT = 64
"""Most writes in one commit, so that the first of them does not wait long."""

CLOSED = "the store is closed"

ROWS = "luxx_rows"
"""The savepoint of a write without a Session."""


class WorkRunner(Protocol):
    """What a piece of work is given. `own`: in a savepoint of its own, else in the transaction as it is."""

    def __call__(self, connection: Connection, work: Callable[[Any], T], *, own: bool) -> T: ...


_QueuedWrite = tuple[WorkRunner, Callable[[Any], Any], Waiter]


class ThreadConnections:
    """One SQLite connection per thread, kept: taking one from the pool costs more than a query."""

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


def in_session(work: Work[T], connection: Connection) -> T:
    """Work that only reads, with a Session in a transaction that somebody else begins and ends."""
    with Session(connection, expire_on_commit=False, join_transaction_mode="rollback_only") as session:
        return work(session)


class GroupWriter:
    """The one thread that writes to SQLite: takes all that has queued, commits once, then answers."""

    def __init__(self, engine: Engine) -> None:
        self._connections = ThreadConnections(engine)
        self._queue: queue.SimpleQueue[_QueuedWrite | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._closed = False
        self._thread.start()

    def submit(self, form: WorkRunner, work: Callable[[Any], Any], waiter: Waiter) -> None:
        """Has it done and `waiter` answered, once it is on disk. Raises RuntimeError after `close`."""
        if self._closed:
            raise RuntimeError(CLOSED)
        self._queue.put((form, work, waiter))

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
        self._connections.close()
        self._reject_late()

    def _reject_late(self) -> None:
        """Whoever put work in as the store was being closed is told, and does not wait for ever."""
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
                for form, work, waiter in group:
                    outcomes.append((waiter, *_run_one(connection, form, work, alone=len(group) == 1)))
        except BaseException as error:
            failure: BaseException = error
            if isinstance(error, sqlite3.Error):
                # Of a savepoint that went with its transaction: SQLite ends that itself on a full disk.
                failure = OperationalError(None, None, error)
            self._connections.drop_if_broken(failure)
            outcomes = [(waiter, None, failure) for _form, _work, waiter in group]
        resolve_all(outcomes)
        # An error's traceback knows this frame: else they would live until the collector comes by.
        outcomes.clear()


def with_session(connection: Connection, work: Work[T], *, own: bool) -> T:
    mode = "create_savepoint" if own else "rollback_only"
    with Session(connection, expire_on_commit=False, join_transaction_mode=mode) as session:
        try:
            value = work(session)
            session.commit()
        except BaseException:
            session.rollback()
            raise
        return value


def with_rows(connection: Connection, work: RowWork[T], *, own: bool) -> T:
    if not own:
        return work(connection)
    driver: Any = connection.connection.driver_connection
    driver.execute(f"SAVEPOINT {ROWS}")
    try:
        value = work(connection)
    except BaseException:
        # A disk that is full has ended the whole transaction.
        if driver.in_transaction:
            driver.execute(f"ROLLBACK TO {ROWS}")
            driver.execute(f"RELEASE {ROWS}")
        raise
    driver.execute(f"RELEASE {ROWS}")
    return value


def _run_one(
    connection: Connection, form: WorkRunner, work: Callable[[Any], Any], *, alone: bool
) -> tuple[Any, BaseException | None]:
    """One write of a group: alone it owns the transaction, else a savepoint keeps its failure to itself."""
    try:
        return form(connection, work, own=not alone), None
    except BaseException as error:
        driver: Any = connection.connection.driver_connection
        if alone or not driver.in_transaction:
            raise
        return None, error
