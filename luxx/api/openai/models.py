"""The names of models: `provider/model`, `agent/name`, `room/title`; what a name means, and the list of all.

A provider's list of models is asked for at most every LIST_SECONDS.
"""

import asyncio
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

import msgspec

from luxx.domain.accounts.caller import Caller
from luxx.domain.agents.service import AgentService
from luxx.errors import AmbiguousName, InvalidInput, LuxxError, NotAllowed, NotFound
from luxx.features.rooms.models import RoomRight
from luxx.features.rooms.queries import is_right_enough
from luxx.features.rooms.service import RoomService
from luxx.providers.catalog import can_chat
from luxx.providers.models import UsableProvider
from luxx.providers.service import ProviderService

AGENT, ROOM = "agent/", "room/"
ID = re.compile(r"[1-9][0-9]{0,8}")
LIST_SECONDS = 300.0
RETRY_SECONDS = 15.0
"""After a failure the list is asked for again this soon."""

WAIT_SECONDS = 5.0
"""How long a request waits for the list of a provider; a later one gets the list."""

MAX_LISTED = 100
"""How many of the newest agents and of the newest rooms are listed."""

MAX_SHOWN = 5
_created = datetime.fromisoformat("2026-01-01T00:00:00+00:00")


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A name that requests can give as `model`. `created` is in Unix seconds; `owned_by` is the provider's
    name, `agent` or `room`."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The names that requests can give as `model`."""

    object: Literal["list"] = "list"
    data: list[ModelEntry]


class ProviderModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of a provider."""

    provider_id: int
    model: str


class AgentModel(msgspec.Struct, frozen=True, kw_only=True):
    """An agent."""

    agent_id: int


class RoomModel(msgspec.Struct, frozen=True, kw_only=True):
    """A room."""

    room_id: str


NamedModel = ProviderModel | AgentModel | RoomModel


@dataclass(slots=True)
class ModelNames:
    """One per process."""

    providers: ProviderService
    agents: AgentService
    rooms: RoomService
    _lists: dict[tuple[int, datetime], tuple[float, list[str]]] = field(
        default_factory=dict[tuple[int, datetime], tuple[float, list[str]]]
    )

    async def find(self, caller: Caller, name: str) -> NamedModel:
        """What the name means to the caller. Raises NotFound or, for an ambiguous name, InvalidInput."""
        if name.startswith(AGENT):
            return await self._agent(caller, name)
        if name.startswith(ROOM):
            return await self._room(caller, name)
        providers = await self.providers.usable(caller)
        labels = _labels(providers)
        prefixed = [
            one
            for one in providers
            if len(name) > len(prefix := f"{labels[one.id]}/") and name.startswith(prefix)
        ]
        if prefixed:
            provider = max(prefixed, key=lambda one: len(labels[one.id]))
            return ProviderModel(provider_id=provider.id, model=name.removeprefix(f"{labels[provider.id]}/"))
        same = [one for one in providers if name.startswith(f"{one.name}/")]
        if len(same) > 1:
            raise _ambiguous(
                f"several providers are named {same[0].name!r}",
                [f"{one.id}/{name.removeprefix(f'{one.name}/')}" for one in same],
            )
        return await self._bare(caller, name, providers)

    async def list_all(self, caller: Caller) -> ModelList:
        """The models of all providers that the caller may use, the agents, and the rooms that can answer."""
        providers = await self.providers.usable(caller)
        labels = _labels(providers)
        lists = await asyncio.gather(*(self._models(caller, one) for one in providers))
        entries = {
            f"{labels[provider.id]}/{model}": ModelEntry(
                id=f"{labels[provider.id]}/{model}",
                created=int(provider.updated_at.timestamp()),
                owned_by=provider.name,
            )
            for provider, models in zip(providers, lists, strict=True)
            for model in models
        }
        agents, _ = await self.agents.list_page(caller, page=1, page_size=MAX_LISTED)
        for agent in agents:
            id_, created = f"{AGENT}{agent.name}", int(agent.created_at.timestamp())
            entries.setdefault(id_, ModelEntry(id=id_, created=created, owned_by="agent"))
        for entry in await self._listed_rooms(caller):
            entries.setdefault(entry.id, entry)
        return ModelList(data=list(entries.values()))

    async def entry(self, caller: Caller, name: str) -> ModelEntry:
        """The entry of one name. Raises what `find` raises."""
        listed = await self.list_all(caller)
        for entry in listed.data:
            if entry.id == name:
                return entry
        await self.find(caller, name)
        return ModelEntry(id=name, created=int(_created.timestamp()), owned_by=name.partition("/")[0])

    async def _agent(self, caller: Caller, name: str) -> AgentModel:
        named = name.removeprefix(AGENT)
        try:
            try:
                agent = await self.agents.named(caller, named)
            except NotFound:
                if not ID.fullmatch(named):
                    raise
                agent = await self.agents.get(caller, int(named))
        except NotFound as error:
            raise _unknown(name, "GET /v1/models lists your agents") from error
        except AmbiguousName as error:
            names = [f"{AGENT}{agent_id}" for agent_id in error.detail["ids"]]
            raise _ambiguous(f"several agents are named {named[:200]!r}", names) from error
        return AgentModel(agent_id=agent.id)

    async def _room(self, caller: Caller, name: str) -> RoomModel:
        title = name.removeprefix(ROOM)
        found = await self.rooms.named(caller, title)
        if not found:
            raise _unknown(name, "GET /v1/models lists your rooms")
        usable = [room for room in found if is_right_enough(room.right, RoomRight.STEER)]
        if not usable:
            problem = (
                "you must have the right to steer this room to call it; yours is the right to "
                f"{found[0].right.value}; its owner can change it"
            )
            raise NotAllowed(problem, field="$.model")
        if len(usable) > 1:
            names = [f"{ROOM}{room.id}" for room in usable]
            raise _ambiguous(f"several rooms have the title {title[:200]!r}", names)
        return RoomModel(room_id=usable[0].id)

    async def _listed_rooms(self, caller: Caller) -> list[ModelEntry]:
        """The newest rooms that can answer, by title; those with the same title by id."""
        rooms = await self.rooms.answering(caller, limit=MAX_LISTED)
        titles = Counter(room.title for room in rooms)
        return [
            ModelEntry(
                id=f"{ROOM}{room.title if titles[room.title] == 1 else room.id}",
                created=int(room.created_at.timestamp()),
                owned_by="room",
            )
            for room in rooms
        ]

    async def _bare(self, caller: Caller, name: str, providers: list[UsableProvider]) -> ProviderModel:
        lists = await asyncio.gather(*(self._models(caller, one) for one in providers))
        having = [one for one, models in zip(providers, lists, strict=True) if name in models]
        if not having:
            raise _unknown(name, "name it as provider/model; GET /v1/models lists the names")
        if len(having) > 1:
            labels = _labels(providers)
            names = [f"{labels[one.id]}/{name}" for one in having]
            raise _ambiguous(f"several providers have the model {name[:200]}", names)
        return ProviderModel(provider_id=having[0].id, model=name)

    async def _models(self, caller: Caller, provider: UsableProvider) -> list[str]:
        """The models of a provider, its default first; the default alone if the provider does not answer."""
        key = (provider.id, provider.updated_at)
        asked_at, names = self._lists.get(key, (-LIST_SECONDS, []))
        now = time.monotonic()
        if now - asked_at >= LIST_SECONDS and not provider.is_embedded:
            try:
                async with asyncio.timeout(WAIT_SECONDS):
                    listed = (await self.providers.list_models(caller, provider.id)).models
                    names = [name for name in listed if can_chat(name)]
            except (LuxxError, TimeoutError):
                now += RETRY_SECONDS - LIST_SECONDS
            self._lists = {old: kept for old, kept in self._lists.items() if old[0] != provider.id}
            self._lists[key] = (now, names)
        default = [provider.default_model] if provider.default_model else []
        return list(dict.fromkeys([*default, *names]))


def _labels(providers: list[UsableProvider]) -> dict[int, str]:
    """What names each provider: its name, or its id where another has the same name. A user's own provider
    comes before a shared one of the same name."""
    labels: dict[int, str] = {}
    for provider in providers:
        same = [one for one in providers if one.name == provider.name]
        matching = [one for one in same if one.is_own] or same
        labels[provider.id] = provider.name if matching == [provider] else str(provider.id)
    return labels


def _ambiguous(problem: str, names: list[str]) -> InvalidInput:
    text = f"{problem}; name one of {', '.join(names[:MAX_SHOWN])}"
    return InvalidInput(text, kind="model_ambiguous", field="$.model")


def _unknown(name: str, advice: str) -> NotFound:
    problem = f"the model {name[:200]!r} does not exist, or you may not use it; {advice}"
    return NotFound(problem, kind="model_not_found", field="$.model")
