"""How messages rest and are read back: JSON columns to values, and the path a model sees."""

from typing import Any

import msgspec
from sqlalchemy import Row, select
from sqlalchemy.orm import Session, aliased

from luxx.context.prompt import PastMessage
from luxx.conversations.models import MessageRow
from luxx.wire.message import AssistantContent, UserContent
from luxx.wire.step import Step

_user = msgspec.json.Decoder(UserContent)
_assistant = msgspec.json.Decoder(AssistantContent)
_replay = msgspec.json.Decoder(list[dict[str, Any]])


def user_content(content: str) -> UserContent:
    """The stored JSON of a user's message."""
    return _user.decode(content)


def assistant_steps(content: str) -> list[Step]:
    """The steps in the stored JSON of an assistant's message."""
    return _assistant.decode(content).steps


def read_path(session: Session, leaf_id: str | None) -> list[PastMessage]:
    """The messages from the root to `leaf_id`, oldest first; empty for None."""
    if leaf_id is None:
        return []
    start = (
        select(MessageRow.id, MessageRow.parent_id)
        .where(MessageRow.id == leaf_id)
        .cte("path", recursive=True)
    )
    parent = aliased(MessageRow)
    path = start.union_all(select(parent.id, parent.parent_id).join(start, parent.id == start.c.parent_id))
    rows = session.connection().execute(
        select(MessageRow.role, MessageRow.content, MessageRow.replay)
        .join(path, path.c.id == MessageRow.id)
        .order_by(MessageRow.id)
    )
    return [_past(row) for row in rows]


def _past(row: Row[str, str, str | None]) -> PastMessage:
    role, content, replay = row.role, row.content, row.replay
    if role == "user":
        return PastMessage(user=user_content(content))
    return PastMessage(
        steps=tuple(assistant_steps(content)), replay=tuple(_replay.decode(replay)) if replay else ()
    )
