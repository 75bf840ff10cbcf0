"""The to-do list of a conversation for people: they read it, and change it also while an answer is made.

A change of a person has the list that it was made of. So it is merged with what a model or another page has
written since, and nothing of either is lost (`domain/context/todo_list.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from sqlalchemy import Connection, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.context.todo_list import merged
from luxx.domain.context.todo_rows import change_list, read_list
from luxx.domain.conversations.access import own_conversation
from luxx.domain.conversations.comparing import check_chosen
from luxx.domain.conversations.models import TODOS_MODE, ConversationRow, QueuedMessageRow
from luxx.errors import Conflict, InvalidInput
from luxx.features.chats.service import ChatService
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.tables import table_of
from luxx.runs.models import RunEventRow
from luxx.runs.streams.notices import NotifySubject
from luxx.runs.streams.sessions import SubjectHint
from luxx.runs.turn.todo_list import changed
from luxx.wire.todos import TodoChange, TodoItem, TodoList, problem_of
from luxx.wire.turn import turn_of
from luxx.wire.turn_event import PlanUpdated

_events = table_of(RunEventRow)
_updates = select(_events.c.data).where(_events.c.type == "plan_updated").order_by(_events.c.seq.desc())
_pending = select(QueuedMessageRow).where(QueuedMessageRow.mode == TODOS_MODE)
_event = msgspec.json.Decoder(PlanUpdated)
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, repr=False)
class TodoService:
    """One per process."""

    chats: ChatService
    notify_subject: NotifySubject

    async def read(self, caller: Caller, conversation_id: str) -> TodoList:
        """The list of the selected path with what people have changed. Raises NotFound."""

        def work(session: Session) -> TodoList:
            conversation = own_conversation(session, caller, conversation_id)
            pending = session.scalar(_pending.where(QueuedMessageRow.conversation_id == conversation.id))
            items = _logged_list(session.connection(), conversation)
            return TodoList(todos=items if pending is None else changed(items, [pending.content]))

        return await self.chats.admission.services.store.read(work)

    async def change(
        self,
        caller: Caller,
        conversation_id: str,
        todos: Sequence[TodoItem],
        base: Sequence[TodoItem] | None,
    ) -> TodoList:
        """Makes `todos` the list, and returns it as it is then. `base`: what the caller changed; None: the
        list as it is now. The next model call of an answer in progress sees it.

        Raises NotFound, Conflict (there is no answer yet), InvalidInput or TooLarge (over the storage limit).
        """
        services = self.chats.admission.services
        size = len(_encode(todos)) * 2
        await services.storage.check(caller.user_id, size)

        def work(session: Session) -> tuple[list[TodoItem], str | None]:
            conversation = own_conversation(session, caller, conversation_id, is_locked=True)
            check_chosen(session, conversation)
            if conversation.run_id is not None:
                return _give(session, caller, conversation, todos, base), conversation.run_id

            def change(before: Sequence[TodoItem]) -> list[TodoItem]:
                return _merged(before, todos, base)

            after = change_list(session.connection(), conversation.selected_leaf_id, change)
            if after is None:
                raise Conflict(
                    "this conversation has no answer yet, so it has no to-do list; send a message first",
                    kind="no_answer_yet",
                )
            return after, None

        items, run_id = await services.store.write(work)
        if run_id is not None:
            self.chats.admission.engine.deliver(run_id)
        self.notify_subject(SubjectHint(session_id=conversation_id, user_id=caller.user_id))
        return TodoList(todos=items)


def _merged(
    before: Sequence[TodoItem], todos: Sequence[TodoItem], base: Sequence[TodoItem] | None
) -> list[TodoItem]:
    change = TodoChange(base=list(before if base is None else base), todos=list(todos))
    after = merged(change, before)
    if problem := problem_of(after):
        raise InvalidInput(f"with what was written meanwhile, {problem[1]}", field="$.todos")
    return after


def _give(
    session: Session,
    caller: Caller,
    conversation: ConversationRow,
    todos: Sequence[TodoItem],
    base: Sequence[TodoItem] | None,
) -> list[TodoItem]:
    """Stores the change for the answer in progress, together with one that it has not logged yet."""
    # The row first: the turn logs it in one transaction, after which the log has the change.
    row = session.scalar(
        _pending.where(QueuedMessageRow.conversation_id == conversation.id).with_for_update()
    )
    logged = _logged_list(session.connection(), conversation)
    before = logged if row is None else changed(logged, [row.content])
    after = _merged(before, todos, base)
    if row is not None:
        session.delete(row)
        session.flush()
    if after != logged:
        content = _encode(TodoChange(base=logged, todos=after)).decode()
        session.add(
            QueuedMessageRow(
                id=new_id(),
                conversation_id=conversation.id,
                user_id=caller.user_id,
                mode=TODOS_MODE,
                position=0,
                content=content,
                request="{}",
                stored_bytes=len(content),
                created_at=utc_now(),
            )
        )
    return after


def _logged_list(connection: Connection, conversation: ConversationRow) -> list[TodoItem]:
    """The list as the answer in progress has it, or the newest answer of the selected path."""
    if conversation.run_id is not None:
        for data in connection.scalars(_updates.where(_events.c.run_id == conversation.run_id)):
            event = _event.decode(data)
            if not turn_of(event).key:
                return list(event.todos)
    return read_list(connection, conversation.selected_leaf_id)
