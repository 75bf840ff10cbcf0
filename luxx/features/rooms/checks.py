"""What a room may refer to: its owner's providers, agents, tools and skills, and its own seats.

All problems of a request are collected before it is refused, so that a client learns of them at once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import UNSET
from sqlalchemy.orm import Session

from luxx.domain.accounts.authentication import caller_of_turn
from luxx.domain.accounts.caller import Caller
from luxx.domain.agents.queries import AgentSettings, checked_enabled
from luxx.errors import InvalidInput, NotFound, UnlistedModel
from luxx.features.rooms.models import ChatRoomRow, RoomPolicy
from luxx.features.rooms.policies import PolicyName
from luxx.features.rooms.queries import policy_of, read_seats
from luxx.features.rooms.stops import Stop, check_size, check_stop
from luxx.infra.field_errors import FieldErrors
from luxx.infra.store.tables import lost_error
from luxx.providers.model_lists import ModelLists
from luxx.providers.queries import lost_provider_error
from luxx.providers.queries import visible_row as visible_provider

FindUnknownNames = Callable[[Session, Caller, Sequence[str] | None, Sequence[str] | None], dict[str, str]]
"""The problems of a list of tools and a list of skills that an agent may use, by `tools` and `skills`."""

SELECTOR_OPTIONS = ("provider_id", "model", "prompt")


def check_provider(
    session: Session,
    caller: Caller,
    provider_id: int | None,
    model: str | None,
    path: str,
    errors: FieldErrors,
) -> None:
    """Adds a problem unless the caller may use the provider and it may have the model."""
    if provider_id is None:
        return
    provider = errors.found(f"{path}.provider_id", lambda: visible_provider(session, caller, provider_id))
    if provider is None:
        return
    try:
        ModelLists().check(provider, model)
    except UnlistedModel as error:
        errors.add(f"{path}.model", error.message)


def selector_settings(policy: RoomPolicy) -> AgentSettings:
    """The settings of the model that chooses who speaks next."""
    return AgentSettings(
        provider_id=policy.provider_id, model=policy.model, tools=[], chosen_by="the policy selector"
    )


def check_choices(session: Session, room: ChatRoomRow) -> None:
    """Raises Conflict if a seat that may speak, or the policy, has chosen an agent or a provider that the
    owner of the room can use no more."""
    owner = caller_of_turn(session, room.user_id)
    chosen = [seat.settings for seat in read_seats(session, room) if not seat.is_muted]
    policy = policy_of(room)
    if policy.name == PolicyName.SELECTOR:
        chosen.append(selector_settings(policy))
    for settings in chosen:
        if settings.lost_agent is not None:
            raise lost_error("agent", settings.lost_agent, settings.chosen_by)
        checked_enabled(settings)
        if settings.provider_id is None and settings.lost_provider is None:
            continue
        try:
            visible_provider(session, owner, settings.provider_id or 0)
        except NotFound as error:
            raise lost_provider_error(
                session, owner, settings.provider_id, settings.lost_provider, settings.chosen_by
            ) from error


def checked_policy(
    session: Session, caller: Caller, policy: PolicyName | RoomPolicy, errors: FieldErrors
) -> RoomPolicy:
    """The policy with its options. Adds a problem for options that it does not have."""
    if isinstance(policy, PolicyName):
        return RoomPolicy(name=policy)
    given = [name for name in SELECTOR_OPTIONS if getattr(policy, name) is not None]
    if policy.name == PolicyName.SELECTOR:
        check_provider(session, caller, policy.provider_id, policy.model, "$.policy", errors)
    else:
        for name in given:
            errors.add(
                f"$.policy.{name}",
                f"{policy.name} has no options; the options {', '.join(SELECTOR_OPTIONS)} belong to selector",
            )
    return policy


def check_room_stop(stop: Stop | None, seat_ids: Iterable[int], errors: FieldErrors) -> None:
    """Adds a problem for a stop that is not valid, or that names a seat that the room does not have."""
    if stop is None:
        return
    try:
        check_stop(stop)
        check_size(stop)
    except InvalidInput as error:
        errors.add_all(error.fields)
        return
    known = set(seat_ids)
    for field, seat_id in seats_in(stop):
        if seat_id not in known:
            errors.add(field, f"this room has no seat {seat_id}; add the seat first, then set the stop")


def seats_in(stop: Stop, field: str = "$.stop") -> Iterator[tuple[str, int]]:
    """The seats that a stop names, each with the path of its field."""
    if stop.seat_id is not UNSET:
        yield f"{field}.seat_id", stop.seat_id
    for name, parts in (("any", stop.any), ("all", stop.all)):
        for index, part in enumerate(parts or []):
            yield from seats_in(part, f"{field}.{name}[{index}]")
