"""The documents of knowledge bases, as people add, list, retry and delete them. `running.py` starts the runs
that index them."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

from msgspec import Meta, Struct
from sqlalchemy import Connection, delete
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.files.names import extension_of, safe_name
from luxx.domain.files.service import FileService
from luxx.domain.files.upload import Uploads
from luxx.domain.knowledge_bases import BaseRight, find_base
from luxx.errors import Conflict, InvalidInput, TooLarge
from luxx.features.knowledge.models import NAME_LENGTH, PIECE_BYTES
from luxx.features.knowledge.rows import (
    ChunkView,
    DocumentView,
    NewDocument,
    check_quota,
    documents,
    find_document,
    not_running,
    page_of_chunks,
    page_of_documents,
    pieces_of,
    read_documents,
    set_pending,
    store_document,
)
from luxx.features.knowledge.running import Indexing
from luxx.features.memory.vectors.source import EmbeddingSource
from luxx.infra.documents.formats import FORMAT_NAMES, format_of_extension, has_macro_extension
from luxx.infra.documents.reader import MAX_DOCUMENT_BYTES
from luxx.infra.store.engine import Store
from luxx.wire.memory import EpisodeStatus
from luxx.wire.run import Run

MAX_TEXT = 2_000_000
"""Characters of a document that is given as text."""

RETRIED = (EpisodeStatus.FAILED, EpisodeStatus.SKIPPED)


class DocumentBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A document as text, or a file of the caller's workspace by its id."""

    name: Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH)] | None = None
    text: Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)] | None = None
    file_id: Annotated[str, Meta(min_length=1, max_length=36)] | None = None


class AddedDocuments(Struct, frozen=True, kw_only=True):
    """Documents that were added. `run` indexes them; null if there is nothing to do, if a run that is in
    progress does it, or if none may begin now."""

    items: list[DocumentView]
    run: Run | None


