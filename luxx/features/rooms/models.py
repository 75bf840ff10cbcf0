"""The tables and the API structs of rooms, seats and members. Services return these structs, never rows."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType
from sqlalchemy import ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from luxx.domain.agents.models import (
    AgentColor,
    AgentModel,
    AgentName,
    AgentPrompt,
    AgentRole,
    TurnColumns,
    TurnSettings,
    TurnSettingsChange,
)
from luxx.domain.conversations.views import MessageView
from luxx.domain.knowledge_bases import KnowledgeIds
from luxx.domain.owned import OwnedColumns
from luxx.features.rooms.policies import PolicyName
from luxx.features.rooms.stops import Stop
from luxx.infra.store.tables import Base, KnowledgeColumn, MemoryColumn, UtcDateTime
from luxx.infra.strict_json import IN_NAME, NAME
from luxx.wire.model_settings import MemoryMode, ProviderId
from luxx.wire.run import MemberRight
from luxx.wire.turn import Usage, WrittenArtifact

MAX_SEATS = 20
MAX_MEMBERS = 100
MAX_DOCUMENT_CHARACTERS = 1_000_000
DEFAULT_ROUNDS = 10
NAME_KEY_LENGTH = 300
"""Case folding makes a name up to three times as long."""


class ChatRoomRow(OwnedColumns, MemoryColumn, KnowledgeColumn, Base):
    """`policy` and `stop` are JSON (`RoomPolicy`, `Stop`); a null `stop` means `max_rounds`.

    `run_id` is the newest run, null before the first start and after a reset. The row has no status: the
    status is that of the newest run (`queries.py`).
    """

    __tablename__ = "chat_rooms"
    __table_args__ = (
        Index("ix_chat_rooms_user_id_id", "user_id", "id"),
        Index("ix_chat_rooms_tenant_id", "tenant_id"),
    )

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    title: Mapped[str] = mapped_column(String(300))
    task: Mapped[str] = mapped_column(Text)
    max_rounds: Mapped[int] = mapped_column(default=DEFAULT_ROUNDS)
    policy: Mapped[str] = mapped_column(Text)
    stop: Mapped[str | None] = mapped_column(Text)
    run_id: Mapped[str | None] = mapped_column(String(36))
    current_round: Mapped[int] = mapped_column(default=0)


class RoomAgentRow(TurnColumns, MemoryColumn, Base):
    """A seat. With an agent, a null value is that of the agent; `name` and `color` are always the seat's own.

    `name_key` is the name without regard to case. `fallbacks`, `prompted_thinking`, `checks` and `memory` are
    filled when the agent is deleted: the seat then keeps the agent's last values (`seats.py`). Ids are never
    reused, because messages keep the id of the seat that wrote them.
    """

    __tablename__ = "room_agents"
    __table_args__ = (UniqueConstraint("room_id", "name_key"), {"sqlite_autoincrement": True})

    id: Mapped[int] = mapped_column(primary_key=True)
    room_id: Mapped[str] = mapped_column(ForeignKey("chat_rooms.id", ondelete="CASCADE"))
    agent_id: Mapped[int | None] = mapped_column(ForeignKey("agents.id", ondelete="SET NULL"), index=True)
    name: Mapped[str] = mapped_column(String(100))
    name_key: Mapped[str] = mapped_column(String(NAME_KEY_LENGTH))
    role: Mapped[str | None] = mapped_column(String(500))
    system_prompt: Mapped[str | None] = mapped_column(Text)
    color: Mapped[str] = mapped_column(String(7))
    turn_order: Mapped[int] = mapped_column()
    muted: Mapped[bool] = mapped_column(default=False)
    fallbacks: Mapped[str | None] = mapped_column(Text)
    prompted_thinking: Mapped[bool | None] = mapped_column()
    checks: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    lost_agent: Mapped[str | None] = mapped_column(String(100))


# Bodies of requests

RoomTitle = Annotated[str, Meta(min_length=1, max_length=300, pattern=NAME, description=IN_NAME)]
RoomTask = Annotated[str, Meta(min_length=1, max_length=100_000)]
MaxRounds = Annotated[int, Meta(ge=1, le=100)]
TurnOrder = Annotated[int, Meta(ge=0, le=1_000_000)]
SelectorPrompt = Annotated[str, Meta(min_length=1, max_length=10_000)]
AgentId = ProviderId


class RoomPolicy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A policy with its options. `provider_id`, `model` and `prompt` are options of `selector`: the model
    that chooses the next seat, and what it is asked."""

    name: PolicyName
    provider_id: ProviderId | None = None
    model: AgentModel | None = None
    prompt: SelectorPrompt | None = None


