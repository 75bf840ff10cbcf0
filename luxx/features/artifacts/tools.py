"""The tools with which models make, edit and read artifacts.

A tool makes and checks the file first; its version is written in the transaction that logs its result, so
that a run which is killed has both or none of them. A call that does not belong to the log of a run writes at
once.
"""

import asyncio
import hashlib
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from sqlalchemy import Connection, select

from luxx.domain.files.names import media_type_of
from luxx.errors import LuxxError, NotFound, ToolFailed
from luxx.features.artifacts.access import ArtifactRecord, existing_subject
from luxx.features.artifacts.edits import EditPosition, PageEdit, changed_text, draft_of, edited_pages
from luxx.features.artifacts.models import NAME_LENGTH
from luxx.features.artifacts.rendering import ArtifactRendering, Checked
from luxx.features.artifacts.reports import require_sources
from luxx.features.artifacts.rows import (
    NewVersion,
    StaleBase,
    Version,
    add_artifact,
    add_version,
    artifact_not_found,
    artifacts,
    page_not_found,
    read_version,
    version_of_call,
    versions,
)
from luxx.features.artifacts.service import ArtifactService
from luxx.features.artifacts.source import SourceFile, join, size_of
from luxx.features.artifacts.views import (
    ArtifactSettings,
    AuthorKind,
    NewArtifact,
    ThemeName,
    VersionAuthorRow,
)
from luxx.features.memory.places import place_of, root_of
from luxx.infra.clock import new_id
from luxx.infra.store.tables import table_of
from luxx.runs.models import RunRow
from luxx.tools.core import ToolContext, cache_never
from luxx.tools.factory import ToolFunction, tool
from luxx.tools.hooks import CallChange, ChangeRefused
from luxx.wire.artifacts import ArtifactType, ArtifactUpdated
from luxx.wire.run import RunKind
from luxx.wire.turn import StepFile

SECONDS = 120.0  # A renderer may have to wait for others.

_runs = table_of(RunRow)
ArtifactId = Annotated[str, Meta(min_length=1, max_length=36, description="The id of the artifact")]
Name = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH)]
Short = Annotated[str, Meta(max_length=35)]
PageNumber = Annotated[int, Meta(ge=1, le=10_000, description="A page, from 1")] | None
ToolText = Annotated[str, Meta(max_length=10_000_000)] | None
Files = Annotated[list[SourceFile], Meta(max_length=1_000)] | None
BaseVersion = Annotated[int, Meta(ge=1, description="The version that you have read")] | None


class CallPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a call is made: the column and id of its conversation, room or task, and the model. `is_narrow`:
    only artifacts of this place may be read, because others follow the run."""

    subject: dict[str, str] = {}
    is_narrow: bool = False
    model: str = "model"


@dataclass(frozen=True, slots=True)
class ArtifactTools:
    """Makes the tools. One per process."""

    service: ArtifactService
    rendering: ArtifactRendering

    def all(self) -> list[ToolFunction]:
        return [self._create_tool(), self._edit_tool(), self._read_tool()]

    def _create_tool(self) -> ToolFunction:
        @tool(
            name="create_artifact", category="artifacts", repeatable=True, keeps=cache_never, timeout=SECONDS
        )
        async def create_artifact(
            context: ToolContext,
            type: ArtifactType,
            name: Name,
            content: ToolText = None,
            files: Files = None,
            theme: ThemeName = "",
            language: Short = "",
        ) -> dict[str, Any]:
            """Make a document, deck, sheet, web page, program, chart or diagram that the person sees beside
            the chat and downloads as a file. content is Markdown for ppt (slides end at a line ---), document
            and report (a page begins at #); JSON {sheets: [{name, columns: [{name, type: text|number|date|
            bool|formula}], rows: [[...]]}]} for sheet; JSON for chart; an HTML page for web; Mermaid for
            diagram. code takes files. The result lists problems to correct with edit_artifact."""
            given = {"type": type, "name": name, "content": content, "files": files}
            new = _checked({**given, "theme": theme, "language": language})
            return await _as_tool(self._create(context, new))

        return create_artifact

    def _edit_tool(self) -> ToolFunction:
        @tool(name="edit_artifact", category="artifacts", repeatable=True, keeps=cache_never, timeout=SECONDS)
        async def edit_artifact(
            context: ToolContext,
            artifact_id: ArtifactId,
            page: PageNumber = None,
            old_string: ToolText = None,
            new_string: ToolText = None,
            content: ToolText = None,
            position: EditPosition = EditPosition.REPLACE,
            base_version: BaseVersion = None,
        ) -> dict[str, Any]:
            """Change one page of an artifact: old_string, which occurs once, becomes new_string; or content
            replaces the page or is put before or after it; or the page is deleted. If a person changed the
            artifact, read it first and give its version as base_version."""
            edit = PageEdit(
                page=page, old_string=old_string, new_string=new_string, content=content, position=position
            )
            return await _as_tool(self._edit(context, artifact_id, edit, base_version))

        return edit_artifact

    def _read_tool(self) -> ToolFunction:
        @tool(name="read_artifact", category="artifacts", repeatable=True, keeps=cache_never)
        async def read_artifact(
            context: ToolContext,
            artifact_id: ArtifactId,
            page: PageNumber = None,
            version: BaseVersion = None,
        ) -> dict[str, Any]:
            """Read the source of an artifact, or of one page of it."""
            return await _as_tool(self._read(context, artifact_id, page, version))

        return read_artifact

    async def _create(self, context: ToolContext, new: NewArtifact) -> dict[str, Any]:
        place = await self._place(context)
        if (made := await self._made(context)) is not None:
            return made
        pages = await asyncio.to_thread(self.service.first_pages, new)
        artifact_id = new_id()
        settings = ArtifactSettings(theme=new.theme, language=new.language)
        draft = draft_of(artifact_id, 1, settings, pages)
        if new.type == ArtifactType.REPORT:
            await require_sources(self.service.store, draft, context.caller.run_id)
        version = NewVersion(
            base=0,
            pages=pages,
            settings=settings,
            author=_author(context, place),
            is_tainted=context.permissions.tainted_by is not None,
        )
        caller = context.caller
        columns: dict[str, object] = {
            "id": artifact_id, "tenant_id": caller.tenant_id, "user_id": caller.user_id,
            "type": new.type.value, "name": new.name.strip(),
        }  # fmt: skip

        def write(checked: NewVersion, connection: Connection, step_id: str) -> None:
            # An agent may work without a conversation, and one may be deleted while its run ends.
            subject = existing_subject(connection, place.subject)
            add_artifact(connection, {**columns, **subject, "step_id": step_id or None}, checked)

        return await self._finish(context, new.type, new.name, draft, version, write)

    async def _edit(
        self, context: ToolContext, artifact_id: str, edit: PageEdit, base: int | None
    ) -> dict[str, Any]:
        place = await self._place(context)
        if (made := await self._made(context)) is not None:
            return made
        row, head, is_newer = await self._found(context, place, artifact_id, None)
        type_ = ArtifactType(row.type)
        if (base is None and is_newer) or (base is not None and base != head.number):
            raise ToolFailed(changed_text(type_, head, edit.page, is_newer=is_newer))
        pages = await asyncio.to_thread(edited_pages, type_, head, edit)
        self.service.limits.check(pages)
        if pages == head.pages:
            raise ToolFailed("this changes nothing: the text is the same already")
        version = NewVersion(
            base=head.number,
            pages=pages,
            settings=head.settings,
            author=_author(context, place),
            is_tainted=context.permissions.tainted_by is not None,
        )
        draft = draft_of(artifact_id, head.number + 1, head.settings, pages, head)
        most = self.service.config.versions

        def write(checked: NewVersion, connection: Connection, step_id: str) -> None:
            add_version(connection, artifact_id, type_, checked, most=most)

        return await self._finish(context, type_, str(row.name), draft, version, write)

    async def _finish(
        self, context: ToolContext, type_: ArtifactType, name: str, draft: Version, new: NewVersion, add: Any
    ) -> dict[str, Any]:
        """Makes and checks the file, has the version written, and returns the result of the call."""
        user_id = context.caller.user_id
        size = size_of(new.pages)
        draft = msgspec.structs.replace(draft, run_id=context.caller.run_id)
        await self.service.storage.check(user_id, size)
        checked = await self.rendering.check(type_, name, draft, user_id)
        version = msgspec.structs.replace(new, problems=checked.problems)

        def write(connection: Connection, step_id: str) -> None:
            try:
                add(version, connection, step_id)
            except (StaleBase, NotFound) as error:
                raise ChangeRefused from error
            self.rendering.keep_checked(connection, draft, checked)

        await self._write(context, draft, checked, write)
        self.service.storage.add(user_id, size)
        file = file_of(draft, checked)
        context.metadata.files.append(file)
        return {
            "artifact_id": draft.artifact_id,
            "version": draft.number,
            "pages": len(draft.pages),
            "file": {"name": file.name, "size": file.size, "sha256": file.sha256},
            "problems": msgspec.to_builtins(checked.problems),
        }

    async def _write(self, context: ToolContext, draft: Version, checked: Checked, write: Any) -> None:
        """Leaves the version to the log of the run, or writes it now where no log has the call."""
        if context.caller.run_id is None or context.caller.is_composition:
            try:
                await self.service.store.write_rows(partial(write, step_id=""))
            except ChangeRefused as error:
                raise ToolFailed("it was changed meanwhile; read it and try again") from error
            return
        event = ArtifactUpdated(
            artifact_id=draft.artifact_id,
            version=draft.number,
            pages_changed=draft.pages_changed,
            problems=checked.problems,
        )
        context.metadata.change = CallChange(event=event, write=write)

    async def _read(
        self, context: ToolContext, artifact_id: str, page: int | None, version: int | None
    ) -> dict[str, Any]:
        place = await self._place(context)
        row, found, _ = await self._found(context, place, artifact_id, version)
        type_ = ArtifactType(row.type)
        if page is not None and page > len(found.pages):
            raise page_not_found(page, len(found.pages))
        context.metadata.is_untrusted = bool(row.is_tainted) or await self._has_others(context, artifact_id)
        return {
            "artifact_id": artifact_id,
            "type": type_.value,
            "name": row.name,
            "version": found.number,
            "newest_version": row.head,
            "pages": len(found.pages),
            "content": join(type_, found.pages) if page is None else found.pages[page - 1].text,
            "problems": msgspec.to_builtins(found.problems),
        }

    async def _place(self, context: ToolContext) -> CallPlace:
        """Where the call is made. Raises ToolFailed for a run that stores nothing."""
        run_id = context.caller.run_id
        if run_id is None:
            return CallPlace()

        def read(connection: Connection) -> CallPlace:
            root = root_of(connection, run_id)
            if root is None:
                raise ToolFailed("the run of this call was deleted")
            if root.subject_id == root.id:
                raise ToolFailed("this run stores nothing, so there is no artifact here")
            kind = RunKind(root.kind)
            column = _COLUMNS.get(kind)
            place = place_of(connection, kind, root.subject_id).place
            model = connection.scalar(select(_runs.c.model).where(_runs.c.id == run_id))
            return CallPlace(
                subject={} if column is None else {column: root.subject_id},
                is_narrow=place.room_id is not None or place.is_shared,
                model=model or "model",
            )

        return await self.service.store.read_rows(read)

    async def _found(
        self, context: ToolContext, place: CallPlace, artifact_id: str, number: int | None
    ) -> tuple[ArtifactRecord, Version, bool]:
        """An artifact that may be used here, a version of it, and whether a person wrote one after the newest
        one of a model. Raises NotFound."""
        conditions = [artifacts.c.id == artifact_id, artifacts.c.user_id == context.caller.user_id]
        if place.is_narrow:
            conditions += [artifacts.c[name] == value for name, value in place.subject.items()]

        def read(connection: Connection) -> tuple[ArtifactRecord, Version, bool]:
            row = connection.execute(select(artifacts).where(*conditions)).one_or_none()
            if row is None:
                raise artifact_not_found()
            version = read_version(connection, artifact_id, number or row.head)
            head_by = select(versions.c.author_kind).where(
                versions.c.artifact_id == artifact_id, versions.c.number == row.head
            )
            return row, version, connection.scalar(head_by) == AuthorKind.PERSON.value

        return await self.service.store.read_rows(read)

    async def _has_others(self, context: ToolContext, artifact_id: str) -> bool:
        """Whether somebody else than the user of the run has written in it."""
        query = select(versions.c.number).where(
            versions.c.artifact_id == artifact_id,
            versions.c.author_kind == AuthorKind.PERSON.value,
            versions.c.author_id.is_distinct_from(context.caller.user_id),
        )
        found = await self.service.store.read_rows(lambda connection: connection.scalar(query.limit(1)))
        return found is not None

    async def _made(self, context: ToolContext) -> dict[str, Any] | None:
        """The result of a call that has written its version already: a composition repeats its members."""
        run_id, call_id = context.caller.run_id, context.metadata.call_id
        if run_id is None or not context.caller.is_composition:
            return None
        found = await self.service.store.read_rows(
            lambda connection: version_of_call(connection, run_id, call_id)
        )
        return None if found is None else {"artifact_id": found.artifact_id, "version": found.number}


_COLUMNS = {RunKind.CHAT: "conversation_id", RunKind.ROOM: "room_id", RunKind.TASK: "task_id"}


def _checked(given: dict[str, Any]) -> NewArtifact:
    """The arguments with the rules of the API, whose patterns no schema of a tool can have."""
    try:
        return msgspec.convert(given, NewArtifact)
    except msgspec.ValidationError as error:
        raise ToolFailed(f"the artifact was not made: {error}") from error


async def _as_tool(work: Any) -> dict[str, Any]:
    """The result, with errors of the API as failures that the model reads."""
    try:
        return await work
    except ToolFailed:
        raise
    except LuxxError as error:
        raise ToolFailed(error.message) from error


def _author(context: ToolContext, place: CallPlace) -> VersionAuthorRow:
    run_id = context.caller.run_id
    return VersionAuthorRow(
        kind=AuthorKind.MODEL if run_id is not None else AuthorKind.PERSON,
        name=place.model if run_id is not None else context.caller.username,
        user_id=context.caller.user_id,
        run_id=run_id,
        call_id=None if run_id is None else context.metadata.call_id,
    )


def file_of(draft: Version, checked: Checked) -> StepFile:
    """The file of a version as a step names it."""
    file = checked.file
    return StepFile(
        file_id="",
        name=file.name,
        path="",
        media_type=media_type_of(file.name),
        size=len(file.data),
        sha256=hashlib.sha256(file.data).hexdigest(),
        artifact_id=draft.artifact_id,
        version=draft.number,
    )
