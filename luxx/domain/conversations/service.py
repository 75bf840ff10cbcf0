"""Creates, lists, changes and deletes a user's conversations, messages and projects. `runs/` sends messages.

Deleting first stops the active run; the caller passes `stop_run`. Names of projects need not be unique.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

import msgspec
from msgspec import UNSET, UnsetType
from sqlalchemy import Select, delete, select, update
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.access import (
    DELETE_ROWS,
    UNTITLED,
    DeleteRuns,
    check_idle,
    delete_hidden,
    message_and_conversation,
    message_in,
    own_conversation,
    user_content,
)
from luxx.domain.conversations.branches import newest_leaf_in, newest_leaf_under, subtree_ids
from luxx.domain.conversations.comparing import select_branch
from luxx.domain.conversations.images import AttachedBytes, read_attachment
from luxx.domain.conversations.lists import (
    ConversationFilter,
    Messages,
    message_page,
    messages_before,
    page_of_conversations,
)
from luxx.domain.conversations.models import ConversationRow, MessageRow, ProjectRow
from luxx.domain.conversations.search_index import index_title
from luxx.domain.conversations.temporary import IS_TEMPORARY, change_temporary, make_temporary
from luxx.domain.conversations.views import ConversationChange, ConversationView, conversation_view
from luxx.domain.knowledge_bases import check_named
from luxx.errors import Conflict, InvalidInput, NotFound
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import keep_name, read_page
from luxx.wire.model_settings import MemoryMode

CheckConversationProvider = Callable[[Caller, int], Awaitable[None]]
"""Raises NotFound if the caller may not use the provider of this id."""

UseAgent = Callable[[Session, Caller, int], object]
"""Raises NotFound unless the caller may use the agent of this id."""

DefaultAgent = Callable[[Session, Caller], int | None]
"""The agent of conversations that name none: the default agent of the caller's tenant, if there is one."""

MOST_RUNS = 2
"""How many runs of a conversation may be active: two models may answer the same message."""

StopRun = Callable[[Caller, str], Awaitable[None]]
"""Cancels a run of the caller and returns when it has ended."""


