"""Uploads: streams a multipart body to disk, and stores all of its files or none.

Every signed-in user may upload, at any permission level: levels limit what tools do. The quota of the
workspace limits the size.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import cast

import msgspec
from multipart import (
    MultipartError,
    MultipartSegment,
    PushMultipartParser,
    parse_options_header,  # pyright: ignore[reportUnknownVariableType]
)
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.files import service as rows
from luxx.domain.files.names import safe_name
from luxx.domain.files.service import FileService, FileView
from luxx.domain.files.storage import FileEntry, UploadDraft, WorkspaceFiles
from luxx.errors import LuxxError, TooLarge, TooMany, Unavailable
from luxx.infra.config.schema import FilesConfig
from luxx.infra.field_errors import FieldErrors
from luxx.infra.store.engine import Store

MIB = 1024 * 1024
MAX_FILES = 20
"""Files per request; each has an open descriptor until the last one has arrived."""

MAX_UPLOADS_PER_USER = 3
"""Concurrent uploads of one user in one process."""

MAX_UPLOADS = 24
"""Concurrent uploads in one process: with their files, they take half of the usual 1024 descriptors."""

FORM_BYTES = 64 * 1024
"""The limit of the form around the files: its headers and the folder."""

WRITE_BYTES = MIB
"""How many bytes are collected before a thread writes them."""

MAX_FOLDER_BYTES = 4096
PATH_FIELD = "path"
LOCK_PAUSE_SECONDS = 0.05
LOCK_TRIES = 200


class UploadView(FileView, frozen=True, kw_only=True):
    """The first uploaded file; `files` has all of them."""

    files: list[FileView]


class FormFile(msgspec.Struct, frozen=True):
    """A file of a form, which is deleted unless it gets a place."""

    name: str
    draft: UploadDraft


class Uploads:
    """One per process."""

    def __init__(self, store: Store, files: FileService, config: FilesConfig) -> None:
        self._store = store
        self._files = files
        self._quota = int(config.quota_mb * MIB)
        self._active: Counter[int] = Counter()

    async def receive(
        self, caller: Caller, content_type: str, length: int | None, body: AsyncIterator[bytes]
    ) -> UploadView:
        """Reads the body and stores its files. `length` is the Content-Length of the request.

        Raises InvalidInput for an invalid form, TooLarge past the quota, TooMany, Conflict, Unavailable, or
        what reading `body` raises; then no file is left.
        """
        async with self._received(caller, content_type, length, body) as form:
            return await self._store_files(caller, form)

    async def store(self, caller: Caller, folder: str, name: str, data: bytes) -> UploadView:
        """Stores bytes that the server made as a file. Raises InvalidInput for the folder, TooLarge past the
        quota, TooMany, Conflict or Unavailable."""

        def write(form: "_Form") -> None:
            draft = form.workspace_files.create_draft()
            form.files.append(FormFile(safe_name(name), draft))
            draft.write(data)

        with self._upload_slot(caller):
            form = _Form(await asyncio.to_thread(self._files.workspace_files, caller), folder)
            try:
                await asyncio.to_thread(write, form)
                return await self._store_files(caller, form)
            finally:
                await asyncio.shield(asyncio.to_thread(form.close))

    @asynccontextmanager
    async def receive_drafts(
        self, caller: Caller, content_type: str, length: int | None, body: AsyncIterator[bytes]
    ) -> AsyncGenerator[Sequence[FormFile]]:
        """The files of a body without a place in the workspace: they are gone after the block. Raises what
        `receive` raises."""
        async with self._received(caller, content_type, length, body) as form:
            yield form.files

    @asynccontextmanager
    async def _received(
        self, caller: Caller, content_type: str, length: int | None, body: AsyncIterator[bytes]
    ) -> AsyncGenerator["_Form"]:
        boundary = _boundary(content_type)
        with self._upload_slot(caller):
            workspace_files = await asyncio.to_thread(self._files.workspace_files, caller)
            headroom = self._quota - await asyncio.to_thread(workspace_files.used_bytes)
            if length is not None and length - FORM_BYTES > headroom:
                raise self._quota_exceeded(length, headroom)
            form = _Form(workspace_files)
            try:
                await self._read(form, boundary, body, headroom)
                yield form
            finally:
                await asyncio.shield(asyncio.to_thread(form.close))

    async def _read(self, form: "_Form", boundary: str, body: AsyncIterator[bytes], headroom: int) -> None:
        received = 0
        try:
            with PushMultipartParser(boundary, max_segment_count=MAX_FILES + 1) as parser:
                async for chunk in body:
                    received += len(chunk)
                    if received - FORM_BYTES > headroom:
                        raise self._quota_exceeded(received, headroom)
                    for event in parser.parse(chunk) if chunk else ():
                        await form.take(event)
        except MultipartError as error:
            problem = f"not a complete multipart/form-data body: {error.args[0]}"
            raise _invalid_upload("$", problem) from error
        if not form.files:
            raise _invalid_upload("$", "a multipart/form-data body with at least one file is needed")

    async def _store_files(self, caller: Caller, form: "_Form") -> UploadView:
        """Checks the quota with the workspace locked, places the files and gives them ids."""
        for _ in range(LOCK_TRIES):
            entries = await asyncio.to_thread(self._place_files, form)
            if entries is not None:
                break
            await asyncio.sleep(LOCK_PAUSE_SECONDS)
        else:
            raise Unavailable("another upload is being saved; try again", kind="workspace_busy")

        def work(session: Session) -> None:
            for entry, file in zip(entries, form.files, strict=True):
                rows.record_upload(session.connection(), caller.user_id, entry, file.draft.sha256)

        try:
            await self._store.write(work)
        except Exception:
            await asyncio.to_thread(_remove_placed, form.workspace_files, entries)
            raise
        views = await self._files.views(caller, entries)
        return UploadView(**msgspec.structs.asdict(views[0]), files=views)

    def _place_files(self, form: "_Form") -> list[FileEntry] | None:
        """Places all files of a form or none. Returns None while another upload has the lock."""
        workspace_files = form.workspace_files
        with workspace_files.try_lock() as is_locked:
            if not is_locked:
                return None
            headroom = self._quota - workspace_files.used_bytes()
            size = sum(file.draft.size for file in form.files)
            if size > headroom:
                raise self._quota_exceeded(size, headroom)
            entries: list[FileEntry] = []
            try:
                for file in form.files:
                    entries.append(workspace_files.save_draft(file.draft, form.folder, file.name))
            except BaseException:
                _remove_placed(workspace_files, entries)
                raise
            return entries

    @contextmanager
    def _upload_slot(self, caller: Caller) -> Generator[None]:
        if self._active[caller.user_id] >= MAX_UPLOADS_PER_USER:
            raise TooMany(
                f"{MAX_UPLOADS_PER_USER} of your uploads are already in progress; wait until one has ended",
                retry_after=5,
            )
        if self._active.total() >= MAX_UPLOADS:
            raise TooMany("the server accepts no more uploads at the moment; try again later", retry_after=5)
        self._active[caller.user_id] += 1
        try:
            yield
        finally:
            self._active -= Counter([caller.user_id])

    def _quota_exceeded(self, size: int, headroom: int) -> TooLarge:
        return TooLarge(
            f"this upload needs {size / MIB:.1f} MiB, but only {max(0, headroom) / MIB:.1f} of your "
            f"{self._quota / MIB:g} MiB are free; delete files that you no longer need",
            kind="quota_exceeded",
        )


class _Form:
    """Receives the parts of one body: writes files to disk, keeps the folder in memory."""

    def __init__(self, workspace_files: WorkspaceFiles, folder: str | None = None) -> None:
        self.workspace_files = workspace_files
        self.files: list[FormFile] = []
        self._folder: bytearray | None = None if folder is None else bytearray(folder, "utf-8", "replace")
        self._is_file = False
        self._pieces = bytearray()

    @property
    def folder(self) -> str:
        """The requested folder, `.` if there is none. Raises InvalidInput if it is not UTF-8."""
        try:
            folder = (self._folder or b"").decode("utf-8")
        except UnicodeDecodeError as error:
            raise _invalid_upload(f"$.{PATH_FIELD}", "not UTF-8") from error
        return folder.strip().strip("/") or "."

    async def take(self, event: MultipartSegment | bytes | None) -> None:
        """Handles one event of the parser: the start of a part, some of its bytes, or its end (None)."""
        if isinstance(event, MultipartSegment):
            await self._begin(event)
        elif event is not None:
            await self._add(event)
        elif self._is_file:
            await self._flush()

    async def _begin(self, part: MultipartSegment) -> None:
        self._is_file = part.filename is not None
        if part.filename is not None:
            draft = await asyncio.to_thread(self.workspace_files.create_draft)
            self.files.append(FormFile(safe_name(part.filename), draft))
        elif part.name != PATH_FIELD:
            raise _invalid_upload("$", f"the field {(part.name or '')[:100]!r} is unknown and is not a file")
        elif self._folder is not None:
            raise _invalid_upload(f"$.{PATH_FIELD}", "given twice")
        else:
            self._folder = bytearray()

    async def _add(self, data: bytes) -> None:
        if not self._is_file:
            assert self._folder is not None
            self._folder += data
            if len(self._folder) > MAX_FOLDER_BYTES:
                raise _invalid_upload(f"$.{PATH_FIELD}", f"longer than {MAX_FOLDER_BYTES} bytes")
            return
        self._pieces += data
        if len(self._pieces) >= WRITE_BYTES:
            await self._flush()

    async def _flush(self) -> None:
        data, self._pieces = bytes(self._pieces), bytearray()
        if data:
            await asyncio.to_thread(self.files[-1].draft.write, data)

    def close(self) -> None:
        """Closes all drafts; those that were not placed are deleted."""
        for file in self.files:
            self.workspace_files.close_draft(file.draft)


def _remove_placed(workspace_files: WorkspaceFiles, entries: list[FileEntry]) -> None:
    for entry in entries:
        try:
            workspace_files.remove(entry.path)
        except LuxxError:
            continue  # Another request removed it first.


def _boundary(content_type: str) -> str:
    kind, options = cast("tuple[str, dict[str, str]]", parse_options_header(content_type))
    boundary = options.get("boundary", "")
    if kind != "multipart/form-data" or not 1 <= len(boundary) <= 200 or not boundary.isascii():
        raise _invalid_upload("Content-Type", "multipart/form-data with a boundary is needed")
    return boundary


def _invalid_upload(path: str, problem: str) -> LuxxError:
    return FieldErrors({path: problem}, subject="the upload is not valid").refusal(kind="upload_invalid")
