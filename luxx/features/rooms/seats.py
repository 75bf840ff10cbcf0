"""The seats of rooms: add, change and remove them, and what a seat keeps of an agent that it loses.

A seat of an agent has the agent's values as they are now, except for its own overrides, its name and its
color. When the agent is deleted or no longer shared with the owner of the room, the seat gets a copy. It
speaks again after somebody chose another agent, or to go on with the copy: permission rules of the agent are
gone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET
from sqlalchemy import select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.agents.models import AgentRow
from luxx.domain.agents.queries import AGENTS, color_of
from luxx.errors import Conflict, NotFound
from luxx.features.rooms.checks import FindUnknownNames, check_provider, seats_in
from luxx.features.rooms.models import (
    MAX_SEATS,
    ChatRoomRow,
    NewSeat,
    RoomAgentRow,
    RoomRight,
    SeatChanges,
    SeatView,
)
from luxx.features.rooms.queries import (
    JSON_FIELDS,
    OPEN_FIELDS,
    OVERRIDES,
    find_room,
    seat_rows,
    seat_view,
    seat_views,
    stop_of,
)
from luxx.infra.clock import utc_now
from luxx.infra.field_errors import FieldErrors
from luxx.infra.store.engine import Store

STEERED_FIELDS = frozenset({"muted", "turn_order"})
"""What a member with the right to steer may change; the rest is the owner's."""


