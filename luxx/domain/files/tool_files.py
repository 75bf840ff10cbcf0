"""Files that tools write: the quota hooks before each tool, and the images of tool results.

`files.quota_mb` applies to tools as it does to uploads; `disk_mb` in `tools.limits` bounds what a program
writes while it runs. Figures of programs and images of MCP servers are shown as images of the step, and
given to models, from their files. One that cannot be shown is a sentence in the tool result; the call does
not fail.
"""

import asyncio
import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

import msgspec
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from luxx.domain.accounts.user_data import Workspaces
from luxx.domain.files import service as rows
from luxx.domain.files.image_formats import ImageFormat, NotDisplayable, image_format
from luxx.domain.files.names import image_type
from luxx.domain.files.storage import FileEntry, WorkspaceFiles, display_path
from luxx.errors import LuxxError, NotFound, ToolFailed
from luxx.infra.config.schema import FilesConfig
from luxx.infra.store.engine import Store
from luxx.tools.hooks import HookedCall, HookPhase, SavedFigures, ToolHook
from luxx.wire.message import MAX_IMAGE_BYTES, MAX_IMAGES, MAX_IMAGES_BYTES, PromptImage
from luxx.wire.turn import StepFile

MIB = 1024 * 1024
FILE_TOOLS = ("file_write", "file_edit", "file_multi_edit")
PROGRAM_TOOLS = ("python_execute", "shell_execute")
PROGRAM_QUOTA_FACTOR = 2
"""A program starts up to this multiple of the quota, because it may be needed to delete files."""


def quota_hooks(path_of: Callable[[int], Path], config: FilesConfig) -> list[ToolHook]:
    """Hooks that refuse calls of writing tools if the workspace is full. `path_of` maps a user to a path."""
    quota = int(config.quota_mb * MIB)

    def check_write(call: HookedCall) -> None:
        content = call.arguments.get("content")
        size = len(content.encode("utf-8", "replace")) if isinstance(content, str) else 0
        _check(path_of(call.user_id), size, quota, quota)

    def check_program(call: HookedCall) -> None:
        _check(path_of(call.user_id), 0, PROGRAM_QUOTA_FACTOR * quota, quota)

    checks = [(name, check_write) for name in FILE_TOOLS] + [(name, check_program) for name in PROGRAM_TOOLS]
    return [ToolHook(tools=name, phase=HookPhase.BEFORE, function=check) for name, check in checks]


def _check(workspace: Path, size: int, limit: int, quota: int) -> None:
    """Raises ToolFailed if the workspace would exceed `limit` bytes, or cannot be measured."""
    try:
        used_bytes = WorkspaceFiles(workspace).used_bytes()
    except NotFound:
        return
    except LuxxError as error:
        raise ToolFailed(error.message) from error
    if used_bytes + size > limit:
        raise ToolFailed(
            f"the workspace uses {used_bytes / MIB:.1f} MiB of {quota / MIB:g} MiB (files.quota_mb); "
            "delete files that are no longer needed"
        )


IMAGES_FOLDER = "images"
"""Where images of tool results are stored, named by their content: the same image is one file."""

_NAME_DIGITS = 16
PNG = "image/png"


