"""The rows of rooms: who may read and steer one, its status, its seats with the values that count.

These functions work inside a given transaction, so that the run of a room reads seats by them too.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, Select, and_, bindparam, func, or_, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.agents.models import TURN_SETTINGS, AgentFallback, AgentRow, Check, TurnSettings
from luxx.domain.agents.queries import (
    AGENTS,
    AgentSettings,
    decode_checks,
    mcp_servers_of,
    prompt_of,
    turn_settings_in,
)
from luxx.domain.conversations.search_index import SearchedSubject
from luxx.domain.knowledge_bases import named_in
from luxx.errors import NotAllowed, NotFound
from luxx.features.rooms.models import (
    ChatRoomRow,
    RoomAgentRow,
    RoomPolicy,
    RoomRight,
    RoomStatus,
    RoomView,
    SeatView,
)
from luxx.features.rooms.stops import Stop
from luxx.infra.store.tables import first_given, table_of
from luxx.runs.models import RunRow, SubjectMemberRow, member_right
from luxx.wire.model_settings import MemoryMode
from luxx.wire.run import RunStatus

OPEN_FIELDS = ("role", "provider_id", "system_prompt", *TURN_SETTINGS)
"""The fields of a seat that may be null."""

OVERRIDES = (*OPEN_FIELDS, "fallbacks", "prompted_thinking", "checks", "memory")
"""The columns of a seat that override the value of its agent unless they are null. Nobody sets the last ones:
they are the values of an agent that was deleted."""

JSON_FIELDS = frozenset({"tools", "skills", "fallbacks"})
_rights = list(RoomRight)
_needed_text = {
    RoomRight.WATCH: "be a member of this room",
    RoomRight.SPEAK: "have the right to speak in this room",
    RoomRight.STEER: "have the right to steer this room",
    RoomRight.OWNER: "own this room",
}
_fallbacks = msgspec.json.Decoder(list[AgentFallback])
_policy = msgspec.json.Decoder(RoomPolicy)
_stop = msgspec.json.Decoder(Stop)


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """A seat for the run of its room. `settings` is what a turn takes from it, like a chat from its agent:
    its system prompt begins with the name and the role; its `id` is that of the agent, if there is one."""

    seat_id: int
    name: str
    role: str
    color: str
    is_muted: bool
    settings: AgentSettings


# Access


def find_room(
    session: Session,
    caller: Caller,
    room_id: str,
    right: RoomRight = RoomRight.WATCH,
    *,
    is_locked: bool = False,
) -> tuple[ChatRoomRow, RoomRight]:
    """A room and the caller's right to it. Raises NotFound, or NotAllowed if the right is too small.

    `is_locked`: locks the row, so that no other transaction changes it until this one ends.
    """
    query = select(ChatRoomRow).where(ChatRoomRow.id == room_id)
    row = session.scalar(query.with_for_update() if is_locked else query)
    given = None if row is None else right_to(session, caller, row)
    if row is None or given is None:
        raise NotFound("no room with this id", kind="room_not_found")
    if not is_right_enough(given, right):
        raise NotAllowed(
            f"you must {_needed_text[right]} for this; yours is the right to {given.value}; its owner can "
            "change it"
        )
    return row, given


def right_to(session: Session, caller: Caller, room: ChatRoomRow) -> RoomRight | None:
    """The caller's right to a room; None if they may not know of it."""
    if room.user_id == caller.user_id:
        return RoomRight.OWNER
    if room.tenant_id != caller.tenant_id:
        return None
    given = member_right(session, room.id, caller.user_id)
    return None if given is None else RoomRight(given.value)


def is_right_enough(given: RoomRight, needed: RoomRight) -> bool:
    """Whether one right includes the other."""
    return _rights.index(given) >= _rights.index(needed)


def rooms_of(caller: Caller) -> Select[ChatRoomRow, str]:
    """The rooms that the caller owns or is a member of, each with the right of the membership."""
    is_member = and_(
        SubjectMemberRow.subject_id == ChatRoomRow.id, SubjectMemberRow.user_id == caller.user_id
    )
    mine = or_(
        ChatRoomRow.user_id == caller.user_id,
        and_(SubjectMemberRow.user_id.is_not(None), ChatRoomRow.tenant_id == caller.tenant_id),
    )
    return select(ChatRoomRow, SubjectMemberRow.right).outerjoin(SubjectMemberRow, is_member).where(mine)


