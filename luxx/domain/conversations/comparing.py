"""Comparisons: two models answer the same message of a conversation, and a person keeps one of the answers.

While one is open, `comparing_id` of the conversation names the message, which is the selected leaf: neither
answer is chosen until a person selects a branch. `features/chats/comparing.py` starts them.
"""

from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import Session

from luxx.domain.conversations.models import ConversationRow, MessageRow
from luxx.errors import Conflict
from luxx.infra.store.tables import table_of

_messages = table_of(MessageRow)
_of_message = (_messages.c.parent_id == bindparam("b_message"), _messages.c.role == "assistant")
_answers = select(_messages.c.id).where(*_of_message).order_by(_messages.c.id)
_forget_others = (
    update(_messages).where(*_of_message, _messages.c.id != bindparam("b_kept")).values(is_unremembered=True)
)


def not_chosen_error(conversation: ConversationRow) -> Conflict:
    """The error for what needs a selected answer, while two are compared."""
    return Conflict(
        "two models answer the last message; keep one of the answers first",
        kind="answer_not_chosen",
        detail={"message_id": conversation.comparing_id},
    )


def check_chosen(session: Session, conversation: ConversationRow) -> None:
    """Raises Conflict while a comparison is open; one that has ended without any answer is closed."""
    if conversation.comparing_id is None:
        return
    if conversation.run_id is not None or _answers_of(session, conversation):
        raise not_chosen_error(conversation)
    conversation.comparing_id = None


def end_comparison(session: Session, conversation: ConversationRow, kept_id: str | None = None) -> None:
    """Closes the comparison: the answers stay as branches, and nothing is remembered of those not kept."""
    values = {"b_message": conversation.comparing_id, "b_kept": kept_id or ""}
    session.connection().execute(_forget_others, values)
    conversation.comparing_id = None


def select_branch(session: Session, conversation: ConversationRow, message_id: str, leaf_id: str) -> None:
    """Selects the leaf, the newest one below a message. An answer that is selected while two are compared is
    kept.

    Raises Conflict if that would choose one of the two that nobody has named.
    """
    if conversation.comparing_id is not None:
        if leaf_id != message_id and leaf_id in _answers_of(session, conversation):
            raise not_chosen_error(conversation)
        end_comparison(session, conversation, leaf_id)
    conversation.selected_leaf_id = leaf_id


def _answers_of(session: Session, conversation: ConversationRow) -> list[str]:
    return list(session.connection().scalars(_answers, {"b_message": conversation.comparing_id}))
