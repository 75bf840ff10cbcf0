"""The tree that a conversation's messages form: what is below a message, and which leaf is the newest."""

from sqlalchemy import ColumnElement, Select, exists, select
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from luxx.conversations.models import MessageRow


def following(message_id: str) -> Select[str]:
    """Selects the ids of a message and of all below it."""
    start = select(MessageRow.id).where(MessageRow.id == message_id).cte("following", recursive=True)
    child = aliased(MessageRow)
    below = start.union_all(select(child.id).join(start, child.parent_id == start.c.id))
    return select(below.c.id)


def newest_leaf_under(session: Session, message_id: str) -> str:
    """The newest message without an answer that is below `message_id`, or that message itself."""
    below = following(message_id).subquery()
    newest = select(below.c.id).where(~_has_children(below.c.id)).order_by(below.c.id.desc()).limit(1)
    return session.scalar(newest) or message_id


def newest_leaf_in(session: Session, conversation_id: str) -> str | None:
    """The newest leaf of a conversation; None where it has no messages."""
    inside = MessageRow.conversation_id == conversation_id
    newest = select(MessageRow.id).where(inside, ~_has_children(MessageRow.id))
    return session.scalar(newest.order_by(MessageRow.id.desc()).limit(1))


def _has_children(id_: ColumnElement[str] | InstrumentedAttribute[str]) -> ColumnElement[bool]:
    child = aliased(MessageRow)
    return exists(select(child.id).where(child.parent_id == id_))
