"""What a task and the steps of its graph may contain. All problems are collected for one refusal."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.agents.models import AgentRow
from luxx.domain.agents.queries import AGENTS
from luxx.domain.conversations.service import own_project
from luxx.domain.skills.layers import SkillLayers
from luxx.errors import InvalidInput
from luxx.features.tasks.graph import GraphStep, Problem, ProblemKind, TaskGraph
from luxx.features.tasks.models import (
    MAX_DEPENDENCIES,
    MAX_GRAPH_CHARACTERS,
    MAX_METADATA_BYTES,
    MAX_STEPS,
    NewTaskStep,
)
from luxx.infra.field_errors import NOTHING_WRONG, FieldErrors
from luxx.providers.queries import visible_row as visible_provider
from luxx.runs.turn.state import ChatRequest
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


class TaskErrors(FieldErrors):
    """The wrong fields of a task or of a graph, and what is wrong with the graph as it names it."""

    def __init__(self, wrong: Mapping[str, str] = NOTHING_WRONG, *, root: str = "$") -> None:
        super().__init__(wrong, root=root, limit=MAX_LISTED)
        self._are_ids_known = not any(_STEP_IDS.fullmatch(path) for path in wrong)
        self._graph: list[Problem] = []

    def add_to_graph(self, path: str, problem: Problem) -> None:
        """Adds what is wrong with the graph, unless the steps that it names may be wrong themselves."""
        if self._are_ids_known or problem.kind == ProblemKind.DUPLICATE_ID:
            self.add(path, problem.message)
        if not self._wrong:
            self._graph.append(problem)

    def raise_if_any(self) -> None:
        """Raises one error with all of them: its message has the first, its details the others."""
        if not self._errors:
            return
        detail: dict[str, Any] = {"problem_count": len(self._errors)}
        if self._graph:
            detail["problems"] = msgspec.to_builtins(self._graph[:MAX_LISTED])
        first, *others = self._errors
        more = f"; and {len(others)} more, see detail.fields" if others else ""
        raise self.refusal(
            message=f"{first.path}: {first.problem}{more}",
            kind="graph_invalid" if self._graph else "task_invalid",
            detail=detail,
        )


_STEP_IDS = re.compile(r"\$(?:\.document)?\.steps(?:\[\d+\](?:\.id)?)?")
"""The fields without which the ids of the steps are not known."""


def check_graph(steps: Sequence[NewTaskStep], errors: TaskErrors, path_of: PathOf = path_in_list) -> None:
    """Adds what is wrong with the graph of these steps."""
    if _is_too_large(steps, errors):
        return
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for index, step in enumerate(steps):
        last[step.id or ""] = index
        first.setdefault(step.id or "", index)
    for problem in graph_of(steps).problems():
        if problem.kind == ProblemKind.DUPLICATE_ID:
            path = path_of(last[problem.step_ids[0]]) + ".id"
        else:
            path = path_of(first[problem.step_ids[0]]) + ".depends_on"
        errors.add_to_graph(path, problem)


def _is_too_large(steps: Sequence[NewTaskStep], errors: TaskErrors) -> bool:
    dependencies = sum(len(step.depends_on) for step in steps)
    characters = sum(_characters(step) for step in steps)
    too_large = [
        f"the graph has {number:,} {what}; the limit is {limit:,}"
        for number, what, limit in (
            (len(steps), "steps", MAX_STEPS),
            (dependencies, "dependencies", MAX_DEPENDENCIES),
            (characters, "characters in the texts of its steps", MAX_GRAPH_CHARACTERS),
        )
        if number > limit
    ]
    for problem in too_large:
        errors.add("$.steps", problem)
    return bool(too_large)


def _characters(step: NewTaskStep) -> int:
    names = [*(step.required_tools or ()), *(step.required_skills or ())]
    texts = (step.name, step.goal, step.expected_output or "", step.thought_prompt or "", *names)
    return sum(map(len, texts))


@dataclass(frozen=True, slots=True)
class ReferenceChecker:
    """Checks what tasks and steps name: agents, providers, projects, tools and skills."""

    tools: ToolSources
    skills: SkillLayers

    def check(
        self,
        session: Session,
        caller: Caller,
        steps: Sequence[NewTaskStep],
        errors: FieldErrors,
        path_of: PathOf = path_in_list,
        *,
        project_id: str | None,
    ) -> None:
        """Adds the agents, tools and skills of these steps that the caller cannot use in the project of the
        task."""
        known_agents = usable_agents(session, caller, {step.agent_id for step in steps if step.agent_id})
        names = {name for step in steps for name in step.required_tools or ()}
        tools = self.tools.for_caller(session, caller.in_project(project_id), names)
        known_tools = {name for name in names if tools.lookup(name)}
        known_skills = self.skills.for_caller(session, caller, project_id)
        for index, step in enumerate(steps):
            path = path_of(index)
            if step.agent_id is not None and step.agent_id not in known_agents:
                add_missing_agent(f"{path}.agent_id", step.agent_id, errors)
            check_names(f"{path}.required_tools", "tool", step.required_tools, known_tools, errors)
            check_names(f"{path}.required_skills", "skill", step.required_skills, known_skills, errors)

    def check_step(self, session: Session, caller: Caller, step: NewTaskStep, request: ChatRequest) -> None:
        """Raises InvalidInput if the turn of a step would lack a tool or a skill that the step requires."""
        required = step.required_tools or []
        caller = caller.in_project(request.project_id)
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
        known_skills = self.skills.for_caller(session, caller, request.project_id)
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
            return "does not exist any more, or is of another project"
        level = found[0].required_permission
        if level > caller.permission_level:
            return f"needs permission level {level.value}, yours is {caller.permission_level.value}"
        return f"the model {model} is not known to handle tools"

    def usable_tools(self, session: Session, caller: Caller) -> list[ToolDefinition]:
        """The tools that steps may use where the caller is, with the caller's own."""
        return self.tools.for_caller(session, caller).available_to(caller.permission_level)