@dataclass(frozen=True, slots=True)
class SeatService:
    """One per process."""

    store: Store
    unknown_names: FindUnknownNames

    async def list_seats(self, caller: Caller, room_id: str) -> list[SeatView]:
        """The seats of a room, in turn order. Raises NotFound."""

        def work(session: Session) -> list[SeatView]:
            room, right = find_room(session, caller, room_id)
            return seat_views(session, room, right)

        return await self.store.read(work)

    async def add(self, caller: Caller, room_id: str, new: NewSeat) -> SeatView:
        """Adds a seat, also while the room runs: it speaks from the next turn on.

        Raises NotFound, NotAllowed, InvalidInput, or Conflict if the room has MAX_SEATS already.
        """

        def work(session: Session) -> SeatView:
            room, right = find_room(session, caller, room_id, RoomRight.OWNER, is_locked=True)
            errors = FieldErrors()
            rows = self.add_all(session, caller, room, [new], errors, paths=["$"])
            errors.raise_if_any()
            room.updated_at = utc_now()
            session.flush()
            return _view_of(session, room, rows[0].id, right)

        return await self.store.write(work)

    def add_all(
        self,
        session: Session,
        caller: Caller,
        room: ChatRoomRow,
        new_seats: Sequence[NewSeat],
        errors: FieldErrors,
        *,
        paths: Sequence[str],
    ) -> list[RoomAgentRow]:
        """Adds seats to a room of the caller that is locked or new. `paths`: where the request has each.

        With a problem it adds no more seats; the caller must then raise it.
        """
        seats = [seat for seat, _ in seat_rows(session, room)]
        if len(seats) + len(new_seats) > MAX_SEATS:
            raise Conflict(f"a room has at most {MAX_SEATS} seats; remove one first", kind="too_many_seats")
        names = {seat.name_key for seat in seats}
        turn_order = max((seat.turn_order for seat in seats), default=-1)
        rows: list[RoomAgentRow] = []
        for new, path in zip(new_seats, paths, strict=True):
            row = self._new_row(session, caller, room, new, errors, path)
            _check_name(row.name_key, names, path, errors)
            names.add(row.name_key)
            row.turn_order = turn_order = turn_order + 1 if new.turn_order is None else new.turn_order
            rows.append(row)
        if errors:
            return []
        session.add_all(rows)
        session.flush()
        return rows

    def _new_row(
        self,
        session: Session,
        caller: Caller,
        room: ChatRoomRow,
        new: NewSeat,
        errors: FieldErrors,
        path: str,
    ) -> RoomAgentRow:
        agent = None
        if new.agent_id is not None:
            agent_id = new.agent_id
            agent = errors.found(f"{path}.agent_id", lambda: AGENTS.visible(session, caller, agent_id))
        elif new.name is None:
            errors.add(f"{path}.name", "a seat without an agent (agent_id) needs a name")
        inherited = None if agent is None else agent.provider_id
        check_provider(session, caller, new.provider_id or inherited, new.model, path, errors)
        self._check_references(session, caller, new, path, errors)
        return seat_row(room, new, agent)

    @staticmethod
    def _check_changed_model(
        session: Session, caller: Caller, row: RoomAgentRow, changes: SeatChanges, errors: FieldErrors
    ) -> None:
        """Checks provider and model as they are after the changes, if these have one of them."""
        if changes.provider_id is UNSET and changes.model is UNSET:
            return
        agent = None if row.agent_id is None else session.get(AgentRow, row.agent_id)
        provider_id = row.provider_id if changes.provider_id is UNSET else changes.provider_id
        if provider_id is None and agent is not None:
            provider_id = agent.provider_id
        model = row.model if changes.model is UNSET else changes.model
        check_provider(session, caller, provider_id, model, "$", errors)

    def _check_references(
        self,
        session: Session,
        caller: Caller,
        given: NewSeat | SeatChanges,
        path: str,
        errors: FieldErrors,
    ) -> None:
        tools = None if given.tools is UNSET else given.tools
        skills = None if given.skills is UNSET else given.skills
        for name, problem in self.unknown_names(session, caller, tools, skills).items():
            errors.add(f"{path}.{name}", problem)

    async def change(self, caller: Caller, room_id: str, seat_id: int, changes: SeatChanges) -> SeatView:
        """Sets the given fields; a running room reads them before its next turn.

        Raises NotFound, InvalidInput, or NotAllowed: members with the right to steer change STEERED_FIELDS.
        """
        given = {name for name in changes.__struct_fields__ if getattr(changes, name) is not UNSET}
        right_needed = RoomRight.STEER if given <= STEERED_FIELDS else RoomRight.OWNER

        def work(session: Session) -> SeatView:
            room, right = find_room(session, caller, room_id, right_needed, is_locked=True)
            row = _find_seat(session, room, seat_id)
            errors = FieldErrors()
            if isinstance(changes.name, str):
                name_key = changes.name.strip().casefold()
                _check_name(name_key, _other_names(session, room, seat_id), "$", errors)
            self._check_references(session, caller, changes, "$", errors)
            agent_id = changes.agent_id
            if isinstance(agent_id, int):
                errors.found("$.agent_id", lambda: AGENTS.visible(session, caller, agent_id))
            errors.raise_if_any()
            _choose_agent(session, row, changes)
            self._check_changed_model(session, caller, row, changes, errors)
            errors.raise_if_any()
            if changes.provider_id is not UNSET and row.lost_provider is not None:
                row.lost_provider = row.model = None  # The model belonged to the lost provider.
            _set_values(row, {field: getattr(changes, field) for field in given - {"agent_id"}})
            room.updated_at = utc_now()
            session.flush()
            return _view_of(session, room, seat_id, right)

        return await self.store.write(work)

    async def remove(self, caller: Caller, room_id: str, seat_id: int) -> None:
        """Removes a seat; its messages stay. Raises NotFound, NotAllowed, or Conflict if the room's stop
        names it."""

        def work(session: Session) -> None:
            room, _ = find_room(session, caller, room_id, RoomRight.OWNER, is_locked=True)
            row = _find_seat(session, room, seat_id)
            stop = stop_of(room)
            if stop is not None and seat_id in {named for _, named in seats_in(stop)}:
                raise Conflict(
                    f"the stop of this room names the seat '{row.name}'; change the stop first",
                    kind="seat_in_stop",
                )
            session.delete(row)
            room.updated_at = utc_now()

        await self.store.write(work)