@dataclass(frozen=True, slots=True)
class ConversationService:
    """One per process."""

    store: Store
    check_provider: CheckConversationProvider
    use_agent: UseAgent
    default_agent: DefaultAgent
    stop_run: StopRun
    delete_runs: DeleteRuns
    delete_runs_of: Callable[[Session, Select[str]], None]
    temporary_minutes: int

    async def create(self, caller: Caller, new: ConversationChange) -> ConversationView:
        """Creates an empty conversation, with the tenant's default agent unless `new` has an agent or null.

        Raises NotFound for a provider, project or agent that the caller may not use.
        """
        await self._check(caller, new)
        now = utc_now()

        def work(session: Session) -> ConversationView:
            row = ConversationRow(
                id=new_id(), user_id=caller.user_id, title=UNTITLED, created_at=now, updated_at=now,
                pinned=False, archived=False, tags="[]",
            )  # fmt: skip
            self._check_agent(session, caller, new)
            if new.agent_id is UNSET:
                row.agent_id = self.default_agent(session, caller)
            _change(session, caller, row, new)
            if new.is_temporary is True:
                make_temporary(row, self.temporary_minutes)
            session.add(row)
            session.flush()
            _index_title(session, row, new)
            return conversation_view(row)

        return await self.store.write(work)

    async def list_page(
        self, caller: Caller, filters: ConversationFilter, *, page: int, page_size: int
    ) -> tuple[list[ConversationView], int]:
        """The caller's matching conversations, by default newest first, and the number of matches."""
        return await self.store.read(
            lambda session: page_of_conversations(session, caller, filters, page=page, page_size=page_size)
        )

    async def get(self, caller: Caller, conversation_id: str) -> ConversationView:
        return await self.store.read(
            lambda session: conversation_view(own_conversation(session, caller, conversation_id))
        )

    async def update(
        self, caller: Caller, conversation_id: str, changes: ConversationChange
    ) -> ConversationView:
        """Sets the given fields. A run in progress keeps the values it started with.

        Raises Conflict if a leaf is selected while an answer is being written.
        """
        await self._check(caller, changes)

        def work(session: Session) -> ConversationView:
            row = own_conversation(session, caller, conversation_id, is_locked=True)
            self._check_agent(session, caller, changes)
            change_temporary(session, row, changes)
            _change(session, caller, row, changes)
            row.updated_at = utc_now()
            session.flush()
            _index_title(session, row, changes)
            return conversation_view(row)

        return await self.store.write(work)

    async def delete(self, caller: Caller, conversation_id: str) -> None:
        """Stops the active run, then deletes the conversation with its messages and runs.

        A large conversation is hidden at once and deleted in small transactions.
        """
        for _ in range(MOST_RUNS):
            conversation = await self.get(caller, conversation_id)
            if conversation.run_id is None:
                break
            await self.stop_run(caller, conversation.run_id)

        def work(session: Session) -> bool:
            row = own_conversation(session, caller, conversation_id, is_locked=True)
            in_conversation = MessageRow.conversation_id == row.id
            has_more_runs = self.delete_runs(session, row.id)
            # More messages than one transaction should delete.
            further = select(MessageRow.id).where(in_conversation).order_by(MessageRow.id)
            if has_more_runs or session.scalar(further.offset(DELETE_ROWS).limit(1)) is not None:
                row.import_id = new_id()
                return True
            session.execute(delete(MessageRow).where(in_conversation))
            session.delete(row)
            return False

        if await self.store.write(work):
            # Continues if the client disconnects; if the server stops, the next start finishes the deletion.
            await asyncio.shield(
                asyncio.to_thread(delete_hidden, self.store, self.delete_runs, [conversation_id])
            )

    async def list_messages(
        self, caller: Caller, conversation_id: str, *, page: int, page_size: int
    ) -> Messages:
        """A page of a conversation's messages, newest first. Raises TooLarge if they exceed MAX_PAGE_MIB."""
        return await self.store.read(
            lambda session: message_page(
                session.connection(), caller, conversation_id, page=page, page_size=page_size
            )
        )

    async def list_messages_before(
        self, caller: Caller, conversation_id: str, *, limit: int, before: str | None
    ) -> Messages:
        """The newest messages, or those before a message's id; fewer than `limit` if they are large."""
        return await self.store.read(
            lambda session: messages_before(
                session.connection(), caller, conversation_id, limit=limit, before=before
            )
        )

    async def attachment(self, caller: Caller, message_id: str, index: int) -> AttachedBytes:
        """An attachment of the caller's message; `index` counts from 0. Raises NotFound."""

        def work(session: Session) -> AttachedBytes:
            row, _ = message_and_conversation(session, caller, message_id)
            attachments = user_content(row.content).attachments if row.role == "user" else []
            if index < len(attachments):
                attached = read_attachment(session.connection(), message_id, attachments[index])
                if attached is not None:
                    return attached
            raise NotFound("this message has no attachment with this number", kind="attachment_not_found")

        return await self.store.read(work)

    async def delete_message(self, caller: Caller, message_id: str) -> None:
        """Deletes a message and all messages below it; the selected leaf becomes its parent.

        If a first message is deleted that has siblings, their newest leaf is selected. An active run that
        answers a deleted message is stopped first.
        """
        for _ in range(MOST_RUNS):
            run_id = await self.store.read(lambda session: _run_answering(session, caller, message_id))
            if run_id is None:
                break
            await self.stop_run(caller, run_id)

        def work(session: Session) -> None:
            row, _ = message_and_conversation(session, caller, message_id, is_locked=True)
            if _run_answering(session, caller, message_id) is not None:
                raise Conflict(
                    "a message was sent to this conversation a moment ago; try again", kind="run_active"
                )
            self._delete_following(session, row)

        await self.store.write(work)

    def _delete_following(self, session: Session, row: MessageRow) -> None:
        deleted_ids = subtree_ids(row.id)
        self.delete_runs_of(session, deleted_ids)
        conversation = session.scalar(
            select(ConversationRow).where(
                ConversationRow.id == row.conversation_id, ConversationRow.selected_leaf_id.in_(deleted_ids)
            )
        )
        # What was proposed may repeat the words of the deleted message.
        of_conversation = update(ConversationRow).where(ConversationRow.id == row.conversation_id)
        session.execute(of_conversation.values(follow_ups=None))
        session.execute(
            delete(MessageRow)
            .where(MessageRow.id.in_(deleted_ids))
            .execution_options(synchronize_session=False)
        )
        if conversation is not None:
            conversation.selected_leaf_id = row.parent_id or newest_leaf_in(session, conversation.id)
            conversation.updated_at, conversation.comparing_id = utc_now(), None

    async def _check(self, caller: Caller, changes: ConversationChange) -> None:
        if isinstance(changes.provider_id, int):
            await self.check_provider(caller, changes.provider_id)

    def _check_agent(self, session: Session, caller: Caller, changes: ConversationChange) -> None:
        if isinstance(changes.agent_id, int):
            self.use_agent(session, caller, changes.agent_id)


