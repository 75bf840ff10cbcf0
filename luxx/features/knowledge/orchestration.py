"""The run that indexes documents of a knowledge base: each is read, divided into chunks and stored.

A drive works on the documents that are pending and that its user pays for, one after the other. Its log has
an event for each that has ended; what a killed drive has stored of a document, the next one finds again by
the hashes of chunks.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

import msgspec
from sqlalchemy import Connection
from sqlalchemy.orm import Session

from luxx.errors import LuxxError, TooLarge, Unavailable
from luxx.features.knowledge.chunks import chunks_of
from luxx.features.knowledge.indexing import (
    DocumentChanged,
    PendingDocument,
    begin_document,
    changes_of,
    count_other_chunks,
    end_document,
    fail_documents,
    next_pending,
    skip_pending,
    words_of_chunks,
    write_changes,
)
from luxx.features.knowledge.rows import read_bytes
from luxx.features.knowledge.vectors import VectorCount, VectorProgress
from luxx.infra.clock import utc_now
from luxx.infra.documents.formats import problem_sentence
from luxx.infra.documents.parts import Document
from luxx.infra.documents.reader import DocumentProcess
from luxx.runs.cancel import RunCancelled
from luxx.runs.log.events import LogEntry, read_log
from luxx.runs.log.failure import FailedRun, RunFailure
from luxx.runs.turn.context import BeginDrive, DriveContext
from luxx.runs.turn.run_rows import RunHead
from luxx.wire.event import ErrorEvent, Event, LoggedEvent
from luxx.wire.memory import EpisodeStatus
from luxx.wire.orchestration_event import DocumentParsed, Embedded, IndexComplete
from luxx.wire.run import RunStatus, StopReason
from luxx.wire.turn import Usage

MAX_CHUNKS = 100_000
"""Chunks of a knowledge base."""

MAX_CHARACTERS = 30_000_000
"""Characters of a document."""

CHUNKS_AT_ONCE = 200
"""Chunks that are stored in one transaction."""

MAX_TRIES = 5
"""How often a document waits for a process that reads it."""

VECTORS_LOOK_SECONDS = 1.0
VECTORS_SECONDS, VECTORS_STILL_SECONDS = 600.0, 30.0
"""How long a run follows the vectors of its documents, in all and without progress."""

Write = Callable[[Connection], None]


class _HasMore(Exception):
    """A document was added just before the run would have ended; rolls back its end."""


class IndexTotals(msgspec.Struct, kw_only=True):
    """What the log of a run says so far."""

    documents: int = 0
    chunks: int = 0
    failed: int = 0

    def add(self, event: Event) -> None:
        """Counts an event."""
        if isinstance(event, DocumentParsed):
            is_synced = event.status == EpisodeStatus.SYNCED.value
            self.documents += is_synced
            self.failed += not is_synced
            self.chunks += event.chunks


class IndexDrive:
    """See `Drive`."""

    def __init__(
        self,
        context: DriveContext,
        reader: DocumentProcess,
        vectors: VectorProgress,
        events: list[LoggedEvent],
    ) -> None:
        self.status = RunStatus.RUNNING
        self.usage = Usage()
        self._context, self._reader, self._vectors = context, reader, vectors
        self._store, self._head = context.services.store, context.head
        self._tries = 0
        self._totals = IndexTotals()
        self._embedded = VectorCount(0, 0)
        self._follows_since = self._moved_at = 0.0
        for logged in events:
            self._totals.add(logged.event)
            if isinstance(logged.event, Embedded):
                self._embedded = VectorCount(logged.event.done, logged.event.total)

    async def run(self) -> None:
        while self.status == RunStatus.RUNNING:
            if self._context.signal.is_fired:
                await self._stop()
                return
            document = await self._store.read_rows(
                lambda connection: next_pending(connection, self._head.subject_id, self._head.user_id)
            )
            if document is None:
                if not await self._follow_vectors():
                    await self._complete()
                continue
            try:
                await self._index(document)
            except (DocumentChanged, RunCancelled):
                continue  # It was deleted or replaced meanwhile, or the run ends.

    async def _follow_vectors(self) -> bool:
        """Logs how far the vectors are, if that has changed, and waits a moment; False: the run need not
        follow them any more."""
        if not self._totals.documents:
            return False
        find = partial(self._vectors.of_base, self._head.subject_id, self._head.user_id)
        found, now = await self._store.read(find), time.monotonic()
        if found is None:
            return False
        if not self._follows_since:
            self._follows_since = self._moved_at = now
        if found != self._embedded:
            self._moved_at = now
            if found.done:
                await self._append([Embedded(done=found.done, total=found.total)], _write_nothing)
            self._embedded = found
        is_over = now - self._follows_since > VECTORS_SECONDS or now - self._moved_at > VECTORS_STILL_SECONDS
        if found.done >= found.total or is_over:
            return False
        with suppress(RunCancelled):
            await self._context.signal.wait(asyncio.sleep(VECTORS_LOOK_SECONDS))
        return True

    async def stop(self) -> None:
        """Does nothing: a drive has no tasks of its own."""

    async def _index(self, document: PendingDocument) -> None:
        if document.run_id != self._head.id:
            await self._append([], partial(begin_document, document=document, run_id=self._head.id))
        data = await self._store.read_rows(lambda connection: read_bytes(connection, document.id))
        try:
            read = await self._context.signal.wait(
                self._reader.read(
                    data,
                    extension=document.extension,
                    characters=MAX_CHARACTERS,
                    user_id=self._head.user_id,
                )
            )
        except Unavailable as error:
            self._tries += 1
            if self._tries >= MAX_TRIES:
                await self._end_document(document, read=None, reason=error.message)
            return
        self._tries = 0
        del data
        if reason := problem_sentence(document.name, read):
            await self._end_document(document, read=read, reason=reason)
            return
        try:
            count = await self._store_chunks(document, read)
        except TooLarge as error:
            await self._end_document(document, read=read, reason=error.message)
            return
        await self._end_document(document, read=read, count=count)

    async def _store_chunks(self, document: PendingDocument, read: Document) -> int:
        """Stores the chunks of a document and returns their number. Raises TooLarge past MAX_CHUNKS."""
        others = await self._store.read_rows(lambda connection: count_other_chunks(connection, document))
        room = max(0, MAX_CHUNKS - others)
        wanted = await asyncio.to_thread(lambda: list(islice(chunks_of(read.parts), room + 1)))
        if len(wanted) > room:
            raise TooLarge(
                f"with {document.name} this knowledge base would have more than {MAX_CHUNKS:,} chunks, which "
                "is the limit; use several bases"
            )
        changes = await self._store.read_rows(lambda connection: changes_of(connection, document, wanted))
        dialect = self._store.engine.dialect.name
        for batch in changes.batches(CHUNKS_AT_ONCE):
            if self._context.signal.is_fired:
                raise RunCancelled
            words = await asyncio.to_thread(words_of_chunks, dialect, document.scope_id, batch.new)
            await self._append([], partial(write_changes, document=document, changes=batch, words=words))
        return len(wanted)

    async def _end_document(
        self,
        document: PendingDocument,
        *,
        read: Document | None,
        reason: str | None = None,
        count: int = 0,
    ) -> None:
        status = EpisodeStatus.SYNCED if reason is None else EpisodeStatus.FAILED
        event = DocumentParsed(
            document_id=document.id,
            pages=0 if read is None else read.pages,
            chunks=count,
            status=status.value,
            reason=reason,
        )
        write = partial(end_document, document=document, status=status, read=read, reason=reason, count=count)
        await self._append([event], write)
        self._totals.add(event)

    async def _append(
        self, entries: list[LogEntry], write: Write, changes: dict[str, Any] | None = None
    ) -> None:
        await self._context.log.append(entries, changes=changes, extra_write=write)

    async def _complete(self) -> None:
        """Ends the run, unless a document was added meanwhile."""

        def check(connection: Connection) -> None:
            if next_pending(connection, self._head.subject_id, self._head.user_id) is not None:
                raise _HasMore

        with suppress(_HasMore):
            await self._end(RunStatus.COMPLETED, StopReason.FINISHED.value, check)

    async def _stop(self) -> None:
        """Ends the run after a cancel by a person, or because its time is up; then a next run goes on."""
        wall_time = self._context.wall_time
        if wall_time.is_expired:
            error = wall_time.limit_error()
            await self._end(RunStatus.COMPLETED, error.stop_reason, lambda _connection: None, error)
            return
        base_id, user_id = self._head.subject_id, self._head.user_id
        reason = "a person cancelled the indexing"
        await self._end(
            RunStatus.CANCELLED,
            StopReason.CANCELLED.value,
            lambda connection: skip_pending(connection, base_id, user_id, reason),
        )

    async def _end(
        self, status: RunStatus, stop_reason: str, write: Write, error: LuxxError | None = None
    ) -> None:
        totals = msgspec.structs.asdict(self._totals)
        entries: list[LogEntry] = [IndexComplete(status=status.value, **totals)]
        if error is not None:
            entries.insert(0, ErrorEvent(message=error.message, code=error.kind))
        changes = {
            "status": status.value,
            "phase": None,
            "stop_reason": stop_reason,
            "error": None if error is None else error.message,
            "cost": 0.0,  # It calls no model.
            "owner": None,
            "finished_at": utc_now(),
        }
        await self._append(entries, write, changes)
        self.status = status


def _write_nothing(connection: Connection) -> None:
    """For events that change no rows."""


def load_index_run(
    reader: DocumentProcess, vectors: VectorProgress, session: Session, head: RunHead
) -> BeginDrive:
    """What a drive of a run of the kind `index` needs."""
    events = read_log(session.connection(), head.id)
    return lambda context: IndexDrive(context, reader, vectors, events)


def fail_index(connection: Connection, run: FailedRun, error: LuxxError) -> RunFailure:
    """Ends a run that cannot be driven. The document on which it worked has failed: the next run would meet
    the same again, and a person can retry it."""
    fail_documents(connection, run.id, error.message)
    events: list[Event] = [
        ErrorEvent(message=error.message, code=error.kind),
        IndexComplete(status=RunStatus.FAILED.value),
    ]
    return RunFailure(events=events, status=RunStatus.FAILED)
