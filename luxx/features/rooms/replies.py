"""Replies: messages of people in a room that name the message of the room which they answer.

A reply stores only the id of that message. Whoever reads the reply gets the beginning of it as a quotation.
"""

from collections.abc import Collection, Sequence

from msgspec.structs import replace
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from luxx.domain.conversations.access import assistant_steps
from luxx.domain.conversations.lists import MAX_PAGE_MIB
from luxx.domain.conversations.models import MessageRow
from luxx.domain.conversations.views import MessageView, user_text_of
from luxx.errors import NotFound
from luxx.wire.message import Quotation
from luxx.wire.turn import steps_text

QUOTED_CHARACTERS = 200
_READ_CHARACTERS = 10 * QUOTED_CHARACTERS
_MAX_READ_BYTES = MAX_PAGE_MIB * 1024 * 1024


def quotation(sender_name: str | None, text: str) -> Quotation:
    """The quotation of a message of this text: its beginning, in one line of at most QUOTED_CHARACTERS."""
    line = " ".join(text[:_READ_CHARACTERS].split())
    if len(line) > QUOTED_CHARACTERS:
        line = f"{line[: QUOTED_CHARACTERS - 1]}…"
    return Quotation(sender_name=sender_name or "", text=line)


def check_answered(session: Session, room_id: str, message_id: str | None) -> None:
    """Raises NotFound unless the room has this message, which a reply is to name; None: it is no reply."""
    there = select(MessageRow.id).where(MessageRow.id == message_id, MessageRow.room_id == room_id)
    if message_id is not None and session.scalar(there) is None:
        raise NotFound(
            "the message that you reply to is not in this room; it may have been deleted",
            kind="message_not_found",
        )


def with_quotations(session: Session, views: Sequence[MessageView]) -> list[MessageView]:
    """These messages of one room; replies among them quote what they answer.

    A quotation has no text where the answered messages together exceed MAX_PAGE_MIB.
    """
    answered = {view.reply_to for view in views if isinstance(view.reply_to, str)}
    if not answered:
        return list(views)
    known = {view.id: quotation(view.sender_name, view.text) for view in views if view.id in answered}
    known |= _read(session, views[0].room_id or "", answered - known.keys())
    return [
        replace(view, quoted=known.get(view.reply_to)) if isinstance(view.reply_to, str) else view
        for view in views
    ]


def _read(session: Session, room_id: str, ids: Collection[str]) -> dict[str, Quotation]:
    if not ids:
        return {}
    found = select(MessageRow.id, MessageRow.sender_name, func.length(MessageRow.content))
    known: dict[str, Quotation] = {}
    left = _MAX_READ_BYTES
    inside = found.where(MessageRow.id.in_(ids), MessageRow.room_id == room_id)
    for message_id, sender_name, size in session.execute(inside.order_by(MessageRow.id.desc())).all():
        left -= size
        known[message_id] = quotation(sender_name, _text_of(session, message_id) if left >= 0 else "")
    return known


def _text_of(session: Session, message_id: str) -> str:
    role, content = session.execute(
        select(MessageRow.role, MessageRow.content).where(MessageRow.id == message_id)
    ).one()
    return user_text_of(content) if role == "user" else steps_text(assistant_steps(content))
