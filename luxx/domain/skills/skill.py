"""A skill as a run may use it, whichever layer it comes from, and the set of those that a run has."""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from functools import cached_property
from pathlib import Path

import msgspec

from luxx.domain.routing.matching import RoutedItem
from luxx.domain.skills.document import SkillDocument
from luxx.wire.tool import skill_key


class SkillScope(StrEnum):
    """The layers, from the farthest to the nearest."""

    SYSTEM = "system"
    TENANT = "tenant"
    PROJECT = "project"

    @property
    def distance(self) -> int:
        """0 for the nearest layer. A nearer one hides the farther ones."""
        return _NEAREST_FIRST.index(self)


_NEAREST_FIRST = tuple(reversed(SkillScope))


SYSTEM_ID = "system:"
"""What the ids of the system's skills begin with; their names follow."""


class Skill(SkillDocument, frozen=True, kw_only=True):
    """A skill that can be activated. `folder` is a path of the host, which no API or model sees.

    Of a tenant's or project's skill the folder is a copy that is made when it is needed (`files.py`), and
    `instructions` are empty: they are read there. `owner_id`: who made it.
    `was_reviewed`: an ADMIN has reviewed other files of it, and not the present ones.
    """

    id: str
    scope: SkillScope
    digest: str
    folder: Path
    tenant_id: int | None = None
    project_id: str | None = None
    owner_id: int | None = None
    is_reviewed: bool = True
    was_reviewed: bool = False
    enabled: bool = True
    warning: str | None = None

    def is_listed_for(self, user_id: int) -> bool:
        """Whether runs of this user may have it: only its owner's do while no ADMIN has reviewed it."""
        return self.enabled and (self.is_reviewed or self.owner_id == user_id)


class BrokenSkill(msgspec.Struct, frozen=True, kw_only=True):
    """A folder without a usable skill; `problem` says why."""

    name: str
    problem: str


class SkillSet(Mapping[str, Skill]):
    """Skills by name, in the order of their layers; `_` and `-` are equal in names.

    `replaced`: other names under which a skill is found too, in the form in which names are compared.
    """

    def __init__(self, skills: Iterable[Skill] = (), replaced: Mapping[str, Skill] | None = None) -> None:
        self._listed = {skill_key(skill.name): skill for skill in skills}
        self._found = {**(replaced or {}), **self._listed}
        self.is_empty = not self._listed
        self.listed = tuple(self._listed.values())

    @cached_property
    def routed(self) -> tuple[RoutedItem, ...]:
        """The skills as requests are matched with them: those that a model may activate."""
        return tuple(
            RoutedItem(
                kind="skill",
                id=skill.id,
                name=skill.name,
                description=skill.description,
                scope=skill.scope,
                trigger_type=skill.trigger_type,
                triggers=tuple(skill.trigger_patterns),
            )
            for skill in self.listed
            if not skill.is_for_people
        )

    @cached_property
    def pins(self) -> list["SkillPin"]:
        """The texts that the skills have now."""
        names = SkillPin.__struct_fields__
        return [SkillPin(**{name: getattr(skill, name) for name in names}) for skill in self.listed]

    def __getitem__(self, name: str) -> Skill:
        return self._found[skill_key(name)]

    def __iter__(self) -> Iterator[str]:
        return (skill.name for skill in self._listed.values())

    def __len__(self) -> int:
        return len(self._listed)

    def named(self, names: Iterable[str] | None) -> list[Skill]:
        """All skills, or those of these names, in the order of the set."""
        if names is None:
            return list(self.listed)
        wanted = {self[name].id for name in names if name in self}
        return [skill for skill in self.listed if skill.id in wanted]

    def only(self, names: Iterable[str]) -> "SkillSet":
        """The set with the skills of these names alone."""
        named = self.named(names)
        ids = {skill.id for skill in named}
        replaced = {key: skill for key, skill in self._found.items() if skill.id in ids}
        return SkillSet(named, replaced)


NO_SKILLS = SkillSet()


class SkillPin(msgspec.Struct, frozen=True, kw_only=True):
    """A skill as a run began with it."""

    name: str
    scope: SkillScope
    digest: str
    is_reviewed: bool
