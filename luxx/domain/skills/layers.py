"""Which skills a caller has: those of the system, the tenant and a project. Nearer ones hide others.

What a tenant and a project have is kept in memory for a moment. A change is published to the other servers;
one that misses the message reads the rows again after that time.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from threading import Lock
from typing import Any, Generic, TypeVar

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.models import ProjectRow
from luxx.domain.routing.matching import Trigger, TriggerType
from luxx.domain.routing.uses import read_uses
from luxx.domain.skills.files import SkillCopies
from luxx.domain.skills.models import SkillRow, TenantSkillConfigRow
from luxx.domain.skills.registry import SkillDirectories, SkillFolders
from luxx.domain.skills.skill import Skill, SkillPin, SkillScope, SkillSet
from luxx.errors import ConfigError
from luxx.infra.bus.core import Bus, Topic
from luxx.infra.store.tables import table_of
from luxx.tools.core import ToolDefinition, ToolRegistry, ToolSet
from luxx.tools.sources import ToolSource
from luxx.wire.tool import skill_key

KEPT_SECONDS = 2.0
MOST_KEPT = 500
"""Tenants and projects whose skills are kept in memory."""

T = TypeVar("T")
_skills, _configs, _projects = table_of(SkillRow), table_of(TenantSkillConfigRow), table_of(ProjectRow)
_names = msgspec.json.Decoder(list[str])
_triggers = msgspec.json.Decoder(list[Trigger])


class ConfigAction(StrEnum):
    """What a tenant does with a skill of the system."""

    DISABLE = "disable"
    OVERRIDE = "override"


class SkillConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A skill of the system that the tenant has disabled, or replaced by one of its own."""

    system_skill_name: str
    action: ConfigAction
    override_skill_id: str | None = None


