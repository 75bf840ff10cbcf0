"""The files of a user's workspace by id: list, open, delete. `upload.py` receives uploads.

An id stands for a path. The state of a file is always read from disk, so files that a tool wrote, changed
or removed are reported correctly.
"""

import asyncio
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

import msgspec
import sqlalchemy.dialects.postgresql as pg
import sqlalchemy.dialects.sqlite as lite
from sqlalchemy import (
    BigInteger,
    Connection,
    ForeignKey,
    LargeBinary,
    Row,
    String,
    UniqueConstraint,
    bindparam,
    delete,
    insert,
    select,
)
from sqlalchemy.orm import Mapped, mapped_column

from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.user_data import Workspaces
from luxx.domain.files.names import media_type_of
from luxx.domain.files.storage import FileEntry, OpenFile, WorkspaceFiles, display_path, file_not_found
from luxx.errors import InvalidInput, NotFound
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import Base, UtcDateTime, table_of

T = TypeVar("T")


class FileRow(Base):
    """The id of a path in a user's workspace, created at upload or when it was first listed.

    `path` is bytes, because a file name need not be valid text. The unique index is on `path_hash` (SHA-256),
    because a path can be too long for an index. `size`, `modified_ns` and `sha256` are those at upload: the
    hash is valid while the other two match the file.
    """

    __tablename__ = "files"
    __table_args__ = (UniqueConstraint("user_id", "path_hash"),)

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    path: Mapped[bytes] = mapped_column(LargeBinary)
    path_hash: Mapped[str] = mapped_column(String(64))
    size: Mapped[int] = mapped_column(BigInteger)
    modified_ns: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str | None] = mapped_column(String(64))
    media_type: Mapped[str] = mapped_column(String(100))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


_files = table_of(FileRow)
_of_paths = (
    _files.c.user_id == bindparam("user"),
    _files.c.path_hash.in_(bindparam("hashes", expanding=True)),
)
_select_by_paths = select(_files).where(*_of_paths)
_delete_by_paths = delete(_files).where(*_of_paths)
_select_path = select(_files.c.path).where(
    _files.c.id == bindparam("id"), _files.c.user_id == bindparam("user")
)
_insert = insert(_files)
_insert_if_new = {
    "sqlite": lite.insert(_files).on_conflict_do_nothing(),
    "postgresql": pg.insert(_files).on_conflict_do_nothing(),
}

FileRecord = Row[tuple[object, ...]]


def path_of(connection: Connection, user_id: int, file_id: str) -> str | None:
    """The path of a file id of this user; None for an unknown id."""
    path = connection.execute(_select_path, {"id": file_id, "user": user_id}).scalar()
    return None if path is None else os.fsdecode(path)


def find_rows(connection: Connection, user_id: int, paths: Sequence[str]) -> dict[str, FileRecord]:
    """The rows by path, for the paths that have one."""
    result = connection.execute(
        _select_by_paths, {"user": user_id, "hashes": [_hash(path) for path in paths]}
    )
    return {os.fsdecode(row.path): row for row in result}


def add_missing_ids(connection: Connection, user_id: int, entries: Sequence[FileEntry]) -> None:
    """Adds ids for new paths. A concurrent request may add the same ones; its ids then win."""
    rows = [_row(user_id, entry, None) for entry in entries]
    connection.execute(_insert_if_new[connection.dialect.name], rows)


def record_upload(connection: Connection, user_id: int, entry: FileEntry, sha256: str) -> str:
    """Returns a new id for an uploaded file; an earlier id of its path becomes invalid."""
    delete_id(connection, user_id, entry.path)
    row = _row(user_id, entry, sha256)
    connection.execute(_insert, row)
    return str(row["id"])


def delete_id(connection: Connection, user_id: int, path: str) -> None:
    """Deletes the id of a path."""
    connection.execute(_delete_by_paths, {"user": user_id, "hashes": [_hash(path)]})


def _row(user_id: int, entry: FileEntry, sha256: str | None) -> dict[str, object]:
    return {
        "id": new_id(), "user_id": user_id, "path": os.fsencode(entry.path), "path_hash": _hash(entry.path),
        "size": entry.size, "modified_ns": entry.modified_ns, "sha256": sha256,
        "media_type": media_type_of(entry.path)[:100], "created_at": utc_now(),
    }  # fmt: skip


