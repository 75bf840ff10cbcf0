"""The orchestration of a chat whose answer may be made by a plan: the plan, its steps, then the answer.

The steps are those of `features/tasks/steps.py`, and have no rows: the log has all that is known of them. A
chat without planning is one turn (`runs/turn/chat.py`).
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection
from sqlalchemy.orm import Session

from luxx.domain.context.messages import PastMessage
from luxx.domain.usage.ledger import UsageEntry
from luxx.errors import LimitReached, LuxxError
from luxx.features.tasks.graph import PLAN, TaskStepStatus
from luxx.features.tasks.models import NewTaskStep
from luxx.features.tasks.plan_text import Plan, parse_plan
from luxx.features.tasks.planning import PLAN_PROMPT, Planner, planned_steps, step_info
from luxx.features.tasks.steps import StepGraph
from luxx.features.tasks.turns import (
    StepEnd,
    StepResults,
    TurnInput,
    begin_step,
    input_turn,
    output_ref,
    shown_outputs,
    turn_input_of,
)
from luxx.infra.clock import utc_now
from luxx.runs.log.events import LogEntry, store_output
from luxx.runs.orchestration.drive import load_orchestrated
from luxx.runs.orchestration.inputs import RunInput
from luxx.runs.orchestration.interface import (
    Begin,
    Decision,
    End,
    InputEffect,
    Opening,
    RunTotals,
    TurnStart,
    Wait,
)
from luxx.runs.turn.asking import close_questions
from luxx.runs.turn.chat import close_chat
from luxx.runs.turn.context import BeginDrive, Heard
from luxx.runs.turn.resources import TurnServices
from luxx.runs.turn.run_rows import RunHead
from luxx.runs.turn.state import ChatRequest, RunSpec, TurnState
from luxx.runs.turn.turn_log import CANCELLED, Closing, Ending, cost_entries, ending_for, full_output_row
from luxx.wire.event import CallPurpose, CostUpdate, LoggedEvent, ProcessStep, TurnNote
from luxx.wire.message import UserContent
from luxx.wire.model_settings import PlanningMode
from luxx.wire.orchestration_event import (
    Complexity,
    PlanCreated,
    PlannedStepInfo,
    Planning,
    StepComplete,
    StepSkipped,
    StepStart,
    ThinkingLevel,
)
from luxx.wire.run import RunStatus
from luxx.wire.turn import CHAT_TURN, Step, StepType, Usage, steps_text, turn_of, written_artifacts
from luxx.wire.turn_event import Tainted, pattern_used

PLAN_SECONDS = 5.0
"""How long the planning call may take; then the message is answered directly."""

MIN_STEPS = 3
MAX_AT_ONCE = 5
MAX_ASKED = 8_000
"""Characters of the message that the planning call reads: a short prompt keeps it short."""

MAX_ANSWER_BEFORE = 2_000
MAX_TOOLS_NAMED = 100
PLAN_KEY = f"{PLAN}-1"
DIRECT = (
    f" The goal is what a person asks for in a chat. If fewer than {MIN_STEPS} steps make sense, answer with "
    '{"steps": []}: then it is answered directly.'
)
STEP = (
    "This message is not from the person: it says how their message above is answered. A plan has been made "
    "for it, and you carry out one of its steps now. Do only this step. Your last message is its result: "
    "other steps and the answer are made from it, so it must stand for itself. If the step cannot be "
    "done, say so and why."
)
ANSWER = (
    "This message is not from the person: the steps of the plan for their message above have been carried "
    "out. Answer the message now, from their results. Do not describe the plan; say what is missing in the "
    "answer where a step has no result."
)
_encode = msgspec.json.Encoder().encode
_request = msgspec.json.Decoder(ChatRequest)


class ChatOrchestration:
    """A planned chat's run in one drive. See `Orchestration`.

    `spec` is that of the whole run: its request, the messages before it, the message that it writes. The
    turn with the key "" is the answer: it begins when all steps have ended, or no plan was made. `send_next`
    is called after the end if a queued message is to be sent.
    """

    def __init__(self, head: RunHead, planner: Planner, spec: RunSpec, send_next: Callable[[], None]) -> None:
        self._head, self._planner, self._spec = head, planner, spec
        self._send_next, self._has_next = send_next, False
        self._asked = replace(spec.request, planning=PlanningMode.OFF)
        self._pattern = next((one for one in spec.request.routed if one.kind == "pattern"), None)
        self._graph = StepGraph([], {}, StepResults())
        self._is_planned = False
        self._usage, self._cost = Usage(), None
        self._texts: dict[str, dict[int, Step]] = {}
        self._missing: dict[str, str] = {}
        self._tainted: dict[str, str] = {}
        self._limit: LimitReached | None = None
        self._answer: tuple[TurnState, Ending] | None = None

    def apply(self, logged: LoggedEvent) -> None:
        event, key = logged.event, turn_of(logged.event).key
        match event:
            case CostUpdate():
                self._usage, self._cost = event.usage, event.cost
                if key == PLAN_KEY:  # Its only call has ended; a valid plan is logged with that.
                    self._end_planning()
            case PlanCreated():
                self._end_planning()
                self._graph.plan([_step_of(info) for info in event.steps], {})
            case StepStart() if isinstance(logged.note, TurnNote):
                self._graph.start(key)
            case ProcessStep(step=step) if key in self._graph.open and (
                step.type == StepType.TEXT or written_artifacts([step])
            ):
                self._texts.setdefault(key, {})[step.index] = step
            case Tainted(by=tool) if key in self._graph.open:
                self._tainted.setdefault(key, tool)
            case StepComplete():
                self._restore(key, event)
            case StepSkipped(because=other):
                self._graph.restore(key, StepEnd(status=TaskStepStatus.SKIPPED, output="", error=None))
                self._missing[key] = f"was skipped, because [{other}] has no result"
            case _ if not key:
                self._end_planning()
            case _:
                pass
        self._graph.apply(logged)

    def _restore(self, step_id: str, event: StepComplete) -> None:
        """Takes note of the end of a step, which an earlier drive may have logged."""
        texts = self._texts.pop(step_id, {})
        error = event.error if isinstance(event.error, str) else None
        if error is not None:
            self._missing[step_id] = f"failed: {error}"
        output = steps_text(texts[index] for index in sorted(texts)).replace("\0", "\ufffd")
        status = TaskStepStatus(event.status)
        artifacts = written_artifacts(texts.values())
        end = StepEnd(status=status, output=output, error=error, finish=event.finish, artifacts=artifacts)
        note = self._graph.open.get(step_id)
        read = None if note is None else turn_input_of(note).tainted_by
        self._graph.restore(step_id, end, read or self._tainted.get(step_id))

    def _end_planning(self) -> None:
        self._is_planned = True
        self._graph.open.pop(PLAN_KEY, None)

    @property
    def _has_begun_answer(self) -> bool:
        return self._is_planned and not self._graph.open and not self._graph.ready()

    def is_open(self, key: str) -> bool:
        return key in self._graph.open if key else self._has_begun_answer

    def open_turns(self) -> list[TurnStart]:
        if PLAN_KEY in self._graph.open and self._seconds_left() <= 0:
            self._end_planning()
        turns = [self._turn_of(key, note) for key, note in self._graph.open.items()]
        return [*turns, self._answer_turn()] if self._has_begun_answer else turns

    def _seconds_left(self) -> float:
        begun_at = self._graph.begun_at(PLAN_KEY) or utc_now()
        return PLAN_SECONDS - (utc_now() - begun_at).total_seconds()

    def _turn_of(self, key: str, note: TurnNote) -> TurnStart:
        start = input_turn(key, turn_input_of(note), _request.decode(note.request))
        if key == PLAN_KEY:
            return replace(start, purpose=CallPurpose.PLAN, seconds=max(0.0, self._seconds_left()))
        return self._in_chat(start)

    def _in_chat(self, start: TurnStart) -> TurnStart:
        """The turn of a step, which reads the chat before what it is to do."""
        return replace(start, past=[*self._spec.past, *start.past], level=ThinkingLevel.TASK.value)

    def heard(self, key: str) -> Sequence[Heard]:
        del key
        return ()

    def to_cut(self) -> Collection[str]:
        return list(self._graph.open) if self._limit is not None else ()

    @property
    def max_turns(self) -> int | None:
        return MAX_AT_ONCE

    def decide(self, running: Collection[str], waiting: int, totals: RunTotals) -> Decision:
        del totals
        if self._answer is not None or self._limit is not None:
            return Wait() if running else self._end()
        if self._graph.open.keys() - running:
            return Begin.these(sorted(self._graph.open.keys() - running))
        if not self._is_planned:
            return Wait() if running else Begin.these([PLAN_KEY])
        if following := self._graph.ready()[: max(0, MAX_AT_ONCE - len(running) + waiting)]:
            return Begin.these(following)
        return Wait() if running else Begin.these([CHAT_TURN.key])

    def _end(self) -> End:
        """The end of the run, which stores the answer and releases the conversation in one transaction."""
        assert self._answer is not None or self._limit is not None
        state, ending = self._answer or (TurnState(), ending_for(self._limit or LuxxError("")))
        closing = close_chat(
            replace(self._spec, has_plan=bool(self._graph.steps)),
            replace(state, usage=self._usage, cost=self._cost),
            ending,
            None,
            on_next=self._on_next,
        )
        return End(
            entries=closing.events,
            status=ending.status,
            stop_reason=ending.stop_reason.value,
            error=ending.error,
            write=closing.write,
            changes=closing.changes,
            size=closing.size,
            on_written=self._on_end,
        )

    def _on_next(self) -> None:
        self._has_next = True

    def _on_end(self) -> None:
        if self._has_next:
            self._send_next()

    def on_stop(self, error: LuxxError | None) -> End:
        if self._answer is None:
            self._answer = TurnState(), CANCELLED if error is None else ending_for(error)
        return self._end()

    # Turns

    def prepare(self, session: Session, begin: Begin, most: int, totals: RunTotals) -> Opening:
        del totals
        turns: list[TurnStart] = []
        entries: list[LogEntry] = []
        for key in begin.keys[:most]:
            if key in self._graph.open:
                turns.append(self._turn_of(key, self._graph.open[key]))
            elif key == PLAN_KEY:
                try:
                    start, entry = self._plan_turn(session)
                except LuxxError:
                    self._end_planning()  # The answer's turn meets the same error, and ends with it.
                    continue
                turns.append(start)
                entries.append(entry)
            elif key in self._graph.steps:
                parts = [STEP, _plan_text(list(self._graph.steps.values()))]
                step = self._graph.steps[key]
                begun = begin_step(parts, self._head.id, step, 1, self._graph.results, self._step_request)
                turns.append(self._in_chat(begun.start))
                entries.append(begun.entry)
            else:
                turns.append(self._answer_turn())
        return Opening(turns=turns, entries=entries)

    @property
    def _step_request(self) -> ChatRequest:
        return replace(self._asked, response_schema=None, warnings=[])

    def _plan_turn(self, session: Session) -> tuple[TurnStart, LogEntry]:
        request = self._planner.in_chat(session, self._head.user_id, self._step_request, PLAN_PROMPT + DIRECT)
        reference = [] if self._pattern is None else [self._pattern.text]
        given = TurnInput(text="\n\n".join([_plan_question(self._spec), *reference]))
        note = TurnNote(request=msgspec.Raw(_encode(request)), data=msgspec.Raw(_encode(given)))
        event = Planning(step_id=PLAN_KEY, task_id=None, attempt=1)
        return self._turn_of(PLAN_KEY, note), (event, note)

    def _answer_turn(self) -> TurnStart:
        if not self._graph.steps:
            return TurnStart(turn=CHAT_TURN, request=self._asked, past=self._spec.past)
        results = self._graph.results
        text, _ = shown_outputs(results, self._asked)
        missing = [f"Step [{one}] {why}." for one, why in self._missing.items()]
        steps = list(self._graph.steps.values())
        content = "\n\n".join(part for part in (ANSWER, _plan_text(steps), text, *missing) if part)
        return TurnStart(
            turn=CHAT_TURN,
            request=replace(self._asked, routed=[one for one in self._asked.routed if one.kind != "pattern"]),
            past=[*self._spec.past, PastMessage(user=UserContent(text=content))],
            tainted_by=next(iter(results.tainted.values()), None),
            level=ThinkingLevel.WORK.value,
        )

    def close(self, start: TurnStart, state: TurnState, ending: Ending, cut: UsageEntry | None) -> Closing:
        key = start.turn.key
        if key == PLAN_KEY:
            entries = [*cost_entries(start.purpose, cut), *self._plan_entries(state, ending)]
            return Closing(events=entries)
        if not key:
            # The end of the run follows at once; a message that comes in between goes to the queue.
            self._answer = state, replace(ending, takes_steers=False, takes_todos=False)
            entries = cost_entries(start.purpose, cut)
            return Closing(events=entries)
        if isinstance(ending.error, LimitReached):
            self._limit = ending.error
        closed = self._graph.close(start, state, ending, cut)
        output = full_output_row(self._head.id, output_ref(key), closed.end.output)
        write = partial(_write_step, self._head.id, output, closed.questions)
        return Closing(events=closed.events, write=write, size=len(closed.end.output))

    def _plan_entries(self, state: TurnState, ending: Ending) -> list[LogEntry]:
        """The event of a valid plan of enough steps; without one, the message is answered directly."""
        self._end_planning()
        if ending.error is not None or ending.status != RunStatus.COMPLETED:
            return []
        plan = parse_plan(steps_text(state.steps))
        if not isinstance(plan, Plan) or len(plan.steps) < MIN_STEPS:
            return []
        steps = planned_steps(plan, {})
        complexity = Complexity.MODERATE if len(steps) <= MAX_MODERATE else Complexity.COMPLEX
        created = PlanCreated(task_id=None, complexity=complexity, steps=[step_info(step) for step in steps])
        return [created] if self._pattern is None else [pattern_used(self._pattern), created]

    def on_inputs(self, session: Session, inputs: Sequence[RunInput]) -> InputEffect:
        del session, inputs  # Answers to questions are the only inputs; the drive logs these.
        return InputEffect()


MAX_MODERATE = 5
"""Steps of a plan of moderate complexity."""


def load_planned_chat(
    services: TurnServices, planner: Planner, session: Session, head: RunHead, spec: RunSpec
) -> BeginDrive:
    """Reads what a drive of a planned chat's run needs."""

    def load(session: Session, head: RunHead) -> ChatOrchestration:
        del session
        return ChatOrchestration(head, planner, spec, services.engine().request_maintenance)

    return load_orchestrated(services, load, session, head)


