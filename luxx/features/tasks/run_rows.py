"""The rows that the run of a task reads and writes: the task with its steps, their statuses and results."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, bindparam
from sqlalchemy.orm import Session

from luxx.features.tasks.changes import index_task, replace_steps
from luxx.features.tasks.graph import TaskStepStatus
from luxx.features.tasks.models import NewTaskStep, TaskRow, TaskStepRow
from luxx.features.tasks.queries import artifacts_of_calls, definition_of, graph_of_rows, step_rows
from luxx.features.tasks.steps import ClosedStep
from luxx.features.tasks.turns import SKIPPED_BY_A_PERSON, StepResults
from luxx.infra.clock import utc_now
from luxx.infra.store.tables import table_of
from luxx.runs.log.events import store_output
from luxx.runs.turn.asking import close_questions
from luxx.runs.turn.state import TurnState
from luxx.wire.turn import StepStatus, StepType, written_artifacts

_encode = msgspec.json.Encoder().encode
_steps = table_of(TaskStepRow)
_set_step = _steps.update().where(_steps.c.task_id == bindparam("b_task"), _steps.c.id == bindparam("b_id"))
_start = _set_step.values(
    status=TaskStepStatus.RUNNING.value,
    attempts=_steps.c.attempts + 1,
    started_at=bindparam("now"),
    finished_at=None,
    error=None,
)
_finish = _set_step.values(
    {
        name: bindparam(name)
        for name in (
            "status", "output", "error", "skipped_because", "tainted_by", "tool_calls", "usage", "cost",
            "duration_ms", "finished_at", "provider_id", "provider_name", "model", "finish",
        )
    }
)  # fmt: skip
_fail = _set_step.values(
    status=TaskStepStatus.FAILED.value,
    error=bindparam("why"),
    attempts=_steps.c.attempts + 1,
    finished_at=bindparam("now"),
)
_pause = (
    _steps.update()
    .where(_steps.c.task_id == bindparam("b_task"), _steps.c.status == TaskStepStatus.RUNNING.value)
    .values(status=TaskStepStatus.PENDING.value)
    .returning(_steps.c.id)
)
_skip = _set_step.values(
    status=TaskStepStatus.SKIPPED.value, error=bindparam("why"), skipped_because=bindparam("because")
)
BY_A_PERSON = ""
"""The value of `skipped_because` for a step that a person left out."""

PASSED_OVER = "This step failed, and a person skipped it: it has no result. Go on without it."
"""What the steps that need a step read in place of its output, if a person skipped it after it had failed."""

_tasks = table_of(TaskRow)
_set_result = _tasks.update().where(_tasks.c.id == bindparam("b_id")).values(result=bindparam("text"))


class TaskInput(msgspec.Struct, frozen=True, kw_only=True):
    """The data of an input of a person named `user`; `step_ids` are approved or left out.

    `skipped`: the steps that were skipped with one that was left out while the run was paused; the log lacks
    both. None: the run is in progress.
    """

    user: str
    step_ids: list[str] = []
    skipped: list[str] | None = None


class ChosenModels(msgspec.Struct, frozen=True, kw_only=True):
    """The agent that carries out something, and the provider where the agent has none; `lost_agent` and
    `lost_provider` are the names of those that are gone. `agent_of` and `provider_of`: what chose them.
    `project_id`: where it is carried out."""

    agent_id: int | None = None
    lost_agent: str | None = None
    agent_of: str = "this task"
    provider_id: int | None = None
    lost_provider: str | None = None
    provider_of: str = "this task"
    project_id: str | None = None

    def of_step(self, step_id: str, agent_id: int | None, lost_agent: str | None) -> "ChosenModels":
        """What carries out a step of a task with these choices: the agent of the step, if one was chosen."""
        if agent_id is None and lost_agent is None:
            return self
        return msgspec.structs.replace(
            self, agent_id=agent_id, lost_agent=lost_agent, agent_of=f"the step {step_id}"
        )


class TaskValues(msgspec.Struct, frozen=True, kw_only=True):
    """A task with its steps and their results so far.

    `lost_provider`, `lost_agent` and, by the ids of the steps, `lost_agents`: names of what was chosen and is
    gone.
    """

    task_id: str
    user_id: int
    tenant_id: int
    name: str
    goal: str
    project_id: str | None
    provider_id: int | None
    agent_id: int | None
    lost_provider: str | None
    lost_agent: str | None
    lost_agents: Mapping[str, str]
    max_concurrent_steps: int
    require_approval: bool
    steps: tuple[NewTaskStep, ...]
    results: StepResults
    attempts: Mapping[str, int]

    def chosen(self, step: NewTaskStep | None) -> ChosenModels:
        """What carries out a step, or None: the plan and the result."""
        chosen = chosen_by(self)
        if step is None:
            return chosen
        return chosen.of_step(str(step.id), step.agent_id, self.lost_agents.get(str(step.id)))


def chosen_by(task: "TaskRow | TaskValues") -> ChosenModels:
    """The agent and the provider of a task, for the steps without an agent of their own."""
    return ChosenModels(
        agent_id=task.agent_id,
        lost_agent=task.lost_agent,
        provider_id=task.provider_id,
        lost_provider=task.lost_provider,
        project_id=task.project_id,
    )


def read_task(session: Session, task_id: str) -> tuple[TaskValues, dict[str, TaskStepStatus], set[str]]:
    """The task as it is now, the statuses of its steps, and the steps that wait for approval."""
    row = session.get_one(TaskRow, task_id)
    rows = step_rows(session, task_id)
    statuses = effective_statuses(rows)
    task = TaskValues(
        task_id=row.id, user_id=row.user_id, tenant_id=row.tenant_id, name=row.name, goal=row.goal,
        project_id=row.project_id,
        provider_id=row.provider_id, agent_id=row.agent_id, max_concurrent_steps=row.max_concurrent_steps,
        lost_provider=row.lost_provider, lost_agent=row.lost_agent,
        lost_agents={one.id: one.lost_agent for one in rows if one.lost_agent is not None},
        require_approval=row.require_approval,
        steps=tuple(definition_of(one) for one in rows),
        results=StepResults(
            outputs={
                one.id: PASSED_OVER if is_passed_over(one) else one.output or ""
                for one in rows
                if statuses[one.id] == TaskStepStatus.COMPLETED
            },
            finishes={one.id: one.finish for one in rows},
            tainted={one.id: one.tainted_by for one in rows if one.tainted_by is not None},
            artifacts={one.id: artifacts_of_calls(one.tool_calls) for one in rows},
        ),
        attempts={one.id: one.attempts for one in rows},
    )  # fmt: skip
    held = {one.id for one in rows if one.require_approval and one.approved_at is None}
    return task, statuses, held


def is_passed_over(row: TaskStepRow) -> bool:
    """Whether the step failed, and a person skipped it so that the steps which need it go on."""
    return row.status == TaskStepStatus.SKIPPED.value and row.skipped_because == row.id


def effective_statuses(rows: Sequence[TaskStepRow]) -> dict[str, TaskStepStatus]:
    """The statuses by which steps begin: one that was passed over holds nothing up, like a completed one."""
    return {
        one.id: TaskStepStatus.COMPLETED if is_passed_over(one) else TaskStepStatus(one.status)
        for one in rows
    }


def held_up_by(step_id: str, rows: Mapping[str, TaskStepRow]) -> list[str]:
    """The step, then what was skipped because of it and can go on without any other."""
    left_out = {one.id for one in rows.values() if one.skipped_because == BY_A_PERSON and one.id != step_id}
    listed = list(rows.values())
    return graph_of_rows(listed).retried(step_id, effective_statuses(listed), left_out)


def set_pending(row: TaskStepRow) -> None:
    """Makes a step pending again, without what its last attempt left."""
    row.status = TaskStepStatus.PENDING.value
    row.output = row.error = row.skipped_because = row.tainted_by = None
    row.provider_id = row.provider_name = row.model = row.finish = None
    row.duration_ms = row.finished_at = None


def pause_steps(connection: Connection, task_id: str) -> list[str]:
    """Marks the running steps as pending; their ids."""
    return list(connection.scalars(_pause, {"b_task": task_id}))


def start_steps(connection: Connection, task_id: str, step_ids: Sequence[str]) -> None:
    """Marks steps as running, with one more attempt."""
    now = utc_now()
    if step_ids:
        connection.execute(_start, [{"b_task": task_id, "b_id": one, "now": now} for one in step_ids])


def fail_step(connection: Connection, task_id: str, step_id: str, error: str) -> None:
    """Marks a step as failed that could not begin."""
    connection.execute(_fail, {"b_task": task_id, "b_id": step_id, "why": error, "now": utc_now()})


def skip_steps(
    connection: Connection, task_id: str, step_ids: Sequence[str], because: str, status: TaskStepStatus
) -> None:
    """Marks steps as skipped, because the step `because` failed or was skipped."""
    what = "failed" if status == TaskStepStatus.FAILED else "was skipped"
    why = f"skipped, because the step {because} {what}"
    for step_id in step_ids:
        values = {"b_task": task_id, "b_id": step_id, "why": why, "because": because}
        connection.execute(_skip, values)


def write_result(task_id: str, text: str, connection: Connection) -> None:
    """Stores the final result of a task."""
    connection.execute(_set_result, {"b_id": task_id, "text": text})
    index_task(connection, task_id)


def write_plan(task_id: str, steps: Sequence[NewTaskStep], connection: Connection) -> None:
    """Stores the steps of a plan."""
    session = Session(bind=connection)
    replace_steps(session, session.get_one(TaskRow, task_id), steps)
    session.flush()


def write_begun(
    task_id: str,
    started: Sequence[str],
    failed: Sequence[tuple[str, list[str], str]],
    stored: Sequence[dict[str, str]],
    connection: Connection,
) -> None:
    """Marks steps as running, and those that cannot begin as failed: each with its skipped ones and why.

    `stored` are outputs that a step got in a shortened form.
    """
    start_steps(connection, task_id, started)
    for step_id, skipped, error in failed:
        fail_step(connection, task_id, step_id, error)
        skip_steps(connection, task_id, skipped, step_id, TaskStepStatus.FAILED)
    for row in stored:
        store_output(connection, row)


def write_ended(
    task_id: str, run_id: str, state: TurnState, closed: ClosedStep, connection: Connection
) -> None:
    """Stores the end of a step's turn and what is skipped because of it, and closes its questions."""
    end = closed.end
    row: dict[str, Any] = {
        "b_task": task_id, "b_id": closed.step_id, "status": end.status.value, "output": end.output,
        "error": end.error, "tainted_by": closed.tainted_by,
        "skipped_because": BY_A_PERSON if end.status == TaskStepStatus.SKIPPED else None,
        "tool_calls": _encode(_calls_of(state)).decode(),
        "usage": _encode(state.usage).decode(), "cost": state.cost, "duration_ms": closed.duration_ms,
        "finish": end.finish, "finished_at": closed.finished_at,
        **msgspec.structs.asdict(closed.used),
    }  # fmt: skip
    connection.execute(_finish, row)
    skip_steps(connection, task_id, closed.skipped, closed.step_id, end.status)
    if closed.questions:
        close_questions(connection, run_id, closed.questions)


def _calls_of(state: TurnState) -> list[dict[str, Any]]:
    """The tool calls of a step, in short: name, arguments, status; and the artifacts that they wrote."""
    calls: list[dict[str, Any]] = [
        {"id": step.id_ref, "name": step.name, "arguments": step.arguments, "status": step.status.value}
        for step in state.steps
        if step.type == StepType.TOOL_CALL and step.status != StepStatus.INTERRUPTED
    ]
    by_id = {call["id"]: call for call in calls}
    for step in state.steps:
        if (written := written_artifacts([step])) and step.id_ref in by_id:
            by_id[step.id_ref]["artifacts"] = written
    return calls


def write_skipped(task_id: str, skipped: Mapping[str, Sequence[str]], connection: Connection) -> None:
    """Marks steps that a person left out as skipped, and those that need them."""
    for step_id, others in skipped.items():
        values = {"b_task": task_id, "b_id": step_id, "why": SKIPPED_BY_A_PERSON, "because": BY_A_PERSON}
        connection.execute(_skip, values)
        skip_steps(connection, task_id, others, step_id, TaskStepStatus.SKIPPED)
