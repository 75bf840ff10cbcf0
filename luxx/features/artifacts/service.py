"""Artifacts as people manage them: creating, reading, editing page by page, versions, and downloads."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET
from msgspec.structs import replace
from sqlalchemy import Connection, and_, delete, func, not_, select, update
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.access import own_conversation
from luxx.errors import InvalidInput, NotFound
from luxx.features.artifacts.access import ArtifactRecord, find_artifact, visible_to
from luxx.features.artifacts.downloads import diff_of
from luxx.features.artifacts.rendering import ArtifactRendering
from luxx.features.artifacts.rows import (
    NewVersion,
    StaleBase,
    Version,
    add_artifact,
    add_version,
    artifacts,
    page_not_found,
    read_version,
    renders,
    stale_base,
    versions,
    wrong_number,
)
from luxx.features.artifacts.shown import saved_content, version_view, view_of, views_of
from luxx.features.artifacts.source import (
    SourceLimits,
    SourcePage,
    join,
    normalised,
    pages_of_files,
    pages_of_page,
    size_of,
    split,
)
from luxx.features.artifacts.views import (
    ArtifactChanges,
    ArtifactContent,
    ArtifactDiff,
    ArtifactRight,
    ArtifactSettings,
    ArtifactView,
    AuthorKind,
    NewArtifact,
    NewContent,
    SavedContent,
    VersionAuthorRow,
    VersionView,
)
from luxx.features.rooms.models import RoomRight
from luxx.features.rooms.queries import find_room
from luxx.features.tasks.queries import own_task
from luxx.infra.clock import new_id
from luxx.infra.config.schema import ArtifactsConfig
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.runs.cancel import mark_cancelled
from luxx.runs.models import RunRow, is_unended
from luxx.runs.turn.run_rows import StorageUse
from luxx.wire.artifacts import ArtifactType
from luxx.wire.run import RunKind

_runs = table_of(RunRow)


@dataclass(frozen=True, slots=True)
class ArtifactFilter:
    """None does not filter."""

    conversation_id: str | None = None
    room_id: str | None = None
    task_id: str | None = None
    type: ArtifactType | None = None


@dataclass(frozen=True, slots=True)
class ArtifactService:
    """One per process."""

    store: Store
    config: ArtifactsConfig
    storage: StorageUse
    rendering: ArtifactRendering

    @property
    def limits(self) -> SourceLimits:
        return SourceLimits(max_pages=self.config.max_pages, max_source_kb=self.config.max_source_kb)

    async def list_page(
        self, caller: Caller, wanted: ArtifactFilter, *, page: int, page_size: int
    ) -> tuple[list[ArtifactView], int]:
        """The artifacts that the caller may read, newest first, and their number."""
        conditions = [visible_to(caller)]
        for name in ("conversation_id", "room_id", "task_id", "type"):
            if (value := getattr(wanted, name)) is not None:
                conditions.append(artifacts.c[name] == value)

        def work(session: Session) -> tuple[list[ArtifactView], int]:
            connection = session.connection()
            total = connection.scalar(select(func.count()).select_from(artifacts).where(*conditions)) or 0
            found = select(artifacts).where(*conditions).order_by(artifacts.c.id.desc())
            rows = connection.execute(found.limit(page_size).offset((page - 1) * page_size)).all()
            return views_of(session, caller, rows), total

        return await self.store.read(work)

    async def get(self, caller: Caller, artifact_id: str) -> ArtifactView:
        """Raises NotFound."""
        return await self.store.read(
            lambda session: view_of(session, caller, find_artifact(session, caller, artifact_id))
        )

    async def create(self, caller: Caller, new: NewArtifact) -> ArtifactView:
        """Creates an artifact with its first version. Raises InvalidInput, TooLarge, NotFound for the
        subject, NotAllowed in a room where the caller may only watch."""
        pages = await asyncio.to_thread(self.first_pages, new)
        size = size_of(pages)
        owner_id = await self.store.read(lambda session: _subject_of(session, caller, new)[0])
        await self.storage.check(owner_id, size, is_own=owner_id == caller.user_id)
        version = NewVersion(
            base=0,
            pages=pages,
            settings=ArtifactSettings(theme=new.theme, language=new.language),
            author=author_of(caller),
        )

        def work(session: Session) -> ArtifactView:
            user_id, subject = _subject_of(session, caller, new)
            columns: dict[str, object] = {
                "id": new_id(), "tenant_id": caller.tenant_id, "user_id": user_id, "type": new.type.value,
                "name": new.name.strip(), **subject,
            }  # fmt: skip
            add_artifact(session.connection(), columns, version)
            return view_of(session, caller, find_artifact(session, caller, str(columns["id"])))

        created = await self.store.write(work)
        self.storage.add(owner_id, size)
        problems = await self.rendering.check_stored(created.id, 1, caller.user_id)
        return msgspec.structs.replace(created, problems=problems)

    def first_pages(self, new: NewArtifact) -> list[SourcePage]:
        """The checked pages of a new artifact. Raises InvalidInput or TooLarge."""
        if (new.content is None) == (new.files is None):
            needed = "content or files" if new.type == ArtifactType.CODE else "content"
            raise InvalidInput(f"an artifact needs {needed}", field="$.content", kind="source_empty")
        if new.files is None:
            pages = split(new.type, new.content or "", new.name)
        elif new.type != ArtifactType.CODE:
            raise InvalidInput("only an artifact of the type code has files", field="$.files")
        else:
            pages = pages_of_files(new.files)
        self.limits.check(pages)
        return pages

    async def update(self, caller: Caller, artifact_id: str, changes: ArtifactChanges) -> ArtifactView:
        """Sets the given fields; another theme or language makes a new version. Raises NotFound or
        NotAllowed."""

        def work(session: Session) -> ArtifactView:
            row = find_artifact(session, caller, artifact_id, ArtifactRight.EDIT)
            connection = session.connection()
            if changes.name is not UNSET and changes.name.strip() != row.name:
                of_artifact = artifacts.c.id == artifact_id
                connection.execute(update(artifacts).where(of_artifact).values(name=changes.name.strip()))
                # The name is a part of the files.
                connection.execute(delete(renders).where(renders.c.artifact_id == artifact_id))
            head = read_version(connection, artifact_id, row.head)
            theme = head.settings.theme if changes.theme is UNSET else changes.theme
            language = head.settings.language if changes.language is UNSET else changes.language
            settings = replace(head.settings, theme=theme, language=language)
            if settings != head.settings:
                version = NewVersion(
                    base=row.head,
                    pages=head.pages,
                    settings=settings,
                    author=author_of(caller),
                    problems=head.problems,
                    note="theme or language",
                )
                self._add(session, row, version)
            return view_of(session, caller, find_artifact(session, caller, artifact_id))

        changed = await self.store.write(work)
        problems = await self.rendering.check_stored(artifact_id, changed.head, caller.user_id)
        return msgspec.structs.replace(changed, problems=problems)

    async def delete(self, caller: Caller, artifact_id: str) -> None:
        """Deletes an artifact with its versions. Raises NotFound, NotAllowed."""

        def work(session: Session) -> None:
            row = find_artifact(session, caller, artifact_id, ArtifactRight.OWNER)
            connection = session.connection()
            _end_runs(connection, [artifact_id])
            connection.execute(delete(artifacts).where(artifacts.c.id == row.id))

        await self.store.write(work)

    async def ids_of_conversation(self, caller: Caller, conversation_id: str) -> list[str]:
        """The caller's artifacts of a conversation."""
        query = select(artifacts.c.id).where(
            artifacts.c.user_id == caller.user_id, artifacts.c.conversation_id == conversation_id
        )
        return await self.store.read_rows(lambda connection: list(connection.scalars(query)))

    async def delete_all(self, caller: Caller, artifact_ids: Sequence[str]) -> None:
        """Deletes those of the artifacts that the caller owns."""
        owned = artifacts.c.id.in_(artifact_ids), artifacts.c.user_id == caller.user_id

        def work(connection: Connection) -> None:
            _end_runs(connection, connection.scalars(select(artifacts.c.id).where(*owned)).all())
            connection.execute(delete(artifacts).where(*owned))

        await self.store.write_rows(work)

    # The source

    async def content(
        self, caller: Caller, artifact_id: str, page: int | None, version: int | None
    ) -> ArtifactContent:
        """The source of a version, or a page of it; of the newest one without a number. Raises NotFound."""
        row, found = await self.read(caller, artifact_id, version)
        pages = found.page_texts()
        if page is None:
            type_ = ArtifactType(row.type)
            return ArtifactContent(version=found.number, content=join(type_, found.pages), pages=pages)
        if page > len(pages):
            raise page_not_found(page, len(pages))
        one = pages[page - 1]
        return ArtifactContent(version=found.number, content=one.content, pages=[one])

    async def save_content(self, caller: Caller, artifact_id: str, new: NewContent) -> SavedContent:
        """Saves a page, or all of the source, as a new version; nothing if the text is the same.

        Raises NotFound, NotAllowed, InvalidInput, TooLarge, or StaleBase with both texts.
        """

        def prepare(session: Session) -> tuple[ArtifactRecord, Version]:
            row = find_artifact(session, caller, artifact_id, ArtifactRight.EDIT)
            return row, read_version(session.connection(), artifact_id, row.head)

        row, head = await self.store.read(prepare)
        type_ = ArtifactType(row.type)
        if head.number != new.base_version:
            raise _stale_of(type_, head, new)
        pages = await asyncio.to_thread(self.edited, type_, head, new, row.name)
        if pages == head.pages:
            return saved_content(head)
        await self.storage.check(row.user_id, size_of(pages), is_own=row.user_id == caller.user_id)
        version = NewVersion(base=head.number, pages=pages, settings=head.settings, author=author_of(caller))

        def work(session: Session) -> SavedContent:
            row = find_artifact(session, caller, artifact_id, ArtifactRight.EDIT)
            try:
                number = self._add(session, row, version)
            except StaleBase as error:
                current = read_version(session.connection(), artifact_id, error.version)
                raise _stale_of(type_, current, new) from error
            return saved_content(read_version(session.connection(), artifact_id, number))

        saved = await self.store.write(work)
        self.storage.add(row.user_id, size_of(pages))
        problems = await self.rendering.check_stored(artifact_id, saved.version, caller.user_id)
        return msgspec.structs.replace(saved, problems=problems)

    def edited(self, type_: ArtifactType, head: Version, new: NewContent, name: str) -> list[SourcePage]:
        """The pages after a change of all text or of a page. Raises NotFound, InvalidInput, TooLarge."""
        if new.page is None:
            pages = split(type_, new.content, name)
        else:
            if new.page > len(head.pages):
                raise wrong_number("$.page", page_not_found(new.page, len(head.pages)))
            index = new.page - 1
            replaced = pages_of_page(type_, new.content, head.pages[index].path)
            pages = normalised(type_, [*head.pages[:index], *replaced, *head.pages[index + 1 :]])
        self.limits.check(pages)
        return pages

    # Versions

    async def versions(
        self, caller: Caller, artifact_id: str, *, page: int, page_size: int
    ) -> tuple[list[VersionView], int]:
        """The versions of an artifact, newest first, and their number. Raises NotFound."""
        of_artifact = versions.c.artifact_id == artifact_id

        def work(session: Session) -> tuple[list[VersionView], int]:
            find_artifact(session, caller, artifact_id)
            connection = session.connection()
            total = connection.scalar(select(func.count()).select_from(versions).where(of_artifact)) or 0
            query = select(versions).where(of_artifact).order_by(versions.c.number.desc())
            rows = connection.execute(query.limit(page_size).offset((page - 1) * page_size)).all()
            return [version_view(row) for row in rows], total

        return await self.store.read(work)

    async def diff(
        self, caller: Caller, artifact_id: str, first: int | None, last: int | None
    ) -> ArtifactDiff:
        """The pages that differ between two versions: without numbers those of the newest one and the one
        before. Raises NotFound."""

        def work(session: Session) -> tuple[Version, Version]:
            row = find_artifact(session, caller, artifact_id)
            connection = session.connection()
            after = read_version(connection, artifact_id, last or row.head)
            return read_version(connection, artifact_id, first or max(1, after.number - 1)), after

        before, after = await self.store.read(work)
        return await asyncio.to_thread(diff_of, before, after)

    async def restore(self, caller: Caller, artifact_id: str, number: int) -> SavedContent:
        """Makes a new version of an earlier one. Raises NotFound, NotAllowed, InvalidInput."""

        def work(session: Session) -> SavedContent:
            row = find_artifact(session, caller, artifact_id, ArtifactRight.EDIT)
            connection = session.connection()
            try:
                old = read_version(connection, artifact_id, number)
            except NotFound as error:
                raise wrong_number("$.version", error) from error
            if number == row.head:
                return saved_content(old)
            version = NewVersion(
                base=row.head,
                pages=old.pages,
                settings=old.settings,
                author=author_of(caller),
                problems=old.problems,
                note=f"version {number} restored",
            )
            return saved_content(read_version(connection, artifact_id, self._add(session, row, version)))

        return await self.store.write(work)

    async def read(
        self, caller: Caller, artifact_id: str, number: int | None
    ) -> tuple[ArtifactRecord, Version]:
        """An artifact and a version of it, the newest one without a number. Raises NotFound."""

        def work(session: Session) -> tuple[ArtifactRecord, Version]:
            row = find_artifact(session, caller, artifact_id)
            return row, read_version(session.connection(), artifact_id, number or row.head)

        return await self.store.read(work)

    def _add(self, session: Session, row: ArtifactRecord, version: NewVersion) -> int:
        type_, most = ArtifactType(row.type), self.config.versions
        return add_version(session.connection(), row.id, type_, version, most=most)


