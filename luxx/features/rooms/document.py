"""Export and import of rooms: the file of a room, and its messages as Markdown for reading.

The file has the title, task, policy, stop and seats as YAML or JSON, for this or another server.
Seats are written whole, without their agents; a file may also name an agent (`agent`). Providers and the
seats of stops are written by name. Messages, runs and members are not part of the file.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.agents.models import (
    TURN_SETTINGS,
    AgentColor,
    AgentModel,
    AgentName,
    AgentPrompt,
    AgentRole,
    TurnSettings,
)
from luxx.domain.agents.queries import agent_named
from luxx.domain.conversations.models import MessageRow
from luxx.domain.conversations.views import message_view
from luxx.domain.transfer.export import inline, message_text, quoted
from luxx.errors import TooLarge
from luxx.features.rooms.checks import check_room_stop, checked_policy, seats_in
from luxx.features.rooms.models import (
    DEFAULT_ROUNDS,
    MAX_SEATS,
    ChatRoomRow,
    MaxRounds,
    NewRoom,
    NewSeat,
    RoomDetail,
    RoomPolicy,
    RoomRight,
    RoomTask,
    RoomTitle,
    SelectorPrompt,
)
from luxx.features.rooms.policies import PolicyName
from luxx.features.rooms.queries import find_room, policy_of, seat_rows, seat_values, stop_of
from luxx.features.rooms.replies import quotation
from luxx.features.rooms.service import RoomService, detail_of, encode_policy, encode_stop
from luxx.features.rooms.stops import MAX_PARTS, Amount, Count, Phrase, Stop
from luxx.infra.field_errors import NOTHING_WRONG, FieldErrors
from luxx.infra.store.engine import Store
from luxx.infra.strict_json import IN_NAME, NAME
from luxx.providers.queries import provider_name, provider_named
from luxx.wire.message import Quotation
from luxx.wire.model_settings import MemoryMode

VERSION = 1
MAX_MARKDOWN_MIB = 32
ROWS_AT_ONCE = 50

SEAT_FIELDS = ("name", "role", "color", "muted", *TURN_SETTINGS, "system_prompt")
"""The fields that a seat in a file has like a new seat."""

NameInFile = Annotated[str, Meta(min_length=1, max_length=100, pattern=NAME, description=IN_NAME)]


class PolicyDocument(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    name: PolicyName
    provider: NameInFile | None = None
    model: AgentModel | None = None
    prompt: SelectorPrompt | None = None


class StopDocument(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A `Stop` with the name of a seat instead of its id."""

    rounds: Count | UnsetType = UNSET
    messages: Count | UnsetType = UNSET
    tokens: Count | UnsetType = UNSET
    cost: Amount | UnsetType = UNSET
    seconds: Count | UnsetType = UNSET
    phrase: Phrase | UnsetType = UNSET
    seat: NameInFile | UnsetType = UNSET
    person: bool | UnsetType = UNSET
    any: "Annotated[list[StopDocument], Meta(min_length=1, max_length=MAX_PARTS)] | UnsetType" = UNSET
    all: "Annotated[list[StopDocument], Meta(min_length=1, max_length=MAX_PARTS)] | UnsetType" = UNSET


class SeatDocument(TurnSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A seat. `agent`: the name of an agent of the importing user, whose values count where none is given."""

    agent: NameInFile | None = None
    name: AgentName | None = None
    role: AgentRole | None = None
    provider: NameInFile | None = None
    color: AgentColor | None = None
    muted: bool = False
    system_prompt: AgentPrompt | None = None


class RoomDocument(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A room. Its seats speak in the order of `agents`."""

    version: Annotated[int, Meta(ge=VERSION, le=VERSION)]
    title: RoomTitle
    task: RoomTask
    max_rounds: MaxRounds = DEFAULT_ROUNDS
    policy: PolicyName | PolicyDocument = PolicyName.ROUND_ROBIN
    stop: StopDocument | None = None
    memory: MemoryMode | None = None
    agents: Annotated[list[SeatDocument], Meta(max_length=MAX_SEATS)] = []


def document_schema() -> dict[str, Any]:
    """The JSON schema of the document; a test compares it with `docs/room.schema.json`."""
    title = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A room of Luxx, version 1"}
    return {**title, **msgspec.json.schema(RoomDocument)}


def named_seats(stop: StopDocument, field: str = "$.stop") -> Iterator[tuple[str, str]]:
    """The names of seats in a stop, each with the path of its field."""
    if stop.seat is not UNSET:
        yield f"{field}.seat", stop.seat
    for name, parts in (("any", stop.any), ("all", stop.all)):
        for index, part in enumerate(parts or []):
            yield from named_seats(part, f"{field}.{name}[{index}]")


def stop_with_ids(stop: StopDocument, ids: dict[str, int]) -> Stop:
    """The stop with the ids of seats, by their names without regard to case; an unknown name gets 0."""
    fields = _own_fields(stop)
    if isinstance(stop.seat, str):
        fields["seat_id"] = ids.get(stop.seat.strip().casefold(), 0)
    for name, parts in (("any", stop.any), ("all", stop.all)):
        if isinstance(parts, list):
            fields[name] = [stop_with_ids(part, ids) for part in parts]
    return Stop(**fields)


def stop_with_names(stop: Stop, names: dict[int, str]) -> StopDocument:
    """The stop with the names of seats, by their ids."""
    fields = _own_fields(stop)
    if isinstance(stop.seat_id, int):
        fields["seat"] = names[stop.seat_id]
    for name, parts in (("any", stop.any), ("all", stop.all)):
        if isinstance(parts, list):
            fields[name] = [stop_with_names(part, names) for part in parts]
    return StopDocument(**fields)


_SAME_FIELDS = tuple(name for name in Stop.__struct_fields__ if name not in ("seat_id", "any", "all"))
"""The fields that both kinds of stops have."""


def _own_fields(stop: Stop | StopDocument) -> dict[str, Any]:
    return {name: getattr(stop, name) for name in _SAME_FIELDS}


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
            paths = [f"$.agents[{index}]" for index in range(len(document.agents))]
            seats = [
                _new_seat(session, caller, seat, path, errors)
                for seat, path in zip(document.agents, paths, strict=True)
            ]
            new = NewRoom(
                title=document.title,
                task=document.task,
                max_rounds=document.max_rounds,
                agents=seats,
                memory=document.memory,
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
        memory=room.memory,
        agents=seats,
    )


def _new_seat(
    session: Session, caller: Caller, seat: SeatDocument, path: str, errors: FieldErrors
) -> NewSeat:
    """The seat to create. Adds a problem for an agent or a provider that the caller does not have."""
    agent = None
    agent_name = seat.agent
    if agent_name is not None:
        agent = errors.named(f"{path}.agent", lambda: agent_named(session, caller, agent_name))
    # Without the name of a missing agent, the missing name would be a second problem with the same cause.
    name = seat.name or (agent_name if agent is None else agent.name)
    fields = {field: getattr(seat, field) for field in SEAT_FIELDS if field != "name"}
    return NewSeat(
        **fields,
        name=name,
        agent_id=None if agent is None else agent.id,
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
    return errors.named(field, lambda: provider_named(session, caller, name, field).id)


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
    quotations: dict[str, Quotation] = {}
    for row in rows:
        if row.round_number is not None and row.round_number != number:
            number = row.round_number
            yield f"\n---\n\nRound {number}\n"
        view = message_view(row)
        if isinstance(view.reply_to, str):
            view = msgspec.structs.replace(view, quoted=quotations.get(view.reply_to))
        quotations[row.id] = quotation(view.sender_name, view.text)
        yield message_text(view)
