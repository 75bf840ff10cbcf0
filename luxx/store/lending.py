"""A session as it is lent to a function that is not the house's, which neither ends nor widens it.

Whose function that is, and what it is for, is the lender's to say.
"""

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from typing import Any

from sqlalchemy import event, text
from sqlalchemy.orm import Session, SessionTransaction

NOT_YOURS = "a function that is lent a session neither commits nor rolls back: whoever lends it does"

_PRAGMAS_DENIED = frozenset({"query_only", "writable_schema"})
_DENIED = frozenset({sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH})

_only_read = text("SET TRANSACTION READ ONLY")
# PostgreSQL refuses to lift it once anything has been asked.
_anything = text("SELECT 1")


@contextmanager
def lent(session: Session, *, reads: bool) -> Generator[None]:
    """Savepoints are the borrower's own affair. Raises RuntimeError where it ended the transaction.

    `reads`: and no statement makes it one that can write.
    """
    ends: list[str] = []

    def refuse(_session: Session) -> None:
        if not session.in_nested_transaction():
            ends.append("commit")
            raise RuntimeError(NOT_YOURS)

    def remember(_session: Session, transaction: SessionTransaction) -> None:
        if transaction.parent is None:
            ends.append("rollback")

    event.listen(session, "before_commit", refuse)
    event.listen(session, "after_soft_rollback", remember)
    try:
        with _only_reading(session) if reads else nullcontext():
            yield
    finally:
        event.remove(session, "before_commit", refuse)
        event.remove(session, "after_soft_rollback", remember)
    if ends:
        raise RuntimeError(NOT_YOURS)


@contextmanager
def _only_reading(session: Session) -> Generator[None]:
    connection = session.connection()
    if connection.dialect.name == "postgresql":
        connection.execute(_only_read)
        connection.execute(_anything)
        yield
        return
    driver: Any = connection.connection.driver_connection
    driver.set_authorizer(_authorize)
    try:
        yield
    finally:
        driver.set_authorizer(None)


def _authorize(action: int, name: str | None, value: str | None, *_where: str | None) -> int:
    """Search asks pragmas of its own, so only those are denied that let a statement write."""
    if action in _DENIED:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_PRAGMA and value is not None and (name or "").lower() in _PRAGMAS_DENIED:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK
