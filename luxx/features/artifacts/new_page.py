"""Versions with a page that a model has written anew: how such a run starts, and what its answer becomes.

`regeneration.py` is the run itself. Its request has what the model is asked, so any process can continue it.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
from sqlalchemy import Connection, select, update
from sqlalchemy.orm import Session

from luxx.domain.accounts.authentication import caller_of_turn
from luxx.domain.accounts.caller import Caller
from luxx.domain.agents.queries import AgentSettings
from luxx.domain.conversations.models import ConversationRow
from luxx.errors import Conflict, NotFound
from luxx.features.artifacts.access import ArtifactRecord, find_artifact
from luxx.features.artifacts.edits import draft_of
from luxx.features.artifacts.page_prompt import page_of_answer, page_question, system_prompt
from luxx.features.artifacts.rendering import Checked
from luxx.features.artifacts.rows import (
    NewVersion,
    StaleBase,
    Version,
    add_version,
    artifacts,
    page_not_found,
    read_version,
    wrong_number,
)
from luxx.features.artifacts.service import ArtifactService
from luxx.features.artifacts.source import SourcePage, normalised, size_of
from luxx.features.artifacts.views import (
    ArtifactRight,
    AuthorKind,
    RegenerateBody,
    VersionAuthorRow,
)
from luxx.infra.store.tables import table_of
from luxx.runs.admission import Admission
from luxx.runs.models import RunRow, is_unended
from luxx.runs.orchestration.interface import (
    NotYet,
    ResolveTurn,
)
from luxx.runs.streams.watch import RunWatch
from luxx.runs.turn.run_rows import NOT_CALLED, RoomCaller, RunHead
from luxx.runs.turn.state import ChatRequest
from luxx.wire.artifacts import ArtifactType
from luxx.wire.model_settings import MemoryMode
from luxx.wire.run import Run, RunKind

CALL_ID = "page"
"""The `call_id` of the version that a run writes: it writes one at most."""

_runs = table_of(RunRow)


class RegenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The stored request of a run: what the model is asked, and the page that its answer replaces, with the
    hash of the text that the model read. `is_tainted`: the artifact has untrusted content."""

    request: ChatRequest
    question: str
    page_id: str
    sha256: str
    instructions: str
    is_tainted: bool = False


class NewPage(msgspec.Struct, frozen=True, kw_only=True):
    """A checked version that is ready to be written. `size`: its bytes; `owner_id`: whose storage has it."""

    type: ArtifactType
    draft: Version
    version: NewVersion
    checked: Checked
    size: int
    owner_id: int