def _write_step(
    run_id: str, output: dict[str, str], questions: Sequence[str], connection: Connection
) -> None:
    """Keeps the whole result of a step, of which others may read a part, and closes its questions."""
    if output["output"]:
        store_output(connection, output)
    if questions:
        close_questions(connection, run_id, questions)


def _step_of(info: PlannedStepInfo) -> NewTaskStep:
    return msgspec.convert(msgspec.to_builtins(info), NewTaskStep)


def _plan_text(steps: Sequence[NewTaskStep]) -> str:
    listed = "\n".join(f"- [{step.id}] {step.name}" for step in steps)
    return f"The plan:\n{listed}"


def _plan_question(spec: RunSpec) -> str:
    """What the planning call reads: the message, the end of the answer before it, and names of tools."""
    messages = [message.user for message in spec.past if message.user is not None]
    text = messages[-1].text if messages else ""
    parts = [f"The goal:\n{text[:MAX_ASKED]}"]
    before = [message.steps for message in spec.past if message.user is None]
    if before and (answer := steps_text(before[-1])):
        parts.append(f"The answer before it:\n{answer[-MAX_ANSWER_BEFORE:]}")
    if messages and (names := [file.name for file in messages[-1].attachments if file.name]):
        parts.append(f"Attached files: {', '.join(names)}")
    if spec.request.tools:
        parts.append(f"Tools that steps can use: {', '.join(spec.request.tools[:MAX_TOOLS_NAMED])}")
    return "\n\n".join(parts)
