"""Conversations and messages of one user: make, list, change, delete. Sending is `runs/service.py`'s.

Deleting stops what runs in it first: `stop_run` is given by whoever drives runs.
"""

from collections.abc import Awaitable, Callable

import msgspec
from msgspec import UNSET
from sqlalchemy import Select, bindparam, delete, select, update
from sqlalchemy.orm import Session, aliased

from luxx.accounts.caller import Caller
from luxx.clock import new_id, utc_now
from luxx.conversations.lists import conversation_page, message_page
from luxx.conversations.models import ConversationRow, MessageRow, ProjectRow
from luxx.conversations.search_index import index_title
from luxx.conversations.views import (
    ConversationChange,
    ConversationView,
    MessageView,
    conversation_view,
)
from luxx.errors import Conflict, InvalidInput, NotFound
from luxx.store.engine import Store

UNTITLED = "New conversation"

ProviderCheck = Callable[[Caller, int], Awaitable[None]]
"""Raises NotFound if the caller may not use the provider of this id."""

StopRun = Callable[[Caller, str], Awaitable[None]]
"""Cancels a run of the caller's and returns when it has ended."""


class ConversationService:
    """One per process."""

    def __init__(
        self,
        store: Store,
        *,
        check_provider: ProviderCheck,
        stop_run: StopRun,
        forget_runs: Callable[[Session, str], None],
        forget_runs_of: Callable[[Session, Select[str]], None],
    ) -> None:
        self._store = store
        self._check_provider = check_provider
        self._stop_run = stop_run
        self._forget_runs = forget_runs
        self._forget_runs_of = forget_runs_of

    async def create(self, caller: Caller, new: ConversationChange) -> ConversationView:
        """A new, empty conversation. Raises NotFound for a provider or project that is not the caller's."""
        await self._check(caller, new)
        now = utc_now()

        def work(session: Session) -> ConversationView:
            row = ConversationRow(
                id=new_id(), user_id=caller.user_id, title=UNTITLED, created_at=now, updated_at=now,
                pinned=False, archived=False, tags="[]",
            )  # fmt: skip
            _change(session, caller, row, new)
            session.add(row)
            session.flush()
            _index_title(session, row, new)
            return conversation_view(row)

        return await self._store.write(work)

    async def list_page(
        self, caller: Caller, *, page: int, page_size: int
    ) -> tuple[list[ConversationView], int]:
        """The caller's conversations, newest first, and how many there are."""

        return await self._store.read(
            lambda session: conversation_page(session.connection(), caller, page=page, page_size=page_size)
        )

    async def get(self, caller: Caller, conversation_id: str) -> ConversationView:
        return await self._store.read(
            lambda session: conversation_view(own_conversation(session, caller, conversation_id))
        )

    async def update(
        self, caller: Caller, conversation_id: str, changes: ConversationChange
    ) -> ConversationView:
        """Sets what is given. A run in progress keeps what it was asked with."""
        await self._check(caller, changes)

        def work(session: Session) -> ConversationView:
            row = own_conversation(session, caller, conversation_id, is_locked=True)
            _change(session, caller, row, changes)
            row.updated_at = utc_now()
            session.flush()
            _index_title(session, row, changes)
            return conversation_view(row)

        return await self._store.write(work)

    async def delete(self, caller: Caller, conversation_id: str) -> None:
        """Stops what runs in it, then deletes it with its messages and runs."""
        conversation = await self.get(caller, conversation_id)
        if conversation.run_id is not None:
            await self._stop_run(caller, conversation.run_id)

        def work(session: Session) -> None:
            row = own_conversation(session, caller, conversation_id, is_locked=True)
            self._forget_runs(session, row.id)
            session.execute(delete(MessageRow).where(MessageRow.conversation_id == row.id))
            session.delete(row)

        await self._store.write(work)

    async def list_messages(
        self, caller: Caller, conversation_id: str, *, page: int, page_size: int, before: str | None = None
    ) -> tuple[list[MessageView], int]:
        """A conversation's messages, newest first: one page, or those before a message's id."""

        return await self._store.read(
            lambda session: message_page(
                session.connection(),
                caller,
                conversation_id,
                page=page,
                page_size=page_size,
                before=before,
            )
        )

    async def delete_message(self, caller: Caller, message_id: str) -> None:
        """Deletes a message and what follows it; the selected leaf moves to its parent.

        A run that answers what is deleted is stopped first.
        """
        run_id = await self._store.read(lambda session: _run_over(session, caller, message_id))
        if run_id is not None:
            await self._stop_run(caller, run_id)

        def work(session: Session) -> None:
            row = own_message(session, caller, message_id)
            if row.conversation_id is not None:
                own_conversation(session, caller, row.conversation_id, is_locked=True)
            if _run_over(session, caller, message_id) is not None:
                raise Conflict("something was sent here a moment ago; try again", kind="run_active")
            doomed = _following(row.id)
            self._forget_runs_of(session, doomed)
            session.execute(
                update(ConversationRow)
                .where(
                    ConversationRow.id == row.conversation_id,
                    ConversationRow.selected_leaf_id.in_(doomed),
                )
                .values(selected_leaf_id=row.parent_id, updated_at=utc_now())
            )
            session.execute(
                delete(MessageRow)
                .where(MessageRow.id.in_(doomed))
                .execution_options(synchronize_session=False)
            )

        await self._store.write(work)

    async def _check(self, caller: Caller, changes: ConversationChange) -> None:
        if isinstance(changes.provider_id, int):
            await self._check_provider(caller, changes.provider_id)


