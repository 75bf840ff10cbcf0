"""Writes tables as lines of JSON and loads them, for either database, from the database's actual schema.

Not from the models: a backup may be older than they are. Derived data is left out and rebuilt; data about
running processes is left out for good.
"""

import base64
from collections.abc import Callable, Iterator
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from sqlalchemy import Connection, TableClause, column, insert, inspect, select, table, text, types
from sqlalchemy.exc import SQLAlchemyError

from luxx.domain.backup.archive import ArchiveMember, Size
from luxx.errors import LuxxError
from luxx.infra.store.tables import Base

Identifier = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,62}$(?!\n)")]


class ColumnKind(StrEnum):
    """How a row's JSON encodes a column's values: bytes as base64, times as ISO 8601 in UTC."""

    TEXT = "text"
    INTEGER = "integer"
    FLOAT = "float"
    BOOLEAN = "boolean"
    BYTES = "bytes"
    TIME = "time"
    JSON = "json"


class Column(msgspec.Struct, frozen=True, kw_only=True):
    name: Identifier
    kind: ColumnKind


class TablePart(msgspec.Struct, frozen=True, kw_only=True):
    """A table: one row per line, as an array with a value for each column."""

    name: Identifier
    columns: list[Column]
    rows: Size
    member: ArchiveMember


SEARCH_TABLE = "search_texts"
WORDS_COLUMN = "words"
"""The column of the search index that is rebuilt from messages and titles."""

EXCLUDED_PREFIXES = ("alembic_version", "sqlite_", "search_index")
"""Prefixes of tables that the database or a migration creates."""

EPHEMERAL_TABLES = frozenset(
    {
        *("processes", "tickets", "call_outputs", "memory_deletions"),
        *("mcp_clients", "mcp_flows", "mcp_grants", "mcp_connections", "mcp_calls"),
        "artifact_renders",
    }
)
"""Tables of short-lived data: running processes, tickets for sockets, outputs of calls by hand, notes about
deletions, sign-ins at MCP servers, whose tokens a backup must not have, connections to them, and files that
can be made of artifacts again."""

DERIVED_TABLES = frozenset({"memory_texts", "chunk_texts"})
"""Tables that their features make anew from others after a restore."""

ROWS_PER_FETCH = 100
LARGE_ROW_FETCH = {
    "artifact_parts": 20,
    "document_pieces": 4,
    "message_blobs": 4,
    "messages": 4,
    "run_results": 4,
    "run_events": 20,
    "run_sources": 20,
}
"""Rows in memory at once, for tables whose rows may have megabytes."""

BATCH_ROWS = 500
BATCH_BYTES = 1024 * 1024