def usable_agents(session: Session, caller: Caller, ids: Set[int | None]) -> set[int]:
    """Those of the ids that are agents which the caller may use."""
    if not ids:
        return set()
    query = select(AgentRow.id).where(AgentRow.id.in_(ids), AGENTS.visible_to(caller))
    return set(session.scalars(query))


def check_task(
    session: Session,
    caller: Caller,
    errors: FieldErrors,
    *,
    provider_id: int | None = None,
    agent_id: int | None = None,
    project_id: str | None = None,
) -> None:
    """Adds the provider, agent and project of a task that the caller cannot use; None is not checked."""
    if agent_id is not None:
        errors.found("$.agent_id", lambda: AGENTS.visible(session, caller, agent_id))
    if provider_id is not None:
        errors.found("$.provider_id", lambda: visible_provider(session, caller, provider_id))
    if project_id is not None:
        errors.found("$.project_id", lambda: own_project(session, caller, project_id))


def check_metadata(metadata: dict[str, Any], errors: FieldErrors) -> None:
    """Adds what JSON cannot hold, or what is too large."""
    found = list(islice(_metadata_problems("$.metadata", metadata, 0), MAX_LISTED))
    if not found and (size := len(msgspec.json.encode(metadata))) > MAX_METADATA_BYTES:
        found = [("$.metadata", f"has {size:,} bytes as JSON; the limit is {MAX_METADATA_BYTES:,}")]
    for path, problem in found:
        errors.add(path, problem)


def _metadata_problems(path: str, value: Any, depth: int) -> Iterator[tuple[str, str]]:
    if depth > MAX_METADATA_DEPTH:
        yield "$.metadata", f"is nested deeper than {MAX_METADATA_DEPTH} levels"
    elif isinstance(value, int | float) and not -MAX_NUMBER <= value <= MAX_NUMBER:
        # Also false for "not a number", which YAML can write.
        yield path, "must be a number of at most 64 bits"
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _metadata_problems(f"{path}[{index}]", item, depth + 1)
    elif isinstance(value, dict):
        for name, item in cast("dict[str, Any]", value).items():
            yield from _metadata_problems(f"{path}.{name}", item, depth + 1)


def add_missing_agent(path: str, agent_id: int, errors: FieldErrors) -> None:
    """Adds a field that names an agent which the caller does not have."""
    error = AGENTS.not_found(agent_id)
    errors.add(path, error.message, error.kind)


def check_names(
    path: str, what: str, names: list[str] | None, known: Iterable[str], errors: FieldErrors
) -> None:
    """Adds the names of tools or skills that the caller does not have."""
    unknown = sorted(set(names or ()) - set(known))
    if unknown:
        listed = ", ".join(unknown[:10])
        errors.add(path, f"there is no {what} named {listed}; GET /{what}s lists yours")
