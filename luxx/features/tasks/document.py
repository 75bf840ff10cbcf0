"""A task as a YAML or JSON document, for other servers: agents and providers by name, no results.

`docs/task.schema.json` is the JSON schema of the document; a test compares it with `document_schema()`.
"""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

from luxx.domain.agents.document import ProviderName
from luxx.domain.agents.models import AgentName, ToolNames
from luxx.features.tasks.models import (
    MAX_STEPS,
    ConcurrentSteps,
    NewTask,
    NewTaskStep,
    TaskGoal,
    TaskName,
    TaskStepId,
    TaskStepIds,
    TaskStepText,
)

VERSION = 1
MAX_CHARACTERS = 500_000
"""Characters of a document in YAML; the parser is slow. JSON is bounded by its fields."""


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
    """A task: its goal and the graph of its steps. `agent`, `provider` left out: the user's defaults."""

    version: Annotated[int, Meta(ge=VERSION, le=VERSION)]
    name: TaskName
    goal: TaskGoal
    provider: ProviderName | None = None
    agent: AgentName | None = None
    max_concurrent_steps: ConcurrentSteps = 5
    require_approval: bool = False
    metadata: dict[str, Any] = {}
    steps: Annotated[list[TaskStepDocument], Meta(max_length=MAX_STEPS)] = []


AgentIdOf = Callable[[str, str], int | None]
"""The id of an agent by its name and the path of the field that names it."""


def new_task_of(document: TaskDocument, provider_id: int | None, agent_id_of: AgentIdOf) -> NewTask:
    """The task to create, with the ids of this server."""

    def id_of(name: str | None, path: str) -> int | None:
        return None if name is None else agent_id_of(name, path)

    values = {name: value for name, value in asdict(document).items() if name in NewTask.__struct_fields__}
    values["agent_id"] = id_of(document.agent, "$.agent")
    values["steps"] = [
        NewTaskStep(
            agent_id=id_of(step.agent, f"$.steps[{index}].agent"),
            **{name: value for name, value in asdict(step).items() if name != "agent"},
        )
        for index, step in enumerate(document.steps)
    ]
    return NewTask(provider_id=provider_id, **values)


def document_of(
    task: NewTask, provider: str | None, agent: str | None, agent_names: dict[int, str]
) -> TaskDocument:
    """The document of a task. `agent_names`: the names of the agents of its steps, by their ids."""
    values = {name: value for name, value in asdict(task).items() if name in TaskDocument.__struct_fields__}
    values["steps"] = [
        TaskStepDocument(
            agent=None if step.agent_id is None else agent_names.get(step.agent_id),
            **{name: value for name, value in asdict(step).items() if name != "agent_id"},
        )
        for step in task.steps
    ]
    return TaskDocument(version=VERSION, provider=provider, agent=agent, **values)


def document_schema() -> dict[str, Any]:
    """The JSON schema of the document."""
    schema = msgspec.json.schema(TaskDocument)
    title = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A task of Luxx, version 1"}
    return {**title, **schema}
