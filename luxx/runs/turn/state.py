"""A run or a turn as a drive reads it: what it was asked, its state, and what follows.

The request is JSON in the row of a chat's run and in the event that begins another turn. The fold is pure.
"""

from collections.abc import Sequence
from enum import StrEnum
from functools import reduce
from itertools import groupby
from typing import Any

import msgspec
from msgspec.structs import replace

from luxx.domain.agents.models import Check
from luxx.domain.context.messages import PastMessage
from luxx.domain.context.prompt import context_after
from luxx.domain.usage.ledger import add_cost
from luxx.runs.turn.repetition import MAX_PAIRS, LoopState, call_of_result
from luxx.wire.check import Verdict
from luxx.wire.event import (
    CallPurpose,
    CompletionNote,
    CostUpdate,
    Done,
    Event,
    LoggedEvent,
    ProcessStep,
    QuestionAnswered,
    QuestionAsked,
    RecallNote,
)
from luxx.wire.memory import RecalledFact
from luxx.wire.message import ContextRecord
from luxx.wire.model_settings import MemoryMode, ModelSettings, PlanningMode
from luxx.wire.run import (
    PATTERN_DECISION,
    ChosenBy,
    Compression,
    Delegated,
    InConversation,
    Invocation,
    OrchestratedTurn,
    RoomCopyTurn,
    RoutedChoice,
    RunKind,
    WhenAsked,
)
from luxx.wire.todos import REMINDER
from luxx.wire.tool import ActiveSkill, Narrowing, ToolChoice, ToolSpec
from luxx.wire.turn import CHAT_TURN, FinishReason, ModelUsed, Step, StepStatus, StepType, TurnRef, Usage
from luxx.wire.turn_event import (
    PERSON,
    ContextCompressed,
    DoomLoopDetected,
    DoomLoopIntervened,
    MembersEnded,
    MemoryRecalled,
    PlanUpdated,
    Retrying,
    SkillActivated,
    SubagentAssigned,
    Tainted,
    UiCommand,
)


class FallbackTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A provider and a model that make the calls of a run after the ones before have failed for good; with a
    `problem`, a sentence, they cannot and are passed over."""

    provider_id: int
    provider_name: str | None = None
    model: str
    problem: str = ""


class GivenPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="given"):
    """The origin of a call that has no conversation: what its client gives, the messages and its own tools.

    The model's calls of these tools end the run; the client makes them and sends the results in its next
    call. The answer is not stored, and the messages are removed when the run ends."""

    past: list[PastMessage]
    tools: list[ToolSpec] = []
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None


Origin = InConversation | Invocation | Compression | GivenPrompt | Delegated | OrchestratedTurn | RoomCopyTurn
"""What a run or a turn was asked."""


class ChatRequest(ModelSettings, frozen=True, kw_only=True):
    """The request of a run or a turn. Every default is resolved at its start: later changes do not alter it.

    `agent_id`: where the values come from. `max_iterations`: model calls with tools; None: as configured.
    `skills`: those that it may activate; None: all. `given_skills`: those that a person activates; `routed`:
    what the words ask for. The model gets `tools`, and images with `takes_images`. `response_schema`: of the
    answer's text. `when_asked`: whether it waits when it must ask. `stop`: texts that end a completion.
    `warnings` begin the log. `planning`: whether a plan may answer. `memory`, a mode, and `knowledge`, bases,
    are of agent and conversation, `project_id` of the conversation or task."""

    origin: Origin = OrchestratedTurn()
    provider_id: int
    provider_name: str | None = None
    model: str
    agent_id: int | None = None
    max_iterations: int | None = None
    skills: list[str] | None = None
    given_skills: list[str] = []
    routed: list[RoutedChoice] = []
    project_id: str | None = None
    fallbacks: list[FallbackTarget] = []
    tools: list[str] = []
    takes_images: bool = False
    context_window: int | None = None
    max_tokens: int | None = None  # A user's default may be larger than what others may choose.
    system_prompt: str = ""
    response_schema: dict[str, Any] | None = None
    when_asked: WhenAsked = WhenAsked.WAIT
    stop: list[str] = []
    warnings: list[str] = []
    prompted_thinking: bool = False
    planning: PlanningMode = PlanningMode.OFF
    checks: list[Check] = []
    sliding_window: int | None = None
    memory: MemoryMode = MemoryMode.ON
    knowledge: list[str] = []

    @property
    def rule_agents(self) -> tuple[int, ...]:
        """The agents whose permission rules apply: the run's own (0: none), then those of the runs above."""
        above = self.origin.agent_ids if isinstance(self.origin, Delegated) else ()
        return (self.agent_id or 0, *above)

    @property
    def stores_nothing(self) -> bool:
        """Whether it is that of a call whose client gives the messages, or of a subagent of one."""
        origin = self.origin
        return isinstance(origin, GivenPrompt) or (isinstance(origin, Delegated) and origin.is_of_given)


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A run to drive, or a turn of one. `events` is its log so far; empty for a turn of a room or task.

    `subject_id` is the run's: a conversation, an agent that was called, a room, a task, or the run itself.
    `message_id`: what it writes, if any. `tainted_by`: the tool that brought untrusted content into earlier
    turns. `purpose`: of its model calls. `level`: of its thinking steps. `has_plan`: a plan answers."""

    run_id: str
    kind: RunKind = RunKind.CHAT
    turn: TurnRef = CHAT_TURN
    user_id: int
    tenant_id: int
    subject_id: str
    message_id: str | None
    fence: int
    request: ChatRequest
    past: list[PastMessage]
    events: list[LoggedEvent]
    tainted_by: str | None = None
    purpose: CallPurpose = CallPurpose.ANSWER
    level: str = ""
    has_plan: bool = False


OPEN_CALL = frozenset({StepStatus.PENDING, StepStatus.RUNNING})


class QuestionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A question of the run, and its answer once there is one."""

    question: QuestionAsked
    answer: QuestionAnswered | None = None


class TurnState(msgspec.Struct, frozen=True, kw_only=True):
    """`steps[i]` is the last logged version of the step of index i; `iterations` counts ended completions.

    The first `finished_count` steps belong to ended completions and their tools, the others to a completion
    whose end is not in the log. `is_answered`: the last completion asked for no tool and did not pause, so
    the model is not called again. `tainted_by`: the tool that first returned untrusted content. `narrowed`:
    the limits on tools of active `skills`. `subagents`: the last event of each. `fallback`: the number of the
    one in use. `context`: how the next prompt is made. `has_overflowed`: a prompt was refused as too long and
    made again with less. `is_compressed`: more was left out for the next call, and nothing more is before it.
    `reminded`: of to-dos after so many iterations. `recalled`: facts. `ui_commands`: how many were logged."""

    steps: tuple[Step, ...] = ()
    finished_count: int = 0
    iterations: int = 0
    is_answered: bool = False
    usage: Usage = Usage()
    cost: float | None = None
    notes: tuple[CompletionNote, ...] = ()
    questions: tuple[QuestionRecord, ...] = ()
    tainted_by: str | None = None
    members_ended: tuple[MembersEnded, ...] = ()
    skills: tuple[ActiveSkill, ...] = ()
    narrowed: tuple[Narrowing, ...] = ()
    subagents: tuple[SubagentAssigned, ...] = ()
    fallback: int = 0
    loops: LoopState = LoopState()
    context: ContextRecord = ContextRecord()
    has_overflowed: bool = False
    is_done: bool = False
    seq: int = 0
    is_compressed: bool = False
    reminded: int = 0
    verdicts: tuple[Verdict, ...] = ()
    objections: tuple[Verdict, ...] = ()
    recalled: tuple[RecalledFact, ...] | None = None
    ui_commands: int = 0


class NextAction(StrEnum):
    """What a driver does with a state."""

    REPAIR = "repair"
    CALL_MODEL = "call_model"
    RUN_TOOLS = "run_tools"
    WAIT = "wait"
    FINISH = "finish"
    NOTHING = "nothing"