class _ShownFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that can be shown."""

    entry: FileEntry
    format: ImageFormat
    sha256: str


class ToolImages:
    """The images of tool results, which are files of their users. One per process."""

    def __init__(self, store: Store, workspaces: Workspaces, config: FilesConfig) -> None:
        self._store = store
        self._workspaces = workspaces
        self._quota = int(config.quota_mb * MIB)
        self._write_lock = Lock()
        """Held while an image is written, so that calls which return the same one share its file."""

    async def register_figures(self, user_id: int, workspace: Path, paths: list[str]) -> SavedFigures:
        """Registers the files at `paths`, at most MAX_IMAGES, as images of their user. Raises nothing."""
        figures, problems = await asyncio.to_thread(self._read_figures, user_id, workspace, paths)
        if not figures:
            return SavedFigures(problems=problems)
        try:
            images = await self._register(user_id, figures)
        except (SQLAlchemyError, LuxxError, RuntimeError):
            return SavedFigures(problems=[*problems, "the figures could not be registered as files"])
        return SavedFigures(images=images, problems=problems)

    async def store_images(
        self, user_id: int, workspace: Path | None, images: Sequence[bytes]
    ) -> list[StepFile | str]:
        """Stores images as files of their user. For each image the StepFile, or why it cannot be shown.
        Raises nothing."""
        stored = await asyncio.to_thread(self._write_images, user_id, workspace, images)
        files = [one for one in stored if isinstance(one, _ShownFile)]
        try:
            registered = iter(await self._register(user_id, files) if files else [])
        except (SQLAlchemyError, LuxxError, RuntimeError):
            registered = iter(["it could not be registered as a file"] * len(files))
        return [next(registered) if isinstance(one, _ShownFile) else one for one in stored]

    async def read_images(self, user_id: int, images: Sequence[StepFile]) -> dict[str, PromptImage]:
        """Those of the user's images whose files are unchanged, by their `sha256`."""
        return await asyncio.to_thread(self._read_images, user_id, images)

    async def _register(self, user_id: int, files: Sequence[_ShownFile]) -> list[StepFile]:
        return await self._store.write(lambda session: [_step_image(session, user_id, one) for one in files])

    def _read_images(self, user_id: int, images: Sequence[StepFile]) -> dict[str, PromptImage]:
        workspace_files = WorkspaceFiles(self._workspaces.path_of(user_id))
        found: dict[str, PromptImage] = {}
        for image in images:
            with suppress(LuxxError, OSError, NotDisplayable):
                data = _read_file(workspace_files, image.path)
                # Messages may be imported, so nothing of a StepFile is believed.
                media_type = image_type(data)
                if media_type is not None and hashlib.sha256(data).hexdigest() == image.sha256:
                    found[image.sha256] = PromptImage(media_type=media_type, data=data)
        return found

    def _write_images(
        self, user_id: int, workspace: Path | None, images: Sequence[bytes]
    ) -> list[_ShownFile | str]:
        """The file of each image, or why it is not shown. May block."""
        try:
            if workspace is None:
                raise NotDisplayable("this call has no workspace")
            workspace_files = self._workspace_files(user_id, workspace)
            headroom = self._quota - workspace_files.used_bytes()
        except (LuxxError, NotDisplayable, OSError) as error:
            return [_error_text(error)] * len(images)
        stored: list[_ShownFile | str] = []
        bytes_left = min(headroom, MAX_IMAGES_BYTES)
        for number, data in enumerate(images, 1):
            try:
                if number > MAX_IMAGES:
                    raise NotDisplayable(f"is beyond the first {MAX_IMAGES} of the call")
                if len(data) > bytes_left:
                    raise NotDisplayable(
                        f"is more than what is left of your {self._quota / MIB:g} MiB, or of the "
                        f"{MAX_IMAGES_BYTES / MIB:g} MiB for the images of a call"
                    )
                with self._write_lock:
                    stored.append(_write_image(workspace_files, data))
                bytes_left -= len(data)
            except NotDisplayable as error:
                stored.append(f"it {error}")
            except (LuxxError, OSError) as error:
                stored.append(_error_text(error))
        return stored

    def _read_figures(
        self, user_id: int, workspace: Path, paths: list[str]
    ) -> tuple[list[_ShownFile], list[str]]:
        """The figures that can be shown, and why the others cannot. May block."""
        try:
            workspace_files = self._workspace_files(user_id, workspace)
        except (LuxxError, NotDisplayable, OSError) as error:
            return [], [f"the figures are not shown: {_error_text(error)}"]
        figures: list[_ShownFile] = []
        problems: list[str] = []
        for path in paths[:MAX_IMAGES]:
            try:
                figures.append(_read_figure(workspace_files, path))
            except NotDisplayable as error:
                problems.append(f"{display_path(path)} is not shown: it {error}")
            except (LuxxError, OSError) as error:
                problems.append(f"{display_path(path)} is not shown: {_error_text(error)}")
        if len(paths) > MAX_IMAGES:
            more = len(paths) - MAX_IMAGES
            problems.append(f"{more} more figures are not shown: at most {MAX_IMAGES} are shown at once")
        return figures, problems

    def _workspace_files(self, user_id: int, workspace: Path) -> WorkspaceFiles:
        """The user's files. Raises NotDisplayable for another workspace, or past the quota."""
        own = self._workspaces.path_of(user_id)
        if not os.path.samefile(own, workspace):
            raise NotDisplayable("they are not in the user's own workspace")
        workspace_files = WorkspaceFiles(own)
        if (used_bytes := workspace_files.used_bytes()) > self._quota:
            raise NotDisplayable(
                f"your files use {used_bytes / MIB:.1f} MiB of {self._quota / MIB:g} MiB; "
                "delete files that you no longer need"
            )
        return workspace_files


