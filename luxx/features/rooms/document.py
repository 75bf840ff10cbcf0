"""The file of a room: its title, task, policy, stop and seats as YAML or JSON, for this or another server.

Seats are written whole, without their agents; a file may also name an agent (`agent`). Providers and the
seats of stops are written by name. Messages, runs and members are not part of the file.
"""

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from luxx.domain.agents.models import (
    AgentColor,
    AgentModel,
    AgentName,
    AgentPrompt,
    AgentRole,
    TurnSettings,
)
from luxx.features.rooms.models import (
    DEFAULT_ROUNDS,
    MAX_SEATS,
    MaxRounds,
    RoomTask,
    RoomTitle,
    SelectorPrompt,
)
from luxx.features.rooms.policies import PolicyName
from luxx.features.rooms.stops import MAX_PARTS, Amount, Count, Phrase, Stop
from luxx.wire.line import IN_NAME, NAME

VERSION = 1
MAX_CHARACTERS = 1_000_000

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
