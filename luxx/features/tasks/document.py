"""A task as a YAML or JSON document, for other servers: agents and providers by name, no results.

An import finds the ids of the names for a caller, who must be allowed to use what they name.

`docs/task.schema.json` is the JSON schema of the document; a test compares it with `document_schema()`.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict
from sqlalchemy import select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.agents.document import ProviderName
from luxx.domain.agents.models import AgentName, AgentRow, ToolNames
from luxx.domain.agents.queries import AGENTS, agent_named
from luxx.errors import AmbiguousName, LuxxError, NotFound
from luxx.features.tasks.models import (
    MAX_STEPS,
    ConcurrentSteps,
    NewTask,
    NewTaskStep,
    Priority,
    TaskGoal,
    TaskName,
    TaskRow,
    TaskStepId,
    TaskStepIds,
    TaskStepText,
)
from luxx.features.tasks.queries import definition_of, step_rows, task_fields
from luxx.infra.field_errors import FieldErrors
from luxx.providers.queries import provider_name, provider_named

VERSION = 1


class TaskStepDocument(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A step of a graph. `goal` left out: the name. `agent` left out: the agent of the task."""

    id: TaskStepId
    name: TaskName
    goal: TaskStepText = ""
    depends_on: TaskStepIds = []
    agent: AgentName | None = None
    required_skills: ToolNames | None = None
    required_tools: ToolNames | None = None
    expected_output: TaskStepText | None = None
    thought_prompt: TaskStepText | None = None
    require_approval: bool = False


class TaskDocument(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A task: its goal and the graph of its steps. `agent`, `provider` left out: the user's defaults.

    A document has no times: it may be imported at any time.
    """

    version: Annotated[int, Meta(ge=VERSION, le=VERSION)]
    name: TaskName
    goal: TaskGoal
    provider: ProviderName | None = None
    agent: AgentName | None = None
    max_concurrent_steps: ConcurrentSteps = 5
    require_approval: bool = False
    metadata: dict[str, Any] = {}
    priority: Priority = 3
    steps: Annotated[list[TaskStepDocument], Meta(max_length=MAX_STEPS)] = []


def new_task_of(session: Session, caller: Caller, document: TaskDocument, errors: FieldErrors) -> NewTask:
    """The task to create, with the ids of this server. Adds an error for each name of an agent or a provider
    that the caller does not have, or has twice; the task is without them."""
    ids: dict[str, int | LuxxError] = {}

    def agent_id_of(name: str | None, path: str) -> int | None:
        if name is None:
            return None
        key = name.strip().lower()
        if key not in ids:
            try:
                ids[key] = agent_named(session, caller, name).id
            except (NotFound, AmbiguousName) as error:
                ids[key] = error
        found = ids[key]
        if isinstance(found, LuxxError):
            errors.add(path, found.message)
            return None
        return found

    def provider_id_of(name: str) -> int | None:
        return errors.named("$.provider", lambda: provider_named(session, caller, name, "$.provider").id)

    values = {name: value for name, value in asdict(document).items() if name in NewTask.__struct_fields__}
    values["provider_id"] = None if document.provider is None else provider_id_of(document.provider)
    values["agent_id"] = agent_id_of(document.agent, "$.agent")
    values["steps"] = [
        NewTaskStep(
            agent_id=agent_id_of(step.agent, f"$.steps[{index}].agent"),
            **{name: value for name, value in asdict(step).items() if name != "agent"},
        )
        for index, step in enumerate(document.steps)
    ]
    return NewTask(**values)


def document_of(session: Session, caller: Caller, row: TaskRow) -> TaskDocument:
    """The document of a task. Names that the caller may not see any more are left out."""
    steps = [definition_of(step) for step in step_rows(session, row.id)]
    agent_ids = {step.agent_id for step in steps} | {row.agent_id}
    query = select(AgentRow.id, AgentRow.name).where(AgentRow.id.in_(agent_ids), AGENTS.visible_to(caller))
    agents: dict[int | None, str] = {found.id: found.name for found in session.execute(query)}
    values = {
        name: value for name, value in task_fields(row).items() if name in TaskDocument.__struct_fields__
    }
    values["steps"] = [
        TaskStepDocument(
            agent=agents.get(step.agent_id),
            **{name: value for name, value in asdict(step).items() if name != "agent_id"},
        )
        for step in steps
    ]
    return TaskDocument(
        version=VERSION,
        provider=provider_name(session, caller, row.provider_id),
        agent=agents.get(row.agent_id),
        **values,
    )


def document_schema() -> dict[str, Any]:
    """The JSON schema of the document."""
    schema = msgspec.json.schema(TaskDocument)
    title = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A task of Luxx, version 1"}
    return {**title, **schema}
