"""Copies a room: its settings and seats, and its messages up to a given one, in one transaction."""

from dataclasses import dataclass

from msgspec.structs import replace
from sqlalchemy import Row, String, bindparam, insert, null, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.images import check_message_quota, message_sizes
from luxx.domain.conversations.models import MessageRow
from luxx.domain.conversations.search_index import index_message
from luxx.errors import NotFound
from luxx.features.rooms.models import ChatRoomRow, RoomAgentRow, RoomDetail, RoomRight
from luxx.features.rooms.queries import find_room, seat_rows, stop_of
from luxx.features.rooms.service import detail_of, encode_stop, index_room
from luxx.features.rooms.stops import Stop
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of

_messages = table_of(MessageRow)
_seats = table_of(RoomAgentRow)
_own_columns = {
    "id": bindparam("b_id", type_=String),
    "room_id": bindparam("b_room", type_=String),
    "seat_id": bindparam("b_seat", type_=_messages.c.seat_id.type),
    "reply_to": bindparam("b_reply_to", type_=String),
    "run_id": null(),
}
_copy_message = insert(_messages).from_select(
    [column.name for column in _messages.c],
    select(*(_own_columns.get(column.name, column) for column in _messages.c)).where(
        _messages.c.id == bindparam("b_source")
    ),
)
"""Copies inside the database; runs stay with the original."""

_copied = select(
    *(_messages.c[name] for name in ("id", "user_id", "room_id", "content", "created_at"))
).where(_messages.c.id == bindparam("b_id"))


@dataclass(frozen=True, slots=True)
class RoomForks:
    """One per process. `quota_mb` bounds the messages of a user."""

    store: Store
    quota_mb: float

    async def fork(self, caller: Caller, room_id: str, message_id: str | None) -> RoomDetail:
        """A copy of a room of the caller, without members and runs; with the messages up to `message_id`,
        or with all.

        Raises NotFound, NotAllowed, or TooLarge if the messages exceed the caller's quota.
        """

        def work(session: Session) -> RoomDetail:
            room, right = find_room(session, caller, room_id, RoomRight.OWNER, is_locked=True)
            source = _messages_up_to(session, room, message_id)
            sizes = message_sizes(session, list(source))
            check_message_quota(session, caller.user_id, sum(sizes.values()), self.quota_mb, what="this fork")
            copy = _copy_room(session, room)
            seat_ids = _copy_seats(session, room, copy)
            stop = stop_of(room)
            copy.stop = None if stop is None else encode_stop(_with_seats(stop, seat_ids))
            ids = {id_: new_id() for id_ in source}
            copies = [
                {
                    "b_source": id_,
                    "b_id": ids[id_],
                    "b_room": copy.id,
                    "b_seat": seat_ids.get(one.seat_id or 0),
                    # That of a message which was deleted stays as it is: the copy does not have it either.
                    "b_reply_to": ids.get(one.reply_to or "", one.reply_to),
                }
                for id_, one in source.items()
            ]
            if copies:
                connection = session.connection()
                connection.execute(_copy_message, copies)
                for copied in copies:
                    # One at a time: each may have some megabytes.
                    copied_row = connection.execute(_copied, {"b_id": copied["b_id"]}).mappings().one()
                    index_message(connection, dict(copied_row))
            return detail_of(session, copy, right)

        return await self.store.write(work)


def _messages_up_to(
    session: Session, room: ChatRoomRow, message_id: str | None
) -> dict[str, Row[str, int | None, str | None]]:
    """The id, seat and `reply_to` of each message to copy, by its id, oldest first. Raises NotFound."""
    query = select(MessageRow.id, MessageRow.seat_id, MessageRow.reply_to)
    query = query.where(MessageRow.room_id == room.id)
    if message_id is not None:
        query = query.where(MessageRow.id <= message_id)
    source = {row.id: row for row in session.execute(query.order_by(MessageRow.id))}
    if message_id is not None and message_id not in source:
        raise NotFound("no message with this id", kind="message_not_found")
    return source


def _copy_room(session: Session, room: ChatRoomRow) -> ChatRoomRow:
    now = utc_now()
    copy = ChatRoomRow(
        id=new_id(), user_id=room.user_id, tenant_id=room.tenant_id, title=room.title, task=room.task,
        max_rounds=room.max_rounds, policy=room.policy, stop=None, memory=room.memory,
        knowledge=room.knowledge, current_round=0, created_at=now, updated_at=now,
    )  # fmt: skip
    session.add(copy)
    session.flush()
    index_room(session, copy)
    return copy


def _copy_seats(session: Session, room: ChatRoomRow, copy: ChatRoomRow) -> dict[int, int]:
    """The ids of the copied seats, by those of the originals."""
    ids: dict[int, int] = {}
    for seat, _ in seat_rows(session, room):
        values = {column.name: getattr(seat, column.name) for column in _seats.c if column.name != "id"}
        row = RoomAgentRow(**values | {"room_id": copy.id, "created_at": copy.created_at})
        session.add(row)
        session.flush()
        ids[seat.id] = row.id
    return ids


def _with_seats(stop: Stop, seat_ids: dict[int, int]) -> Stop:
    """The stop with the seats of the copy."""
    changes: dict[str, object] = {}
    if isinstance(stop.seat_id, int):
        changes["seat_id"] = seat_ids[stop.seat_id]
    if isinstance(stop.any, list):
        changes["any"] = [_with_seats(part, seat_ids) for part in stop.any]
    if isinstance(stop.all, list):
        changes["all"] = [_with_seats(part, seat_ids) for part in stop.all]
    return replace(stop, **changes)
