"""The graph of a task: order, ready steps, levels, every problem, the critical path, and drawings. Pure.

A step depends on other steps of the same task by their ids.
"""

import importlib
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from luxx.errors import LuxxError

if TYPE_CHECKING:
    import networkx as nx
else:

    class LazyModule:
        """The module networkx. The first graph loads it: it has 12 MB, and takes a tenth of a start."""

        def __getattr__(self, name: str) -> Any:
            return getattr(importlib.import_module("networkx"), name)

    nx = LazyModule()

PLAN, RESULT = "task:plan", "task:result"
"""The `step_id` of the turns that plan and that write the final result; no step has such an id."""

MAX_CYCLES = 20
"""Cycles that are named; a dense graph has more than anybody reads."""


class TaskStepStatus(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"


class GraphStep(Struct, frozen=True, kw_only=True):
    """What the graph knows of a step."""

    id: str
    name: str = ""
    depends_on: tuple[str, ...] = ()


class ProblemKind(StrEnum):
    DUPLICATE_ID = "duplicate_id"
    MISSING_DEPENDENCY = "missing_dependency"
    SELF_DEPENDENCY = "self_dependency"
    CYCLE = "cycle"


class Problem(Struct, frozen=True, kw_only=True):
    """`step_ids`: for a cycle in its order; for a missing dependency the step and the missing id."""

    kind: ProblemKind
    step_ids: tuple[str, ...]
    message: str


class TaskNode(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    status: TaskStepStatus


class TaskEdge(Struct, frozen=True, kw_only=True):
    """`target` depends on `source`."""

    source: str
    target: str


class TaskGraphView(Struct, frozen=True, kw_only=True):
    """The graph of a task.

    `levels`: steps that could run at the same time. `critical_path`: the chain of steps that takes longest,
    by the durations of the last execution; without any, the longest chain.
    """

    nodes: list[TaskNode]
    edges: list[TaskEdge]
    levels: list[list[str]]
    order: list[str]
    critical_path: list[str]
    valid: bool
    problems: list[Problem]


class TaskGraph:
    """The graph of these steps, in their order. All answers but `problems` need a valid graph."""

    def __init__(self, steps: Sequence[GraphStep]) -> None:
        self.steps = tuple(steps)
        self._position = {step.id: index for index, step in enumerate(self.steps)}
        self._graph: nx.DiGraph[str] = nx.DiGraph()
        self._graph.add_nodes_from(step.id for step in self.steps)
        self._graph.add_edges_from(
            (dependency, step.id)
            for step in self.steps
            for dependency in step.depends_on
            if dependency in self._position and dependency != step.id
        )

    def problems(self) -> list[Problem]:
        """Everything that makes the graph invalid, in the order of the steps; cycles last."""
        found: list[Problem] = []
        counts = Counter(step.id for step in self.steps)
        for step_id, count in counts.items():
            if count > 1:
                message = f"{count} steps have the id {step_id!r}; ids are unique within a task"
                found.append(Problem(kind=ProblemKind.DUPLICATE_ID, step_ids=(step_id,), message=message))
        for step in self.steps:
            for dependency in dict.fromkeys(step.depends_on):
                if dependency == step.id:
                    message = f"the step {step.id!r} depends on itself"
                    found.append(
                        Problem(kind=ProblemKind.SELF_DEPENDENCY, step_ids=(step.id,), message=message)
                    )
                elif dependency not in self._position:
                    message = f"the step {step.id!r} depends on {dependency!r}, which is no step of this task"
                    found.append(
                        Problem(
                            kind=ProblemKind.MISSING_DEPENDENCY,
                            step_ids=(step.id, dependency),
                            message=message,
                        )
                    )
        return found + [
            Problem(
                kind=ProblemKind.CYCLE,
                step_ids=cycle,
                message=f"these steps wait for each other: {' → '.join((*cycle, cycle[0]))}",
            )
            for cycle in self.cycles()
        ]

    def cycles(self) -> list[tuple[str, ...]]:
        """Up to MAX_CYCLES cycles of two and more steps, each beginning with its earliest step.

        Every step that is part of a cycle is part of at least one of the first ones named, as far as they
        suffice: one cycle of each strongly connected component comes first.
        """
        components = [
            component for component in nx.strongly_connected_components(self._graph) if len(component) > 1
        ]
        components.sort(key=lambda component: min(map(self._position.__getitem__, component)))
        named: dict[tuple[str, ...], None] = {}
        for component in components:
            first = min(component, key=self._position.__getitem__)
            within = self._graph.subgraph(component)
            edges: list[tuple[str, str]] = cast("Any", nx).find_cycle(within, first)
            named[self._from_earliest([edge[0] for edge in edges])] = None
        for component in components:
            for cycle in islice(nx.simple_cycles(self._graph.subgraph(component)), MAX_CYCLES):
                if len(cycle) > 1:
                    named[self._from_earliest(cycle)] = None
        return list(named)[:MAX_CYCLES]

    def order(self) -> list[str]:
        """The steps so that each comes after its dependencies; among free ones in their given order."""
        return list(nx.lexicographical_topological_sort(self._graph, key=self._position.__getitem__))

    def levels(self) -> list[list[str]]:
        """Steps that could run at the same time: level 0 has no dependencies, level n needs level n-1."""
        return [
            sorted(level, key=self._position.__getitem__) for level in nx.topological_generations(self._graph)
        ]

    def ready(self, statuses: Mapping[str, TaskStepStatus]) -> list[str]:
        """The pending steps whose dependencies are all completed, in their given order."""
        return [
            step.id
            for step in self.steps
            if statuses[step.id] == TaskStepStatus.PENDING
            and all(statuses[dependency] == TaskStepStatus.COMPLETED for dependency in step.depends_on)
        ]

    def descendants(self, step_id: str) -> list[str]:
        """All steps that need this one, directly or not, in their given order."""
        found: set[str] = cast("Any", nx).descendants(self._graph, step_id)
        return sorted(found, key=self._position.__getitem__)

    def retried(self, step_id: str, statuses: Mapping[str, TaskStepStatus], left_out: Set[str]) -> list[str]:
        """The step and, in order, what was skipped because of it and can run once it is completed.

        `left_out` are skipped steps that a person left out.
        """
        can_run = {TaskStepStatus.PENDING, TaskStepStatus.COMPLETED}
        retried = {step_id: None}
        dependencies = {step.id: step.depends_on for step in self.steps}
        below = set(self.descendants(step_id))
        for other in self.order():
            if other not in below or other in left_out or statuses[other] != TaskStepStatus.SKIPPED:
                continue
            if all(one in retried or statuses[one] in can_run for one in dependencies[other]):
                retried[other] = None
        return list(retried)

    def critical_path(self, durations: Mapping[str, float]) -> list[str]:
        """The chain of dependent steps that takes longest; a step without a duration counts 0."""
        finish: dict[str, tuple[float, str | None]] = {}
        for step_id in self.order():
            before = max(
                self._graph.predecessors(step_id),
                key=lambda one: (finish[one][0], -self._position[one]),
                default=None,
            )
            start = 0.0 if before is None else finish[before][0]
            finish[step_id] = (start + durations.get(step_id, 0.0), before)
        last: str | None = max(finish, key=lambda one: (finish[one][0], -self._position[one]), default=None)
        path: list[str] = []
        while last is not None:
            path.append(last)
            last = finish[last][1]
        return path[::-1]

    def edges(self) -> list[tuple[str, str]]:
        """Pairs of a dependency and the step that needs it."""
        return [
            (dependency, step.id)
            for step in self.steps
            for dependency in dict.fromkeys(step.depends_on)
            if dependency in self._position
        ]

    def mermaid(self) -> str:
        """The graph as a Mermaid flowchart."""
        lines = ["graph TD"]
        lines += [f'  s{index}["{_mermaid_text(step)}"]' for index, step in enumerate(self.steps)]
        lines += [f"  s{self._position[one]} --> s{self._position[other]}" for one, other in self.edges()]
        return "\n".join(lines) + "\n"

    def dot(self) -> str:
        """The graph in Graphviz' language."""
        lines = ["digraph task {"]
        lines += [f"  s{index} [label={_dot_text(step)}];" for index, step in enumerate(self.steps)]
        lines += [f"  s{self._position[one]} -> s{self._position[other]};" for one, other in self.edges()]
        return "\n".join([*lines, "}"]) + "\n"

    def _from_earliest(self, cycle: Sequence[str]) -> tuple[str, ...]:
        start = min(range(len(cycle)), key=lambda index: self._position[cycle[index]])
        return (*cycle[start:], *cycle[:start])


MAX_NAMED = 5
"""How many failed steps an error names."""


class StepStatuses:
    """The statuses of the steps of a valid graph while it runs. Keeps the ready steps: to look at all steps
    after each change takes longer than all else that a step costs."""

    def __init__(self, graph: TaskGraph, statuses: Mapping[str, TaskStepStatus]) -> None:
        self._position = {step.id: index for index, step in enumerate(graph.steps)}
        self._needed_by: dict[str, list[str]] = {step.id: [] for step in graph.steps}
        self._missing: dict[str, int] = {}
        for step in graph.steps:
            self._missing[step.id] = len(set(step.depends_on))
            for dependency in set(step.depends_on):
                self._needed_by[dependency].append(step.id)
        self._ready = {step_id for step_id, count in self._missing.items() if not count}
        self._statuses = dict.fromkeys(self._missing, TaskStepStatus.PENDING)
        for step_id, status in statuses.items():
            self.set(step_id, status)

    def __getitem__(self, step_id: str) -> TaskStepStatus:
        return self._statuses[step_id]

    def get(self, step_id: str) -> TaskStepStatus | None:
        """The status of a step; None: there is no such step."""
        return self._statuses.get(step_id)

    def set(self, step_id: str, status: TaskStepStatus) -> None:
        """Sets the status of a step."""
        before, self._statuses[step_id] = self._statuses[step_id], status
        change = (before == TaskStepStatus.COMPLETED) - (status == TaskStepStatus.COMPLETED)
        if change:
            for other in self._needed_by[step_id]:
                self._missing[other] += change
                self._check_ready(other)
        self._check_ready(step_id)

    def _check_ready(self, step_id: str) -> None:
        if self._statuses[step_id] == TaskStepStatus.PENDING and not self._missing[step_id]:
            self._ready.add(step_id)
        else:
            self._ready.discard(step_id)

    def ready(self) -> list[str]:
        """The pending steps whose dependencies are all completed, in their given order."""
        return sorted(self._ready, key=self._position.__getitem__)

    def failure(self) -> LuxxError | None:
        """The error that names the failed steps; None if no step failed."""
        failed = [step_id for step_id, status in self._statuses.items() if status == TaskStepStatus.FAILED]
        if not failed:
            return None
        more = f" and {len(failed) - MAX_NAMED} more" if len(failed) > MAX_NAMED else ""
        named = f"{', '.join(failed[:MAX_NAMED])}{more}"
        problem = f"step {named} failed; retry, or skip what is not needed"
        if len(failed) > 1:
            problem = f"steps {named} failed; retry, or skip what is not needed"
        return LuxxError(problem)


def pending_after(
    graph: TaskGraph, step_id: str, statuses: Mapping[str, TaskStepStatus] | StepStatuses
) -> list[str]:
    """The pending steps that cannot be carried out without this one."""
    return [one for one in graph.descendants(step_id) if statuses[one] == TaskStepStatus.PENDING]


def _mermaid_text(step: GraphStep) -> str:
    text = " ".join((step.name or step.id).split())
    for character, entity in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;"), ("`", "#96;")):
        text = text.replace(character, entity)
    return text


def _dot_text(step: GraphStep) -> str:
    text = " ".join((step.name or step.id).split())
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
