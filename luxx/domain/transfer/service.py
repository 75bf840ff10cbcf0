"""Exports and imports of one user's conversations. Methods take the caller first.

An import has two passes: a child process reads the whole file (`child.py`), then this module writes the rows,
hidden until all are there.
"""

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO

import msgspec
import structlog
from msgspec.structs import asdict
from sqlalchemy import insert
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.access import DeleteRuns, all_hidden_ids, delete_hidden, hidden_ids, reveal
from luxx.domain.conversations.images import MIB, check_message_quota, store_images
from luxx.domain.conversations.models import ConversationRow, MessageRow
from luxx.domain.conversations.search_index import index_messages, index_title
from luxx.domain.transfer.document import (
    ImportedRows,
    ImportOutcome,
    ImportRefused,
    ImportReport,
    ReadyConversation,
    ReadyImage,
    ReadyMessage,
    ReadyRow,
)
from luxx.domain.transfer.export import Export, write_json, write_markdown
from luxx.errors import InvalidInput, TooLarge, TooMany, Unavailable
from luxx.infra.children import start_child
from luxx.infra.clock import id_at, new_id
from luxx.infra.config.schema import FilesConfig
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.wire.message import PromptImage

BATCH_BYTES = 256 * 1024
BATCH_ROWS = 200
"""Limits of one transaction: keep it below some ten milliseconds, which is how long another writer waits."""

_conversations = table_of(ConversationRow)
_messages = table_of(MessageRow)
_insert_conversation = insert(_conversations)
_insert_message = insert(_messages)
_decoder = msgspec.json.Decoder(ReadyRow)


def insert_imported(session: Session, user_id: int, import_id: str, batch: list[ReadyRow]) -> None:
    """Stores imported rows and adds them to the search index. All imports use this function."""
    conversations = [row for row in batch if isinstance(row, ReadyConversation)]
    messages = [row for row in batch if isinstance(row, ReadyMessage)]
    connection = session.connection()
    if conversations:
        rows = [asdict(row) | {"user_id": user_id, "import_id": import_id} for row in conversations]
        connection.execute(_insert_conversation, rows)
        for row in conversations:
            index_title(connection, user_id=user_id, conversation_id=row.id, title=row.title)
    if messages:
        message_rows = [asdict(row) | {"user_id": user_id} for row in messages]
        connection.execute(_insert_message, message_rows)
        index_messages(connection, message_rows)
    for row in batch:
        if isinstance(row, ReadyImage):
            image = PromptImage(media_type=row.media_type, data=row.data)
            store_images(connection, row.message_id, {row.id: image})


def write_hidden(store: Store, user_id: int, import_id: str, rows: IO[bytes]) -> None:
    """Stores all rows under the import's id. Blocks: call it in a thread."""
    for batch in _batches(rows):
        store.write_now(partial(insert_imported, user_id=user_id, import_id=import_id, batch=batch))


def _batches(rows: IO[bytes]) -> Iterator[list[ReadyRow]]:
    batch: list[ReadyRow] = []
    size = 0
    for line in rows:
        batch.append(_decoder.decode(line))
        size += len(line)
        if size >= BATCH_BYTES or len(batch) >= BATCH_ROWS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


READ_SECONDS = 600.0
MAX_READERS = 2
"""Files read at the same time; each may take the memory that `child.py` allows."""

MOST_EXPORTS = 2
"""Exports written at the same time; each occupies one of the threads that read the database."""

WAIT_SECONDS = 60.0
RETRY_SECONDS = 10
MAX_UNPACK_RATIO = 10
"""A ZIP file may unpack to this many times `files.max_upload_mb`."""

STALE_SECONDS = 3600
"""Longer than the longest import, fork or deletion: older hidden conversations were abandoned."""

logger = structlog.get_logger()
_outcome = msgspec.json.Decoder(ImportOutcome)


class ExportFile(msgspec.Struct, frozen=True, kw_only=True):
    """An export; `file` is at its beginning. The receiver calls `close`, which allows the user's next
    export."""

    file: IO[bytes]
    size: int
    title: str
    close: Callable[[], None]


