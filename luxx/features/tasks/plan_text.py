"""Reads the plan that a model wrote, and says what is wrong with it in words the model can correct. Pure.

A provider with structured output gets `plan_schema`. Other models write JSON somewhere in their text, with
names of their own for the fields; what is meant is read, what is not clear is refused. A plan is valid as a
whole or not at all.
"""

import re
from collections import Counter
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from luxx.features.tasks.graph import GraphStep, TaskGraph
from luxx.infra.written_json import written_values

MAX_STEPS = 100
MAX_NAME = 200
MAX_GOAL = 4_000
MAX_DEPENDENCIES = 2_000
MAX_PROBLEMS = 20
MAX_LISTED = 30
"""Names of tools or agents in one problem."""

NO_AGENT = "none"
"""What a model with a schema writes for a step that needs no agent of its own."""

_STEPS = ("steps", "plan", "tasks", "step_list", "subtasks")
_NESTED = ("steps", "substeps", "sub_steps", "subtasks", "sub_tasks", "children")
_ID = ("id", "step_id", "step", "number", "index")
_NAME = ("name", "title", "summary", "task")
_GOAL = ("goal", "description", "details", "objective", "instruction", "instructions")
_DEPENDS = ("depends_on", "dependencies", "dependsOn", "depends", "deps", "requires", "after")
_TOOLS = ("tools", "required_tools", "tool")
_AGENT = ("agent", "agent_name", "assigned_to", "assignee", "agent_id")
_EXPECTED = ("expected_output", "expected_result", "output", "deliverable")


class PlanScope(Struct, frozen=True, kw_only=True):
    """What the steps of a plan may name: tools, and agents by the names that the model reads."""

    tools: list[str] = []
    agents: list[str] = []


NO_SCOPE = PlanScope()


def plan_schema(scope: PlanScope) -> dict[str, Any]:
    """The JSON schema of a plan. All properties are required, because some providers demand that."""
    properties: dict[str, Any] = {
        "id": {"type": "string", "description": "short and unique, such as s1"},
        "name": {"type": "string", "description": "a few words"},
        "goal": {"type": "string", "description": "what the step produces, checkable"},
        "depends_on": {
            "type": "array",
            "items": {"type": "string"},
            "description": "ids of the steps whose results this step needs",
        },
    }
    if scope.tools:
        properties["tools"] = {
            "type": "array",
            "items": {"type": "string", "enum": list(scope.tools)},
            "description": "the tools that the step needs",
        }
    if scope.agents:
        properties["agent"] = {
            "type": "string",
            "enum": list(dict.fromkeys([*scope.agents, NO_AGENT])),
            "description": f"the agent that carries out the step; {NO_AGENT}: any",
        }
    item = {
        "type": "object",
        "additionalProperties": False,
        "required": list(properties),
        "properties": properties,
    }
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["steps"],
        "properties": {"steps": {"type": "array", "items": item}},
    }


class PlannedStep(Struct, frozen=True, kw_only=True):
    """A step of a valid plan; ids are unique, dependencies exist, tools and the agent are of the scope."""

    id: str
    name: str
    goal: str
    depends_on: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    agent: str | None = None
    expected_output: str | None = None


class Plan(Struct, frozen=True, kw_only=True):
    steps: tuple[PlannedStep, ...]


class PlanProblems(Struct, frozen=True, kw_only=True):
    """Why the text is no valid plan; each problem is a sentence that names the step."""

    problems: tuple[str, ...]


def parse_plan(text: str, scope: PlanScope = NO_SCOPE) -> Plan | PlanProblems:
    """The plan in a model's answer, or everything that is wrong with it."""
    items = _steps_in(text)
    if items is None:
        return PlanProblems(
            problems=('the answer has no plan; answer with JSON of the form {"steps": [{"id", "name", …}]}',)
        )
    if not items:
        return PlanProblems(problems=("the plan has no steps",))
    if len(items) > MAX_STEPS:
        return PlanProblems(problems=(f"the plan has {len(items)} steps; the limit is {MAX_STEPS}",))
    problems: list[str] = []
    steps = [_step(item, position, scope, problems) for position, item in enumerate(items, 1)]
    if not problems:
        steps = _with_dependencies(items, steps, problems)
    if not problems:
        graph = TaskGraph([GraphStep(id=step.id, depends_on=step.depends_on) for step in steps])
        problems = [problem.message for problem in graph.problems()]
        if (count := len(graph.edges())) > MAX_DEPENDENCIES:
            problems.append(f"the plan has {count} dependencies; the limit is {MAX_DEPENDENCIES}")
    return PlanProblems(problems=tuple(problems[:MAX_PROBLEMS])) if problems else Plan(steps=tuple(steps))


def _steps_in(text: str) -> list[Any] | None:
    """The list of steps in the first JSON value that has one: the whole text, a code block, or anywhere."""
    lists = (_step_list(value) for value in written_values(text))
    return next((steps for steps in lists if steps is not None), None)


def _step_list(value: Any) -> list[Any] | None:
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        for key in _STEPS:
            inner = fields.get(key)
            if inner == []:
                return []
            if isinstance(inner, dict | list) and (steps := _step_list(inner)) is not None:
                return steps
        return None
    items = cast("list[Any]", value)
    is_plan = any(
        isinstance(item, dict) and _first(cast("dict[str, Any]", item), (*_NAME, *_GOAL)) is not None
        for item in items
    )
    return items if is_plan else None