def _error_text(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or "they cannot be read"
    return error.message if isinstance(error, LuxxError) else str(error)


def _read_figure(workspace_files: WorkspaceFiles, path: str) -> _ShownFile:
    data = _read_file(workspace_files, path)
    if image_type(data) != PNG:
        raise NotDisplayable("is not a PNG image")
    format_of_file = image_format(data)
    entry = workspace_files.find_entry(path)
    if entry is None or entry.is_folder or entry.size != len(data):
        raise NotDisplayable("was changed in the meantime")
    return _ShownFile(entry=entry, format=format_of_file, sha256=hashlib.sha256(data).hexdigest())


def _read_file(workspace_files: WorkspaceFiles, path: str) -> bytes:
    file = workspace_files.open_download(path)
    try:
        _check_size(file.size)
        return file.read_at(0, MAX_IMAGE_BYTES + 1)
    finally:
        file.close()


def _check_size(size: int) -> None:
    if size > MAX_IMAGE_BYTES:
        raise NotDisplayable(f"has {size / MIB:.1f} MiB; the limit is {MAX_IMAGE_BYTES / MIB:g} MiB")


def _write_image(workspace_files: WorkspaceFiles, data: bytes) -> _ShownFile:
    """Writes an image unless its file exists, as after a call that a crash interrupted."""
    _check_size(len(data))
    format_of_image, sha256 = image_format(data), hashlib.sha256(data).hexdigest()
    name = f"{sha256[:_NAME_DIGITS]}.{format_of_image.media_type.rpartition('/')[2]}"
    path = f"{IMAGES_FOLDER}/{name}"
    entry = None
    with suppress(LuxxError, OSError, NotDisplayable):
        if _read_file(workspace_files, path) == data:
            entry = workspace_files.find_entry(path)
    if entry is None:
        draft = workspace_files.create_draft()
        try:
            draft.write(data)
            entry = workspace_files.save_draft(draft, IMAGES_FOLDER, name)
        finally:
            workspace_files.close_draft(draft)
    return _ShownFile(entry=entry, format=format_of_image, sha256=sha256)


def _step_image(session: Session, user_id: int, file: _ShownFile) -> StepFile:
    """The image of a file; an unchanged file keeps its id, as concurrent programs see each other's."""
    entry, connection = file.entry, session.connection()
    row = rows.find_rows(connection, user_id, [entry.path]).get(entry.path)
    if row is not None and (row.size, row.modified_ns) == (entry.size, entry.modified_ns):
        file_id = str(row.id)
    else:
        file_id = rows.record_upload(connection, user_id, entry, file.sha256)
    path = display_path(entry.path)
    return StepFile(
        file_id=file_id,
        name=path.rpartition("/")[2],
        path=path,
        media_type=file.format.media_type,
        size=entry.size,
        width=file.format.width,
        height=file.format.height,
        sha256=file.sha256,
    )