def apply(state: TurnState, logged: LoggedEvent) -> TurnState:
    """The state after one more event."""
    event = logged.event
    match event:
        case ProcessStep():
            return _with_steps(state, [logged])
        case CostUpdate() if isinstance(logged.note, CompletionNote):
            return _with_completion(state, logged, logged.note)
        case ContextCompressed(overflow=overflow):
            cut = replace(state, context=context_after(state.context, logged), is_compressed=True)
            return replace(cut, has_overflowed=overflow or state.has_overflowed, seq=logged.seq)
        case MemoryRecalled() if isinstance(logged.note, RecallNote):
            return replace(state, recalled=logged.note.facts, seq=logged.seq)
        case PlanUpdated():
            return replace(state, context=context_after(state.context, logged), seq=logged.seq)
        case QuestionAsked() | QuestionAnswered():
            return replace(state, questions=_with_question(state.questions, event), seq=logged.seq)
        case _:
            return replace(_with_other(state, event), seq=logged.seq)


def _with_other(state: TurnState, event: Event) -> TurnState:
    """The state after an event that few turns have."""
    match event:
        case Verdict(round=number):
            state = replace(state, verdicts=(*state.verdicts, event))
            objected = {"objections": (*state.objections, event), "is_answered": False} if number else {}
            return replace(state, **objected)
        case DoomLoopDetected():
            return replace(state, loops=state.loops.after(event))
        case DoomLoopIntervened(choice=choice):
            return replace(state, loops=state.loops.decided(choice, open_calls(state)))
        case Tainted(by=by):
            # Words of a person taint more than results of tools.
            is_first = state.tainted_by is None or by.startswith(PERSON)
            return replace(state, tainted_by=by) if is_first else state
        case MembersEnded():
            return replace(state, members_ended=(*state.members_ended, event))
        case SkillActivated():
            return _with_skill(state, event)
        case SubagentAssigned(subagent_run_id=id_, by=by) if by != ChosenBy.ROUTER:
            others = tuple(one for one in state.subagents if one.subagent_run_id != id_)
            return replace(state, subagents=(*others, event))
        case Retrying(fallback=int() as fallback):
            # Its window may be smaller.
            return replace(state, fallback=fallback, is_compressed=False, has_overflowed=False)
        case UiCommand():
            return replace(state, ui_commands=state.ui_commands + 1)
        case Done():
            return replace(state, is_done=True)
        case _:
            return state


def _with_completion(state: TurnState, logged: LoggedEvent, note: CompletionNote) -> TurnState:
    usage = state.usage + note.usage
    completed = replace(state, usage=usage, cost=add_cost(state.cost, note.cost), seq=logged.seq)
    if note.is_extra:
        return completed
    completed = replace(completed, finished_count=len(state.steps))
    return replace(
        completed,
        iterations=state.iterations + 1,
        is_answered=note.finish != FinishReason.PAUSED and not open_calls(completed),
        notes=(*state.notes, note),
        objections=(),
        context=context_after(state.context, logged),
        is_compressed=False,
    )


def fold(events: list[LoggedEvent], start: TurnState | None = None) -> TurnState:
    """The state after `events`, continued from `start` or from the empty state."""
    state = start or TurnState()
    for is_of_steps, group in groupby(events, key=lambda one: isinstance(one.event, ProcessStep)):
        some = list(group)
        # Copying the steps for each of thousands of events would stop the event loop for seconds.
        state = _with_steps(state, some) if is_of_steps else reduce(apply, some, state)
    return state


def open_calls(state: TurnState) -> list[Step]:
    """Tool calls of ended completions that have no result yet, in order."""
    finished_steps = state.steps[: state.finished_count]
    return [step for step in finished_steps if step.type == StepType.TOOL_CALL and step.status in OPEN_CALL]


def unfinished_steps(state: TurnState) -> list[Step]:
    """Steps of a completion whose end is not in the log."""
    return list(state.steps[state.finished_count :])