def _step(item: Any, position: int, scope: PlanScope, problems: list[str]) -> PlannedStep:
    label = f"step {position}"
    if not isinstance(item, dict):
        problems.append(f"{label} must be an object with id, name, goal and depends_on")
        return PlannedStep(id=f"s{position}", name=label, goal=label)
    fields = cast("dict[str, Any]", item)
    nested = next((key for key in _NESTED if isinstance(fields.get(key), list | dict)), None)
    if nested is not None:
        problems.append(f"{label} has {nested} of its own; write all steps in one list, with depends_on")
    texts: list[str] = []
    for what, names, most in (("id", _ID, 64), ("name", _NAME, MAX_NAME), ("goal", _GOAL, MAX_GOAL)):
        given = _first(fields, names)
        text = _text(given)
        if given is not None and not isinstance(given, str) and not text:
            problems.append(f"the {what} of {label} must be a text")
        if len(text) > most:
            problems.append(f"the {what} of {label} has {len(text)} characters; the limit is {most}")
        texts.append(text)
    step_id, name, goal = texts
    name = " ".join(_CONTROL.sub(" ", name).split())
    if not name and not goal:
        problems.append(f"{label} has neither a name nor a goal")
    name = name or " ".join(_CONTROL.sub(" ", goal).split())[:MAX_NAME].rstrip()
    expected = _text(_first(fields, _EXPECTED))[:MAX_GOAL]
    return PlannedStep(
        id=step_id or f"s{position}",
        name=name,
        goal=goal or name,
        tools=_tools(_first(fields, _TOOLS), label, scope, problems),
        agent=_agent(_first(fields, _AGENT), label, scope, problems),
        expected_output=expected or None,
    )


def _tools(value: Any, label: str, scope: PlanScope, problems: list[str]) -> tuple[str, ...]:
    names = _name_list(value)
    if names is None:
        problems.append(f"tools of {label} must be a list of names of tools")
        return ()
    if unknown := [name for name in names if name not in scope.tools]:
        known = f"it may name {_listed(scope.tools)}" if scope.tools else "no step may name tools"
        problems.append(f"{label} names the tool {unknown[0][:64]!r}, which it cannot use; {known}")
    return tuple(dict.fromkeys(names))


def _agent(value: Any, label: str, scope: PlanScope, problems: list[str]) -> str | None:
    name = _text(value)
    if value is not None and not isinstance(value, str) and not name:
        problems.append(f"the agent of {label} must be a name")
    if not name or (name.lower() in _NOTHING and name not in scope.agents):
        return None
    known = {one.casefold(): one for one in reversed(scope.agents)}
    if name.casefold() not in known:
        others = f"it may name {_listed(scope.agents)}" if scope.agents else "no step may name one"
        problems.append(f"{label} names the agent {name[:64]!r}, which does not exist; {others}")
        return None
    return name if name in scope.agents else known[name.casefold()]


def _listed(names: list[str]) -> str:
    more = "" if len(names) <= MAX_LISTED else ", …"
    return ", ".join(names[:MAX_LISTED]) + more


def _with_dependencies(items: list[Any], steps: list[PlannedStep], problems: list[str]) -> list[PlannedStep]:
    """The steps with the ids of what they depend on, which a model may give as ids, names or numbers."""
    ids = {step.id for step in steps}
    names = Counter(step.name.casefold() for step in steps)
    by_name = {step.name.casefold(): step.id for step in steps if names[step.name.casefold()] == 1}
    complete: list[PlannedStep] = []
    for position, (item, step) in enumerate(zip(items, steps, strict=True), 1):
        wanted = _name_list(_first(cast("dict[str, Any]", item), _DEPENDS))
        if wanted is None:
            problems.append(f"depends_on of step {position} must be a list of step ids")
            wanted = []
        found: dict[str, None] = {}
        for text in wanted:
            number = int(text) if text.isascii() and text.isdigit() and len(text) < 4 else 0
            if text in ids:
                found[text] = None
            elif text.casefold() in by_name:
                found[by_name[text.casefold()]] = None
            elif 1 <= number <= len(steps):
                found[steps[number - 1].id] = None
            else:
                problems.append(
                    f"step {position} depends on {text[:64]!r}, but there is no step with this id"
                )
        complete.append(replace(step, depends_on=tuple(found)))
    return complete


def _name_list(value: Any) -> list[str] | None:
    """Names given as a list, or in one text with commas; None for anything else."""
    if value is None:
        return []
    if isinstance(value, str):
        return [part for part in (part.strip() for part in value.split(",")) if part.lower() not in _NOTHING]
    if isinstance(value, int) and not isinstance(value, bool):
        return [str(value)]
    if not isinstance(value, list):
        return None
    items = [_text(item) for item in cast("list[Any]", value)]
    return items if all(items) else None


_NOTHING = frozenset({"", NO_AGENT, "null", "-", "n/a"})
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def _first(fields: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _text(value: Any) -> str:
    """A text or a number as text that a database can store, else nothing."""
    if isinstance(value, str):
        whole = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return whole.replace("\0", "\ufffd").strip()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return ""