def _hash(path: str) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()


FOLDER_TYPE = "inode/directory"


class FileView(msgspec.Struct, frozen=True, kw_only=True):
    """`path` is relative to the workspace. `sha256` is set for uploads that have not changed since.

    `media_type` is guessed from the name.
    """

    id: str
    name: str
    path: str
    size: int
    media_type: str
    sha256: str | None
    is_folder: bool
    modified_at: datetime


@dataclass(frozen=True, slots=True)
class FileService:
    """One per process."""

    store: Store
    workspaces: Workspaces

    async def list_page(
        self, caller: Caller, path: str, *, page: int, page_size: int
    ) -> tuple[list[FileView], int]:
        """The content of a folder: folders, then files, by name; and their total number.

        Raises NotFound if there is no such folder, InvalidInput for a path outside the workspace.
        """
        first = (page - 1) * page_size
        entries, total = await asyncio.to_thread(
            lambda: self.workspace_files(caller).list_folder(path, offset=first, limit=page_size)
        )
        return await self.views(caller, entries), total

    async def open(self, caller: Caller, file_id: str) -> OpenFile:
        """Opens a file of the caller. Raises NotFound, also if the file no longer exists."""

        def work(workspace_files: WorkspaceFiles, path: str) -> OpenFile:
            entry = workspace_files.find_entry(path)
            if entry is not None and entry.is_folder:
                raise InvalidInput("this is a folder; GET /files?path= lists it", kind="is_folder")
            return workspace_files.open_download(path)

        return (await self._with_file(caller, file_id, work))[0]

    async def delete(self, caller: Caller, file_id: str) -> None:
        """Removes a file or an empty folder. Raises NotFound, or Conflict for a folder that is not empty."""
        _, path = await self._with_file(caller, file_id, WorkspaceFiles.remove)
        await self._delete_id(caller, path)

    async def views(self, caller: Caller, entries: list[FileEntry]) -> list[FileView]:
        """The entries with their ids; entries without an id get one."""
        if not entries:
            return []
        paths = [entry.path for entry in entries]

        def read(connection: Connection) -> dict[str, FileRecord]:
            return find_rows(connection, caller.user_id, paths)

        records = await self.store.read_rows(read)
        new = [entry for entry in entries if entry.path not in records]
        if new:
            await self.store.write_rows(lambda connection: add_missing_ids(connection, caller.user_id, new))
            records = await self.store.read_rows(read)
        return [_view(entry, records[entry.path]) for entry in entries if entry.path in records]

    def workspace_files(self, caller: Caller) -> WorkspaceFiles:
        """The caller's workspace; may block. Raises Unavailable if it is missing and cannot be created."""
        return WorkspaceFiles(self.workspaces.prepare(caller.user_id))

    async def _with_file(
        self, caller: Caller, file_id: str, work: Callable[[WorkspaceFiles, str], T]
    ) -> tuple[T, str]:
        """The result of `work`, which runs in a thread, and the file's path. The id of a file that no longer
        exists is deleted."""
        path = await self.store.read_rows(lambda connection: path_of(connection, caller.user_id, file_id))
        if path is None:
            raise file_not_found()
        try:
            return await asyncio.to_thread(lambda: work(self.workspace_files(caller), path)), path
        except NotFound as error:
            await self._delete_id(caller, path)
            raise file_not_found() from error

    async def _delete_id(self, caller: Caller, path: str) -> None:
        await self.store.write_rows(lambda connection: delete_id(connection, caller.user_id, path))


def _view(entry: FileEntry, row: FileRecord) -> FileView:
    is_as_uploaded = (entry.size, entry.modified_ns) == (row.size, row.modified_ns)
    path = display_path(entry.path)
    return FileView(
        id=row.id,
        name=path.rpartition("/")[2],
        path=path,
        size=entry.size,
        media_type=FOLDER_TYPE if entry.is_folder else media_type_of(path),
        sha256=row.sha256 if is_as_uploaded else None,
        is_folder=entry.is_folder,
        modified_at=datetime.fromtimestamp(entry.modified_ns / 10**9, UTC),
    )
