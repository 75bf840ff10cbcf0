"""What a task and the steps of its graph may contain: every problem with its field, for one refusal."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice, starmap
from typing import Any, cast

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.agents.models import AgentRow
from luxx.domain.agents.queries import AGENTS
from luxx.domain.conversations.service import own_project
from luxx.domain.skills.registry import SkillRegistry
from luxx.errors import InvalidInput, NotFound
from luxx.features.tasks.graph import GraphStep, Problem, ProblemKind, TaskGraph
from luxx.features.tasks.models import (
    MAX_DEPENDENCIES,
    MAX_GRAPH_CHARACTERS,
    MAX_METADATA_BYTES,
    MAX_STEPS,
    NewTaskStep,
)
from luxx.infra.field_errors import FieldError, FieldErrors, follows_from
from luxx.providers.queries import visible_row as visible_provider
from luxx.runs.turn.request import ChatRequest
from luxx.tools.core import ToolDefinition
from luxx.tools.permissions.rules import ACTIVATE_TOOL
from luxx.tools.sources import ToolSources

MAX_LISTED = 100
"""Problems that one refusal lists; it also gives their number."""

MAX_METADATA_DEPTH = 10
MAX_NUMBER = 2**63 - 1

PathOf = Callable[[int], str]
"""The path of a step in the request, by its position in the graph."""


def path_in_list(index: int) -> str:
    """The path of a step whose request has the whole graph as `steps`."""
    return f"$.steps[{index}]"


def graph_of(steps: Iterable[NewTaskStep]) -> TaskGraph:
    """The graph of steps that have their ids."""
    return TaskGraph(
        [
            GraphStep(id=step.id or "", name=step.name, depends_on=tuple(dict.fromkeys(step.depends_on)))
            for step in steps
        ]
    )


def graph_problems(
    steps: Sequence[NewTaskStep], path_of: PathOf = path_in_list
) -> tuple[list[FieldError], list[Problem]]:
    """What is wrong with the graph of these steps, by field and as the graph names it."""
    too_large = list(_size_problems(steps))
    if too_large:
        return too_large, []
    found = graph_of(steps).problems()
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for index, step in enumerate(steps):
        last[step.id or ""] = index
        first.setdefault(step.id or "", index)
    fields: list[FieldError] = []
    for problem in found:
        if problem.kind == ProblemKind.DUPLICATE_ID:
            path = path_of(last[problem.step_ids[0]]) + ".id"
        else:
            path = path_of(first[problem.step_ids[0]]) + ".depends_on"
        fields.append(FieldError(path, problem.message))
    return fields, found


def _size_problems(steps: Sequence[NewTaskStep]) -> Iterator[FieldError]:
    dependencies = sum(len(step.depends_on) for step in steps)
    characters = sum(_characters(step) for step in steps)
    for number, what, limit in (
        (len(steps), "steps", MAX_STEPS),
        (dependencies, "dependencies", MAX_DEPENDENCIES),
        (characters, "characters in the texts of its steps", MAX_GRAPH_CHARACTERS),
    ):
        if number > limit:
            message = f"the graph has {number:,} {what}; the limit is {limit:,}"
            yield FieldError("$.steps", message)


def _characters(step: NewTaskStep) -> int:
    names = [*(step.required_tools or ()), *(step.required_skills or ())]
    texts = (step.name, step.goal, step.expected_output or "", step.thought_prompt or "", *names)
    return sum(map(len, texts))


@dataclass(frozen=True, slots=True)
class ReferenceChecker:
    """Checks what tasks and steps name: agents, providers, projects, tools and skills."""

    tools: ToolSources
    skills: SkillRegistry

    def problems(
        self, session: Session, caller: Caller, steps: Sequence[NewTaskStep], path_of: PathOf = path_in_list
    ) -> list[FieldError]:
        """The agents, tools and skills of these steps that the caller cannot use."""
        known_agents = usable_agents(session, caller, {step.agent_id for step in steps if step.agent_id})
        names = {name for step in steps for name in step.required_tools or ()}
        tools = self.tools.for_caller(session, caller, names)
        known_tools = {name for name in names if tools.lookup(name)}
        known_skills = self.skills.for_caller(session, caller)
        found: list[FieldError] = []
        for index, step in enumerate(steps):
            path = path_of(index)
            if step.agent_id is not None and step.agent_id not in known_agents:
                error = AGENTS.not_found(step.agent_id)
                found.append(missing_error(f"{path}.agent_id", error))
            found += unknown_names(f"{path}.required_tools", "tool", step.required_tools, known_tools)
            found += unknown_names(f"{path}.required_skills", "skill", step.required_skills, known_skills)
        return found

    def check_step(self, session: Session, caller: Caller, step: NewTaskStep, request: ChatRequest) -> None:
        """Raises InvalidInput if the turn of a step would lack a tool or a skill that the step requires."""
        required = step.required_tools or []
        problems = [
            f"{name} ({self._why_missing(session, caller, name, request.model)})"
            for name in required
            if name not in request.tools
        ]
        if problems:
            raise InvalidInput(
                f"this step requires tools that it cannot have: {', '.join(problems[:10])}; change its "
                "required_tools, its agent or its model",
                kind="required_tools_missing",
            )
        skills = step.required_skills or []
        known_skills = self.skills.for_caller(session, caller)
        missing = [
            name
            for name in skills
            if name not in known_skills or (request.skills is not None and name not in request.skills)
        ]
        if missing or (skills and ACTIVATE_TOOL not in request.tools):
            why = "its model is not known to handle tools, or its agent does not have the skills"
            raise InvalidInput(
                f"this step requires skills that it cannot have: {', '.join((missing or skills)[:10])} "
                f"({'they do not exist, or its agent does not have them' if missing else why}); change its "
                "required_skills, its agent or its model",
                kind="required_skills_missing",
            )

    def _why_missing(self, session: Session, caller: Caller, name: str, model: str) -> str:
        found = self.tools.for_caller(session, caller, (name,)).lookup(name)
        if found is None:
            return "does not exist any more"
        level = found[0].required_permission
        if level > caller.permission_level:
            return f"needs permission level {level.value}, yours is {caller.permission_level.value}"
        return f"the model {model} is not known to handle tools"

    def usable_tools(self, session: Session, caller: Caller) -> list[ToolDefinition]:
        """The tools that the caller's steps may use, with the caller's own."""
        return self.tools.for_caller(session, caller).available_to(caller.permission_level)


def usable_agents(session: Session, caller: Caller, ids: Set[int | None]) -> set[int]:
    """Those of the ids that are agents which the caller may use."""
    if not ids:
        return set()
    query = select(AgentRow.id).where(AgentRow.id.in_(ids), AGENTS.visible_to(caller))
    return set(session.scalars(query))


def task_problems(
    session: Session,
    caller: Caller,
    *,
    provider_id: int | None = None,
    agent_id: int | None = None,
    project_id: str | None = None,
) -> list[FieldError]:
    """The provider, agent and project of a task that the caller cannot use; None is not checked."""
    found: list[FieldError] = []
    if agent_id is not None and not usable_agents(session, caller, {agent_id}):
        found.append(missing_error("$.agent_id", AGENTS.not_found(agent_id)))
    try:
        if provider_id is not None:
            visible_provider(session, caller, provider_id)
    except NotFound as error:
        found.append(missing_error("$.provider_id", error))
    try:
        if project_id is not None:
            own_project(session, caller, project_id)
    except NotFound as error:
        found.append(missing_error("$.project_id", error))
    return found


def metadata_problems(metadata: dict[str, Any]) -> list[FieldError]:
    """What JSON cannot hold, or what is too large."""
    found = list(islice(_metadata_problems("$.metadata", metadata, 0), MAX_LISTED))
    if not found and (size := len(msgspec.json.encode(metadata))) > MAX_METADATA_BYTES:
        message = f"has {size:,} bytes as JSON; the limit is {MAX_METADATA_BYTES:,}"
        found.append(FieldError("$.metadata", message))
    return found


def _metadata_problems(path: str, value: Any, depth: int) -> Iterator[FieldError]:
    if depth > MAX_METADATA_DEPTH:
        yield FieldError("$.metadata", f"is nested deeper than {MAX_METADATA_DEPTH} levels")
    elif isinstance(value, int | float) and not -MAX_NUMBER <= value <= MAX_NUMBER:
        # Also false for "not a number", which YAML can write.
        yield FieldError(path, "must be a number of at most 64 bits")
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _metadata_problems(f"{path}[{index}]", item, depth + 1)
    elif isinstance(value, dict):
        for name, item in cast("dict[str, Any]", value).items():
            yield from _metadata_problems(f"{path}.{name}", item, depth + 1)


def refuse(fields: Sequence[FieldError], problems: Sequence[Problem] = ()) -> None:
    """Raises one error with all problems, if there are any: NotFound if each is something missing."""
    if not fields:
        return
    errors = FieldErrors(limit=MAX_LISTED)
    errors.extend(fields)
    detail: dict[str, Any] = {"problem_count": len(fields)}
    if problems:
        detail["problems"] = msgspec.to_builtins(list(problems[:MAX_LISTED]))
    more = f"; and {len(fields) - 1} more, see detail.fields" if len(fields) > 1 else ""
    raise errors.refusal(
        message=f"{fields[0].path}: {fields[0].problem}{more}",
        kind="graph_invalid" if problems else "task_invalid",
        detail=detail,
    )


def with_wrong(found: Iterable[FieldError], wrong: Mapping[str, str]) -> list[FieldError]:
    """The wrong fields of a document first, then the problems that do not only follow from them."""
    are_ids_wrong = any(_STEP_IDS.fullmatch(path) for path in wrong)
    return [
        *starmap(FieldError, wrong.items()),
        *(
            problem
            for problem in found
            if not follows_from(problem.path, wrong)
            and not (are_ids_wrong and problem.path.endswith(".depends_on"))
        ),
    ]


_STEP_IDS = re.compile(r"\$(?:\.document)?\.steps(?:\[\d+\](?:\.id)?)?")
"""The fields without which the ids of the steps are not known."""


def missing_error(path: str, error: NotFound) -> FieldError:
    """The problem of a field that names something that the caller does not have."""
    return FieldError(path, error.message, missing=error.kind)


def unknown_names(
    path: str, what: str, names: list[str] | None, known: Iterable[str]
) -> Iterator[FieldError]:
    """The problem of names of tools or skills that the caller does not have, if there are any."""
    unknown = sorted(set(names or ()) - set(known))
    if unknown:
        listed = ", ".join(unknown[:10])
        yield FieldError(path, f"there is no {what} named {listed}; GET /{what}s lists yours")
