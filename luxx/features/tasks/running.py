"""Running a task: execute, pause, resume, cancel and approve it, skip steps and retry them.

Also the transcript of a step: what its turn read, thought, called and wrote, from the log of its run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec
from msgspec.structs import replace
from sqlalchemy import select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.errors import Conflict, Gone, LuxxError, NotFound
from luxx.features.tasks.changes import index_task
from luxx.features.tasks.graph import RESULT, TaskStepStatus, pending_after
from luxx.features.tasks.models import TaskRow, TaskStepRow, TaskStepTranscript
from luxx.features.tasks.planning import Planner
from luxx.features.tasks.queries import (
    graph_of_rows,
    names_decoder,
    own_task,
    statuses_of,
    step_row,
    step_rows,
)
from luxx.features.tasks.run_rows import (
    TaskInput,
    chosen_by,
    effective_statuses,
    held_up_by,
    set_pending,
    write_skipped,
)
from luxx.features.tasks.times import forget_start
from luxx.features.tasks.turns import turn_input_of
from luxx.infra.clock import utc_now
from luxx.infra.config.schema import LimitsConfig
from luxx.infra.store.engine import Store
from luxx.runs.admission import SubjectRunService, newest_run
from luxx.runs.log.events import read_log
from luxx.runs.log.retention import check_log
from luxx.runs.models import RunRow
from luxx.runs.orchestration.inputs import InputKind, give_input
from luxx.runs.turn.run_rows import RunOwner
from luxx.runs.turn.state import ChatRequest, fold, model_used
from luxx.wire.event import LoggedEvent, QuestionAnswered, QuestionAsked, TurnNote
from luxx.wire.orchestration_event import StepComplete, StepStart
from luxx.wire.run import IN_PROGRESS, Run, RunKind, RunStatus
from luxx.wire.turn import turn_of

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class TaskRunService(SubjectRunService[TaskRow]):
    """One per process."""

    noun = "task"
    started = "executed"
    planner: Planner

    async def _admit(
        self,
        caller: Caller,
        task_id: str,
        prepare: Callable[[Session, TaskRow], None] = lambda _session, task: forget_start(task),
    ) -> Run:
        """Inserts a run that carries out the pending steps, after `prepare` in the same transaction; without
        steps it plans first.

        Raises NotFound, TooMany, or Conflict if a run is in progress or paused, or if no step is pending.
        """

        def insert(session: Session) -> Run:
            task = own_task(session, caller, task_id, is_locked=True)
            self._check_ended(session, task)
            prepare(session, task)
            rows = step_rows(session, task.id)
            if rows and all(row.status != TaskStepStatus.PENDING.value for row in rows):
                raise Conflict(
                    "no step of this task is pending; retry a failed step, or change the graph",
                    kind="nothing_to_execute",
                )
            self._check_lost(session, task, rows)
            owner, limits = RunOwner(task.user_id, task.tenant_id), self._limits(session, caller, task)
            started = self.admission.insert(session, owner, RunKind.TASK, task.id, "{}", limits=limits)
            had_result = task.result is not None
            task.run_id, task.result, task.updated_at = started.id, None, utc_now()
            if had_result:
                session.flush()
                index_task(session.connection(), task.id)
            return started

        return await self.admission.admit(caller, insert)

    def _check_lost(self, session: Session, task: TaskRow, rows: Sequence[TaskStepRow]) -> None:
        """Raises Conflict if something was chosen for the task, or for a pending step, that is gone."""
        if task.project_id is None and task.lost_project is not None:
            raise Conflict(
                f"the project '{task.lost_project}', whose permission rules applied to this task, was "
                "deleted; move it to another project (project_id), or to none (null)",
                kind="project_not_found",
                detail={"lost": {"project": task.lost_project}},
            )
        chosen = chosen_by(task)
        pending = [row for row in rows if row.status == TaskStepStatus.PENDING.value]
        choices = {chosen.of_step(row.id, row.agent_id, row.lost_agent): None for row in pending}
        for one in choices or {chosen: None}:
            settings = self.planner.settings_for(session, task.user_id, one)
            try:
                self.planner.resolve(session, task.user_id, replace(settings, tools=[]))
            except Conflict:
                raise
            except LuxxError:
                continue  # The step fails with it; other steps need not.

    def _limits(self, session: Session, caller: Caller, task: TaskRow) -> LimitsConfig | None:
        """The limits in force at the provider of the task, if it has one."""
        try:
            settings = self.planner.settings_for(session, task.user_id, chosen_by(task))
            request = self.planner.resolve(session, task.user_id, replace(settings, tools=[]))
        except LuxxError:
            return None  # The steps may have agents of their own; otherwise the run says what is wrong.
        return self.admission.limits_for(session, caller, request.provider_id)

    async def start_prepared(
        self, caller: Caller, task_id: str, prepare: Callable[[Session, TaskRow], None]
    ) -> Run:
        """`start`, with `prepare` in the transaction that inserts the run. Raises what both raise."""
        return await self.admission.begin(await self._admit(caller, task_id, prepare))

    async def retry(self, caller: Caller, task_id: str, step_id: str) -> Run:
        """Carries out a failed or skipped step again, then what was skipped because of it.

        Raises NotFound, or Conflict if a run is in progress or the step has not failed.
        """

        def prepare(session: Session, task: TaskRow) -> None:
            row = step_row(session, task, step_id)
            if row.status not in (TaskStepStatus.FAILED.value, TaskStepStatus.SKIPPED.value):
                raise Conflict(
                    f"only a failed or skipped step is retried; this one is {row.status}",
                    kind="step_not_failed",
                )
            rows = {one.id: one for one in step_rows(session, task.id)}
            _check_needed(row, effective_statuses(list(rows.values())))
            for one in held_up_by(step_id, rows):
                set_pending(rows[one])
            session.flush()

        return await self.start_prepared(caller, task_id, prepare)

    async def pause(self, caller: Caller, task_id: str) -> Run:
        """Cuts the steps in progress, which are pending again, and pauses. Raises Conflict if none runs."""
        run_id = await self._give(caller, task_id, InputKind.PAUSE, TaskInput(user=caller.username))
        return await self.runs.settled(caller, run_id)

    async def resume(self, caller: Caller, task_id: str) -> Run:
        """Continues a paused task. Raises Conflict if it is not paused."""
        return await self.admission.resume(caller, await self.executed_run_id(caller, task_id))

    async def approve(self, caller: Caller, task_id: str, step_ids: list[str]) -> Run:
        """Lets the task or, if steps are named, these begin. Raises NotFound, or Conflict if it does not
        run or needs no approval."""

        def check(session: Session, task: TaskRow) -> None:
            if not step_ids and not task.require_approval:
                raise Conflict(
                    "this task needs no approval; name the steps to approve", kind="nothing_to_approve"
                )
            for step_id in step_ids:
                row = step_row(session, task, step_id)
                if not row.require_approval:
                    raise Conflict(f"the step {step_id} needs no approval", kind="nothing_to_approve")
                row.approved_at = row.approved_at or utc_now()

        run_id = await self._give(
            caller, task_id, InputKind.APPROVE, TaskInput(user=caller.username, step_ids=step_ids), check
        )
        return await self.runs.settled(caller, run_id, 0)

    async def skip(self, caller: Caller, task_id: str, step_id: str) -> Run | None:
        """Leaves out a step that is pending or in progress, and the steps that need it.

        A step that has failed is passed over: the steps that need it go on without its result, in a new run.

        A task that is not in progress does that at once; its paused run logs it when it continues. Returns
        the newest run, None before the first. Raises NotFound, or Conflict if the step has ended.
        """
        if (going_on := await self._held_up_by_failed(caller, task_id, step_id)) is not None:
            return await self._pass_over(caller, task_id, step_id, has_more=bool(going_on))

        def work(session: Session) -> str | None:
            task = own_task(session, caller, task_id, is_locked=True)
            row = step_row(session, task, step_id)
            if row.status not in (TaskStepStatus.PENDING.value, TaskStepStatus.RUNNING.value):
                raise Conflict(f"this step has ended: it is {row.status}", kind="step_ended")
            run = newest_run(session, task)
            skipped: list[str] | None = None
            if run is None or run.status not in IN_PROGRESS:
                rows = step_rows(session, task.id)
                skipped = pending_after(graph_of_rows(rows), step_id, statuses_of(rows))
                write_skipped(task.id, {step_id: skipped}, session.connection())
                task.updated_at = utc_now()
            if run is not None:
                session.flush()
                data = TaskInput(user=caller.username, step_ids=[step_id], skipped=skipped)
                give_input(session.connection(), run.id, InputKind.SKIP, _encode(data).decode())
            return None if run is None else run.id

        run_id = await self.runs.give(work)
        return None if run_id is None else await self.runs.settled(caller, run_id, 0)

    async def _held_up_by_failed(self, caller: Caller, task_id: str, step_id: str) -> list[str] | None:
        """The steps that can go on once this failed step is skipped; None: it has not failed, or the task is
        in progress or paused."""

        def work(session: Session) -> list[str] | None:
            task = own_task(session, caller, task_id)
            row, run = step_row(session, task, step_id), newest_run(session, task)
            is_open = run is not None and (run.status in IN_PROGRESS or run.status == RunStatus.PAUSED)
            if row.status != TaskStepStatus.FAILED.value or is_open:
                return None
            rows = {one.id: one for one in step_rows(session, task.id)}
            return held_up_by(step_id, rows)[1:]

        return await self.admission.services.store.read(work)

    async def _pass_over(self, caller: Caller, task_id: str, step_id: str, *, has_more: bool) -> Run | None:
        """Skips a failed step; the steps that it held up are carried out, if there are any."""

        def prepare(session: Session, task: TaskRow) -> None:
            row = step_row(session, task, step_id)
            if row.status != TaskStepStatus.FAILED.value:
                raise Conflict(f"this step has ended: it is {row.status}", kind="step_ended")
            rows = {one.id: one for one in step_rows(session, task.id)}
            for one in held_up_by(step_id, rows)[1:]:
                set_pending(rows[one])
            row.status, row.skipped_because = TaskStepStatus.SKIPPED.value, row.id
            session.flush()

        if has_more:
            return await self.start_prepared(caller, task_id, prepare)

        def work(session: Session) -> str | None:
            task = own_task(session, caller, task_id, is_locked=True)
            self._check_ended(session, task)
            prepare(session, task)
            task.updated_at = utc_now()
            return task.run_id

        run_id = await self.runs.give(work)
        return None if run_id is None else await self.runs.settled(caller, run_id, 0)

    async def executed_run_id(self, caller: Caller, task_id: str) -> str:
        """`newest_run_id`, but raises Conflict if there is none."""

        def work(session: Session) -> str:
            task = own_task(session, caller, task_id)
            if task.run_id is None:
                raise self._not_running(None)
            return task.run_id

        return await self.admission.services.store.read(work)

    async def transcript(
        self, caller: Caller, task_id: str, step_id: str, attempt: int | None
    ) -> TaskStepTranscript:
        """See `read_transcript`."""
        return await read_transcript(self.admission.services.store, caller, task_id, step_id, attempt)

    def _find(self, session: Session, caller: Caller, task_id: str, *, is_steered: bool) -> TaskRow:
        return own_task(session, caller, task_id)

    def _not_running(self, run: RunRow | None) -> Conflict:
        if run is None:
            what = "has not been executed"
        elif run.status == RunStatus.PAUSED.value:
            what = "is paused; resume it first"
        else:
            what = f"does not run: its run is {run.status}"
        return Conflict(f"this task {what}", kind="task_not_running")


def _check_needed(row: TaskStepRow, statuses: Mapping[str, TaskStepStatus]) -> None:
    """Raises Conflict if the step needs the result of a step that has failed or was skipped."""
    gone = (TaskStepStatus.FAILED, TaskStepStatus.SKIPPED)
    missing = [one for one in names_decoder.decode(row.depends_on) if statuses[one] in gone]
    if missing:
        raise Conflict(
            f"this step needs {missing[0]}, which {_WHAT[statuses[missing[0]]]}; retry that one first",
            kind="step_not_failed",
            detail={"step_ids": missing},
        )


_WHAT = {TaskStepStatus.FAILED: "has failed", TaskStepStatus.SKIPPED: "was skipped"}


_request = msgspec.json.Decoder(ChatRequest)


async def read_transcript(
    store: Store, caller: Caller, task_id: str, step_id: str, attempt: int | None
) -> TaskStepTranscript:
    """The transcript of an attempt of a step, by default of the newest; of the final result with RESULT.

    Raises NotFound for a task, a step or an attempt that does not exist, Gone if its log was deleted.
    """

    def work(session: Session) -> TaskStepTranscript:
        task = own_task(session, caller, task_id)
        attempts = 1 if step_id == RESULT else step_row(session, task, step_id).attempts
        if not attempts or (attempt or 1) > attempts:
            raise _no_transcript(attempt)
        return _transcript(session, task, step_id, attempt)

    return await store.read(work)


def _transcript(session: Session, task: TaskRow, step_id: str, attempt: int | None) -> TaskStepTranscript:
    query = select(RunRow).where(RunRow.subject_id == task.id, RunRow.user_id == task.user_id)
    if step_id == RESULT:
        query = query.where(RunRow.id == task.run_id)
    gone: Gone | None = None
    for run in session.scalars(query.order_by(RunRow.id.desc())):
        try:
            check_log(session.connection(), run)
        except Gone as error:
            gone = error
            continue
        events = _events_of(read_log(session.connection(), run.id), step_id, attempt)
        if events:
            return _transcript_of(run.id, step_id, events)
    if gone is not None:
        raise gone
    raise _no_transcript(attempt)


def _no_transcript(attempt: int | None) -> NotFound:
    what = "this step has not been carried out"
    return NotFound(f"{what} {attempt} times" if attempt else what, kind="transcript_not_found")


def _events_of(log: Sequence[LoggedEvent], step_id: str, attempt: int | None) -> list[LoggedEvent]:
    """The events of this attempt, or of the newest one in the log; empty if there is none."""
    events: list[LoggedEvent] = []
    is_wanted = False
    questions: set[str] = set()
    for logged in log:
        event = logged.event
        if isinstance(event, StepStart) and event.step_id == step_id:
            is_wanted = attempt is None or event.attempt == attempt
            events = [] if is_wanted else events
        is_answer = isinstance(event, QuestionAnswered) and event.question_id in questions
        if is_wanted and (turn_of(event).key == step_id or is_answer):
            events.append(logged)
            if isinstance(event, QuestionAsked):
                questions.add(event.question_id)
    return events


def _transcript_of(run_id: str, step_id: str, events: list[LoggedEvent]) -> TaskStepTranscript:
    start, note = events[0].event, events[0].note
    assert isinstance(start, StepStart)
    assert isinstance(note, TurnNote)
    request = _request.decode(note.request)
    state = fold(events[1:])
    end = next((one.event for one in events if isinstance(one.event, StepComplete)), None)
    return TaskStepTranscript(
        run_id=run_id,
        step_id=step_id,
        attempt=start.attempt,
        status="running" if end is None else end.status,
        **msgspec.structs.asdict(model_used(request, state)),
        tools=request.tools,
        system_prompt=request.system_prompt,
        input=turn_input_of(note).text,
        steps=list(state.steps),
        verdicts=list(state.verdicts),
        usage=state.usage,
        cost=state.cost,
        error=end.error if end is not None and isinstance(end.error, str) else None,
        started_at=datetime.fromisoformat(start.timestamp),
        finished_at=None if end is None else datetime.fromisoformat(end.timestamp),
    )
