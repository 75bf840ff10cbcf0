"""Skills as the API shows them to one caller: also hidden, disabled and unusable ones."""

from typing import Annotated

import msgspec
from msgspec import Meta
from sqlalchemy import select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.models import ProjectRow
from luxx.domain.routing.matching import Trigger, TriggerType
from luxx.domain.skills.layers import SkillLayers, is_disabled, replaced_skills
from luxx.domain.skills.models import SkillRow
from luxx.domain.skills.skill import SYSTEM_ID, BrokenSkill, Skill, SkillScope
from luxx.domain.skills.tools import allowed_here
from luxx.wire.tool import skill_key


class SkillView(msgspec.Struct, frozen=True, kw_only=True):
    """`tools` null: the skill does not limit the tools of a run. With a `problem` it is unusable."""

    id: str
    name: str
    display_name: str | None = None
    description: str | None = None
    scope: SkillScope
    project_id: str | None = None
    trigger_type: TriggerType = TriggerType.HYBRID
    trigger_patterns: list[Trigger] = []
    tools: list[str] | None = None
    category: str | None = None
    tags: list[str] = []
    version: str | None = None
    license: str | None = None
    unknown_tools: Annotated[
        list[str], Meta(description="entries of its tools that name no tool of this server")
    ] = []
    enabled: bool = True
    is_system_skill: bool
    is_disabled: bool = False
    is_overridden: bool = False
    is_reviewed: bool = False
    was_reviewed: bool = False
    hides: str | None = None
    is_own: bool = False
    is_for_people: bool = False
    digest: str | None = None
    warning: str | None = None
    problem: str | None = None


class Viewer:
    """The skills of one caller, seen from a project or from none. `names`: of the caller's tools."""

    def __init__(
        self, layers: SkillLayers, session: Session, caller: Caller, project_id: str | None, names: list[str]
    ) -> None:
        self._layers = layers
        self._session = session
        self._caller = caller
        self._project_id = project_id
        self._names = names
        self._tenant = layers.tenant_layer(session, caller.tenant_id)
        listed = [skill for skill in self._tenant.skills if skill.is_listed_for(caller.user_id)]
        self._replaced = replaced_skills(self._tenant, listed)
        self._of_runs = layers.for_caller(session, caller, project_id)

    def listed(self, scope: SkillScope | None) -> list[Skill | BrokenSkill]:
        """The skills of a layer, or of all, by layer and name; unusable folders come last in theirs."""
        found: list[Skill | BrokenSkill] = []
        if scope in (None, SkillScope.SYSTEM):
            folders = self._layers.folders
            found += [*folders.skills.values(), *folders.broken]
        if scope in (None, SkillScope.TENANT):
            found += self._tenant.skills
        if scope == SkillScope.PROJECT or (scope is None and self._project_id is not None):
            found += self._of_projects()
        return found

    def _of_projects(self) -> list[Skill]:
        is_own = ProjectRow.user_id == self._caller.user_id
        query = select(SkillRow).join(ProjectRow, ProjectRow.id == SkillRow.project_id).where(is_own)
        if self._project_id is not None:
            query = query.where(SkillRow.project_id == self._project_id)
        rows = self._session.scalars(query.order_by(SkillRow.project_id, SkillRow.name))
        return [self._layers.skill_of(row) for row in rows]

    def view_of(self, skill: Skill | BrokenSkill) -> SkillView:
        """A skill with what hides it."""
        if isinstance(skill, BrokenSkill):
            return SkillView(
                id=f"{SYSTEM_ID}{skill.name}",
                name=skill.name,
                scope=SkillScope.SYSTEM,
                is_system_skill=True,
                problem=skill.problem,
            )
        key, is_system = skill_key(skill.name), skill.scope == SkillScope.SYSTEM
        nearer = self._of_runs.get(skill.name)
        hides = nearer is not None and nearer.id != skill.id and nearer.scope.distance < skill.scope.distance
        allowed = allowed_here(skill.allowed_tools, self._names)
        return SkillView(
            id=skill.id,
            name=skill.name,
            display_name=skill.display_name,
            description=skill.description,
            scope=skill.scope,
            project_id=skill.project_id,
            trigger_type=skill.trigger_type,
            trigger_patterns=list(skill.trigger_patterns),
            tools=None if allowed.entries is None else list(allowed.entries),
            category=skill.category,
            tags=list(skill.tags),
            version=skill.version,
            license=skill.license,
            unknown_tools=list(allowed.unknown),
            enabled=skill.enabled,
            is_system_skill=is_system,
            is_disabled=is_system and is_disabled(self._tenant, key),
            is_overridden=hides or (is_system and key in self._replaced),
            is_reviewed=skill.is_reviewed,
            was_reviewed=skill.was_reviewed,
            hides=None if (hidden := self.hidden_by(skill)) is None else hidden.id,
            is_own=skill.owner_id == self._caller.user_id,
            is_for_people=skill.is_for_people,
            digest=skill.digest,
            warning=skill.warning,
        )

    def hidden_by(self, skill: Skill) -> Skill | None:
        """The skill for which this one stands where both may be used: of its name in the next farther layer,
        or the one of the system that the tenant replaced by it."""
        system = self._layers.folders.skills
        if skill.scope == SkillScope.SYSTEM:
            return None
        if skill.scope == SkillScope.PROJECT:
            key = skill_key(skill.name)
            of_tenant = (each for each in self._tenant.skills if skill_key(each.name) == key)
            return next(of_tenant, system.get(skill.name))
        configs = self._tenant.configs.values()
        replaced = [each.system_skill_name for each in configs if each.override_skill_id == skill.id]
        return system.get(replaced[0] if replaced else skill.name)
