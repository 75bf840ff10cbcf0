"""What a `delegate` call asks for and gets: the tasks of its subagents, and how each of them ended.

Pure values; `runs/turn/delegation.py` runs the subagents.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from luxx.wire.run import RunStatus
from luxx.wire.turn import Step

DELEGATE_TOOL = "delegate"

MAX_TASKS = 20
"""Tasks of one call."""

EARLIER_CHARACTERS = 60_000
"""Of all answers together that a task of a sequence gets; each may take the same share."""

TASK_CHARACTERS = 500
"""Longest task text in an event and in a result; the call's arguments have the full text."""


class DelegationStrategy(StrEnum):
    """How the tasks of one call are done. `parallel`: at the same time; `sequential`: one after the other,
    each with the answers before it."""

    PARALLEL = "parallel"
    SEQUENTIAL = "sequential"


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """One task; None means the value of the agent or of the delegating run.

    `agent`: the name of the agent whose template the subagent gets.
    """

    task: str
    agent: str | None = None
    system_prompt: str | None = None
    tools: tuple[str, ...] | None = None
    model: str | None = None


class Delegation(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks of one call. `strategy` None: the call has one task."""

    assignments: tuple[Assignment, ...]
    strategy: DelegationStrategy | None = None


class SubagentEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a subagent: its answer, or why there is none. `tool_calls` includes those of its own
    subagents; `is_tainted`: the run has untrusted content."""

    run_id: str
    status: str
    stop_reason: str | None
    answer: str
    error: str | None
    tool_calls: int
    is_tainted: bool


class TaskOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a task. `end` None: no subagent could begin. `problem`: a sentence that says why there
    is no answer; None: there is one."""

    assignment: Assignment
    end: SubagentEnd | None = None
    problem: str | None = None


def problem_of(end: SubagentEnd) -> str | None:
    """Why a subagent has no answer, with its text so far; None: it has one."""
    if end.status == RunStatus.COMPLETED and end.answer:
        return None
    match end.status:
        case RunStatus.CANCELLED:
            reason = "was cancelled"
        case RunStatus.FAILED:
            reason = f"failed: {end.error or 'the reason is not known'}"
        case _:
            reason = f"ended without an answer ({end.stop_reason}){f': {end.error}' if end.error else ''}"
    partial_answer = f" Its last text: {end.answer[:TASK_CHARACTERS]}" if end.answer else ""
    return f"the subagent (run {end.run_id}) {reason}.{partial_answer}"


class _Arguments(msgspec.Struct):
    tasks: list[msgspec.Raw] = []


def unended_tasks(calls: Sequence[Step], ended: Sequence[str]) -> int:
    """How many tasks of these calls have not ended. `ended`: the call's id of each subagent that has."""
    tasks = {str(call.id_ref): _count_tasks(call) for call in calls if call.name == DELEGATE_TOOL}
    return sum(tasks.values()) - sum(call_id in tasks for call_id in ended)


def _count_tasks(call: Step) -> int:
    try:
        return max(1, len(msgspec.json.decode(call.arguments or "{}", type=_Arguments).tasks))
    except (msgspec.MsgspecError, ValueError):
        return 1  # Such a call fails.


def with_earlier(task: str, earlier: Sequence[TaskOutcome]) -> str:
    """The text of a task of a sequence: the task, then what became of the tasks before it."""
    if not earlier:
        return task
    most = EARLIER_CHARACTERS // len(earlier)
    parts = [_earlier(number, outcome, most) for number, outcome in enumerate(earlier, 1)]
    return "\n\n".join([task, "What was done before this task:", *parts])


def _earlier(number: int, outcome: TaskOutcome, most: int) -> str:
    heading = f"## Task {number}: {outcome.assignment.task[:TASK_CHARACTERS]}"
    if outcome.problem is not None or outcome.end is None:
        return f"{heading}\n\nIt was not done: {outcome.problem}"
    answer = outcome.end.answer
    cut = f"\n\n(The answer has {len(answer) - most:,} more characters.)" if len(answer) > most else ""
    return f"{heading}\n\n{answer[:most]}{cut}"