class NewSeat(TurnSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A seat of an agent (`agent_id`) with overrides, or a whole seat, which needs a name.

    A null value is that of the agent; without an agent it is left open, as in an agent. `turn_order` null:
    after all others.
    """

    agent_id: AgentId | None = None
    name: AgentName | None = None
    role: AgentRole | None = None
    provider_id: ProviderId | None = None
    system_prompt: AgentPrompt | None = None
    color: AgentColor | None = None
    turn_order: TurnOrder | None = None
    muted: bool = False


class SeatChanges(TurnSettingsChange, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Omitted fields do not change; null removes an override, so that the agent's value counts again.

    `agent_id`: another agent, whose values replace the copy of a lost one; null: none. A seat that loses its
    agent so keeps a copy of the agent's values.
    """

    agent_id: AgentId | UnsetType | None = UNSET
    name: AgentName | UnsetType = UNSET
    role: AgentRole | UnsetType | None = UNSET
    system_prompt: AgentPrompt | UnsetType | None = UNSET
    color: AgentColor | UnsetType = UNSET
    turn_order: TurnOrder | UnsetType = UNSET
    muted: bool | UnsetType = UNSET


NewSeats = Annotated[list[NewSeat], Meta(max_length=MAX_SEATS)]


class NewRoom(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`policy` is a name, or an object with the name and its options. `stop` null: after `max_rounds`."""

    title: RoomTitle
    task: RoomTask
    max_rounds: MaxRounds = DEFAULT_ROUNDS
    agents: NewSeats = []
    policy: PolicyName | RoomPolicy = PolicyName.ROUND_ROBIN
    stop: Stop | None = None
    memory: MemoryMode | None = None
    knowledge: KnowledgeIds = []


class RoomChanges(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Omitted fields do not change. A running room reads them before each turn."""

    title: RoomTitle | UnsetType = UNSET
    task: RoomTask | UnsetType = UNSET
    max_rounds: MaxRounds | UnsetType = UNSET
    policy: PolicyName | RoomPolicy | UnsetType = UNSET
    stop: Stop | UnsetType | None = UNSET
    memory: MemoryMode | UnsetType | None = UNSET
    knowledge: KnowledgeIds | UnsetType = UNSET


class NewMember(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A user of the room's tenant, by `user_id` or `username`."""

    user_id: ProviderId | None = None
    username: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    right: MemberRight


# Values that services return


class RoomStatus(StrEnum):
    IDLE = "idle"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    ERROR = "error"


class RoomRight(StrEnum):
    """The caller's right to a room. Each includes the ones before it."""

    WATCH = "watch"
    SPEAK = "speak"
    STEER = "steer"
    OWNER = "owner"


class SeatView(TurnSettings, frozen=True, kw_only=True):
    """A seat with the values that count now. `overrides` names those that are the seat's own; the others are
    the agent's. Only the owner of the room sees `system_prompt`; for members it is null.

    `lost_agent`, `lost_provider`: the name of an agent or a provider that was chosen and then deleted, or
    that is no longer shared. The seat speaks after another is chosen, or null: then a seat that lost its
    agent goes on with the copy of its values, without its permission rules.
    """

    id: int
    room_id: str
    agent_id: int | None
    lost_agent: str | None
    lost_provider: str | None
    name: str
    role: str
    provider_id: int | None
    system_prompt: str | None
    color: str
    turn_order: int
    muted: bool
    overrides: list[str]
    created_at: datetime


class RoomView(Struct, frozen=True, kw_only=True):
    """A room as lists show it. `run_id` is its newest run; `stop_reason` and `error` are of that run."""

    id: str
    user_id: int
    title: str
    task: str
    status: RoomStatus
    right: RoomRight
    max_rounds: int
    current_round: int
    policy: RoomPolicy
    stop: Stop | None
    memory: MemoryMode | None
    knowledge: list[str]
    run_id: str | None
    stop_reason: str | None
    error: str | None
    created_at: datetime
    updated_at: datetime


class RoomDetail(RoomView, frozen=True, kw_only=True):
    """A room with its seats, in turn order."""

    agents: list[SeatView]


class MemberView(Struct, frozen=True, kw_only=True):
    """A member of a room."""

    user_id: int
    username: str
    right: MemberRight
    created_at: datetime


class SeatOutcome(Struct, frozen=True, kw_only=True):
    """The last message of a seat; null if it has not spoken. A removed seat has no id any more."""

    seat_id: int | None
    name: str
    color: str | None
    message: MessageView | None


class RoomOutcome(Struct, frozen=True, kw_only=True):
    """How the newest run of a room ended. `messages` counts those of that run, which wrote the `artifacts`;
    `cost` is in US dollars."""

    room_id: str
    run_id: str | None
    status: RoomStatus
    stop_reason: str | None
    error: str | None
    rounds: int
    messages: int
    usage: Usage
    cost: float | None
    started_at: datetime | None
    finished_at: datetime | None
    agents: list[SeatOutcome]
    artifacts: list[WrittenArtifact]