class TenantLayer(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant has: its skills, its changes by key, the users whose projects have skills, and how often
    skills were used, by key."""

    skills: tuple[Skill, ...] = ()
    configs: Mapping[str, SkillConfig] = {}
    owners: frozenset[int] = frozenset()
    uses: Mapping[str, int] = {}


class ProjectLayer(msgspec.Struct, frozen=True, kw_only=True):
    """The skills of a project, for its owner."""

    owner_id: int | None
    skills: tuple[Skill, ...] = ()


class _Kept(Generic[T]):
    """Values by key, each for KEPT_SECONDS; those that were read first go first. For several threads."""

    def __init__(self) -> None:
        self._values: OrderedDict[str, tuple[float, T]] = OrderedDict()
        self._cleared = 0
        self._lock = Lock()

    def get(self, key: str, read: Callable[[], T]) -> T:
        kept, cleared, now = self._values.get(key), self._cleared, time.monotonic()
        if kept is not None and kept[0] > now:
            return kept[1]
        value = read()
        with self._lock:
            # A change that was made meanwhile may not be in the value.
            if cleared == self._cleared:
                self._values[key] = (now + KEPT_SECONDS, value)
            while len(self._values) > MOST_KEPT:
                self._values.popitem(last=False)
        return value

    def clear(self) -> None:
        with self._lock:
            self._cleared += 1
            self._values.clear()


class SkillLayers:
    """One per process."""

    def __init__(self, directories: SkillDirectories, copies: SkillCopies, bus: Bus) -> None:
        self.directories = directories
        self.copies = copies
        self._bus = bus
        self._tenants = _Kept[TenantLayer]()
        self._projects = _Kept[ProjectLayer]()
        bus.subscribe(Topic.SKILLS, lambda process, payload: self._forget())

    @property
    def folders(self) -> SkillFolders:
        """The system's skills, which are looked for at most every other second."""
        directories = self.directories
        return directories.current() if time.monotonic() >= directories.next_look else directories.latest

    def has_changed(self) -> None:
        """Call it on the event loop after a change: every server reads the skills again."""
        self._forget()
        self._bus.publish(Topic.SKILLS, b"")

    def _forget(self) -> None:
        self._tenants.clear()
        self._projects.clear()

    def for_caller(self, session: Session, caller: Caller, project_id: str | None = None) -> SkillSet:
        """The skills that a run of the caller, in this project or in none, may have."""
        system = self.folders.skills
        tenant = self.tenant_layer(session, caller.tenant_id)
        project = self._project_skills(session, caller, project_id)
        if not (tenant.skills or tenant.configs or project):
            return system
        user_id = caller.user_id
        own = [skill for skill in tenant.skills if skill.is_listed_for(user_id)]
        replaced = replaced_skills(tenant, own)
        found = {
            skill_key(skill.name): skill
            for skill in system.values()
            if (key := skill_key(skill.name)) not in replaced and not is_disabled(tenant, key)
        }
        for skill in (*own, *(each for each in project if each.is_listed_for(user_id))):
            found[skill_key(skill.name)] = skill
        return SkillSet(found.values(), replaced)

    def for_run(
        self, session: Session, caller: Caller, project_id: str | None, pins: Iterable[SkillPin] | None
    ) -> SkillSet:
        """The skills of a run: those that it began with, if it has begun."""
        now = self.for_caller(session, caller, project_id)
        return now if pins is None else self.copies.restored(session, caller.tenant_id, now, pins)

    def may_have_some(self, session: Session, caller: Caller) -> bool:
        """Whether the caller has skills in some project, or without one."""
        tenant = self.tenant_layer(session, caller.tenant_id)
        return caller.user_id in tenant.owners or not self.for_caller(session, caller).is_empty

    def tenant_layer(self, session: Session, tenant_id: int) -> TenantLayer:
        """What the tenant has."""
        return self._tenants.get(str(tenant_id), lambda: self._read_tenant(session, tenant_id))

    def _project_skills(self, session: Session, caller: Caller, project_id: str | None) -> Sequence[Skill]:
        if project_id is None:
            return ()
        layer = self._projects.get(project_id, lambda: self._read_project(session, project_id))
        return layer.skills if layer.owner_id == caller.user_id else ()

    def _read_tenant(self, session: Session, tenant_id: int) -> TenantLayer:
        of_tenant = _skills.c.tenant_id == tenant_id
        rows = session.execute(
            select(_skills).where(of_tenant, _skills.c.project_id.is_(None)).order_by(_skills.c.name)
        )
        configs = session.execute(select(_configs).where(_configs.c.tenant_id == tenant_id))
        owners = session.scalars(
            select(_projects.c.user_id)
            .distinct()
            .join(_skills, _skills.c.project_id == _projects.c.id)
            .where(of_tenant)
        )
        return TenantLayer(
            skills=tuple(self.skill_of(row) for row in rows),
            configs={row.system_skill_key: config_of(row) for row in configs},
            owners=frozenset(owners),
            uses=read_uses(session, tenant_id, "skill"),
        )

    def _read_project(self, session: Session, project_id: str) -> ProjectLayer:
        owner_id = session.scalar(select(_projects.c.user_id).where(_projects.c.id == project_id))
        rows = session.execute(
            select(_skills).where(_skills.c.project_id == project_id).order_by(_skills.c.name)
        )
        return ProjectLayer(owner_id=owner_id, skills=tuple(self.skill_of(row) for row in rows))

    def skill_of(self, row: Any) -> Skill:
        """A row as a skill."""
        values = {name: getattr(row, name) for name in _PLAIN}
        tools: str | None = row.tools
        return Skill(
            **values,
            scope=SkillScope(row.scope),
            allowed_tools=None if tools is None else tuple(_names.decode(tools)),
            tags=tuple(_names.decode(row.tags)),
            trigger_type=TriggerType(row.trigger_type),
            trigger_patterns=tuple(_triggers.decode(row.triggers)),
            instructions="",
            folder=self.copies.folder(values["tenant_id"], values["digest"]),
            owner_id=row.user_id,
            is_reviewed=row.reviewed_digest == values["digest"],
            was_reviewed=row.reviewed_digest not in (None, values["digest"]),
        )


class SkillTools(ToolSource):
    """The source of the `definitions` of tools for skills, which only a caller with skills has.

    Raises ConfigError if one of the `others` has the name of one of them.
    """

    reads_database = True

    def __init__(self, layers: SkillLayers, definitions: Sequence[ToolDefinition], others: ToolSet) -> None:
        for tool in definitions:
            if others.lookup(tool.name) is not None:
                raise ConfigError(f"there is already a tool named {tool.name}; rename one of them")
        self._layers = layers
        self._tools = ToolRegistry(definitions)
        self._no_tools = ToolRegistry()

    def for_caller(self, session: Session, caller: Caller) -> ToolSet:
        return self._tools if self._layers.may_have_some(session, caller) else self._no_tools


_PLAIN = (
    "id", "tenant_id", "project_id", "name", "display_name", "description", "license", "category", "version",
    "digest", "enabled", "is_for_people", "warning",
)  # fmt: skip


def config_of(row: Any) -> SkillConfig:
    """A row as a change of the tenant."""
    return SkillConfig(
        system_skill_name=row.system_skill_name,
        action=ConfigAction(row.action),
        override_skill_id=row.override_skill_id,
    )


def is_disabled(tenant: TenantLayer, key: str) -> bool:
    """Whether the tenant has disabled the system's skill of this key."""
    config = tenant.configs.get(key)
    return config is not None and config.action == ConfigAction.DISABLE


def replaced_skills(tenant: TenantLayer, listed: Iterable[Skill]) -> dict[str, Skill]:
    """The system's skills that one of the listed skills of the tenant stands for, by key."""
    by_id = {skill.id: skill for skill in listed}
    return {
        key: by_id[config.override_skill_id]
        for key, config in tenant.configs.items()
        if config.override_skill_id in by_id
    }
