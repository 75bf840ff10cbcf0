"""Files of a user's workspace by their ids: list, open, delete. What comes in is `upload.py`'s.

An id stands for a path. What the file is now is always asked of the disk, so a file that a tool
wrote, changed or removed is told of as it is.
"""

import asyncio
from datetime import UTC, datetime

import msgspec
from sqlalchemy.orm import Session

from luxx.accounts.caller import Caller
from luxx.accounts.workspaces import Workspaces
from luxx.errors import InvalidInput, NotFound
from luxx.files import rows
from luxx.files.names import media_type_of
from luxx.files.rows import FileRecord
from luxx.files.storage import NOT_THERE, Entry, OpenFile, Shelf, shown
from luxx.store.engine import Store

FOLDER_TYPE = "inode/directory"


class FileView(msgspec.Struct, frozen=True, kw_only=True):
    """`path` is within the workspace. `sha256` is known of uploads that have not changed since.

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


class FileService:
    """One per process."""

    def __init__(self, store: Store, workspaces: Workspaces) -> None:
        self._store = store
        self._workspaces = workspaces

    async def list_page(
        self, caller: Caller, path: str, *, page: int, page_size: int
    ) -> tuple[list[FileView], int]:
        """What a folder of the workspace holds: folders, then files, by name; and how many there are.

        Raises NotFound where there is no such folder, InvalidInput for a path that leads out.
        """
        first = (page - 1) * page_size

        def look() -> tuple[list[Entry], int]:
            return self.shelf(caller).list_folder(path, offset=first, limit=page_size)

        entries, total = await asyncio.to_thread(look)
        return await self.views(caller, entries), total

    async def open(self, caller: Caller, file_id: str) -> OpenFile:
        """A file of the caller's. Raises NotFound, also where the file has vanished since."""
        path = await self._path(caller, file_id)

        def work() -> OpenFile:
            shelf = self.shelf(caller)
            entry = shelf.look(path)
            if entry is not None and entry.is_folder:
                raise InvalidInput("this is a folder; GET /files?path= lists it", kind="is_folder")
            return shelf.open_file(path)

        try:
            return await asyncio.to_thread(work)
        except NotFound as error:
            await self._forget(caller, path)
            raise NotFound(NOT_THERE, kind="file_not_found") from error

    async def delete(self, caller: Caller, file_id: str) -> None:
        """Removes a file, or a folder that is empty. Raises NotFound, or Conflict for one that is not."""
        path = await self._path(caller, file_id)
        try:
            await asyncio.to_thread(lambda: self.shelf(caller).remove(path))
        except NotFound as error:
            await self._forget(caller, path)
            raise NotFound(NOT_THERE, kind="file_not_found") from error
        await self._forget(caller, path)

    async def views(self, caller: Caller, entries: list[Entry]) -> list[FileView]:
        """The entries with their ids; what has none yet gets one."""
        if not entries:
            return []
        paths = [entry.path for entry in entries]

        def read(session: Session) -> dict[str, FileRecord]:
            return rows.known(session.connection(), caller.user_id, paths)

        known = await self._store.read(read)
        new = [entry for entry in entries if entry.path not in known]
        if new:
            await self._store.write(
                lambda session: rows.make_known(session.connection(), caller.user_id, new)
            )
            known = await self._store.read(read)
        return [_view(entry, known[entry.path]) for entry in entries if entry.path in known]

    def shelf(self, caller: Caller) -> Shelf:
        """The caller's workspace; may block. Raises Unavailable where it is not there and cannot be made."""
        return Shelf(self._workspaces.prepare(caller.user_id))

    async def _path(self, caller: Caller, file_id: str) -> str:
        path = await self._store.read(
            lambda session: rows.path_of(session.connection(), caller.user_id, file_id)
        )
        if path is None:
            raise NotFound(NOT_THERE, kind="file_not_found")
        return path

    async def _forget(self, caller: Caller, path: str) -> None:
        await self._store.write(lambda session: rows.forget(session.connection(), caller.user_id, path))


def _view(entry: Entry, row: FileRecord) -> FileView:
    is_as_uploaded = (entry.size, entry.modified_ns) == (row.size, row.modified_ns)
    path = shown(entry.path)
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
