"""Runs graph queries: compiled, within two seconds, in threads of their own so that they delay no others."""

import sqlite3
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any

import msgspec
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from luxx.errors import InvalidInput
from luxx.features.memory.cypher.compiler import ResultColumn, Statement, compile_query
from luxx.features.memory.cypher.schema import ValueType
from luxx.features.memory.lexical import memory_name

MAX_ROWS = 200
QUERY_SECONDS = 2.0
STEPS_BETWEEN_CHECKS = 20_000
"""Steps of SQLite's machine; some hundred microseconds."""

MAX_RESULT_BYTES = 2_000_000
CANCELLED_CODE = "57014"
"""PostgreSQL's error code for a statement that took longer than it may."""

_decode = msgspec.json.decode


class QueryResult(msgspec.Struct, frozen=True, kw_only=True):
    """`rows` are lists in the order of `columns`. `truncated`: there are more rows than the limit."""

    columns: list[str]
    rows: list[list[Any]]
    truncated: bool


class QueryTimeout(InvalidInput):
    """A query that took too long."""

    kind = "query_timeout"

    def __init__(self) -> None:
        super().__init__(
            f"the query took more than {QUERY_SECONDS:g} s; name a node by a property, or use shorter paths"
        )


def run_query(
    connection: Connection,
    query: str,
    parameters: Mapping[str, Any],
    scopes: Sequence[int],
    limit: int = MAX_ROWS,
) -> QueryResult:
    """The rows of a query of the nodes and edges of these scopes. Raises QueryRefused or QueryTimeout."""
    dialect = connection.dialect.name
    statement = compile_query(
        query, parameters, dialect=dialect, scopes=scopes, limit=limit, fold=memory_name
    )
    bounded = _bounded_sqlite if dialect == "sqlite" else _bounded_postgresql
    with bounded(connection):
        rows = connection.exec_driver_sql(statement.sql, statement.parameters).fetchall()
    return _result(statement, rows, limit)


@contextmanager
def _bounded_sqlite(connection: Connection) -> Generator[None]:
    driver: Any = connection.connection.driver_connection
    deadline = monotonic() + QUERY_SECONDS
    longest = driver.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_RESULT_BYTES)
    driver.set_progress_handler(lambda: monotonic() > deadline, STEPS_BETWEEN_CHECKS)
    try:
        yield
    except DBAPIError as error:
        raise _sqlite_error(error) from None
    finally:
        driver.set_progress_handler(None, 0)
        driver.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, longest)


def _sqlite_error(error: DBAPIError) -> Exception:
    match getattr(error.orig, "sqlite_errorname", ""):
        case "SQLITE_INTERRUPT":
            return QueryTimeout()
        case "SQLITE_TOOBIG":
            return _too_large()
        case _:
            return _out_of_range() if "overflow" in str(error.orig) else error


@contextmanager
def _bounded_postgresql(connection: Connection) -> Generator[None]:
    # The statement says in which order its tables are joined; to look for another takes long.
    settings = f"SET LOCAL statement_timeout = {int(QUERY_SECONDS * 1000)}; SET LOCAL join_collapse_limit = 1"
    connection.exec_driver_sql(settings)
    try:
        yield
    except DBAPIError as error:
        match getattr(error.orig, "sqlstate", None):
            case str(code) if code == CANCELLED_CODE:
                raise QueryTimeout from None
            case "22003":
                raise _out_of_range() from None
            case "54000":
                raise _too_large() from None
            case _:
                raise


def _too_large() -> InvalidInput:
    return InvalidInput("the result is too large; collect less, or use LIMIT", kind="query_refused")


def _out_of_range() -> InvalidInput:
    return InvalidInput("a sum is larger than a number of 64 bits can be", kind="query_refused")


def _result(statement: Statement, rows: Sequence[Any], limit: int) -> QueryResult:
    columns = statement.columns
    return QueryResult(
        columns=[column.name for column in columns],
        rows=[
            [_value(value, column) for value, column in zip(row, columns, strict=True)]
            for row in rows[:limit]
        ],
        truncated=len(rows) > limit,
    )


def _value(value: Any, column: ResultColumn) -> Any:
    if value is None:
        return None
    match column.type:
        case ValueType.NODE | ValueType.EDGE:
            return _decode(value)
        case ValueType.BOOLEAN:
            return bool(value)
        case ValueType.LIST:
            return [_element(item, column.element) for item in _decode(value)]
        case _:
            return value


def _element(value: Any, type_: ValueType | None) -> Any:
    match type_:
        case ValueType.NODE | ValueType.EDGE:
            # SQLite may keep the object of a text that it made itself.
            return _decode(value) if isinstance(value, str) else value
        case ValueType.BOOLEAN:
            return bool(value)
        case ValueType.FLOAT:
            return float(value)
        case _:
            return value