def seat_row(room: ChatRoomRow, new: NewSeat, agent: AgentRow | None = None) -> RoomAgentRow:
    """The row of a new seat of a room, in no place of the order yet. Checks nothing."""
    name = (new.name or (agent.name if agent is not None else "")).strip()
    row = RoomAgentRow(
        room_id=room.id,
        agent_id=None if agent is None else agent.id,
        name=name,
        name_key=name.casefold(),
        color=(new.color or (color_of(name) if agent is None else agent.color)).lower(),
        muted=new.muted,
        created_at=utc_now(),
    )
    _set_values(row, {field: getattr(new, field) for field in OPEN_FIELDS})
    return row


def copy_agent_to_seats(session: Session, agent: AgentRow, is_deleted: bool) -> None:
    """Copies the values of an agent into the seats that lose it, and detaches them from it.

    It is called before the agent is deleted, or before its owner ends the sharing: then only the seats in
    rooms of others lose it.
    """
    query = select(RoomAgentRow).where(RoomAgentRow.agent_id == agent.id)
    if not is_deleted:
        query = query.join(ChatRoomRow, ChatRoomRow.id == RoomAgentRow.room_id).where(
            ChatRoomRow.user_id != agent.user_id
        )
    for seat in session.scalars(query).all():
        _copy_agent(seat, agent)
        seat.lost_agent = agent.name
    session.flush()


def _copy_agent(seat: RoomAgentRow, agent: AgentRow) -> None:
    """Copies the values of the seat's agent into the seat, and detaches it."""
    has_own_provider = seat.provider_id is not None or seat.lost_provider is not None
    for name in OVERRIDES:
        # The agent's model belongs to the agent's provider.
        if getattr(seat, name) is None and not (name in ("model", "provider_id") and has_own_provider):
            setattr(seat, name, getattr(agent, name))
    if not has_own_provider:
        seat.lost_provider = agent.lost_provider
    if agent.shipped_name is not None and seat.role == agent.role:
        seat.role = ""
    seat.agent_id = None


def _choose_agent(session: Session, seat: RoomAgentRow, changes: SeatChanges) -> None:
    """Gives a seat another agent, which the caller may use, or none."""
    if changes.agent_id is UNSET:
        return
    has_lost = seat.lost_agent is not None
    seat.lost_agent = None
    if changes.agent_id is None:
        agent = None if seat.agent_id is None else session.get(AgentRow, seat.agent_id)
        if agent is not None:
            _copy_agent(seat, agent)
    else:
        seat.agent_id = changes.agent_id
        for name in OVERRIDES if has_lost else ():
            setattr(seat, name, None)
        if has_lost:
            seat.lost_provider = None
    session.flush()


def _set_values(row: RoomAgentRow, values: dict[str, Any]) -> None:
    for name, value in values.items():
        if name in JSON_FIELDS and value is not None:
            value = msgspec.json.encode(value).decode()
        elif name in ("role", "model") and isinstance(value, str):
            value = value.strip()
        elif name == "color" and isinstance(value, str):
            value = value.lower()
        elif name == "name" and isinstance(value, str):
            value = value.strip()
            row.name_key = value.casefold()
        setattr(row, name, value)


def _check_name(name_key: str, taken: set[str], path: str, errors: FieldErrors) -> None:
    if name_key and name_key in taken:
        errors.add(
            f"{path}.name",
            "another seat of this room has this name; letter case does not count; give it another name",
        )


def _other_names(session: Session, room: ChatRoomRow, seat_id: int) -> set[str]:
    query = select(RoomAgentRow.name_key).where(RoomAgentRow.room_id == room.id, RoomAgentRow.id != seat_id)
    return set(session.scalars(query))


def _find_seat(session: Session, room: ChatRoomRow, seat_id: int) -> RoomAgentRow:
    row = session.get(RoomAgentRow, seat_id) if 0 < seat_id < 2**31 else None
    if row is None or row.room_id != room.id:
        raise NotFound("this room has no seat with this id", kind="seat_not_found")
    return row


def _view_of(session: Session, room: ChatRoomRow, seat_id: int, right: RoomRight) -> SeatView:
    return next(seat_view(row, agent, right) for row, agent in seat_rows(session, room) if row.id == seat_id)
