"""Removing what was deleted from the files of the database: merging a full text index, emptying the WAL,
rewriting a small database, vacuum. Each step is short, so that writes go on meanwhile or wait some seconds.

All of it blocks: call it in a thread.
"""

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from enum import Enum
from time import monotonic
from typing import Any, cast

from sqlalchemy import Connection, Engine, text

from luxx.infra.store.engine import BUSY_TIMEOUT_MS, Store
from luxx.infra.store.tables import Lock

MERGED_PAGES = 64
"""Pages of a full text index that one write merges: some milliseconds."""

MAX_MERGES = 10_000
"""Writes of one merge; an index of 100,000 facts takes some hundred."""

CHECKPOINT_TIMEOUT_MS = 200
"""How long emptying the WAL waits for readers; writes wait as long."""

MAX_REWRITTEN_BYTES = 128 * 2**20
REWRITE_SECONDS = 4.0
"""How large a database is rewritten, and how long that may take: writes wait meanwhile, at most
BUSY_TIMEOUT_MS."""

STEPS_BETWEEN_CHECKS = 10_000
"""Steps of SQLite's machine; a millisecond."""

LOCK_TIMEOUT_MS = 5_000
"""How long a vacuum waits for another one."""


def merge_index(store: Store, table: str) -> None:
    """Merges all segments of an FTS5 table into one, which drops the words of deleted rows."""
    store.write_rows_now(lambda connection: _merge(connection, table, -MERGED_PAGES))
    for _ in range(MAX_MERGES):
        if store.write_rows_now(lambda connection: _merge(connection, table, MERGED_PAGES)) < 2:
            return


def _merge(connection: Connection, table: str, pages: int) -> int:
    """Merges so many pages, of all segments if negative; returns less than 2 if there was nothing to do."""
    driver = cast("sqlite3.Connection", connection.connection.driver_connection)
    before = driver.total_changes
    driver.execute(f"INSERT INTO {table} ({table}, rank) VALUES ('merge', ?)", (pages,))
    return driver.total_changes - before


def empty_wal(engine: Engine) -> bool:
    """Copies the WAL of SQLite to the database and cuts it to zero bytes; False if readers need it."""
    pooled = engine.raw_connection()
    try:
        driver = cast("sqlite3.Connection", pooled.driver_connection)
        driver.execute(f"PRAGMA busy_timeout={CHECKPOINT_TIMEOUT_MS}")
        try:
            # The first one copies while others write; little is left for the second, which stops writes.
            driver.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            (is_busy, _, _) = driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.OperationalError:
            return False
        finally:
            driver.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    finally:
        pooled.close()
    return not is_busy


class Rewriting(Enum):
    """How rewriting a database ended. `TOO_LARGE`: it is too large for the time, or for the disk."""

    DONE = "done"
    BUSY = "busy"
    TOO_LARGE = "too large"


def rewrite(engine: Engine) -> Rewriting:
    """Writes all pages of SQLite anew, into the WAL: where rows moved between pages when many were deleted,
    the unused parts of pages have pieces of them, which `secure_delete` does not overwrite."""
    pooled = engine.raw_connection()
    try:
        driver = cast("sqlite3.Connection", pooled.driver_connection)
        pages, size = (driver.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
        if pages * size > MAX_REWRITTEN_BYTES:
            return Rewriting.TOO_LARGE
        deadline = monotonic() + REWRITE_SECONDS
        driver.set_progress_handler(lambda: monotonic() > deadline, STEPS_BETWEEN_CHECKS)
        try:
            driver.execute("VACUUM")
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorname.startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
            return Rewriting.BUSY if is_busy else Rewriting.TOO_LARGE
        finally:
            driver.set_progress_handler(None, 0)
    finally:
        pooled.close()
    return Rewriting.DONE


@contextmanager
def only_process(engine: Engine, lock: Lock) -> Generator[Connection | None]:
    """Holds a lock that one process of the database has at a time, on a connection without transactions;
    None if another one has it. SQLite has one process."""
    with engine.connect() as opened:
        connection = opened.execution_options(isolation_level="AUTOCOMMIT")
        values: dict[str, Any] = {"lock": lock.value}
        if not connection.scalar(text("SELECT pg_try_advisory_lock(:lock)"), values):
            yield None
            return
        try:
            yield connection
        finally:
            if not connection.invalidated:
                connection.execute(text("SELECT pg_advisory_unlock(:lock)"), values)


def vacuum(connection: Connection, tables: Sequence[str]) -> None:
    """Removes deleted rows from tables of PostgreSQL and from all their indexes. Reads and writes go on."""
    connection.execute(text(f"SET lock_timeout = {LOCK_TIMEOUT_MS}"))
    try:
        for table in tables:
            connection.execute(text(f"VACUUM (INDEX_CLEANUP ON, TRUNCATE OFF) {table}"))
    finally:
        if not connection.invalidated:
            connection.execute(text("RESET lock_timeout"))
