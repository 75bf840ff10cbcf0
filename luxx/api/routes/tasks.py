"""`/tasks` and `/task-templates`: goals as graphs of steps, their export and import, templates."""

from typing import Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, Response, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec import Meta

from luxx.api.http.authentication import CHAT
from luxx.api.http.envelope import Page, Success, page_of, success
from luxx.api.http.files import document_response
from luxx.api.http.request_input import (
    OPENAPI_EXTRA,
    DocumentFormat,
    GivenDocument,
    InjectedCaller,
    PageNumber,
    PageSize,
    TextId,
    document_body,
    parse_document,
)
from luxx.features.tasks.document import TaskDocument
from luxx.features.tasks.graph import TaskGraphView
from luxx.features.tasks.models import (
    MAX_DOCUMENT_CHARACTERS,
    MAX_STEPS,
    NewTask,
    NewTaskStep,
    NewTaskSteps,
    TaskChanges,
    TaskStatus,
    TaskStepChanges,
    TaskStepView,
    TaskSummary,
    TaskTime,
    TaskVersion,
    TaskVersionSummary,
    TaskView,
)
from luxx.features.tasks.queries import TaskFilter, TaskOrder
from luxx.features.tasks.service import TaskService
from luxx.features.tasks.templates import (
    NewTaskTemplate,
    TaskFromTemplate,
    TaskTemplateChanges,
    TaskTemplateService,
    TaskTemplateSummary,
    TaskTemplateView,
)

InjectedTasks = NamedDependency[TaskService]
InjectedTemplates = NamedDependency[TaskTemplateService]
GraphFormat = Annotated[
    Literal["json", "mermaid", "dot"],
    QueryParameter(description="`mermaid` and `dot`: a drawing, as text without the envelope"),
]
StatusFilter = Annotated[TaskStatus | None, QueryParameter(description="only tasks with this status")]
ProjectFilter = Annotated[str | None, QueryParameter(max_length=64, description="only tasks of this project")]
TextFilter = Annotated[
    str | None, QueryParameter(max_length=300, description="a part of the name or the goal")
]

PriorityFilter = Annotated[
    int | None, QueryParameter(ge=1, le=5, description="only tasks of this priority; 1 is the most urgent")
]
DueFilter = Annotated[TaskTime | None, QueryParameter(description="only tasks with an earlier `due_at`")]
SnoozedFilter = Annotated[
    bool, QueryParameter(description="also tasks whose `snoozed_until` has not come; others are left out")
]
OrderChoice = Annotated[
    TaskOrder,
    QueryParameter(description="`priority` and `due`: the most urgent first; the newest first among equals"),
]

GRAPH_MEDIA = {"mermaid": "text/vnd.mermaid", "dot": "text/vnd.graphviz"}
DOCUMENT_BODY = document_body("TaskDocument", "the document of GET /tasks/{task_id}/export")


