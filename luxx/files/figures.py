"""The figures that programs drew, as images of the step: checked, counted, and given ids as files.

They lie in the workspace already; here they get what a client needs to show them. What cannot be shown is
said in a sentence, and is no failure of the program.
"""

import asyncio
import hashlib
import os
from pathlib import Path

import msgspec
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from luxx.accounts.workspaces import Workspaces
from luxx.config import FilesConfig
from luxx.errors import LuxxError
from luxx.files import rows
from luxx.files.pictures import MAX_IMAGE_BYTES, MAX_IMAGES
from luxx.files.png import NotShown, PngSize, png_size
from luxx.files.storage import Entry, Shelf, shown
from luxx.store.engine import Store
from luxx.tools.marks import KeptFigures
from luxx.wire.image import StepImage

MIB = 1024 * 1024


class _Drawn(msgspec.Struct, frozen=True):
    """A figure that can be shown."""

    entry: Entry
    size: PngSize
    sha256: str


class FigureKeeper:
    """One per process."""

    def __init__(self, store: Store, workspaces: Workspaces, config: FilesConfig) -> None:
        self._store = store
        self._workspaces = workspaces
        self._quota = int(config.quota_mb * MIB)

    async def keep(self, user_id: int, workspace: Path, paths: list[str]) -> KeptFigures:
        """Images of the files at `paths`, at most ten; the user alone can open them. Raises nothing."""
        drawn, problems = await asyncio.to_thread(self._look, user_id, workspace, paths)
        if not drawn:
            return KeptFigures(problems=problems)

        def work(session: Session) -> list[StepImage]:
            return [_kept(session, user_id, one) for one in drawn]

        try:
            images = await self._store.write(work)
        except (SQLAlchemyError, LuxxError, RuntimeError):
            return KeptFigures(problems=[*problems, "the figures could not be given ids"])
        return KeptFigures(images=images, problems=problems)

    def _look(self, user_id: int, workspace: Path, paths: list[str]) -> tuple[list[_Drawn], list[str]]:
        """What can be shown, and why the rest cannot. May block."""
        try:
            shelf = self._shelf(user_id, workspace)
        except (LuxxError, NotShown, OSError) as error:
            return [], [f"the figures are not shown: {_words(error)}"]
        drawn: list[_Drawn] = []
        problems: list[str] = []
        for path in paths[:MAX_IMAGES]:
            try:
                drawn.append(_drawn(shelf, path))
            except NotShown as error:
                problems.append(f"{shown(path)} is not shown: it {error}")
            except (LuxxError, OSError) as error:
                problems.append(f"{shown(path)} is not shown: {_words(error)}")
        if len(paths) > MAX_IMAGES:
            problems.append(f"{len(paths) - MAX_IMAGES} more figures are not shown: {MAX_IMAGES} are at once")
        return drawn, problems

    def _shelf(self, user_id: int, workspace: Path) -> Shelf:
        """The user's files. Raises NotShown where they are elsewhere, or more than may be kept."""
        own = self._workspaces.path_of(user_id)
        if not os.path.samefile(own, workspace):
            raise NotShown("they are not in the user's own workspace")
        shelf = Shelf(own)
        if (held := shelf.held()) > self._quota:
            raise NotShown(
                f"your files take {held / MIB:.1f} MiB and may take {self._quota / MIB:g}; "
                "delete files that you no longer need"
            )
        return shelf


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or "they cannot be read"
    return error.message if isinstance(error, LuxxError) else str(error)


def _drawn(shelf: Shelf, path: str) -> _Drawn:
    file = shelf.open_file(path)
    try:
        if file.size > MAX_IMAGE_BYTES:
            raise NotShown(f"has {file.size / MIB:.1f} MiB, and may have {MAX_IMAGE_BYTES / MIB:g}")
        data = file.read_at(0, MAX_IMAGE_BYTES + 1)
    finally:
        file.close()
    size = png_size(data)
    entry = shelf.look(path)
    if entry is None or entry.is_folder or entry.size != len(data):
        raise NotShown("was changed meanwhile")
    return _Drawn(entry, size, hashlib.sha256(data).hexdigest())


def _kept(session: Session, user_id: int, one: _Drawn) -> StepImage:
    path = shown(one.entry.path)
    return StepImage(
        file_id=_file_id(session, user_id, one),
        name=path.rpartition("/")[2],
        path=path,
        media_type="image/png",
        size=one.entry.size,
        width=one.size.width,
        height=one.size.height,
        sha256=one.sha256,
    )


def _file_id(session: Session, user_id: int, one: _Drawn) -> str:
    """The id that the file has already: two programs that run side by side see each other's figures."""
    entry, connection = one.entry, session.connection()
    row = rows.known(connection, user_id, [entry.path]).get(entry.path)
    if row is not None and (row.size, row.modified_ns) == (entry.size, entry.modified_ns):
        return str(row.id)
    return rows.record_upload(connection, user_id, entry, one.sha256)