class _Readable(Protocol):
    """An open file."""

    size: int

    def read_at(self, offset: int, count: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The bytes of an open file, read whenever they are looped over. A file of the workspace may grow
    meanwhile."""

    file: _Readable

    def __iter__(self) -> Iterator[bytes]:
        for offset in range(0, self.file.size, PIECE_BYTES):
            if data := self.file.read_at(offset, PIECE_BYTES):
                yield data


@dataclass(frozen=True, slots=True)
class DocumentService:
    """One per process."""

    store: Store
    files: FileService
    uploads: Uploads
    indexing: Indexing
    embedding: EmbeddingSource
    quota_mb: float

    async def add_form(
        self, caller: Caller, base_id: str, content_type: str, length: int | None, body: AsyncIterator[bytes]
    ) -> AddedDocuments:
        """Adds the files of a form; one replaces a document of the same name. Raises what `Uploads.receive`
        raises, InvalidInput for a file that is no document, and TooLarge past the limit of a document or the
        quota; then none is added: one transaction stores all."""
        await self._check(caller, base_id)
        async with self.uploads.receive_drafts(caller, content_type, length, body) as files:
            for file in files:
                _check_document(file.name, file.draft.size)
            await self._check(caller, base_id, {file.name: file.draft.size for file in files})
            added = [
                NewDocument(
                    name=file.name, size=file.draft.size, hash=file.draft.sha256, pieces=_Pieces(file.draft)
                )
                for file in files
            ]
            ids = await self._store(caller, base_id, added)
        return await self._added(base_id, ids, [caller.user_id])

    async def add(self, caller: Caller, base_id: str, given: DocumentBody) -> AddedDocuments:
        """Adds a text or a file of the workspace. Raises InvalidInput, TooLarge, NotFound or NotAllowed."""
        await self._check(caller, base_id)
        if given.file_id is not None:
            if given.text is not None or given.name is not None:
                raise InvalidInput("give either file_id, or name and text", field="$.file_id")
            new = await self._file(caller, given.file_id)
        elif given.name is None or given.text is None:
            field = "$.name" if given.name is None else "$.text"
            raise InvalidInput("a document needs a name and a text, or a file_id", field=field)
        else:
            data = given.text.encode()
            new = NewDocument(
                name=safe_name(given.name),
                size=len(data),
                hash=hashlib.sha256(data).hexdigest(),
                pieces=pieces_of(data),
            )
            _check_document(new.name, new.size)
        ids = await self._store(caller, base_id, [new])
        return await self._added(base_id, ids, [caller.user_id])

    async def list_page(
        self, caller: Caller, base_id: str, status: EpisodeStatus | None, *, page: int, page_size: int
    ) -> tuple[list[DocumentView], int]:
        """A page of the documents of a base, newest first, and their number. Raises NotFound."""

        def work(session: Session) -> tuple[list[DocumentView], int]:
            base = find_base(session, caller, base_id)
            connection = session.connection()
            model_id = self.embedding.made_by(connection)
            return page_of_documents(connection, base.id, model_id, status, page=page, page_size=page_size)

        return await self.store.read(work)

    async def get(self, caller: Caller, base_id: str, document_id: str) -> DocumentView:
        """Raises NotFound."""

        def work(session: Session) -> DocumentView:
            base = find_base(session, caller, base_id)
            connection = session.connection()
            return find_document(connection, base.id, document_id, self.embedding.made_by(connection))

        return await self.store.read(work)

    async def chunks(
        self, caller: Caller, base_id: str, document_id: str, *, page: int, page_size: int
    ) -> tuple[list[ChunkView], int]:
        """A page of the chunks of a document, in its order, and their number. Raises NotFound."""

        def work(session: Session) -> tuple[list[ChunkView], int]:
            base = find_base(session, caller, base_id)
            document = find_document(session.connection(), base.id, document_id)
            return page_of_chunks(session.connection(), document.id, page=page, page_size=page_size)

        return await self.store.read(work)

    async def delete(self, caller: Caller, base_id: str, document_id: str) -> None:
        """Deletes a document with its chunks. Raises NotFound or NotAllowed."""

        def work(session: Session) -> None:
            base = find_base(session, caller, base_id, BaseRight.WRITE)
            document = find_document(session.connection(), base.id, document_id)
            session.connection().execute(delete(documents).where(documents.c.id == document.id))

        await self.store.write(work)

    async def retry(self, caller: Caller, base_id: str, document_id: str) -> AddedDocuments:
        """Indexes a document again that has failed or was skipped. Raises NotFound, NotAllowed, or Conflict
        for another one."""

        def choose(session: Session) -> list[str]:
            document = find_document(session.connection(), base_id, document_id)
            if document.status not in RETRIED:
                raise Conflict(
                    "only a document that has failed or was skipped can be retried; this one is "
                    f"{document.status.value}",
                    kind="document_not_failed",
                )
            return [document.id]

        return await self._again(caller, base_id, choose)

    async def reindex(self, caller: Caller, base_id: str) -> Run | None:
        """Reads and indexes all documents of a base again that no run works on. Raises NotFound or
        NotAllowed."""

        def choose(session: Session) -> list[str]:
            return not_running(session.connection(), base_id)

        return (await self._again(caller, base_id, choose)).run

    async def _again(
        self, caller: Caller, base_id: str, choose: Callable[[Session], list[str]]
    ) -> AddedDocuments:
        def work(session: Session) -> tuple[list[str], set[int]]:
            find_base(session, caller, base_id, BaseRight.WRITE, is_locked=True)
            ids = choose(session)
            return ids, set_pending(session.connection(), ids)

        ids, payers = await self.store.write(work)
        return await self._added(base_id, ids, payers)

    async def _check(self, caller: Caller, base_id: str, sizes: Mapping[str, int] | None = None) -> None:
        """Checks that the caller may write; `sizes`: the documents to add by their names, which must fit."""

        def work(session: Session) -> None:
            base = find_base(session, caller, base_id, BaseRight.WRITE)
            if sizes is not None:
                check_quota(session.connection(), base, sizes, self.quota_mb)

        await self.store.read(work)

    async def _file(self, caller: Caller, file_id: str) -> NewDocument:
        file = await self.files.open(caller, file_id)
        try:
            _check_document(file.name, file.size)
            pieces = await asyncio.to_thread(list, _Pieces(file))
        finally:
            await asyncio.shield(asyncio.to_thread(file.close))
        digest = await asyncio.to_thread(_digest, pieces)
        return NewDocument(name=file.name, size=sum(map(len, pieces)), hash=digest, pieces=pieces)

    async def _store(self, caller: Caller, base_id: str, added: Sequence[NewDocument]) -> list[str]:
        def work(session: Session) -> list[str]:
            base = find_base(session, caller, base_id, BaseRight.WRITE, is_locked=True)
            return [
                store_document(session.connection(), base, caller.user_id, new, quota_mb=self.quota_mb)
                for new in added
            ]

        return await self.store.write(work)

    async def _added(self, base_id: str, ids: Sequence[str], payers: Iterable[int]) -> AddedDocuments:
        runs = [await self.indexing.start(user_id, base_id) for user_id in payers]
        run = next((run for run in runs if run is not None), None)

        def work(connection: Connection) -> list[DocumentView]:
            return read_documents(
                connection, base_id, self.embedding.made_by(connection), documents.c.id.in_(ids)
            )

        items = await self.store.read_rows(work)
        by_id = {item.id: item for item in items}
        unique = dict.fromkeys(ids)
        return AddedDocuments(items=[by_id[id_] for id_ in unique if id_ in by_id], run=run)


def _check_document(name: str, size: int) -> None:
    """Raises InvalidInput for a type that cannot be read, TooLarge past the limit of a document."""
    extension = extension_of(name)
    if has_macro_extension(extension):
        raise InvalidInput(
            f"{name} is a file with macros, which is refused; use a copy without macros",
            kind="document_type_refused",
        )
    if format_of_extension(extension) is None:
        raise InvalidInput(
            f"{name} has a type that is not known; what can be read is {FORMAT_NAMES}",
            kind="document_type_refused",
        )
    if size > MAX_DOCUMENT_BYTES:
        raise TooLarge(f"{name} is larger than {MAX_DOCUMENT_BYTES // 2**20} MiB, the limit for a document")


def _digest(pieces: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()
