"""Access to a caller's conversations and messages by id, always limited to the owner, with locks; titles of
new conversations; hidden conversations; and which messages are on the path to a leaf.

A conversation with an `import_id` is hidden: an import, a fork or a deletion is in progress.
"""

from collections.abc import Callable

import msgspec
from sqlalchemy import (
    BindParameter,
    Connection,
    and_,
    bindparam,
    delete,
    exists,
    literal,
    null,
    select,
    update,
)
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.models import ConversationRow, MessageRow
from luxx.errors import Conflict, NotFound
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.wire.message import AssistantContent, UserContent, with_files
from luxx.wire.turn import Step

_conversations = table_of(ConversationRow)
own_conversations = and_(
    _conversations.c.user_id == bindparam("user_id"), _conversations.c.import_id.is_(None)
)
"""The condition on conversations that a user may see; it takes `user_id`."""

_own = select(ConversationRow).where(ConversationRow.id == bindparam("b_id"), own_conversations)
_own_locked = _own.with_for_update()


def own_conversation(
    session: Session, caller: Caller, conversation_id: str, *, is_locked: bool = False
) -> ConversationRow:
    """The caller's conversation of this id. Raises NotFound.

    `is_locked`: locks the row, so that no other transaction changes, extends or deletes it until this one
    ends.
    """
    statement = _own_locked if is_locked else _own
    row = session.scalar(statement, {"b_id": conversation_id, "user_id": caller.user_id})
    if row is None:
        raise conversation_not_found()
    return row


def conversation_not_found() -> NotFound:
    """The error for an unknown conversation, or one of another user."""
    return NotFound("no conversation with this id", kind="conversation_not_found")


def own_message(session: Session, caller: Caller, message_id: str) -> MessageRow:
    """The caller's message of this id. Raises NotFound."""
    row = session.get(MessageRow, message_id)
    if row is None or row.user_id != caller.user_id:
        raise _message_not_found()
    return row


def message_and_conversation(
    session: Session, caller: Caller, message_id: str, *, is_locked: bool = False
) -> tuple[MessageRow, ConversationRow | None]:
    """The caller's message of this id and its conversation, if it has one. Raises NotFound."""
    row = own_message(session, caller, message_id)
    if row.conversation_id is None:
        return row, None
    return row, own_conversation(session, caller, row.conversation_id, is_locked=is_locked)


def locked_message(session: Session, caller: Caller, message_id: str) -> tuple[ConversationRow, MessageRow]:
    """A message of one of the caller's conversations; locks the conversation. Raises NotFound."""
    row, conversation = message_and_conversation(session, caller, message_id, is_locked=True)
    # Read again: on PostgreSQL it may have been deleted while this waited for the lock.
    if conversation is None or session.get(MessageRow, message_id, populate_existing=True) is None:
        raise _message_not_found()
    return conversation, row


def message_in(session: Session, conversation: ConversationRow, message_id: str) -> MessageRow:
    """The message of this id in a conversation of its owner. Raises NotFound."""
    row = session.get(MessageRow, message_id, populate_existing=True)
    if row is None or row.conversation_id != conversation.id:
        raise _message_not_found()
    return row


def check_idle(conversation: ConversationRow) -> None:
    """Raises Conflict with the run's id while an answer is being written, because it belongs to the selected
    leaf."""
    if conversation.run_id is not None:
        raise run_active_error(conversation.run_id)


def run_active_error(run_id: str) -> Conflict:
    """The error for a conversation that already has an active run."""
    return Conflict(
        "an answer is being written in this conversation; wait for it or cancel it",
        kind="run_active",
        detail={"run_id": run_id},
    )


def _message_not_found() -> NotFound:
    return NotFound("no message with this id", kind="message_not_found")


# Titles

UNTITLED = "New conversation"
TITLE_LENGTH = 60
"""Characters of a title that a list of conversations shows uncut."""


def title_after(current_title: str, text: str) -> str:
    """The title after `text` was sent: the current one, or for an untitled conversation its first line."""
    if current_title != UNTITLED:
        return current_title
    return shortened(
        next((words for line in text.splitlines() if (words := " ".join(line.split()))), UNTITLED)
    )


def shortened(line: str) -> str:
    """The line as a title, which has at most TITLE_LENGTH characters."""
    if len(line) <= TITLE_LENGTH:
        return line
    cut = line[:TITLE_LENGTH]
    # Leaves out a word that is cut, unless it is half of the title: not every script has blanks.
    end = cut.rfind(" ")
    return f"{cut[:end] if end >= TITLE_LENGTH // 2 else cut[:-1]}…"


# Hidden conversations

DELETE_ROWS = 500
"""Maximum rows per transaction: keeps it below some 20 ms, which is how long another writer waits."""

DeleteRuns = Callable[[Session, str], bool]
"""Deletes some runs of a conversation; returns whether there may be more. Raises Conflict if one has not
ended.
"""

