"""The messages of a room: written in the transaction of a run, read in pages and as a transcript.

A message belongs to the user who owns the room, whoever wrote it; `sender_name` says who that was.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, func, insert, select
from sqlalchemy.orm import Session

from luxx.domain.conversations.lists import MAX_PAGE_MIB, Messages
from luxx.domain.conversations.models import MessageRow
from luxx.domain.conversations.search_index import index_message
from luxx.domain.conversations.views import message_view
from luxx.errors import TooLarge
from luxx.features.rooms.models import ChatRoomRow
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.tables import table_of
from luxx.wire.message import AssistantContent, ContextRecord, UserContent
from luxx.wire.turn import Usage

_MAX_PAGE_BYTES = MAX_PAGE_MIB * 1024 * 1024
_messages = table_of(MessageRow)
_insert = insert(_messages)
_encode = msgspec.json.Encoder().encode


class NewRoomMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message to store: of a seat (`AssistantContent`) or of a person (`UserContent`, no `seat_id`).

    `id` and `created_at` are set if they are left out. `replay` is what adapters want back, per completion.
    """

    content: UserContent | AssistantContent
    sender_name: str
    sender_color: str | None = None
    seat_id: int | None = None
    round_number: int | None = None
    run_id: str | None = None
    id: str | None = None
    status: str = "complete"
    finish: str | None = None
    provider_id: int | None = None
    provider_name: str | None = None
    model: str | None = None
    token_count: int = 0
    usage: Usage | None = None
    replay: Sequence[object] = ()
    context: ContextRecord | None = None
    created_at: datetime | None = None


def origin_of(message: NewRoomMessage) -> dict[str, Any]:
    """Who produced the message and why it ended, as fields that its row and its event share."""
    return {name: getattr(message, name) for name in ("provider_id", "provider_name", "model", "finish")}


def add_message(connection: Connection, room_id: str, user_id: int, message: NewRoomMessage) -> str:
    """Stores a message of a room and returns its id."""
    message_id = message.id or new_id()
    row = {
        "id": message_id, "user_id": user_id, "room_id": room_id, "seat_id": message.seat_id,
        "run_id": message.run_id, "role": "user" if isinstance(message.content, UserContent) else "assistant",
        "content": _encode(message.content).decode(),
        "replay": _encode(message.replay).decode() if message.replay else None,
        "context": None if message.context is None else _encode(message.context).decode(),
        "token_count": message.token_count,
        "usage": None if message.usage is None else _encode(message.usage).decode(),
        "status": message.status, **origin_of(message),
        "sender_name": message.sender_name, "sender_color": message.sender_color,
        "round_number": message.round_number, "created_at": message.created_at or utc_now(),
    }  # fmt: skip
    connection.execute(_insert, row)
    index_message(connection, row)
    return message_id


def message_page(session: Session, room: ChatRoomRow, *, page: int, page_size: int) -> Messages:
    """One page of a room's messages, newest first. Raises TooLarge if they exceed MAX_PAGE_MIB."""
    start = (page - 1) * page_size
    query = _newest(room.id).offset(start).limit(page_size)
    ids, is_cut = _ids_within_bytes(session, query)
    if is_cut:
        raise TooLarge(
            f"the messages of this page have more than {MAX_PAGE_MIB} MiB; request fewer with page_size, "
            "or with limit and before, which return as many as fit",
            kind="page_too_large",
        )
    total = count_messages(session, room.id)
    return _read(session, ids, total, has_more=start + len(ids) < total)


def messages_before(session: Session, room: ChatRoomRow, *, limit: int, before: str | None) -> Messages:
    """The newest messages, or those before a message's id: `limit`, or as many as fit."""
    # One row more than `limit` shows whether older messages follow.
    query = _newest(room.id).limit(limit + 1)
    if before is not None:
        query = query.where(MessageRow.id < before)
    ids, is_cut = _ids_within_bytes(session, query)
    total = count_messages(session, room.id)
    return _read(session, ids[:limit], total, has_more=is_cut or len(ids) > limit)


def count_messages(session: Session, room_id: str) -> int:
    """How many messages a room has."""
    return session.scalar(select(func.count()).where(MessageRow.room_id == room_id)) or 0


def last_of_seat(session: Session, room_id: str, seat_id: int) -> MessageRow | None:
    """The newest message of a seat."""
    query = select(MessageRow).where(MessageRow.room_id == room_id, MessageRow.seat_id == seat_id)
    return session.scalar(query.order_by(MessageRow.id.desc()).limit(1))


def _newest(room_id: str) -> Select[str, int]:
    sizes = select(MessageRow.id, func.length(MessageRow.content)).where(MessageRow.room_id == room_id)
    return sizes.order_by(MessageRow.id.desc())


def _ids_within_bytes(session: Session, query: Select[str, int]) -> tuple[list[str], bool]:
    """The ids of as many rows as fit (at least one, if there is any), and whether rows were left out."""
    ids: list[str] = []
    size = 0
    for message_id, length in session.execute(query):
        size += length
        if ids and size > _MAX_PAGE_BYTES:
            return ids, True
        ids.append(message_id)
    return ids, False


def _read(session: Session, ids: list[str], total: int, *, has_more: bool) -> Messages:
    rows = session.scalars(select(MessageRow).where(MessageRow.id.in_(ids)).order_by(MessageRow.id.desc()))
    return Messages(items=[message_view(row) for row in rows], total=total, has_more=has_more)