def held_calls(state: TurnState) -> list[Step]:
    """Open calls that are held back, because they repeat earlier ones, until a person has decided."""
    held = state.loops.undecided
    return [call for call in open_calls(state) if call.id_ref in held] if held else []


def open_questions(state: TurnState) -> list[QuestionAsked]:
    """Unanswered questions of open calls, and the one about a pattern, in order."""
    waiting = {call.id_ref for call in open_calls(state)}
    unanswered = [record.question for record in state.questions if record.answer is None]
    return [one for one in unanswered if one.call_id in waiting or one.decision_type == PATTERN_DECISION]


def decide(state: TurnState) -> NextAction:
    """The next action: repair a completion, wait for answers, run the open calls, or call the model."""
    if state.is_done:
        return NextAction.NOTHING
    if state.finished_count < len(state.steps):
        return NextAction.REPAIR
    if state.questions and open_questions(state):
        return NextAction.WAIT
    if open_calls(state):
        return NextAction.RUN_TOOLS
    return NextAction.FINISH if state.is_answered else NextAction.CALL_MODEL


def _with_skill(state: TurnState, event: SkillActivated) -> TurnState:
    head = {name: getattr(event, name) for name in ("name", "description", "scope", "digest")}
    allowed = None if event.allowed_tools is None else tuple(event.allowed_tools)
    skill = ActiveSkill(**head, allowed_tools=allowed)
    narrowing = () if allowed is None else (Narrowing(by=event.name, entries=allowed),)
    return replace(state, skills=(*state.skills, skill), narrowed=(*state.narrowed, *narrowing))


def _with_question(
    questions: tuple[QuestionRecord, ...], event: QuestionAsked | QuestionAnswered
) -> tuple[QuestionRecord, ...]:
    """Only the first answer to a question counts."""
    if isinstance(event, QuestionAsked):
        return (*questions, QuestionRecord(question=event))
    return tuple(
        replace(one, answer=event)
        if one.answer is None and one.question.question_id == event.question_id
        else one
        for one in questions
    )


def _with_steps(state: TurnState, events: Sequence[LoggedEvent]) -> TurnState:
    """The state after these events, which are all of steps."""
    steps, seq = list(state.steps), state.seq
    finished_count, is_answered = state.finished_count, state.is_answered
    ended, late = list[tuple[Step, Step | None, str]](), len(events) - MAX_PAIRS
    for number, logged in enumerate(events):
        assert isinstance(logged.event, ProcessStep)
        step, seq = logged.event.step, logged.seq
        steps[step.index : step.index + 1] = [step]
        if step.type in (StepType.TOOL_RESULT, StepType.USER):
            finished_count, is_answered = len(steps), False
            if step.type == StepType.USER and step.name == REMINDER:
                state = replace(state, reminded=state.iterations)
            if number >= late and step.type == StepType.TOOL_RESULT:
                ended.append((step, call_of_result(steps, step), logged.event.timestamp))
        elif step.status == StepStatus.INTERRUPTED and step.index == finished_count:
            finished_count = step.index + 1
    loops = state.loops.with_results(ended, state.iterations) if ended else state.loops
    after = replace(state, finished_count=finished_count, is_answered=is_answered, loops=loops)
    return replace(after, steps=tuple(steps), seq=seq)


def model_used(request: ChatRequest, state: TurnState | None = None) -> ModelUsed:
    """The provider and model that make the calls of a turn in this state; those of the request before it."""
    target = request.fallbacks[state.fallback - 1] if state is not None and state.fallback else request
    return ModelUsed(provider_id=target.provider_id, provider_name=target.provider_name, model=target.model)


def count_calls(state: TurnState) -> int:
    """How many tool calls have a result, with those of compositions and of ended subagents."""
    results = (step for step in state.steps if step.type == StepType.TOOL_RESULT)
    own = sum(step.calls if isinstance(step.calls, int) else 1 for step in results)
    return own + sum(one.tool_calls for one in state.subagents)
