"""`/projects`: make, list, show, change, delete; and the conversations of one."""

from typing import Annotated

import msgspec
from litestar import Controller, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import UNSET, Meta, UnsetType

from luxx.api.envelope import Page, Success, success
from luxx.api.parameters import GivenCaller, PageNumber, PageSize, TextId
from luxx.conversations.listing import ConversationFilter
from luxx.conversations.projects import ProjectChange, ProjectService, ProjectView
from luxx.conversations.service import ConversationService
from luxx.conversations.views import ConversationView

Name = Annotated[str, Meta(min_length=1, max_length=200)]
Description = Annotated[str, Meta(max_length=10_000)]


class ProjectBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Two projects may have the same name."""

    name: Name
    description: Description = ""


class ProjectChangeBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A field left out stays as it is."""

    name: Name | UnsetType = UNSET
    description: Description | UnsetType = UNSET


class ProjectController(Controller):
    path = "/projects"
    tags = ("projects",)

    @get()
    async def list_projects(
        self,
        caller: GivenCaller,
        projects: NamedDependency[ProjectService],
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[ProjectView]]:
        """Your projects, newest first."""
        items, total = await projects.list_page(caller, page=page, page_size=page_size)
        return success(Page(items=items, total=total, page=page, page_size=page_size))

    @post(status_code=201)
    async def create(
        self, caller: GivenCaller, projects: NamedDependency[ProjectService], data: JSONBody[ProjectBody]
    ) -> Success[ProjectView]:
        """A new project."""
        made = await projects.create(caller, name=data.name, description=data.description)
        return success(made, "created")

    @get("/{project_id:str}")
    async def show(
        self, caller: GivenCaller, projects: NamedDependency[ProjectService], project_id: TextId
    ) -> Success[ProjectView]:
        """One project."""
        return success(await projects.get(caller, project_id))

    @put("/{project_id:str}")
    async def change(
        self,
        caller: GivenCaller,
        projects: NamedDependency[ProjectService],
        project_id: TextId,
        data: JSONBody[ProjectChangeBody],
    ) -> Success[ProjectView]:
        """Set what is given."""
        changes = ProjectChange(name=data.name, description=data.description)
        return success(await projects.update(caller, project_id, changes), "saved")

    @delete("/{project_id:str}", status_code=200)
    async def delete(
        self, caller: GivenCaller, projects: NamedDependency[ProjectService], project_id: TextId
    ) -> Success[None]:
        """Delete a project; its conversations stay and belong to none."""
        await projects.delete(caller, project_id)
        return success(None, "deleted")

    @get("/{project_id:str}/conversations")
    async def list_conversations(
        self,
        caller: GivenCaller,
        projects: NamedDependency[ProjectService],
        conversations: NamedDependency[ConversationService],
        project_id: TextId,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[ConversationView]]:
        """The conversations of a project, newest first."""
        await projects.get(caller, project_id)
        wanted = ConversationFilter(project_id=project_id)
        items, total = await conversations.list_page(caller, wanted, page=page, page_size=page_size)
        return success(Page(items=items, total=total, page=page, page_size=page_size))
