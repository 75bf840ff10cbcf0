"""Export and import of rooms: the room's file (`document.py`), and its messages as Markdown for reading."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.agents.models import TURN_SETTINGS
from luxx.domain.agents.queries import agent_named
from luxx.domain.conversations.models import MessageRow
from luxx.domain.conversations.views import message_view
from luxx.domain.transfer.export import inline, message_text, quoted
from luxx.errors import AmbiguousName, NotFound, TooLarge
from luxx.features.rooms.checks import check_room_stop, checked_policy, seats_in
from luxx.features.rooms.document import (
    VERSION,
    PolicyDocument,
    RoomDocument,
    SeatDocument,
    named_seats,
    stop_with_ids,
    stop_with_names,
)
from luxx.features.rooms.models import (
    ChatRoomRow,
    NewRoom,
    NewSeat,
    RoomDetail,
    RoomPolicy,
    RoomRight,
)
from luxx.features.rooms.policies import PolicyName
from luxx.features.rooms.queries import find_room, policy_of, seat_rows, seat_values, stop_of
from luxx.features.rooms.service import RoomService, detail_of, encode_policy, encode_stop
from luxx.infra.field_errors import NOTHING_WRONG, FieldErrors
from luxx.infra.store.engine import Store
from luxx.providers.queries import provider_name, provider_named

MAX_MARKDOWN_MIB = 32
ROWS_AT_ONCE = 50

SEAT_FIELDS = ("name", "role", "color", "muted", *TURN_SETTINGS, "system_prompt")
"""The fields that a seat in a file has like a new seat."""


@dataclass(frozen=True, slots=True)
class RoomTransfer:
    """One per process."""

    store: Store
    rooms: RoomService

    async def export(self, caller: Caller, room_id: str) -> RoomDocument:
        """The file of a room of the caller. Raises NotFound or NotAllowed."""

        def work(session: Session) -> RoomDocument:
            room, _ = find_room(session, caller, room_id, RoomRight.OWNER)
            return document_of(session, caller, room)

        return await self.store.read(work)

    async def export_markdown(self, caller: Caller, room_id: str) -> str:
        """The room's task and its messages, oldest first. Raises NotFound, or TooLarge above
        MAX_MARKDOWN_MIB."""

        def work(session: Session) -> str:
            room, _ = find_room(session, caller, room_id)
            return "".join(_markdown(session, room))

        return await self.store.read(work)

    async def import_room(
        self, caller: Caller, document: RoomDocument, wrong: Mapping[str, str] = NOTHING_WRONG
    ) -> RoomDetail:
        """Creates a room of the caller from a file, unless fields of it are `wrong`.

        Raises InvalidInput or NotFound with all problems by field; then nothing is created.
        """

        def work(session: Session) -> RoomDetail:
            errors = FieldErrors(wrong)
            seats = [
                _new_seat(session, caller, seat, f"$.agents[{index}]", errors)
                for index, seat in enumerate(document.agents)
            ]
            paths = [f"$.agents[{index}]" for index in range(len(seats))]
            new = NewRoom(
                title=document.title, task=document.task, max_rounds=document.max_rounds, agents=seats
            )
            policy = checked_policy(session, caller, _policy(session, caller, document, errors), errors)
            room = self.rooms.add(session, caller, new, errors, seat_paths=paths)
            if "$.agents" not in wrong and all(seat.name for seat in seats):
                _check_named_seats(document, {seat.name for seat in seats}, errors)
            if document.stop is not None:
                # The seats, which have no ids yet, were checked by their names.
                stop = stop_with_ids(document.stop, {})
                check_room_stop(stop, {seat_id for _, seat_id in seats_in(stop)}, errors)
            errors.raise_if_any()
            room.policy = encode_policy(policy)
            if document.stop is not None:
                ids = {row.name_key: row.id for row, _ in seat_rows(session, room)}
                stop = stop_with_ids(document.stop, ids)
                check_room_stop(stop, ids.values(), errors)
                errors.raise_if_any()
                room.stop = encode_stop(stop)
            session.flush()
            return detail_of(session, room, RoomRight.OWNER)

        return await self.store.write(work)


def document_of(session: Session, caller: Caller, room: ChatRoomRow) -> RoomDocument:
    """The file of a room, with whole seats."""
    rows = seat_rows(session, room)
    seats: list[SeatDocument] = []
    for row, agent in rows:
        values = seat_values(row, agent)
        fields: dict[str, Any] = {
            name: getattr(values, name) for name in SEAT_FIELDS if name in values.__struct_fields__
        }
        fields |= {"role": values.role or None, "system_prompt": values.system_prompt or None}
        seats.append(
            SeatDocument(
                **fields,
                name=row.name,
                color=row.color,
                muted=row.muted,
                provider=provider_name(session, caller, values.provider_id),
            )
        )
    policy, stop = policy_of(room), stop_of(room)
    names = {row.id: row.name for row, _ in rows}
    return RoomDocument(
        version=VERSION,
        title=room.title,
        task=room.task,
        max_rounds=room.max_rounds,
        policy=PolicyDocument(
            name=policy.name,
            provider=provider_name(session, caller, policy.provider_id),
            model=policy.model,
            prompt=policy.prompt,
        ),
        stop=None if stop is None else stop_with_names(stop, names),
        agents=seats,
    )


def _new_seat(
    session: Session, caller: Caller, seat: SeatDocument, path: str, errors: FieldErrors
) -> NewSeat:
    """The seat to create. Adds a problem for an agent or a provider that the caller does not have."""
    agent_id = None
    name = seat.name
    if seat.agent is not None:
        try:
            agent = agent_named(session, caller, seat.agent)
            agent_id, name = agent.id, seat.name or agent.name
        except (NotFound, AmbiguousName) as error:
            errors.add(f"{path}.agent", error.message)
            # Otherwise the missing name would be a second problem with the same cause.
            name = seat.name or seat.agent
    fields = {field: getattr(seat, field) for field in SEAT_FIELDS if field != "name"}
    return NewSeat(
        **fields,
        name=name,
        agent_id=agent_id,
        provider_id=_provider_id(session, caller, seat.provider, f"{path}.provider", errors),
    )


def _policy(
    session: Session, caller: Caller, document: RoomDocument, errors: FieldErrors
) -> PolicyName | RoomPolicy:
    policy = document.policy
    if isinstance(policy, PolicyName):
        return policy
    if policy.provider is not None and policy.name != PolicyName.SELECTOR:
        errors.add("$.policy.provider", f"{policy.name} has no options; provider belongs to selector")
        return policy.name
    provider_id = _provider_id(session, caller, policy.provider, "$.policy.provider", errors)
    return RoomPolicy(name=policy.name, provider_id=provider_id, model=policy.model, prompt=policy.prompt)


def _provider_id(
    session: Session, caller: Caller, name: str | None, field: str, errors: FieldErrors
) -> int | None:
    if name is None:
        return None
    try:
        return provider_named(session, caller, name, field).id
    except (NotFound, AmbiguousName) as error:
        errors.add(field, error.message)
        return None


def _check_named_seats(document: RoomDocument, names: set[str | None], errors: FieldErrors) -> None:
    """Adds a problem for each seat that the stop names and the file does not have."""
    if document.stop is None:
        return
    known = {name.strip().casefold() for name in names if name is not None}
    for field, name in named_seats(document.stop):
        if name.strip().casefold() not in known:
            errors.add(field, f"this file has no seat named {name[:100]!r}")


def _markdown(session: Session, room: ChatRoomRow) -> Iterator[str]:
    size = session.scalar(
        select(func.sum(func.length(MessageRow.content))).where(MessageRow.room_id == room.id)
    )
    if (size or 0) > MAX_MARKDOWN_MIB * 1024 * 1024:
        raise TooLarge(
            f"the messages of this room have more than {MAX_MARKDOWN_MIB} MiB; read them with "
            "GET /chat-rooms/{id}/messages?limit=100",
            kind="page_too_large",
        )
    yield "\n".join([f"# {inline(room.title)}", "", *quoted(room.task), ""])
    number = None
    rows = session.scalars(
        select(MessageRow)
        .where(MessageRow.room_id == room.id)
        .order_by(MessageRow.id)
        .execution_options(yield_per=ROWS_AT_ONCE)
    )
    for row in rows:
        if row.round_number is not None and row.round_number != number:
            number = row.round_number
            yield f"\n---\n\nRound {number}\n"
        yield message_text(message_view(row))