def _end_runs(connection: Connection, artifact_ids: Sequence[str]) -> None:
    """Deletes the runs that wrote pages of the artifacts, whose logs have their text; cancels those that have
    not ended, which then find no artifact."""
    of_artifacts = _runs.c.subject_id.in_(artifact_ids), _runs.c.kind == RunKind.ARTIFACT.value
    mark_cancelled(connection, and_(*of_artifacts, is_unended))
    connection.execute(delete(_runs).where(*of_artifacts, not_(is_unended)))


def author_of(caller: Caller) -> VersionAuthorRow:
    """The caller as the author of a version."""
    return VersionAuthorRow(kind=AuthorKind.PERSON, name=caller.username, user_id=caller.user_id)


def _stale_of(type_: ArtifactType, head: Version, new: NewContent) -> Exception:
    error = stale_base(type_, head, new.content)
    if new.page is not None:
        pages = head.pages
        error.detail["current"] = pages[new.page - 1].text if new.page <= len(pages) else ""
    return error


def _subject_of(session: Session, caller: Caller, new: NewArtifact) -> tuple[int, dict[str, str]]:
    """The owner of a new artifact, and the column of its subject. Raises NotFound, NotAllowed or
    InvalidInput."""
    given = {name: getattr(new, name) for name in ("conversation_id", "room_id", "task_id")}
    subject = {name: value for name, value in given.items() if value is not None}
    if len(subject) > 1:
        raise InvalidInput(
            "an artifact belongs to one conversation, room or task", field=f"$.{[*subject][1]}"
        )
    user_id = caller.user_id
    for name, value in subject.items():
        try:
            if name == "conversation_id":
                own_conversation(session, caller, value)
            elif name == "task_id":
                own_task(session, caller, value)
            else:
                user_id = find_room(session, caller, value, RoomRight.SPEAK)[0].user_id
        except NotFound as error:
            raise error.about(f"$.{name}") from error
    return user_id, subject
