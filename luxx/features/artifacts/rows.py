"""Reading and writing versions of artifacts, inside a given transaction.

A version is written by `add_version` only, whoever makes it. It locks the artifact, so that of several
writers with the same base one succeeds. Who may call it, the callers decide.
"""

import difflib
import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, bindparam, delete, func, insert, select, update

from luxx.errors import Conflict, InvalidInput, NotFound
from luxx.features.artifacts.models import (
    NOTE_LENGTH,
    ArtifactPartRow,
    ArtifactRenderRow,
    ArtifactRow,
    ArtifactVersionRow,
)
from luxx.features.artifacts.references import sources_to_keep
from luxx.features.artifacts.source import SourcePage, join
from luxx.features.artifacts.views import ArtifactPage, ArtifactSettings, PageEntry, VersionAuthorRow
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.tables import table_of
from luxx.wire.artifacts import ArtifactProblem, ArtifactType

artifacts, versions = table_of(ArtifactRow), table_of(ArtifactVersionRow)
parts, renders = table_of(ArtifactPartRow), table_of(ArtifactRenderRow)

entries_decoder = msgspec.json.Decoder(list[PageEntry])
settings_decoder = msgspec.json.Decoder(ArtifactSettings)
problems_decoder = msgspec.json.Decoder(list[ArtifactProblem])
numbers_decoder = msgspec.json.Decoder(list[int])

MEDIA_TYPES = {
    ArtifactType.SHEET: "application/json",
    ArtifactType.CHART: "application/json",
    ArtifactType.WEB: "text/html",
    ArtifactType.CODE: "text/plain",
    ArtifactType.DIAGRAM: "text/vnd.mermaid",
}
"""Of parts; Markdown for other types."""

bytes_of_user = select(func.coalesce(func.sum(artifacts.c.stored_bytes), 0)).where(
    artifacts.c.user_id == bindparam("user_id")
)
"""The bytes of the sources of a user's artifacts."""


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """A version with the texts of its pages."""

    artifact_id: str
    number: int
    settings: ArtifactSettings
    entries: list[PageEntry]
    pages: list[SourcePage]
    problems: list[ArtifactProblem]
    pages_changed: list[int]
    author_kind: str
    author_name: str
    run_id: str | None = None

    def page_texts(self) -> list[ArtifactPage]:
        """The pages as the API shows them."""
        return [
            ArtifactPage(index=index, id=entry.id, content=page.text, path=page.path or None)
            for index, (entry, page) in enumerate(zip(self.entries, self.pages, strict=True), 1)
        ]


class NewVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version to write. `base`: the version that it changes; 0 for the first of an artifact."""

    base: int
    pages: list[SourcePage]
    settings: ArtifactSettings
    author: VersionAuthorRow
    problems: list[ArtifactProblem] = []
    note: str = ""
    is_tainted: bool = False


class StaleBase(Conflict):
    """Somebody else has written a version since the base of this one."""

    kind = "artifact_changed"

    @property
    def version(self) -> int:
        """The number of the newest version."""
        return int(self.detail["version"])


def version_not_found(number: int) -> NotFound:
    """The error for a version that does not exist, or not any more."""
    return NotFound(
        f"this artifact has no version {number}; older ones may be deleted", kind="version_not_found"
    )


def page_not_found(index: int, count: int) -> NotFound:
    """The error for a page that does not exist."""
    return NotFound(f"there is no page {index}: the pages are 1 to {count}", kind="page_not_found")


def wrong_number(field: str, error: NotFound) -> InvalidInput:
    """The error for a body that names a page or a version which does not exist."""
    return InvalidInput(error.message, field=field)


def read_version(connection: Connection, artifact_id: str, number: int) -> Version:
    """A version with its texts. Raises NotFound."""
    is_it = versions.c.artifact_id == artifact_id, versions.c.number == number
    row = connection.execute(select(versions).where(*is_it)).one_or_none()
    if row is None:
        raise version_not_found(number)
    entries = entries_decoder.decode(row.pages)
    texts = _texts(connection, artifact_id, {entry.sha256 for entry in entries})
    return Version(
        artifact_id=artifact_id,
        number=number,
        settings=settings_decoder.decode(row.settings),
        entries=entries,
        pages=[SourcePage(texts[entry.sha256], entry.path) for entry in entries],
        problems=problems_decoder.decode(row.problems),
        pages_changed=numbers_decoder.decode(row.pages_changed),
        author_kind=row.author_kind,
        author_name=row.author_name,
        run_id=row.run_id,
    )


def _texts(connection: Connection, artifact_id: str, hashes: set[str]) -> dict[str, str]:
    query = select(parts.c.sha256, parts.c.data)
    query = query.where(parts.c.artifact_id == artifact_id, parts.c.sha256.in_(hashes))
    return {row.sha256: row.data.decode() for row in connection.execute(query)}


def version_of_call(connection: Connection, run_id: str, call_id: str) -> Row[Any, Any] | None:
    """The artifact and the number of the version that a tool call has made; None if it made none yet."""
    query = select(versions.c.artifact_id, versions.c.number)
    return connection.execute(
        query.where(versions.c.run_id == run_id, versions.c.call_id == call_id)
    ).one_or_none()


def add_artifact(connection: Connection, artifact: dict[str, object], new: NewVersion) -> int:
    """Inserts an artifact with its first version. `artifact`: the columns that the version does not set."""
    now = utc_now()
    connection.execute(
        insert(artifacts).values(head=0, stored_bytes=0, created_at=now, updated_at=now, **artifact)
    )
    return add_version(connection, str(artifact["id"]), ArtifactType(str(artifact["type"])), new, most=1)


def add_version(
    connection: Connection, artifact_id: str, type_: ArtifactType, new: NewVersion, *, most: int
) -> int:
    """Writes a version and returns its number; deletes the oldest ones beyond `most`.

    Raises NotFound if the artifact was deleted, StaleBase with both texts if it has another head than `base`.
    """
    lock = select(artifacts.c.head).where(artifacts.c.id == artifact_id).with_for_update()
    head = connection.scalar(lock)
    if head is None:
        raise artifact_not_found()
    if head != new.base:
        current = read_version(connection, artifact_id, head)
        raise stale_base(type_, current, join(type_, new.pages))
    before = [] if head == 0 else _entries(connection, artifact_id, head)
    entries = with_ids(before, new.pages)
    number = head + 1
    _insert_version(connection, artifact_id, type_, number, new, before, entries)
    _add_parts(connection, artifact_id, type_, entries, new.pages)
    _delete_old(connection, artifact_id, number, most)
    changed: dict[str, object] = {"is_tainted": True} if new.is_tainted else {}
    size = select(func.coalesce(func.sum(func.length(parts.c.data)), 0)).where(
        parts.c.artifact_id == artifact_id
    )
    connection.execute(
        update(artifacts)
        .where(artifacts.c.id == artifact_id)
        .values(head=number, updated_at=utc_now(), stored_bytes=size.scalar_subquery(), **changed)
    )
    return number


def _settings(connection: Connection, artifact_id: str, type_: ArtifactType, new: NewVersion) -> str:
    """The settings of a new version as JSON; those of a report with the sources that it may cite."""
    if type_ != ArtifactType.REPORT:
        return msgspec.json.encode(new.settings).decode()
    is_head = versions.c.artifact_id == artifact_id, versions.c.number == new.base
    stored = connection.scalar(select(versions.c.settings).where(*is_head))
    kept = [*([] if stored is None else settings_decoder.decode(stored).sources), *new.settings.sources]
    texts = [page.text for page in new.pages]
    sources = sources_to_keep(connection, artifact_id, new.author.run_id, texts, kept)
    return msgspec.json.encode(msgspec.structs.replace(new.settings, sources=sources)).decode()


def _insert_version(
    connection: Connection,
    artifact_id: str,
    type_: ArtifactType,
    number: int,
    new: NewVersion,
    before: Sequence[PageEntry],
    entries: Sequence[PageEntry],
) -> None:
    connection.execute(
        insert(versions).values(
            artifact_id=artifact_id,
            number=number,
            pages=msgspec.json.encode(entries).decode(),
            settings=_settings(connection, artifact_id, type_, new),
            pages_changed=msgspec.json.encode(changed_pages(before, entries)).decode(),
            problems=msgspec.json.encode(new.problems).decode(),
            author_kind=new.author.kind.value,
            author_id=new.author.user_id,
            author_name=new.author.name[:200],
            run_id=new.author.run_id,
            call_id=new.author.call_id,
            note=new.note[:NOTE_LENGTH],
            created_at=utc_now(),
        )
    )


def artifact_not_found() -> NotFound:
    """The error for an unknown artifact, or one that the caller may not see."""
    return NotFound("no artifact with this id", kind="artifact_not_found")


def stale_base(type_: ArtifactType, current: Version, yours: str) -> StaleBase:
    """The error for a change of a version that is not the newest one any more."""
    return StaleBase(
        f"the artifact was changed meanwhile: version {current.number} is the newest; compare both texts and "
        "save again with it as base_version",
        detail={"version": current.number, "current": join(type_, current.pages), "yours": yours},
    )


def _entries(connection: Connection, artifact_id: str, number: int) -> list[PageEntry]:
    is_it = versions.c.artifact_id == artifact_id, versions.c.number == number
    stored = connection.scalar(select(versions.c.pages).where(*is_it))
    return [] if stored is None else entries_decoder.decode(stored)


def hash_of(page: SourcePage) -> str:
    """The SHA-256 of the text of a page."""
    return hashlib.sha256(page.text.encode()).hexdigest()


def with_ids(before: Sequence[PageEntry], pages: Sequence[SourcePage]) -> list[PageEntry]:
    """The entries of new pages. A page that is in both, or stands where one was changed, keeps its id."""
    keys = [(hash_of(page), page.path) for page in pages]
    ids = [""] * len(pages)
    matcher = difflib.SequenceMatcher(None, [(one.sha256, one.path) for one in before], keys, autojunk=False)
    for _, start, end, new_start, new_end in matcher.get_opcodes():
        for old, index in zip(before[start:end], range(new_start, new_end), strict=False):
            ids[index] = old.id
    return [
        PageEntry(id=page_id or new_id(), sha256=sha256, path=path)
        for page_id, (sha256, path) in zip(ids, keys, strict=True)
    ]


def changed_pages(before: Sequence[PageEntry], after: Sequence[PageEntry]) -> list[int]:
    """The pages of the newer version, counted from 1, whose text or path was not that of their id before."""
    known = set(before)
    return [index for index, entry in enumerate(after, 1) if entry not in known]


def _add_parts(
    connection: Connection,
    artifact_id: str,
    type_: ArtifactType,
    entries: Sequence[PageEntry],
    pages: Sequence[SourcePage],
) -> None:
    wanted = {entry.sha256: page for entry, page in zip(entries, pages, strict=True)}
    stored = select(parts.c.sha256).where(parts.c.artifact_id == artifact_id, parts.c.sha256.in_(wanted))
    for known in connection.scalars(stored).all():
        del wanted[known]
    if wanted:
        media_type = MEDIA_TYPES.get(type_, "text/markdown")
        connection.execute(
            insert(parts),
            [
                {
                    "artifact_id": artifact_id,
                    "sha256": key,
                    "media_type": media_type,
                    "data": page.text.encode(),
                }
                for key, page in wanted.items()
            ],
        )


def _delete_old(connection: Connection, artifact_id: str, head: int, most: int) -> None:
    """Deletes versions beyond the newest `most`, and the parts that no version has any more."""
    of_artifact = versions.c.artifact_id == artifact_id
    old = connection.execute(delete(versions).where(of_artifact, versions.c.number <= head - most))
    if not old.rowcount:
        return
    is_old = renders.c.artifact_id == artifact_id, renders.c.version <= head - most
    connection.execute(delete(renders).where(*is_old))
    kept: set[str] = set()
    for stored in connection.scalars(select(versions.c.pages).where(of_artifact)):
        kept.update(entry.sha256 for entry in entries_decoder.decode(stored))
    connection.execute(delete(parts).where(parts.c.artifact_id == artifact_id, parts.c.sha256.not_in(kept)))
