"""Tools that work on the run itself: ask_clarification, ask_decision, delegate, result_read and todo_write.

They only define the parameters; the run implements questions, subagents, stored outputs and the to-do list.
"""

from typing import Any

from msgspec.structs import replace

from luxx.errors import ToolFailed
from luxx.tools.core import ToolContext, ToolDefinition, cache_never
from luxx.tools.factory import tool
from luxx.tools.output import MAX_REF, truncate_to_bytes
from luxx.wire.delegation import (
    DELEGATE_TOOL,
    MAX_TASKS,
    TASK_CHARACTERS,
    Assignment,
    Delegation,
    DelegationStrategy,
    TaskOutcome,
)
from luxx.wire.todos import (
    MAX_DESCRIPTION,
    MAX_ID,
    MAX_ITEMS,
    MAX_TITLE,
    TODO_TOOL,
    TodoDraft,
    listed,
    problem_of,
)

CLARIFICATION_SECONDS = 60
MAX_ASK_SECONDS = 30 * 86_400
QUESTION_TYPES = ("scope", "approach", "prerequisite", "priority")
DECISION_TYPES = ("branch", "method", "confirmation", "risk", "custom")
NEEDS_A_PERSON = frozenset({"confirmation", "risk"})
"""Decision types that have no default after the timeout; the run waits until the user answers."""


def _text(max_length: int) -> dict[str, Any]:
    """The schema of a text that is not empty."""
    return {"type": "string", "minLength": 1, "maxLength": max_length}


_OPTION = {
    "type": "object",
    "properties": {
        "label": {**_text(200), "description": "One to five words"},
        "description": {"type": "string", "maxLength": 2000, "description": "What choosing it means"},
        "is_recommended": {"type": "boolean", "description": "What you would do if nobody answered"},
        "estimated_duration_ms": {"type": "integer", "minimum": 0, "maximum": 2**53 - 1},
    },
    "required": ["label"],
    "additionalProperties": False,
}
_OPTIONS = {
    "type": "array",
    "items": _OPTION,
    "maxItems": 20,
    "description": "What can be chosen; the person may also answer in their own words",
}
_TIMEOUT = {
    "type": "integer",
    "minimum": 1,
    "maximum": MAX_ASK_SECONDS,
    "description": "After this many seconds the recommended option counts",
}
_ASK_TEXT = _text(10_000)