def _change(session: Session, caller: Caller, row: ConversationRow, changes: ConversationChange) -> None:
    if isinstance(changes.project_id, str):
        own_project(session, caller, changes.project_id)
    if isinstance(changes.title, str) and not changes.title.strip():
        raise InvalidInput("a title needs at least one visible character", field="$.title")
    if changes.provider_id is not UNSET and row.lost_provider is not None:
        row.lost_provider = row.model = None  # The model belonged to the lost provider.
    if changes.agent_id is not UNSET:
        row.lost_agent = None
    if changes.project_id is not UNSET:
        row.lost_project = None
    for name in changes.__struct_fields__:
        value = getattr(changes, name)
        if value is UNSET or name == IS_TEMPORARY:
            continue
        match name:
            case "tags":
                row.tags = msgspec.json.encode(value).decode()
            case "knowledge":
                row.knowledge = check_named(session, caller, value)
            case "selected_leaf_id":
                message_in(session, row, value)
                check_idle(row)
                select_branch(session, row, value, newest_leaf_under(session, value))
            case "title":
                row.title, row.title_from = value, None  # Nothing replaces what a person typed.
            case _:
                setattr(row, name, value)


def _index_title(session: Session, row: ConversationRow, changes: ConversationChange) -> None:
    if changes.title is not UNSET:
        index_title(session.connection(), user_id=row.user_id, conversation_id=row.id, title=row.title)


def _run_answering(session: Session, caller: Caller, message_id: str) -> str | None:
    """The active run of the message's conversation, if it answers the message or one below it."""
    row, conversation = message_and_conversation(session, caller, message_id)
    if conversation is None or conversation.run_id is None:
        return None
    leaf = subtree_ids(row.id).subquery()
    is_below = session.scalar(select(leaf.c.id).where(leaf.c.id == conversation.selected_leaf_id))
    return conversation.run_id if is_below is not None else None


class ProjectView(msgspec.Struct, frozen=True, kw_only=True):
    """A project as the API shows it; its conversations have its id as their `project_id`."""

    id: str
    user_id: int
    name: str
    description: str
    memory: MemoryMode | None
    created_at: datetime
    updated_at: datetime


class ProjectChange(msgspec.Struct, frozen=True, kw_only=True):
    """The fields to set; UNSET leaves a field unchanged."""

    name: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    memory: MemoryMode | UnsetType | None = UNSET


@dataclass(frozen=True, slots=True)
class ProjectService:
    """One per process. `has_rules`: whether a project has permission rules."""

    store: Store
    has_rules: Callable[[Session, str], bool]

    async def create(
        self, caller: Caller, *, name: str, description: str, memory: MemoryMode | None = None
    ) -> ProjectView:
        now = utc_now()

        def work(session: Session) -> ProjectView:
            row = ProjectRow(
                id=new_id(), user_id=caller.user_id, name=_visible_name(name), description=description,
                memory=memory, created_at=now, updated_at=now,
            )  # fmt: skip
            session.add(row)
            session.flush()
            return _project_view(row)

        return await self.store.write(work)

    async def list_page(self, caller: Caller, *, page: int, page_size: int) -> tuple[list[ProjectView], int]:
        """The caller's projects, newest first, and their number."""

        def work(session: Session) -> tuple[list[ProjectView], int]:
            own = select(ProjectRow).where(ProjectRow.user_id == caller.user_id)
            newest = own.order_by(ProjectRow.id.desc())
            rows, total = read_page(session, newest, page=page, page_size=page_size)
            return [_project_view(row) for row in rows], total

        return await self.store.read(work)

    async def get(self, caller: Caller, project_id: str) -> ProjectView:
        return await self.store.read(lambda session: _project_view(own_project(session, caller, project_id)))

    async def update(self, caller: Caller, project_id: str, changes: ProjectChange) -> ProjectView:
        """Sets the given fields."""

        def work(session: Session) -> ProjectView:
            row = own_project(session, caller, project_id)
            if isinstance(changes.name, str):
                row.name = _visible_name(changes.name)
            if isinstance(changes.description, str):
                row.description = changes.description
            if changes.memory is not UNSET:
                row.memory = changes.memory
            row.updated_at = utc_now()
            session.flush()
            return _project_view(row)

        return await self.store.write(work)

    async def delete(self, caller: Caller, project_id: str) -> None:
        """Deletes the project; its conversations and tasks stay. If it has permission rules, they keep its
        name and stop until they are moved elsewhere: the rules applied to them."""

        def work(session: Session) -> None:
            row = own_project(session, caller, project_id)
            if self.has_rules(session, row.id):
                keep_name(session.connection(), ProjectRow, row.id, row.name)
            session.delete(row)

        await self.store.write(work)


def own_project(session: Session, caller: Caller, project_id: str) -> ProjectRow:
    """The caller's project of this id. Raises NotFound."""
    row = session.get(ProjectRow, project_id)
    if row is None or row.user_id != caller.user_id:
        raise NotFound("no project with this id", kind="project_not_found")
    return row


def _visible_name(name: str) -> str:
    if not name.strip():
        raise InvalidInput("a project's name needs at least one visible character", field="$.name")
    return name.strip()


def _project_view(row: ProjectRow) -> ProjectView:
    return msgspec.convert(row, ProjectView, from_attributes=True)
