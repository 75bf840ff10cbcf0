"""The transcript of a step: what its turn read, thought, called and wrote, from the log of its run."""

from collections.abc import Sequence
from datetime import datetime

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.errors import Gone, NotFound
from luxx.features.tasks.models import TaskRow, TaskStepTranscript
from luxx.features.tasks.queries import own_task, step_row
from luxx.features.tasks.turns import RESULT, turn_input_of
from luxx.infra.store.engine import Store
from luxx.runs.log.events import read_log
from luxx.runs.log.retention import check_log
from luxx.runs.models import RunRow
from luxx.runs.turn.request import ChatRequest
from luxx.runs.turn.state import fold, model_used
from luxx.wire.event import LoggedEvent, QuestionAnswered, QuestionAsked, TurnNote
from luxx.wire.task_event import StepComplete, StepStart
from luxx.wire.turn import turn_of

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
        usage=state.usage,
        cost=state.cost,
        error=end.error if end is not None and isinstance(end.error, str) else None,
        started_at=datetime.fromisoformat(start.timestamp),
        finished_at=None if end is None else datetime.fromisoformat(end.timestamp),
    )