_searched = select(
    ChatRoomRow.id, ChatRoomRow.user_id, ChatRoomRow.title, ChatRoomRow.task, ChatRoomRow.created_at
).where(ChatRoomRow.id.in_(bindparam("ids", expanding=True)))


def searched_rooms(connection: Connection, room_ids: Sequence[str]) -> dict[str, SearchedSubject]:
    """What the search finds of rooms, by id: the title and the task. Rooms that do not exist are left out."""
    return {
        row.id: SearchedSubject(
            id=row.id,
            user_id=row.user_id,
            title=row.title,
            text=f"{row.title}\n{row.task}",
            created_at=row.created_at,
        )
        for row in connection.execute(_searched, {"ids": room_ids})
    }


# The status


def status_of(run: RunRow | None) -> RoomStatus:
    """The status of a room with this newest run."""
    if run is None:
        return RoomStatus.IDLE
    match RunStatus(run.status):
        case RunStatus.QUEUED | RunStatus.RUNNING | RunStatus.WAITING:
            return RoomStatus.RUNNING
        case RunStatus.PAUSED:
            return RoomStatus.PAUSED if run.error is None else RoomStatus.ERROR
        case RunStatus.COMPLETED | RunStatus.CANCELLED:
            return RoomStatus.COMPLETED
        case RunStatus.FAILED:
            return RoomStatus.ERROR


def room_view(room: ChatRoomRow, run: RunRow | None, right: RoomRight) -> RoomView:
    """A room's row as lists show it."""
    return RoomView(
        id=room.id,
        user_id=room.user_id,
        title=room.title,
        task=room.task,
        status=status_of(run),
        right=right,
        max_rounds=room.max_rounds,
        current_round=room.current_round,
        policy=policy_of(room),
        stop=stop_of(room),
        memory=room.memory,
        knowledge=named_in(room.knowledge),
        run_id=None if run is None else run.id,
        stop_reason=None if run is None else run.stop_reason,
        error=None if run is None else run.error,
        created_at=room.created_at,
        updated_at=room.updated_at,
    )


def policy_of(room: ChatRoomRow | Row[Any]) -> RoomPolicy:
    """The policy of a room, with its options."""
    return _policy.decode(room.policy)


def stop_of(room: ChatRoomRow | Row[Any]) -> Stop | None:
    """The stop of a room; None means `{rounds: max_rounds}`."""
    return None if room.stop is None else _stop.decode(room.stop)


# Seats


_usable = AGENTS.is_visible(bindparam("b_tenant"), bindparam("b_user"))
_seats_of_room = (
    select(RoomAgentRow, AgentRow)
    .outerjoin(AgentRow, and_(AgentRow.id == RoomAgentRow.agent_id, _usable))
    .where(RoomAgentRow.room_id == bindparam("b_room"))
    .order_by(RoomAgentRow.turn_order, RoomAgentRow.id)
)


def seat_rows(session: Session, room: ChatRoomRow) -> list[tuple[RoomAgentRow, AgentRow | None]]:
    """The seats of a room in turn order, each with its agent if the owner of the room may use it."""
    values = {"b_room": room.id, "b_tenant": room.tenant_id, "b_user": room.user_id}
    return [(seat, agent) for seat, agent in session.execute(_seats_of_room, values)]


_seats_of_run = (
    select(*table_of(RoomAgentRow).c)
    .where(RoomAgentRow.room_id == bindparam("b_room"))
    .order_by(RoomAgentRow.turn_order, RoomAgentRow.id)
)
_agents_of_run = select(*table_of(AgentRow).c).where(
    AgentRow.id.in_(bindparam("b_ids", expanding=True)), _usable
)


def read_seats(session: Session, room: ChatRoomRow | Row[Any]) -> list[Seat]:
    """The seats of a room in turn order, for its run: each turn reads them, so the ORM is bypassed."""
    connection = session.connection()
    rows = connection.execute(_seats_of_run, {"b_room": room.id}).all()
    agents: dict[int, Row[Any]] = {}
    if ids := {row.agent_id for row in rows if row.agent_id is not None}:
        values = {"b_ids": list(ids), "b_tenant": room.tenant_id, "b_user": room.user_id}
        agents = {agent.id: agent for agent in connection.execute(_agents_of_run, values)}
    named = named_in(room.knowledge)
    return [seat_of(row, agents.get(row.agent_id), named) for row in rows]


