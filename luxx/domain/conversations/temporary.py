"""Temporary chats: conversations of which nothing is remembered, until somebody keeps them.

`features/chats/temporary.py` deletes them.
"""

from msgspec import UNSET
from sqlalchemy.orm import Session

from luxx.domain.conversations.models import ConversationRow
from luxx.domain.conversations.search_index import index_conversation
from luxx.domain.conversations.views import ConversationChange
from luxx.errors import InvalidInput
from luxx.wire.model_settings import MemoryMode

IS_TEMPORARY = "is_temporary"
"""The field of a change that is no column."""


def make_temporary(row: ConversationRow, minutes: int) -> None:
    """Makes a new conversation one that is deleted after so many minutes without use. Nothing is learned from
    it, and nothing that is remembered is given to it."""
    row.temporary_minutes = minutes
    row.memory, row.record = MemoryMode.OFF, False


def change_temporary(session: Session, row: ConversationRow, changes: ConversationChange) -> None:
    """Makes a temporary chat one that is kept, if `changes` say so; what was said so far is never remembered.

    Raises InvalidInput if a conversation that exists is to become temporary, or a temporary chat is to be
    remembered.
    """
    if changes.is_temporary is True and row.temporary_minutes is None:
        raise InvalidInput(
            "only a new conversation can be temporary", kind="not_temporary", field="$.is_temporary"
        )
    if changes.is_temporary is False and row.temporary_minutes is not None:
        row.temporary_minutes = row.memory = row.record = None
        session.flush()
        index_conversation(session.connection(), user_id=row.user_id, conversation_id=row.id, title=row.title)
    if row.temporary_minutes is None:
        return
    for name, value, allowed in (
        ("memory", changes.memory, MemoryMode.OFF),
        ("record", changes.record, False),
    ):
        if value is not UNSET and value != allowed:
            raise InvalidInput(
                "nothing of a temporary chat is remembered; keep the chat first",
                kind="is_temporary",
                field=f"$.{name}",
            )
