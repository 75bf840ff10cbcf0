"""/skills: the skills of this server, and what is wrong with those that cannot be used."""

import msgspec
from litestar import Controller, get
from litestar.di import NamedDependency

from luxx.api.envelope import Page, Success, success
from luxx.api.parameters import GivenCaller, PageNumber, PageSize
from luxx.skills.folder import Skill
from luxx.skills.shelf import Shelf


class SkillView(msgspec.Struct, frozen=True, kw_only=True):
    """`allowed_tools` null: it leaves the tools of a run as they are. With a `problem` it cannot be used."""

    name: str
    description: str | None = None
    allowed_tools: list[str] | None = None
    license: str | None = None
    problem: str | None = None


class SkillController(Controller):
    path = "/skills"
    tags = ("skills",)

    @get(summary="The skills of this server")
    async def list_skills(
        self,
        caller: GivenCaller,
        shelf: NamedDependency[Shelf],
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[SkillView]]:
        """By name within each directory, in the order of the directories; what is broken comes last."""
        views = [_view(skill) for skill in shelf.skills.values()]
        views += [SkillView(name=one.name, problem=one.problem) for one in shelf.broken]
        first = (page - 1) * page_size
        items = views[first : first + page_size]
        return success(Page(items=items, total=len(views), page=page, page_size=page_size))


def _view(skill: Skill) -> SkillView:
    return SkillView(
        name=skill.name,
        description=skill.description,
        allowed_tools=None if skill.allowed_tools is None else list(skill.allowed_tools),
        license=skill.license,
    )
