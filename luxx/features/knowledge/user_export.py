"""The knowledge bases that a user owns in an export of all their data, and their import elsewhere.

Members, chunks and who else added documents stay behind; an import has the documents indexed again.
"""

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from sqlalchemy import select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.backup.user_export import FeatureExport, ImportedIds
from luxx.domain.files.names import safe_name
from luxx.domain.knowledge_bases import BASES, KnowledgeBaseRow
from luxx.errors import LuxxError, TooLarge
from luxx.features.knowledge.models import NAME_LENGTH
from luxx.features.knowledge.rows import NewDocument, documents, pieces_of, read_bytes, store_document
from luxx.features.knowledge.service import BaseColumns, BaseDescription, BaseName, add_base
from luxx.infra.documents.reader import MAX_DOCUMENT_BYTES

MAX_BYTES = 100 * 1024 * 1024
"""Bytes of all documents in an export; its reader keeps them in memory."""


class ExportedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A document; `data` null: it was too large for the export."""

    name: Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH)]
    data: bytes | None


class ExportedBase(msgspec.Struct, frozen=True, kw_only=True):
    """A base; `project` is the position of its project in the file."""

    name: BaseName
    description: BaseDescription
    project: int | None
    documents: list[ExportedDocument]


def read_knowledge(session: Session, caller: Caller, project_ids: Sequence[str]) -> list[ExportedBase]:
    """The bases that the user owns, oldest first."""
    connection = session.connection()
    own = select(KnowledgeBaseRow).where(
        KnowledgeBaseRow.user_id == caller.user_id, KnowledgeBaseRow.deleted_at.is_(None)
    )
    left = MAX_BYTES
    exported: list[ExportedBase] = []
    for base in session.scalars(own.order_by(KnowledgeBaseRow.id)):
        of_base = select(documents.c.id, documents.c.name, documents.c.size)
        of_base = of_base.where(documents.c.base_id == base.id).order_by(documents.c.id)
        found: list[ExportedDocument] = []
        for row in connection.execute(of_base).all():
            data = read_bytes(connection, row.id) if row.size <= left else None
            left -= 0 if data is None else len(data)
            found.append(ExportedDocument(name=row.name, data=data))
        exported.append(
            ExportedBase(
                name=base.name,
                description=base.description,
                project=project_ids.index(base.project_id) if base.project_id in project_ids else None,
                documents=found,
            )
        )
    return exported


def add_knowledge(session: Session, caller: Caller, ids: ImportedIds, value: Any) -> list[str]:
    """Adds bases whose names are free, not shared. Returns notes about what was left out. Raises LuxxError
    for what no server has exported."""
    try:
        exported = msgspec.convert(value, list[ExportedBase])
    except msgspec.ValidationError as error:
        raise LuxxError(f"the knowledge bases in it cannot be read ({error})") from error
    names = BASES.lock_names(session, caller.user_id)
    notes: list[str] = []
    for one in exported:
        if not BASES.is_importable(one.name, names, notes):
            continue
        names.add(one.name)
        has_project = one.project is not None and 0 <= one.project < len(ids.projects)
        project_id = ids.projects[one.project or 0] if has_project else None
        columns = BaseColumns(
            name=one.name, description=one.description, is_shared=False, project_id=project_id
        )
        base = add_base(session, caller, columns)
        for document in one.documents:
            if not _add_document(session, caller, base, document):
                notes.append(f"the document {document.name} of {one.name} was left out: it is too large")
    return notes


def _add_document(
    session: Session, caller: Caller, base: KnowledgeBaseRow, document: ExportedDocument
) -> bool:
    """Whether there was room for the document."""
    data = document.data
    if data is None or len(data) > MAX_DOCUMENT_BYTES:
        return False
    new = NewDocument(
        name=safe_name(document.name),
        size=len(data),
        hash=hashlib.sha256(data).hexdigest(),
        pieces=pieces_of(data),
    )
    try:
        store_document(session.connection(), base, caller.user_id, new, quota_mb=MAX_BYTES / 2**20)
    except TooLarge:
        return False
    return True


KNOWLEDGE_EXPORT = FeatureExport(name="knowledge", read=read_knowledge, add=add_knowledge)