def seat_of(
    row: RoomAgentRow | Row[Any], agent: AgentRow | Row[Any] | None, named: Sequence[str] = ()
) -> Seat:
    """A seat with the values that count now. `named`: the knowledge bases of its room."""
    values = seat_values(row, agent)
    # The role of a shipped agent describes it for people; its prompt already says it.
    role = "" if row.role is None and agent is not None and agent.shipped_name is not None else values.role
    return Seat(
        seat_id=row.id,
        name=row.name,
        role=role,
        color=row.color,
        is_muted=row.muted,
        settings=AgentSettings(
            id=None if agent is None else agent.id,
            name=row.name,
            provider_id=values.provider_id,
            system_prompt=prompt_of(row.name, role, values.system_prompt),
            fallbacks=values.fallbacks,
            prompted_thinking=values.prompted_thinking,
            checks=values.checks,
            memory=values.memory,
            knowledge=[*named, *([] if agent is None else named_in(agent.knowledge))],
            mcp_servers=None if agent is None else mcp_servers_of(agent),
            owner_id=None if agent is None else agent.user_id,
            is_shipped=agent is not None and agent.shipped_name is not None,
            is_enabled=agent is None or agent.enabled,
            lost_agent=row.lost_agent if agent is None else None,
            lost_provider=values.lost_provider,
            chosen_by=f"the seat '{row.name}'",
            **first_given(values, names=TURN_SETTINGS),
        ),
    )


class SeatValues(TurnSettings, frozen=True, kw_only=True):
    """The values of a seat: its own, else those of its agent, else open."""

    role: str
    provider_id: int | None
    system_prompt: str
    fallbacks: list[AgentFallback]
    prompted_thinking: bool
    checks: list[Check]
    memory: MemoryMode | None
    lost_provider: str | None


def seat_values(row: RoomAgentRow | Row[Any], agent: AgentRow | Row[Any] | None) -> SeatValues:
    """The values of a seat that count now. A provider and its model are taken from the same place."""

    def value(name: str) -> Any:
        own = getattr(row, name)
        return own if own is not None or agent is None else getattr(agent, name)

    settings = turn_settings_in(row, agent)
    if row.provider_id is not None and row.model is None:
        settings["model"] = None
    fallbacks = value("fallbacks")
    return SeatValues(
        role=value("role") or "",
        provider_id=row.provider_id if row.lost_provider is not None else value("provider_id"),
        system_prompt=value("system_prompt") or "",
        fallbacks=[] if fallbacks is None else _fallbacks.decode(fallbacks),
        prompted_thinking=bool(value("prompted_thinking")),
        checks=decode_checks(value("checks") or "[]"),
        memory=value("memory"),
        # A lost provider of the seat's own is not replaced by that of the agent.
        lost_provider=value("lost_provider") if row.provider_id is None else row.lost_provider,
        **settings,
    )


def seat_view(row: RoomAgentRow, agent: AgentRow | None, right: RoomRight) -> SeatView:
    """A seat's row as the API shows it to a caller with this right to its room."""
    values = seat_values(row, agent)
    return SeatView(
        id=row.id,
        room_id=row.room_id,
        agent_id=row.agent_id,
        lost_agent=row.lost_agent if agent is None else None,
        lost_provider=values.lost_provider,
        name=row.name,
        role=values.role,
        provider_id=values.provider_id,
        system_prompt=values.system_prompt if right == RoomRight.OWNER else None,
        color=row.color,
        turn_order=row.turn_order,
        muted=row.muted,
        overrides=[name for name in OPEN_FIELDS if getattr(row, name) is not None],
        created_at=row.created_at,
        **first_given(values, names=TURN_SETTINGS),
    )


def seat_views(session: Session, room: ChatRoomRow, right: RoomRight) -> list[SeatView]:
    """All seats of a room in turn order, as the API shows them."""
    return [seat_view(row, agent, right) for row, agent in seat_rows(session, room)]


def count_seats(session: Session, room_id: str) -> int:
    """How many seats a room has."""
    return session.scalar(select(func.count()).where(RoomAgentRow.room_id == room_id)) or 0