class AddedSteps(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Steps to add. They may depend on each other and on the steps that the task has."""

    steps: Annotated[list[NewTaskStep], Meta(min_length=1, max_length=MAX_STEPS)]


class ReplacedGraph(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All steps of a task."""

    steps: NewTaskSteps


class TaskController(Controller):
    path = "/tasks"
    tags = ("tasks",)
    opt = CHAT

    @get()
    async def list_tasks(
        self,
        caller: InjectedCaller,
        tasks: InjectedTasks,
        status: StatusFilter = None,
        project_id: ProjectFilter = None,
        q: TextFilter = None,
        priority: PriorityFilter = None,
        due_before: DueFilter = None,
        snoozed: SnoozedFilter = False,
        order: OrderChoice = TaskOrder.NEWEST,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[TaskSummary]]:
        """Your tasks that match all filters, newest first by default, without their steps."""
        task_filter = TaskFilter(
            status=status, project_id=project_id, q=q, priority=priority, due_before=due_before,
            snoozed=snoozed, order=order,
        )  # fmt: skip
        found = await tasks.list_page(caller, task_filter, page=page, page_size=page_size)
        return page_of(found, page, page_size)

    @post(status_code=201)
    async def create(
        self, caller: InjectedCaller, tasks: InjectedTasks, data: JSONBody[NewTask]
    ) -> Success[TaskView]:
        """Create a task, with its steps or without. A wrong graph is refused with every problem."""
        return success(await tasks.create(caller, data), "task created")

    @get("/{task_id:str}")
    async def show(self, caller: InjectedCaller, tasks: InjectedTasks, task_id: TextId) -> Success[TaskView]:
        """One task with its steps."""
        return success(await tasks.get(caller, task_id))

    @put("/{task_id:str}")
    async def change(
        self, caller: InjectedCaller, tasks: InjectedTasks, task_id: TextId, data: JSONBody[TaskChanges]
    ) -> Success[TaskView]:
        """Change the given fields of a task. A run in progress keeps the values it started with."""
        return success(await tasks.update(caller, task_id, data), "task saved")

    @delete("/{task_id:str}", status_code=200)
    async def remove(self, caller: InjectedCaller, tasks: InjectedTasks, task_id: TextId) -> Success[None]:
        """Delete a task with its steps, versions and runs, and stop its run."""
        await tasks.delete(caller, task_id)
        return success(None, "task deleted")

    @post("/{task_id:str}/steps", status_code=201)
    async def add_steps(
        self, caller: InjectedCaller, tasks: InjectedTasks, task_id: TextId, data: JSONBody[AddedSteps]
    ) -> Success[TaskView]:
        """Add steps behind the others. 409 while a run of the task is in progress."""
        return success(await tasks.add_steps(caller, task_id, data.steps), "steps added")

    @put("/{task_id:str}/steps/{step_id:str}")
    async def change_step(
        self,
        caller: InjectedCaller,
        tasks: InjectedTasks,
        task_id: TextId,
        step_id: FromPath[str],
        data: JSONBody[TaskStepChanges],
    ) -> Success[TaskStepView]:
        """Change the given fields of a step. 409 while a run of the task is in progress.

        A change of what the step does makes it `pending` again, with all that depends on it."""
        return success(await tasks.update_step(caller, task_id, step_id, data), "step saved")

    @delete("/{task_id:str}/steps/{step_id:str}", status_code=200)
    async def remove_step(
        self, caller: InjectedCaller, tasks: InjectedTasks, task_id: TextId, step_id: FromPath[str]
    ) -> Success[None]:
        """Delete a step on which no other depends. 409 while a run of the task is in progress."""
        await tasks.delete_step(caller, task_id, step_id)
        return success(None, "step deleted")

    @put("/{task_id:str}/graph")
    async def replace_graph(
        self, caller: InjectedCaller, tasks: InjectedTasks, task_id: TextId, data: JSONBody[ReplacedGraph]
    ) -> Success[TaskView]:
        """Replace all steps, also to restore a version. 409 while a run of the task is in progress.

        A step with the same id keeps its results unless it, or a step before it, has changed."""
        return success(await tasks.replace_graph(caller, task_id, data.steps), "graph replaced")

    @get("/{task_id:str}/graph")
    async def graph(
        self, caller: InjectedCaller, tasks: InjectedTasks, task_id: TextId, format: GraphFormat = "json"
    ) -> Response[Success[TaskGraphView]]:
        """The graph of a task: edges, levels, order and the chain that takes longest, or a drawing."""
        if format == "json":
            return Response(success(await tasks.graph(caller, task_id)))
        graph = await tasks.plain_graph(caller, task_id)
        drawing: Any = graph.mermaid() if format == "mermaid" else graph.dot()
        return Response(drawing, media_type=GRAPH_MEDIA[format])

    @get("/{task_id:str}/ready-steps")
    async def ready_steps(
        self, caller: InjectedCaller, tasks: InjectedTasks, task_id: TextId
    ) -> Success[list[TaskStepView]]:
        """The pending steps whose dependencies are all completed."""
        return success(await tasks.ready_steps(caller, task_id))

    @get("/{task_id:str}/versions")
    async def versions(
        self,
        caller: InjectedCaller,
        tasks: InjectedTasks,
        task_id: TextId,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[TaskVersionSummary]]:
        """The graphs that the task had before its changes, newest first."""
        return page_of(await tasks.versions(caller, task_id, page=page, page_size=page_size), page, page_size)

    @get("/{task_id:str}/versions/{number:int}")
    async def version(
        self, caller: InjectedCaller, tasks: InjectedTasks, task_id: TextId, number: FromPath[int]
    ) -> Success[TaskVersion]:
        """One earlier graph; send its `steps` to `PUT /tasks/{task_id}/graph` to restore it."""
        return success(await tasks.version(caller, task_id, number))

    @get("/{task_id:str}/export")
    async def export(
        self, caller: InjectedCaller, tasks: InjectedTasks, task_id: TextId, format: DocumentFormat = "yaml"
    ) -> Response[str]:
        """The task as a YAML or JSON document, with the names of agents and providers, without results."""
        return await document_response(await tasks.export(caller, task_id), format)

    @post("/import", status_code=201, opt={OPENAPI_EXTRA: DOCUMENT_BODY})
    async def import_task(
        self, request: Request[Any, Any, Any], caller: InjectedCaller, tasks: InjectedTasks
    ) -> Success[TaskView]:
        """Create a task from a document: JSON with `Content-Type: application/json`, else YAML."""
        is_json = request.headers.get("content-type", "").partition(";")[0].strip() == "application/json"
        given = await parse_document(
            await request.body(), TaskDocument, max_characters=MAX_DOCUMENT_CHARACTERS, is_json=is_json
        )
        return success(await tasks.import_task(caller, given.document, given.wrong), "task created")


class TaskTemplateController(Controller):
    path = "/task-templates"
    tags = ("tasks",)
    opt = CHAT

    @get()
    async def list_templates(
        self,
        caller: InjectedCaller,
        task_templates: InjectedTemplates,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[TaskTemplateSummary]]:
        """Your task templates and those shared in the tenant, newest first, without their documents."""
        found = await task_templates.list_page(caller, page=page, page_size=page_size)
        return page_of(found, page, page_size)

    @post(status_code=201)
    async def create_template(
        self,
        caller: InjectedCaller,
        task_templates: InjectedTemplates,
        data: JSONBody[GivenDocument[NewTaskTemplate]],
    ) -> Success[TaskTemplateView]:
        """Create a template from the document of a task. Only an ADMIN may share it."""
        return success(await task_templates.create(caller, data.document, data.wrong), "template created")

    @get("/{template_id:str}")
    async def show_template(
        self, caller: InjectedCaller, task_templates: InjectedTemplates, template_id: TextId
    ) -> Success[TaskTemplateView]:
        """One template with its document."""
        return success(await task_templates.get(caller, template_id))

    @put("/{template_id:str}")
    async def change_template(
        self,
        caller: InjectedCaller,
        task_templates: InjectedTemplates,
        template_id: TextId,
        data: JSONBody[GivenDocument[TaskTemplateChanges]],
    ) -> Success[TaskTemplateView]:
        """Change the given fields of a template.

        Of a template that another ADMIN shares, an ADMIN may only change `is_shared`."""
        return success(
            await task_templates.update(caller, template_id, data.document, data.wrong), "template saved"
        )

    @delete("/{template_id:str}", status_code=200)
    async def remove_template(
        self, caller: InjectedCaller, task_templates: InjectedTemplates, template_id: TextId
    ) -> Success[None]:
        """Delete a template. The tasks that were created from it stay."""
        await task_templates.delete(caller, template_id)
        return success(None, "template deleted")

    @post("/{template_id:str}/instantiate", status_code=201)
    async def instantiate(
        self,
        caller: InjectedCaller,
        task_templates: InjectedTemplates,
        template_id: TextId,
        data: JSONBody[TaskFromTemplate],
    ) -> Success[TaskView]:
        """Create a task from a template. Agents, providers, tools and skills that it names must be yours."""
        return success(await task_templates.instantiate(caller, template_id, data), "task created")