class TransferService:
    """One per process. Its temporary files are in the data directory and have no name."""

    def __init__(self, store: Store, data_dir: Path, config: FilesConfig, *, delete_runs: DeleteRuns) -> None:
        self._store = store
        self._data_dir = data_dir
        self._config = config
        self._delete_runs = delete_runs
        self._importing: set[int] = set()
        self._exporting: set[int] = set()
        self._active_exports = 0
        self._reading = asyncio.Semaphore(MAX_READERS)

    async def open(self) -> None:
        """Deletes what interrupted imports, forks and deletions left behind."""
        if self._store.is_sqlite:
            await self._delete_hidden(None)
        else:
            await self.sweep()

    async def sweep(self) -> None:
        """Deletes conversations that have been hidden for longer than an import takes, of any server."""
        await self._delete_hidden(id_at(int((time.time() - STALE_SECONDS) * 1000), 0))

    async def _delete_hidden(self, before: str | None) -> None:
        abandoned_ids = await self._store.read(lambda session: all_hidden_ids(session, before))
        await asyncio.to_thread(delete_hidden, self._store, self._delete_runs, abandoned_ids)

    async def export_json(self, caller: Caller, conversation_id: str) -> ExportFile:
        """The conversation with all its branches, as a document that an import reads.

        Raises TooMany while another export of the caller is written or sent, or MOST_EXPORTS others are
        written.
        """
        return await self._export(caller, conversation_id, write_json)

    async def export_markdown(self, caller: Caller, conversation_id: str) -> ExportFile:
        """The selected path of the conversation, for people. Raises TooMany like `export_json`."""
        return await self._export(caller, conversation_id, write_markdown)

    @contextlib.asynccontextmanager
    async def upload(self, caller: Caller) -> AsyncGenerator[IO[bytes]]:
        """A file for an upload. Raises TooMany while another import of the caller is running."""
        if caller.user_id in self._importing:
            raise TooMany(
                "you already have a running import; wait until it finishes",
                retry_after=RETRY_SECONDS,
                kind="import_active",
            )
        self._importing.add(caller.user_id)
        try:
            with self._new_file() as file:
                yield file
        finally:
            self._importing.discard(caller.user_id)

    async def import_file(self, caller: Caller, file: IO[bytes]) -> ImportReport:
        """Imports all conversations of an uploaded file. Raises InvalidInput or TooLarge, with nothing
        written."""
        with self._new_file() as rows:
            read = await self._read(file, rows)
            quota_mb, what = self._config.quota_mb, "this import"
            await self._store.read(
                lambda session: check_message_quota(session, caller.user_id, read.size, quota_mb, what=what)
            )
            await asyncio.shield(asyncio.to_thread(self._write, caller, rows))
        logger.info("import_finished", conversations=read.report.conversations, messages=read.report.messages)
        return read.report

    async def _export(self, caller: Caller, conversation_id: str, write: Export) -> ExportFile:
        if caller.user_id in self._exporting:
            raise _export_active("you already have a running export; wait until it finishes")
        if self._active_exports >= MOST_EXPORTS:
            raise _export_active("the server is busy with other exports; try again in a moment")
        self._exporting.add(caller.user_id)
        with contextlib.ExitStack() as undo:
            undo.callback(self._exporting.discard, caller.user_id)
            file = undo.enter_context(self._new_file())
            title = await self._write_export(lambda session: write(session, caller, conversation_id, file))
            size = file.tell()
            file.seek(0)
            return ExportFile(file=file, size=size, title=title, close=undo.pop_all().close)

    async def _write_export(self, write: Callable[[Session], str]) -> str:
        """Runs `write` in a thread of the store. It counts as active until it ends, even after a
        cancellation."""
        self._active_exports += 1
        reading = asyncio.ensure_future(self._store.read(write))
        reading.add_done_callback(self._end_writing)
        return await asyncio.shield(reading)

    def _end_writing(self, reading: asyncio.Future[str]) -> None:
        self._active_exports -= 1
        if not reading.cancelled():
            reading.exception()  # Marks the exception as retrieved; the caller may be gone.

    def _new_file(self) -> IO[bytes]:
        self._data_dir.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryFile(dir=self._data_dir)

    async def _read(self, file: IO[bytes], rows: IO[bytes]) -> ImportedRows:
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._reading.acquire()
        except TimeoutError as error:
            raise TooMany(
                "the server is busy with other imports; try again in a moment",
                retry_after=RETRY_SECONDS,
                kind="server_busy",
            ) from error
        try:
            outcome = await _read_in_child(
                file, rows, int(self._config.max_upload_mb * MIB) * MAX_UNPACK_RATIO
            )
        finally:
            self._reading.release()
        if isinstance(outcome, ImportRefused):
            refuse = TooLarge if outcome.is_too_large else InvalidInput
            raise refuse(outcome.reason, kind=outcome.kind)
        return outcome

    def _write(self, caller: Caller, rows: IO[bytes]) -> None:
        import_id = new_id()
        rows.seek(0)
        try:
            write_hidden(self._store, caller.user_id, import_id, rows)
            self._store.write_now(lambda session: reveal(session, caller.user_id, import_id))
        except BaseException:
            # If this fails too (the store is closed, the disk is full), the next start does it.
            with contextlib.suppress(Exception):
                hidden = self._store.read_now(lambda session: hidden_ids(session, caller.user_id, import_id))
                delete_hidden(self._store, self._delete_runs, hidden)
            raise


def _export_active(sentence: str) -> TooMany:
    return TooMany(sentence, retry_after=RETRY_SECONDS, kind="export_active")


async def _read_in_child(file: IO[bytes], rows: IO[bytes], limit: int) -> ImportOutcome:
    file.seek(0)
    # Only the paths of programs and modules: no secrets, no keys.
    environment = {
        "PATH": os.environ.get("PATH", ""), "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }  # fmt: skip
    child = await start_child(
        sys.executable, "-P", "-m", "luxx.domain.transfer.child", str(limit), str(rows.fileno()),
        stdin=file.fileno(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        pass_fds=(rows.fileno(),), env=environment,
    )  # fmt: skip
    try:
        async with asyncio.timeout(READ_SECONDS):
            output, error_output = await child.communicate()
    except TimeoutError:
        return TAKES_TOO_LONG
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode == 0:
        return _outcome.decode(output)
    if child.returncode is not None and child.returncode < 0:
        # A signal: the CPU limit, or the system was out of memory.
        logger.warning("import_reader_killed", signal=-child.returncode)
        return TAKES_TOO_LONG
    logger.error("import_reader_failed", stderr=error_output.decode(errors="replace")[-4000:])
    raise Unavailable(
        "the file could not be read; an operator can find the reason in the server's log",
        kind="import_failed",
    )


TAKES_TOO_LONG = ImportRefused(
    kind="import_too_large", reason="the file takes too much time or memory to read", is_too_large=True
)
