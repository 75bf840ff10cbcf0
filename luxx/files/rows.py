"""Ids of files: the rows behind them, found and made. Work for a transaction; the disk is not asked here."""

import hashlib
import os
from collections.abc import Sequence

import sqlalchemy.dialects.postgresql as pg
import sqlalchemy.dialects.sqlite as lite
from sqlalchemy import Connection, Row, bindparam, delete, insert, select

from luxx.clock import new_id, utc_now
from luxx.files.models import FileRow
from luxx.files.names import media_type_of
from luxx.files.storage import Entry
from luxx.store.tables import table_of

_files = table_of(FileRow)
_here = (_files.c.user_id == bindparam("user"), _files.c.path_hash.in_(bindparam("hashes", expanding=True)))
_known = select(_files).where(*_here)
_forget = delete(_files).where(*_here)
_one = select(_files.c.path).where(_files.c.id == bindparam("id"), _files.c.user_id == bindparam("user"))
_insert = insert(_files)
_insert_if_new = {
    "sqlite": lite.insert(_files).on_conflict_do_nothing(),
    "postgresql": pg.insert(_files).on_conflict_do_nothing(),
}

FileRecord = Row[tuple[object, ...]]


def path_of(connection: Connection, user_id: int, file_id: str) -> str | None:
    """The path that an id of this user's stands for."""
    path = connection.execute(_one, {"id": file_id, "user": user_id}).scalar()
    return None if path is None else os.fsdecode(path)


def known(connection: Connection, user_id: int, paths: Sequence[str]) -> dict[str, FileRecord]:
    """The rows of those paths that have one."""
    found = connection.execute(_known, {"user": user_id, "hashes": [_hash(path) for path in paths]})
    return {os.fsdecode(row.path): row for row in found}


def make_known(connection: Connection, user_id: int, entries: Sequence[Entry]) -> None:
    """Gives ids to what has none. Another request may do the same at this moment."""
    rows = [_row(user_id, entry, None) for entry in entries]
    connection.execute(_insert_if_new[connection.dialect.name], rows)


def record_upload(connection: Connection, user_id: int, entry: Entry, sha256: str) -> str:
    """A new id for a file that was just put there; an id that its path had before leads to nothing."""
    forget(connection, user_id, entry.path)
    row = _row(user_id, entry, sha256)
    connection.execute(_insert, row)
    return str(row["id"])


def forget(connection: Connection, user_id: int, path: str) -> None:
    """The path's id leads to nothing from now on."""
    connection.execute(_forget, {"user": user_id, "hashes": [_hash(path)]})


def _row(user_id: int, entry: Entry, sha256: str | None) -> dict[str, object]:
    return {
        "id": new_id(), "user_id": user_id, "path": os.fsencode(entry.path), "path_hash": _hash(entry.path),
        "size": entry.size, "modified_ns": entry.modified_ns, "sha256": sha256,
        "media_type": media_type_of(entry.path)[:100], "created_at": utc_now(),
    }  # fmt: skip


def _hash(path: str) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()