_own = select(ConversationRow).where(
    ConversationRow.id == bindparam("b_id"), ConversationRow.user_id == bindparam("b_user")
)


_own_locked = _own.with_for_update()


def own_conversation(
    session: Session, caller: Caller, conversation_id: str, *, is_locked: bool = False
) -> ConversationRow:
    """The caller's conversation of this id. Raises NotFound.

    `is_locked`: nobody else changes it, sends in it or deletes from it before this transaction ends.
    """
    statement = _own_locked if is_locked else _own
    row = session.scalar(statement, {"b_id": conversation_id, "b_user": caller.user_id})
    if row is None:
        raise NotFound("no conversation with this id", kind="conversation_not_found")
    return row


def own_message(session: Session, caller: Caller, message_id: str) -> MessageRow:
    """The caller's message of this id. Raises NotFound."""
    row = session.get(MessageRow, message_id)
    if row is None or row.user_id != caller.user_id:
        raise NotFound("no message with this id", kind="message_not_found")
    return row


def _change(session: Session, caller: Caller, row: ConversationRow, changes: ConversationChange) -> None:
    if isinstance(changes.project_id, str):
        project = session.get(ProjectRow, changes.project_id)
        if project is None or project.user_id != caller.user_id:
            raise NotFound("no project with this id", kind="project_not_found")
    if isinstance(changes.title, str) and not changes.title.strip():
        raise InvalidInput(
            "a title has at least one visible character", detail={"fields": {"$.title": "empty"}}
        )
    for name in changes.__struct_fields__:
        value = getattr(changes, name)
        if value is UNSET:
            continue
        setattr(row, name, msgspec.json.encode(value).decode() if name == "tags" else value)


def _index_title(session: Session, row: ConversationRow, changes: ConversationChange) -> None:
    if changes.title is not UNSET:
        index_title(session.connection(), user_id=row.user_id, conversation_id=row.id, title=row.title)


def _following(message_id: str) -> Select[str]:
    """Selects the ids of a message and of all below it."""
    start = select(MessageRow.id).where(MessageRow.id == message_id).cte("following", recursive=True)
    child = aliased(MessageRow)
    below = start.union_all(select(child.id).join(start, child.parent_id == start.c.id))
    return select(below.c.id)


def _run_over(session: Session, caller: Caller, message_id: str) -> str | None:
    """The active run of the message's conversation, if it answers the message or something below it."""
    row = own_message(session, caller, message_id)
    if row.conversation_id is None:
        return None
    conversation = own_conversation(session, caller, row.conversation_id)
    if conversation.run_id is None:
        return None
    leaf = _following(row.id).subquery()
    is_below = session.scalar(select(leaf.c.id).where(leaf.c.id == conversation.selected_leaf_id))
    return conversation.run_id if is_below is not None else None
