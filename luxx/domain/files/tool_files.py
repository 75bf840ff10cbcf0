"""Files that tools write: the quota hooks before each tool, and figures of programs as images of the step.

`files.quota_mb` applies to tools as it does to uploads; `disk_mb` in `tools.limits` bounds what a program
writes while it runs. A figure that cannot be shown becomes a problem sentence in the tool result; the program
does not fail.
"""

import asyncio
import hashlib
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from luxx.domain.accounts.user_data import Workspaces
from luxx.domain.files import service as rows
from luxx.domain.files.storage import FileEntry, WorkspaceFiles, display_path
from luxx.errors import LuxxError, NotFound, ToolFailed
from luxx.infra.config.schema import FilesConfig
from luxx.infra.store.engine import Store
from luxx.tools.hooks import HookedCall, HookPhase, SavedFigures, ToolHook
from luxx.wire.message import MAX_IMAGE_BYTES, MAX_IMAGES
from luxx.wire.turn import StepImage

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


SIGNATURE = b"\x89PNG\r\n\x1a\n"
MAX_SIDE = 10_000
MAX_PIXELS = 16_000_000
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_DEPTHS = frozenset({1, 2, 4, 8, 16})
_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""The passes of an interlaced image: first column and row, and the steps between columns and rows."""
_PIECE = 256 * 1024
# Chunks with compressed data other than pixels.
_PACKED = frozenset({b"iCCP", b"zTXt"})
_PACKED_TEXT = b"iTXt"
# Each frame of an animation is compressed separately, so the size check would miss it.
_ANIMATION_CHUNKS = frozenset({b"acTL", b"fcTL", b"fdAT"})


_NOT_ONE_IMAGE = "is not exactly one complete PNG image"


class NotDisplayable(Exception):
    """Why an image is not shown; the message continues a sentence that starts with the image's name."""


class PngSize(msgspec.Struct, frozen=True, kw_only=True):
    width: int
    height: int