@tool(
    name="ask_clarification",
    is_self_contained=True,
    description=(
        "Ask the person you work for what they want, where their request can be understood in several ways. "
        "Everything waits for the answer. Do not use it for what you can find out yourself."
    ),
    parameters={
        "question_type": {"type": "string", "enum": list(QUESTION_TYPES)},
        "question": _ASK_TEXT,
        "options": _OPTIONS,
        "required": {"type": "boolean", "default": False, "description": "Wait until a person answers"},
        "timeout_seconds": {**_TIMEOUT, "default": CLARIFICATION_SECONDS},
    },
    required_params=["question_type", "question", "options"],
    category="questions",
)
async def ask_clarification(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    return await context.actions.ask(
        {
            "kind": "clarification",
            "prompt": arguments["question"],
            "options": arguments["options"],
            "required": arguments.get("required", False),
            "timeout_seconds": arguments.get("timeout_seconds", CLARIFICATION_SECONDS),
            "question_type": arguments["question_type"],
        }
    )


@tool(
    name="ask_decision",
    is_self_contained=True,
    description=(
        "Let the person you work for decide how to go on, where ways part or something risky is next. "
        "Everything waits for the answer. Confirmations and risks wait until a person answers."
    ),
    parameters={
        "decision_type": {"type": "string", "enum": list(DECISION_TYPES)},
        "context": {**_ASK_TEXT, "description": "What is to be decided, and why now"},
        "options": _OPTIONS,
        "allow_multiple": {"type": "boolean", "default": False},
        "timeout_seconds": _TIMEOUT,
    },
    required_params=["decision_type", "context", "options"],
    category="questions",
)
async def ask_decision(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    return await context.actions.ask(
        {
            "kind": "decision",
            "prompt": arguments["context"],
            "options": arguments["options"],
            "multiple": arguments.get("allow_multiple", False),
            "required": arguments["decision_type"] in NEEDS_A_PERSON,
            "timeout_seconds": arguments.get("timeout_seconds"),
            "decision_type": arguments["decision_type"],
            "context": arguments["context"],
        }
    )


_MAX_DELEGATE_SECONDS = 30 * 86_400.0
"""Long, because a subagent may wait for a user. The limits of the delegating run bound its work."""

_DELEGATE_TEXT = _text(40_000)


_AGENT = _text(100)


@tool(
    name=DELEGATE_TOOL,
    is_self_contained=True,
    description=(
        "Give a piece of work to a subagent, or several pieces with tasks, and wait for the answers. It sees "
        "nothing of this conversation but the task, so say all that it has to know. It has your tools, or "
        "those of them that you name. Several calls in one answer work side by side."
    ),
    parameters={
        "task": {**_DELEGATE_TEXT, "description": "What is to be done, and what the answer is to say"},
        "tasks": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"task": _DELEGATE_TEXT, "agent": _AGENT},
                "required": ["task"],
                "additionalProperties": False,
            },
            "minItems": 1,
            "maxItems": MAX_TASKS,
            "description": "Instead of task",
        },
        "strategy": {
            "type": "string",
            "enum": [each.value for each in DelegationStrategy],
            "default": DelegationStrategy.PARALLEL.value,
            "description": "sequential gives each task the answers before it",
        },
        "agent": {**_AGENT, "description": "The name of a stored agent that does the task"},
        "system_prompt": {**_DELEGATE_TEXT, "description": "Who the subagent is and how it works"},
        "tools": {
            "type": "array",
            "items": _text(64),
            "maxItems": 200,
            "description": "Those of your tools that it may use; left out: all",
        },
        "model": {**_text(200), "description": "Another model of the provider"},
    },
    category="agents",
    # After a crash the repeated call continues with the same subagents. The result is never cached.
    repeatable=True,
    keeps=cache_never,
    timeout=_MAX_DELEGATE_SECONDS,
)
async def delegate(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    delegation = _delegation(arguments)
    outcomes = await context.actions.delegate(delegation)
    problems = [outcome.problem for outcome in outcomes if outcome.problem is not None]
    if delegation.strategy is None:
        if problems:
            raise ToolFailed(problems[0])
        return _answered(outcomes[0])
    if len(problems) == len(outcomes):
        numbered = " ".join(f"{number}: {problem}" for number, problem in enumerate(problems, 1))
        raise ToolFailed(f"none of the tasks has an answer. {numbered}")
    return {
        "strategy": delegation.strategy.value,
        "answered": len(outcomes) - len(problems),
        "failed": len(problems),
        "results": [_result(outcome) for outcome in outcomes],
    }


def _delegation(arguments: dict[str, Any]) -> Delegation:
    """The delegation that the call asks for. Raises ToolFailed unless it has either a task or tasks."""
    if ("task" in arguments) == ("tasks" in arguments):
        raise ToolFailed("give either task, for one subagent, or tasks, for several")
    tools: list[str] | None = arguments.get("tools")
    strategy = DelegationStrategy(arguments.get("strategy", DelegationStrategy.PARALLEL))
    tasks: list[dict[str, str]] = arguments.get("tasks") or [{"task": arguments["task"]}]
    return Delegation(
        strategy=strategy if "tasks" in arguments else None,
        assignments=tuple(
            Assignment(
                task=each["task"],
                agent=each.get("agent", arguments.get("agent")),
                system_prompt=arguments.get("system_prompt"),
                tools=None if tools is None else tuple(tools),
                model=arguments.get("model"),
            )
            for each in tasks
        ),
    )


def _result(outcome: TaskOutcome) -> dict[str, Any]:
    """What the model gets of one task of several."""
    assignment = outcome.assignment
    result: dict[str, Any] = {"task": assignment.task[:TASK_CHARACTERS]}
    result |= {} if assignment.agent is None else {"agent": assignment.agent}
    if outcome.problem is not None:
        return {**result, "error": outcome.problem}
    return {**result, **_answered(outcome)}


def _answered(outcome: TaskOutcome) -> dict[str, Any]:
    end = outcome.end
    if end is None:
        raise ToolFailed("the subagent has no answer")
    return {"answer": end.answer, "run_id": end.run_id, "stop_reason": end.stop_reason}


DEFAULT_CHARACTERS = 20_000
MAX_CHARACTERS = 40_000
_MAX_CONTENT_BYTES = 40 * 1024
_MAX_OFFSET = 2_000_000_000
"""Below the largest text offset that the databases support."""


@tool(
    name="result_read",
    is_self_contained=True,
    description=(
        "Read on in the whole output of an earlier tool call of this run, where the answer was cut and named "
        "a `ref`. Gives at most `limit` characters from `offset` on; `next_offset` says where to read on."
    ),
    parameters={
        "ref": {**_text(MAX_REF), "description": "As the cut answer says"},
        "offset": {"type": "integer", "minimum": 0, "maximum": _MAX_OFFSET, "default": 0},
        "limit": {"type": "integer", "minimum": 1, "maximum": MAX_CHARACTERS, "default": DEFAULT_CHARACTERS},
    },
    required_params=["ref"],
    category="general",
)
async def result_read(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    ref: str = arguments["ref"]
    offset, limit = int(arguments.get("offset", 0)), int(arguments.get("limit", DEFAULT_CHARACTERS))
    page = await context.actions.read_result(ref, offset, limit)
    if offset and offset >= page.total:
        raise ToolFailed(f"this output has {page.total:,} characters; there is none at offset {offset:,}")
    content = truncate_to_bytes(page.output, _MAX_CONTENT_BYTES)
    end = offset + len(content)
    answer: dict[str, Any] = {
        "ref": ref,
        "content": content,
        "offset": offset,
        "characters": len(content),
        "total_characters": page.total,
        "truncated": end < page.total,
    }
    if end < page.total:
        answer["next_offset"] = end
        answer["note"] = f"The output has {page.total - end:,} more characters; read on with offset {end}."
    return answer


_TODO = {
    "type": "object",
    "properties": {
        "id": {**_text(MAX_ID), "description": "As the list has it; left out for a new item"},
        "title": {**_text(MAX_TITLE), "description": "What is to be done, in one line"},
        "description": {"type": "string", "maxLength": MAX_DESCRIPTION},
        "completed": {"type": "boolean", "default": False},
    },
    "required": ["title"],
    "additionalProperties": False,
}


@tool(
    name=TODO_TOOL,
    is_self_contained=True,
    description=(
        "Write your to-do list, which replaces the one before; the person sees it and may change it. Use it "
        "for work of three steps or more: list them first, mark each as completed as soon as it is done, and "
        "keep the ids. An empty list removes it. You are reminded of open items."
    ),
    parameters={"todos": {"type": "array", "items": _TODO, "maxItems": MAX_ITEMS}},
    required_params=["todos"],
    category="planning",
    # Repeatable after a crash and never cached: the effect of the call on the run matters, not its result.
    repeatable=True,
    keeps=cache_never,
)
async def todo_write(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    items = listed([TodoDraft(**given) for given in arguments["todos"]])
    if problem := problem_of(items):
        path, sentence = problem
        raise ToolFailed(f"todos{path}: {sentence}")
    context.actions.write_todos(items)
    shown = [{"id": item.id, "title": item.title, "completed": item.completed} for item in items]
    return {"todos": shown}


def run_tools() -> list[ToolDefinition]:
    """The five tools. Long lines in the pages of result_read are not cut."""
    return [
        replace(result_read.definition, keeps_lines=True),
        replace(ask_clarification.definition, only_asks=True),
        replace(ask_decision.definition, only_asks=True),
        delegate.definition,
        todo_write.definition,
    ]