ROW_ERRORS = (
    msgspec.DecodeError, ValueError, TypeError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip
"""Errors for a row that is not valid."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[Any]).decode


def tables_of(connection: Connection, *, is_newest: bool) -> list[tuple[str, list[Column]]]:
    """The tables that a backup contains, with their columns, by name.

    At the newest step only Luxx's own tables: other programs may share the database.
    """
    inspector = inspect(connection)
    names = [name for name in inspector.get_table_names() if not name.startswith(EXCLUDED_PREFIXES)]
    if is_newest:
        names = [name for name in names if name in Base.metadata.tables]
    result: list[tuple[str, list[Column]]] = []
    for name in sorted(set(names) - EPHEMERAL_TABLES - DERIVED_TABLES):
        columns = [
            Column(name=column["name"], kind=kind_of(column["type"]))
            for column in inspector.get_columns(name)
            if (name, column["name"]) != (SEARCH_TABLE, WORDS_COLUMN)
        ]
        result.append((name, columns))
    return result


def kind_of(type_: Any) -> ColumnKind:
    """How the values of a column of this type are encoded."""
    kinds: list[tuple[Any, ColumnKind]] = [
        (types.Boolean, ColumnKind.BOOLEAN),
        (types.Integer, ColumnKind.INTEGER),
        (types.Float, ColumnKind.FLOAT),
        (types.LargeBinary, ColumnKind.BYTES),
        (types.DateTime, ColumnKind.TIME),
        (types.JSON, ColumnKind.JSON),
        (types.String, ColumnKind.TEXT),
    ]
    for class_, kind in kinds:
        if isinstance(type_, class_):
            return kind
    raise LuxxError(f"a column of type {type_!r} cannot be backed up")


def clause_of(name: str, columns: list[Column], connection: Connection) -> TableClause:
    """The table for statements, with the column types of this database."""
    column_types = {each["name"]: each["type"] for each in inspect(connection).get_columns(name)}
    missing = [each.name for each in columns if each.name not in column_types]
    if missing:
        raise LuxxError(f"the table {name} has no column {missing[0]} at the migration step of the backup")
    return table(name, *(column(each.name, column_types[each.name]) for each in columns))


def write_rows(connection: Connection, name: str, columns: list[Column], out: Callable[[bytes], Any]) -> int:
    """Writes all rows of a table in the order of its key, one per line; returns their number."""
    clause = clause_of(name, columns, connection)
    key = inspect(connection).get_pk_constraint(name)["constrained_columns"]
    query = select(clause).order_by(*(clause.c[part] for part in key))
    rows = 0
    options = {"yield_per": LARGE_ROW_FETCH.get(name, ROWS_PER_FETCH)}
    for row in connection.execute(query, execution_options=options):
        out(_encode(tuple(row)) + b"\n")
        rows += 1
    return rows


def error_line(error: Exception) -> str:
    """An error of the database on one line, at most 500 characters."""
    return " ".join(str(getattr(error, "orig", None) or error).split())[:500]


def lines_of(file: Any) -> Iterator[bytes]:
    """The lines of a file, of any length: the manifest bounds the file's size."""
    pending: list[bytes] = []
    while data := file.read(BATCH_BYTES):
        first, *lines = data.split(b"\n")
        pending.append(first)
        if lines:
            yield b"".join(pending)
            pending = [lines.pop()]
            yield from lines
    if rest := b"".join(pending):
        yield rest


class RowLoader:
    """Loads rows into existing tables. `replaced` counts NUL characters, which PostgreSQL cannot store."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._has_no_nul = connection.dialect.name == "postgresql"
        self.replaced = 0

    def load(self, part: TablePart, file: Any) -> None:
        """Loads all rows of a table. Raises LuxxError if they do not match the manifest."""
        write = insert(clause_of(part.name, part.columns, self._connection))
        count = 0
        for batch in self.batches(part, file):
            count += len(batch)
            try:
                self._connection.execute(write, batch)
            except (SQLAlchemyError, OverflowError) as error:
                raise LuxxError(f"the rows of {part.name} cannot be stored: {error_line(error)}") from error
        if count != part.rows:
            raise LuxxError(f"the backup has {count} rows of {part.name}, but its manifest says {part.rows}")

    def batches(self, part: TablePart, file: Any) -> Iterator[list[dict[str, Any]]]:
        """A table's rows as dicts by column name, in batches."""
        names = [column.name for column in part.columns]
        readers = [self._reader(column.kind) for column in part.columns]
        batch: list[dict[str, Any]] = []
        size = 0
        for line in lines_of(file):
            try:
                values = _decode(line)
                row = {
                    name: None if value is None else reader(value)
                    for name, reader, value in zip(names, readers, values, strict=True)
                }
            except ROW_ERRORS as error:
                raise LuxxError(
                    f"the backup has a row of {part.name} that cannot be read: {error}"
                ) from error
            batch.append(row)
            size += len(line)
            if size >= BATCH_BYTES or len(batch) >= BATCH_ROWS:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _reader(self, kind: ColumnKind) -> Callable[[Any], Any]:
        match kind:
            case ColumnKind.TEXT:
                return self._text
            case ColumnKind.INTEGER:
                return int
            case ColumnKind.FLOAT:
                return float
            case ColumnKind.BOOLEAN:
                return bool
            case ColumnKind.BYTES:
                return lambda value: base64.b64decode(value, validate=True)
            case ColumnKind.TIME:
                return datetime.fromisoformat
            case ColumnKind.JSON:
                return lambda value: value

    def _text(self, value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError("expected a string")
        if self._has_no_nul and "\0" in value:
            self.replaced += value.count("\0")
            return value.replace("\0", "\ufffd")
        return value


# Ids that are never reused


def sequences_of(connection: Connection, names: list[str]) -> dict[str, int]:
    """The last id that each table assigned, where the database counts them."""
    if connection.dialect.name == "sqlite":
        has_any = connection.scalar(text("SELECT 1 FROM sqlite_master WHERE name = 'sqlite_sequence'"))
        rows = connection.execute(text("SELECT name, seq FROM sqlite_sequence")) if has_any else ()
        return {str(name): int(seq) for name, seq in rows if name in names}
    last = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {}"
    return {
        name: int(connection.scalar(text(last.format(sequence))) or 0)
        for name, sequence in _sequences(connection, names)
    }


def set_sequences(connection: Connection, names: list[str], last: dict[str, int]) -> None:
    """Sets the counters so that no table reuses an id from here or from the backup."""
    if connection.dialect.name == "sqlite":
        has_counters = connection.scalar(text("SELECT 1 FROM sqlite_master WHERE name = 'sqlite_sequence'"))
        for name, value in last.items() if has_counters else ():
            declared = connection.scalar(
                text("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = :name"), {"name": name}
            )
            if "AUTOINCREMENT" not in str(declared).upper():
                continue
            parameters = {"name": name, "value": value}
            if not connection.execute(
                text("UPDATE sqlite_sequence SET seq = max(seq, :value) WHERE name = :name"), parameters
            ).rowcount:
                connection.execute(
                    text("INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :value)"), parameters
                )
        return
    for name, sequence in _sequences(connection, names):
        highest = connection.scalar(text(f'SELECT max(id) FROM "{name}"')) or 0
        value = max(int(highest), last.get(name, 0))
        if value:
            connection.execute(
                text("SELECT setval(:sequence, :value)"), {"sequence": sequence, "value": value}
            )


def _sequences(connection: Connection, names: list[str]) -> Iterator[tuple[str, str]]:
    """PostgreSQL's tables whose `id` has a sequence, with the sequence's SQL name."""
    for name in names:
        if any(column["name"] == "id" for column in inspect(connection).get_columns(name)):
            sequence = connection.scalar(text("SELECT pg_get_serial_sequence(:table, 'id')"), {"table": name})
            if sequence is not None:
                yield name, str(sequence)