def png_size(data: bytes) -> PngSize:
    """The size of an image in pixels.

    Raises NotDisplayable unless it is one complete PNG within the limits, whose data have the declared size.
    """
    if not data.startswith(SIGNATURE):
        raise NotDisplayable("is not a PNG image")
    chunks = list(_chunks(data))
    if not chunks or chunks[0][0] != b"IHDR" or len(chunks[0][1]) != 13 or chunks[-1][0] != b"IEND":
        raise NotDisplayable(_NOT_ONE_IMAGE)
    width, height, depth, colour, packing, filtering, interlace = struct.unpack(">IIBBBBB", chunks[0][1])
    if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE and width * height <= MAX_PIXELS):
        raise NotDisplayable(f"has {width} × {height} pixels, which is too many")
    if depth not in _DEPTHS or colour not in _CHANNELS or packing or filtering or interlace > 1:
        raise NotDisplayable("is a PNG image of an unknown type")
    for kind, body in chunks:
        is_packed_text = kind == _PACKED_TEXT and body.partition(b"\0")[2][:1] != b"\0"
        if kind in _PACKED or is_packed_text:
            raise NotDisplayable("contains compressed data other than pixels")
        if kind in _ANIMATION_CHUNKS:
            raise NotDisplayable("is an animated image")
    if sum(1 for kind, _ in chunks if kind == b"IHDR") > 1:
        raise NotDisplayable(_NOT_ONE_IMAGE)
    bits = depth * _CHANNELS[colour]
    size = _pixel_bytes(width, height, bits, is_interlaced=interlace == 1)
    _require_size(b"".join(body for kind, body in chunks if kind == b"IDAT"), size)
    return PngSize(width=width, height=height)


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The chunks up to the end of the image. Raises NotDisplayable for a wrong checksum or trailing data."""
    at = len(SIGNATURE)
    while at + 12 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        checksum = data[at + 8 + length : at + 12 + length]
        if len(checksum) < 4 or zlib.crc32(kind + body) != int.from_bytes(checksum, "big"):
            raise NotDisplayable("is a damaged PNG image")
        yield kind, body
        at += 12 + length
        if kind == b"IEND":
            break
    if at != len(data):
        raise NotDisplayable(_NOT_ONE_IMAGE)


def _pixel_bytes(width: int, height: int, bits: int, *, is_interlaced: bool) -> int:
    """The uncompressed size of all rows; each row begins with a filter byte."""
    passes = _PASSES if is_interlaced else ((0, 0, 1, 1),)
    total = 0
    for left, top, across, down in passes:
        columns, rows = -(-(width - left) // across), -(-(height - top) // down)
        if columns > 0 and rows > 0:
            total += rows * (1 + (columns * bits + 7) // 8)
    return total


def _require_size(packed: bytes, size: int) -> None:
    unpacker, unpacked_size = zlib.decompressobj(), 0
    try:
        while not unpacker.eof and unpacked_size <= size:
            piece = unpacker.decompress(packed, _PIECE)
            packed = unpacker.unconsumed_tail
            unpacked_size += len(piece)
            if not piece and not packed:
                break
    except zlib.error as error:
        raise NotDisplayable("is a damaged PNG image") from error
    if unpacked_size != size or not unpacker.eof:
        raise NotDisplayable("does not match the size in its header")


class _Figure(msgspec.Struct, frozen=True):
    """A figure that can be shown."""

    entry: FileEntry
    size: PngSize
    sha256: str


class FigureService:
    """One per process."""

    def __init__(self, store: Store, workspaces: Workspaces, config: FilesConfig) -> None:
        self._store = store
        self._workspaces = workspaces
        self._quota = int(config.quota_mb * MIB)

    async def register_figures(self, user_id: int, workspace: Path, paths: list[str]) -> SavedFigures:
        """Registers the files at `paths`, at most MAX_IMAGES, as images of their user. Raises nothing."""
        figures, problems = await asyncio.to_thread(self._read_figures, user_id, workspace, paths)
        if not figures:
            return SavedFigures(problems=problems)
        try:
            images = await self._store.write(
                lambda session: [_step_image(session, user_id, figure) for figure in figures]
            )
        except (SQLAlchemyError, LuxxError, RuntimeError):
            return SavedFigures(problems=[*problems, "the figures could not be registered as files"])
        return SavedFigures(images=images, problems=problems)

    def _read_figures(
        self, user_id: int, workspace: Path, paths: list[str]
    ) -> tuple[list[_Figure], list[str]]:
        """The figures that can be shown, and why the others cannot. May block."""
        try:
            workspace_files = self._workspace_files(user_id, workspace)
        except (LuxxError, NotDisplayable, OSError) as error:
            return [], [f"the figures are not shown: {_error_text(error)}"]
        figures: list[_Figure] = []
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


def _read_figure(workspace_files: WorkspaceFiles, path: str) -> _Figure:
    file = workspace_files.open_download(path)
    try:
        if file.size > MAX_IMAGE_BYTES:
            raise NotDisplayable(f"has {file.size / MIB:.1f} MiB; the limit is {MAX_IMAGE_BYTES / MIB:g} MiB")
        data = file.read_at(0, MAX_IMAGE_BYTES + 1)
    finally:
        file.close()
    size = png_size(data)
    entry = workspace_files.find_entry(path)
    if entry is None or entry.is_folder or entry.size != len(data):
        raise NotDisplayable("was changed in the meantime")
    return _Figure(entry, size, hashlib.sha256(data).hexdigest())


def _step_image(session: Session, user_id: int, figure: _Figure) -> StepImage:
    """The image of a figure; an unchanged file keeps its id, as concurrent programs see each other's."""
    entry, connection = figure.entry, session.connection()
    row = rows.find_rows(connection, user_id, [entry.path]).get(entry.path)
    if row is not None and (row.size, row.modified_ns) == (entry.size, entry.modified_ns):
        file_id = str(row.id)
    else:
        file_id = rows.record_upload(connection, user_id, entry, figure.sha256)
    path = display_path(entry.path)
    return StepImage(
        file_id=file_id,
        name=path.rpartition("/")[2],
        path=path,
        media_type="image/png",
        size=entry.size,
        width=figure.size.width,
        height=figure.size.height,
        sha256=figure.sha256,
    )
