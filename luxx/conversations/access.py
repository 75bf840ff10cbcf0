"""How services come to a caller's conversations and messages: by id, never unscoped, locked where needed."""

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from luxx.accounts.caller import Caller
from luxx.conversations.models import ConversationRow, MessageRow
from luxx.errors import Conflict, NotFound

_own = select(ConversationRow).where(
    ConversationRow.id == bindparam("b_id"),
    ConversationRow.user_id == bindparam("b_user"),
    ConversationRow.import_id.is_(None),
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
        raise _no_message()
    return row


def locked_message(session: Session, caller: Caller, message_id: str) -> tuple[ConversationRow, MessageRow]:
    """A message of one of the caller's conversations, which is locked with it. Raises NotFound."""
    row = own_message(session, caller, message_id)
    if row.conversation_id is None:
        raise _no_message()
    conversation = own_conversation(session, caller, row.conversation_id, is_locked=True)
    # Read again: on PostgreSQL it may have been deleted while the lock was waited for.
    if session.get(MessageRow, message_id, populate_existing=True) is None:
        raise _no_message()
    return conversation, row


def message_in(session: Session, conversation: ConversationRow, message_id: str) -> MessageRow:
    """The message of this id in a conversation that was found for its owner. Raises NotFound."""
    row = session.get(MessageRow, message_id, populate_existing=True)
    if row is None or row.conversation_id != conversation.id:
        raise _no_message()
    return row


def check_idle(conversation: ConversationRow) -> None:
    """Raises Conflict with the run's id where an answer is being written: it belongs at the selected leaf."""
    if conversation.run_id is not None:
        raise busy(conversation.run_id)


def busy(run_id: str) -> Conflict:
    """The refusal where one runs already."""
    return Conflict(
        "an answer is being written in this conversation; wait for it or cancel it",
        kind="run_active",
        detail={"run_id": run_id},
    )


def _no_message() -> NotFound:
    return NotFound("no message with this id", kind="message_not_found")