_messages = table_of(MessageRow)
_of_import = and_(
    _conversations.c.user_id == bindparam("b_user"), _conversations.c.import_id == bindparam("b_import")
)
_reveal = update(_conversations).where(_of_import).values(import_id=null())
_is_hidden = and_(_conversations.c.id == bindparam("b_conversation"), _conversations.c.import_id.is_not(None))
_newest = (
    select(_messages.c.id)
    .where(_messages.c.conversation_id == bindparam("b_conversation"), exists().where(_is_hidden))
    .order_by(_messages.c.id.desc())
    .limit(bindparam("b_most"))
)
_ids: BindParameter[list[str]] = bindparam("ids", expanding=True)
_detach_children = (
    update(_messages)
    .where(_messages.c.parent_id.in_(_ids), _messages.c.id < bindparam("b_lowest"))
    .values(parent_id=null())
)
_delete_messages = delete(_messages).where(_messages.c.id.in_(_ids))
_delete_conversation = delete(_conversations).where(_is_hidden)


def reveal(session: Session, user_id: int, import_id: str) -> None:
    """Makes all conversations of an import visible at once."""
    session.connection().execute(_reveal, {"b_user": user_id, "b_import": import_id})


def hidden_ids(session: Session, user_id: int, import_id: str) -> list[str]:
    """The conversations that one import, fork or deletion has hidden."""
    rows = session.connection().scalars(
        select(_conversations.c.id).where(_of_import), {"b_user": user_id, "b_import": import_id}
    )
    return list(rows)


def all_hidden_ids(session: Session, before: str | None) -> list[str]:
    """The ids of all hidden conversations, or of those with an import id below `before`."""
    hidden = select(_conversations.c.id).where(_conversations.c.import_id.is_not(None))
    if before is not None:
        hidden = hidden.where(_conversations.c.import_id < before)
    return list(session.connection().scalars(hidden))


def delete_hidden(store: Store, delete_runs: DeleteRuns, conversation_ids: list[str]) -> None:
    """Deletes hidden conversations in small transactions. Blocks: call it in a thread."""
    for conversation_id in conversation_ids:
        _delete_in_batches(store, delete_runs, conversation_id)


def _delete_in_batches(store: Store, delete_runs: DeleteRuns, conversation_id: str) -> None:
    parameters = {"b_conversation": conversation_id}

    def delete_some_runs(session: Session) -> bool:
        hidden = session.scalar(select(_conversations.c.id).where(_is_hidden), parameters)
        return hidden is not None and delete_runs(session, conversation_id)

    def delete_some_messages(connection: Connection) -> bool:
        # Newest first, so that children go before their parents.
        ids = list(connection.scalars(_newest, parameters | {"b_most": DELETE_ROWS}))
        if ids:
            # After a clock was set back, an answer may have a lower id than its question.
            connection.execute(_detach_children, {"ids": ids, "b_lowest": ids[-1]})
            connection.execute(_delete_messages, {"ids": ids})
        return len(ids) == DELETE_ROWS

    while store.write_now(delete_some_runs):
        pass
    while store.write_rows_now(delete_some_messages):
        pass
    store.write_rows_now(lambda connection: connection.execute(_delete_conversation, parameters))


_user = msgspec.json.Decoder(UserContent)
_assistant = msgspec.json.Decoder(AssistantContent)


def user_content(content: str) -> UserContent:
    """Decodes the stored JSON of a user's message."""
    return _user.decode(content)


def assistant_content(content: str) -> AssistantContent:
    """The stored JSON of an assistant's message."""
    return _assistant.decode(with_files(content))


def assistant_steps(content: str) -> list[Step]:
    """The steps in the stored JSON of an assistant's message."""
    return assistant_content(content).steps


# The path to a message

_leaf = (
    select(_messages.c.id, _messages.c.parent_id, literal(0).label("height"))
    .where(_messages.c.id == bindparam("leaf_id"))
    .cte("path", recursive=True)
)
_parents = _messages.alias("parents")
PATH_TO_ROOT = _leaf.union_all(
    select(_parents.c.id, _parents.c.parent_id, _leaf.c.height + 1).join(
        _leaf, _parents.c.id == _leaf.c.parent_id
    )
)
"""The messages from `leaf_id` to the root; `height` counts from the leaf."""

NEWEST_ANSWER = (
    select(_messages.c.id, _messages.c.context)
    .join(PATH_TO_ROOT, PATH_TO_ROOT.c.id == _messages.c.id)
    .where(_messages.c.role == "assistant")
    .order_by(PATH_TO_ROOT.c.height)
    .limit(1)
)
"""The newest answer on the path to `leaf_id`, and how its prompt was made."""

SET_CONTEXT = (
    update(_messages).where(_messages.c.id == bindparam("b_id")).values(context=bindparam("b_context"))
)
_path_ids = select(PATH_TO_ROOT.c.id).order_by(PATH_TO_ROOT.c.height.desc())


def read_path_ids(connection: Connection, leaf_id: str) -> list[str]:
    """The ids of the messages from the root to `leaf_id`, oldest first."""
    return list(connection.scalars(_path_ids, {"leaf_id": leaf_id}))