request_decoder = msgspec.json.Decoder(RegenerationRequest)
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class PageRegeneration:
    """Starts the runs, and makes the versions of their answers. One per process."""

    admission: Admission
    service: ArtifactService
    resolve: ResolveTurn

    async def start(self, caller: Caller, artifact_id: str, wanted: RegenerateBody) -> Run:
        """Starts a run. Raises NotFound, NotAllowed, Conflict if the artifact has one already, and what a
        message of a chat meets."""
        return await self.admission.begin(await self._admit(caller, artifact_id, wanted))

    async def start_and_watch(
        self, caller: Caller, artifact_id: str, wanted: RegenerateBody, *, accumulated: bool
    ) -> RunWatch:
        """`start`, with a watch attached before the run begins."""
        run = await self._admit(caller, artifact_id, wanted)
        return await self.admission.begin_watched(run, accumulated=accumulated)

    async def _admit(self, caller: Caller, artifact_id: str, wanted: RegenerateBody) -> Run:
        return await self.admission.admit(caller, partial(self._insert, caller, artifact_id, wanted))

    def _insert(self, caller: Caller, artifact_id: str, wanted: RegenerateBody, session: Session) -> Run:
        row = find_artifact(session, caller, artifact_id, ArtifactRight.EDIT)
        connection = session.connection()
        _check_idle(connection, artifact_id)
        type_, index = ArtifactType(row.type), wanted.page_index - 1
        head = read_version(connection, artifact_id, row.head)
        if index >= len(head.pages):
            raise wrong_number("$.page_index", page_not_found(wanted.page_index, len(head.pages)))
        request = self.resolve(session, caller.user_id, _settings(session, caller, row))
        stored = RegenerationRequest(
            request=request,
            question=page_question(type_, row.name, head, index, wanted.instructions),
            page_id=head.entries[index].id,
            sha256=head.entries[index].sha256,
            instructions=wanted.instructions,
            is_tainted=bool(row.is_tainted),
        )
        run = self.admission.insert(
            session, caller, RunKind.ARTIFACT, artifact_id, _encode(stored).decode(),
            limits=self.admission.limits_for(session, caller, request.provider_id),
            # Who sees the room of the artifact sees the run.
            called=NOT_CALLED if row.room_id is None else RoomCaller(row.room_id, row.user_id),
        )  # fmt: skip
        connection.execute(update(artifacts).where(artifacts.c.id == artifact_id).values(run_id=run.id))
        return run

    async def make(
        self, head: RunHead, request: RegenerationRequest, answer: str, model: str
    ) -> NewPage | None:
        """The version with the answer as the new page; None: the page is as it was.

        Raises NotFound or NotAllowed if the artifact is not there for the user any more, Conflict if the page
        was changed or deleted meanwhile, InvalidInput or TooLarge for an answer that is no page.
        """
        service = self.service

        def read(session: Session) -> tuple[ArtifactRecord, Version]:
            caller = caller_of_turn(session, head.user_id)
            row = find_artifact(session, caller, head.subject_id, ArtifactRight.EDIT)
            return row, read_version(session.connection(), head.subject_id, row.head)

        row, newest = await service.store.read(read)
        type_ = ArtifactType(row.type)
        index = _place_of(newest, request)
        pages = await asyncio.to_thread(_with_page, type_, newest.pages, index, answer)
        service.limits.check(pages)
        if pages == newest.pages:
            return None
        size = size_of(pages)
        await service.storage.check(row.user_id, size, is_own=row.user_id == head.user_id)
        draft = draft_of(head.subject_id, newest.number + 1, newest.settings, pages, newest)
        draft = msgspec.structs.replace(draft, run_id=head.id)
        checked = await service.rendering.check(type_, str(row.name), draft, head.user_id)
        version = NewVersion(
            base=newest.number,
            pages=pages,
            settings=newest.settings,
            author=VersionAuthorRow(
                kind=AuthorKind.MODEL, name=model, user_id=head.user_id, run_id=head.id, call_id=CALL_ID
            ),
            problems=checked.problems,
            note=request.instructions,
            is_tainted=request.is_tainted,
        )
        return NewPage(
            type=type_, draft=draft, version=version, checked=checked, size=size, owner_id=row.user_id
        )

    def write(self, page: NewPage, connection: Connection) -> None:
        """Writes the version. Raises NotYet if the artifact was changed or deleted since it was made."""
        try:
            most = self.service.config.versions
            add_version(connection, page.draft.artifact_id, page.type, page.version, most=most)
        except (StaleBase, NotFound) as error:
            raise NotYet from error
        self.service.rendering.keep_checked(connection, page.draft, page.checked)


def _check_idle(connection: Connection, artifact_id: str) -> None:
    """Locks the artifact. Raises Conflict if it has a run that has not ended."""
    lock = select(artifacts.c.run_id).where(artifacts.c.id == artifact_id).with_for_update()
    run_id = connection.scalar(lock)
    if run_id is not None and connection.scalar(select(_runs.c.id).where(_runs.c.id == run_id, is_unended)):
        raise Conflict(
            "a page of this artifact is being written anew already; wait for that run or cancel it",
            kind="run_active",
            detail={"run_id": run_id},
        )


def _settings(session: Session, caller: Caller, row: ArtifactRecord) -> AgentSettings:
    """What the turn is made with: the model of the artifact's conversation, if that is the caller's."""
    given = session.get(ConversationRow, row.conversation_id) if row.conversation_id else None
    if given is not None and given.user_id != caller.user_id:
        given = None
    return AgentSettings(
        provider_id=None if given is None else given.provider_id,
        model=None if given is None else given.model,
        lost_provider=None if given is None else given.lost_provider,
        chosen_by="the conversation of this artifact",
        system_prompt=system_prompt(ArtifactType(row.type)),
        tools=[],
        memory=MemoryMode.OFF,
    )


def _place_of(newest: Version, request: RegenerationRequest) -> int:
    """Where the page stands now. Raises Conflict if its text is not what the model has read."""
    for index, entry in enumerate(newest.entries):
        if entry.id == request.page_id and entry.sha256 == request.sha256:
            return index
    raise Conflict(
        f"the page was changed or deleted while it was written anew, and version {newest.number} stays as it "
        "is; the answer is in this run, and can be taken over by hand",
        kind="artifact_changed",
        detail={"version": newest.number},
    )


def _with_page(type_: ArtifactType, pages: Sequence[SourcePage], index: int, answer: str) -> list[SourcePage]:
    new = page_of_answer(type_, answer, pages[index])
    return normalised(type_, [*pages[:index], *new, *pages[index + 1 :]])
