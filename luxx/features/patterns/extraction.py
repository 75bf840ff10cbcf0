"""The run that makes a pattern of a trace: one turn without tools, whose answer is JSON; see `Orchestration`.

The pattern is stored in the transaction of the events that end the run. An answer that does not fit stores
nothing, and nothing is repeated.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from functools import partial
from importlib.resources import files
from typing import Any

import msgspec
from sqlalchemy import Connection
from sqlalchemy.orm import Session

from luxx.domain.accounts.authentication import user_as_caller
from luxx.domain.agents.queries import AgentSettings
from luxx.domain.context.messages import PastMessage
from luxx.domain.usage.ledger import UsageEntry
from luxx.errors import InvalidInput, LuxxError
from luxx.features.patterns.matching import OFFERED
from luxx.features.patterns.models import NAME_LENGTH, UseKind
from luxx.features.patterns.rows import find_similar, record_use
from luxx.features.patterns.service import MAX_STEPS, MAX_TEXT, NewPattern, PatternStep, add_pattern
from luxx.features.patterns.slots import PatternSignature, signature_text, slotted
from luxx.features.patterns.traces import Trace
from luxx.infra.clock import utc_now
from luxx.infra.store.tables import Lock, lock_until_commit
from luxx.infra.written_json import written_values
from luxx.runs.log.events import LogEntry
from luxx.runs.log.failure import FailedRun, RunFailure
from luxx.runs.orchestration.inputs import RunInput
from luxx.runs.orchestration.interface import (
    Begin,
    Decision,
    End,
    InputEffect,
    Opening,
    Orchestration,
    ResolveTurn,
    RunTotals,
    TurnStart,
    Wait,
)
from luxx.runs.turn.context import Heard
from luxx.runs.turn.run_rows import RunHead
from luxx.runs.turn.state import ChatRequest, TurnState
from luxx.runs.turn.turn_log import Closing, Ending, cost_entries
from luxx.wire.event import CallPurpose, ErrorEvent, Event, LoggedEvent
from luxx.wire.message import UserContent
from luxx.wire.orchestration_event import PatternComplete
from luxx.wire.patterns import PatternStatus
from luxx.wire.run import RunStatus, StopReason
from luxx.wire.turn import CHAT_TURN, steps_text

PROMPT = files("luxx.features.patterns").joinpath("extraction.md").read_text("utf-8").strip()

LEARNED_FROM = (PatternStatus.DRAFT, PatternStatus.ACTIVE, PatternStatus.UNTRUSTED)
"""Patterns that a similar run counts for."""

_TEXTS = {"type": "array", "items": {"type": "string"}}
_STEP: dict[str, Any] = {
    "description": {"type": "string"},
    "tools": _TEXTS,
    "expected_output": {"type": "string"},
    "decision_points": _TEXTS,
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "description": {"type": "string"},
        "steps": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": _STEP,
                "required": list(_STEP),
                "additionalProperties": False,
            },
        },
    },
    "required": ["name", "description", "steps"],
    "additionalProperties": False,
}


class PatternRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The stored request of a run: the trace, and the provider and model that made the answer."""

    trace: Trace
    signature: PatternSignature
    provider_id: int | None = None
    model: str | None = None


class WrittenStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step as a model writes it."""

    description: str
    tools: list[str] = []
    expected_output: str = ""
    decision_points: list[str] = []


class WrittenPattern(msgspec.Struct, frozen=True, kw_only=True):
    """A pattern as a model writes it."""

    name: str
    description: str = ""
    steps: list[WrittenStep]


request_decoder = msgspec.json.Decoder(PatternRequest)
_encode = msgspec.json.Encoder().encode


class ExtractionOrchestration:
    """One run in one drive. See `Orchestration`. Its only turn has the key ""."""

    def __init__(self, head: RunHead, resolve: ResolveTurn, clock: Callable[[], datetime] = utc_now) -> None:
        self._head, self._resolve, self._clock = head, resolve, clock
        self._request = request_decoder.decode(head.request)
        self._chat_request: ChatRequest | None = None
        self._end: End | None = None

    def apply(self, logged: LoggedEvent) -> None:
        del logged  # A run that a crash interrupted begins its only turn anew.

    def is_open(self, key: str) -> bool:
        return not key and self._end is None

    def open_turns(self) -> list[TurnStart]:
        return []

    def heard(self, key: str) -> Sequence[Heard]:
        del key
        return ()

    def to_cut(self) -> Collection[str]:
        return ()

    @property
    def max_turns(self) -> int | None:
        return 1

    def decide(self, running: Collection[str], waiting: int, totals: RunTotals) -> Decision:
        del waiting, totals
        if running:
            return Wait()
        return Begin() if self._end is None else self._end

    def prepare(self, session: Session, begin: Begin, most: int, totals: RunTotals) -> Opening:
        del begin, most, totals
        request = self._request
        settings = AgentSettings(
            provider_id=request.provider_id, model=request.model, system_prompt=PROMPT, tools=[]
        )
        try:
            chat_request = self._resolve(session, self._head.user_id, settings, response_schema=SCHEMA)
        except LuxxError as error:
            self._end = self._failed(f"no model can be asked: {error.message}", error)
            return Opening()
        past = [PastMessage(user=UserContent(text=shown(request.trace)))]
        turn = TurnStart(turn=CHAT_TURN, request=chat_request, past=past, purpose=CallPurpose.EXTRACTION)
        return Opening(turns=[turn])

    def close(self, start: TurnStart, state: TurnState, ending: Ending, cut: UsageEntry | None) -> Closing:
        entries = cost_entries(start.purpose, cut)
        if ending.status == RunStatus.CANCELLED:
            self._end = self._cancelled()
        elif ending.error is not None:
            self._end = self._failed(ending.error.message, ending.error)
        else:
            try:
                new = read_pattern(steps_text(state.steps), self._request.trace)
            except InvalidInput as error:
                self._end = self._failed(f"the model's answer cannot be used: {error.message}", error)
            else:
                complete = PatternComplete(status=RunStatus.COMPLETED.value, name=new.name)
                self._end = End(
                    entries=[complete], status=RunStatus.COMPLETED, stop_reason=StopReason.FINISHED.value,
                    write=partial(self._store, new),
                )  # fmt: skip
        return Closing(events=entries, changes={}, write=_write_nothing, size=0)

    def _store(self, new: NewPattern, connection: Connection) -> None:
        store_pattern(connection, self._head.user_id, self._request, new, self._clock())

    def on_inputs(self, session: Session, inputs: Sequence[RunInput]) -> InputEffect:
        del session, inputs  # No route gives this run any.
        return InputEffect()

    def on_stop(self, error: LuxxError | None) -> End:
        return self._cancelled() if error is None else self._failed(error.message, error)

    def _cancelled(self) -> End:
        complete = PatternComplete(status=RunStatus.CANCELLED.value)
        return End(entries=[complete], status=RunStatus.CANCELLED, stop_reason=StopReason.CANCELLED.value)

    def _failed(self, reason: str, error: LuxxError) -> End:
        entries: list[LogEntry] = [
            ErrorEvent(message=reason, code=error.kind),
            PatternComplete(status=RunStatus.FAILED.value),
        ]
        return End(entries=entries, status=RunStatus.FAILED, stop_reason=StopReason.ERROR.value, error=error)


def store_pattern(
    connection: Connection, user_id: int, request: PatternRequest, new: NewPattern, now: datetime
) -> None:
    """Stores a draft with one success; if a similar pattern was stored meanwhile, the run counts for that."""
    lock_until_commit(connection, Lock.USER_NAMES, user_id)
    session = Session(bind=connection, join_transaction_mode="create_savepoint")
    caller = user_as_caller(connection, user_id)
    similar = find_similar(connection, [f"u{user_id}"], request.signature, LEARNED_FROM, now)
    if similar and similar[0].similarity >= OFFERED:
        pattern_id = similar[0].id
    else:
        signature = signature_text(request.signature)
        pattern_id = add_pattern(session, caller, new, now, signature=signature).id
    record_use(
        session, pattern_id, request.trace.run_id, UseKind.LEARNED, is_success=True,
        duration_ms=request.trace.duration_ms, now=now,
    )  # fmt: skip
    session.flush()
    session.commit()


def shown(trace: Trace) -> str:
    """What a model is shown of a run."""
    parts = [f"Request:\n{trace.goal}"]
    calls = [f"{number}. {call.tool}: {call.about}" for number, call in enumerate(trace.calls, 1)]
    sections = {
        "Plan": [f"- {item}" for item in trace.plan],
        "Calls": calls,
        "Decisions of the person": [f"- {one}" for one in trace.decisions],
        "Corrections by the person": [f"- {one}" for one in trace.corrections],
        "Beginning of the answer": [trace.result] if trace.result else [],
    }
    parts += ["\n".join([f"{title}:", *lines]) for title, lines in sections.items() if lines]
    return "\n\n".join(parts)


def read_pattern(answer: str, trace: Trace) -> NewPattern:
    """The pattern in an answer, with slots in place of what is not on the list of general words. Raises
    InvalidInput."""
    problem = "it has no JSON object"
    for value in written_values(answer):
        try:
            written = msgspec.convert(value, WrittenPattern)
        except msgspec.ValidationError as error:
            problem = str(error)
            continue
        return _pattern(written, trace)
    raise InvalidInput(problem, kind="answer_unusable")


def _pattern(written: WrittenPattern, trace: Trace) -> NewPattern:
    tools = trace.tools

    def text(value: str, most: int = MAX_TEXT) -> str:
        return " ".join(slotted(value[:most], tools).split())[:most]

    steps = [
        PatternStep(
            description=description,
            tools=[name for name in step.tools if name in tools][:MAX_STEPS],
            expected_output=text(step.expected_output),
            decision_points=[point for one in step.decision_points[:10] if (point := text(one))],
        )
        for step in written.steps[:MAX_STEPS]
        if (description := text(step.description))
    ]
    if not steps:
        raise InvalidInput("it has no steps", kind="answer_unusable")
    return NewPattern(
        name=text(written.name, NAME_LENGTH) or trace.goal[:NAME_LENGTH] or "Pattern",
        description=text(written.description),
        goal=trace.goal,
        steps=steps,
        tool_chains=[[call.tool for call in trace.calls][:MAX_STEPS]],
    )


def load_extraction(session: Session, head: RunHead, *, resolve: ResolveTurn) -> Orchestration:
    """The orchestration of a run of the kind `pattern`."""
    del session
    return ExtractionOrchestration(head, resolve)


def fail_extraction(connection: Connection, run: FailedRun, error: LuxxError) -> RunFailure:
    """Ends a run that cannot be driven."""
    del connection, run
    events: list[Event] = [
        ErrorEvent(message=error.message, code=error.kind),
        PatternComplete(status=RunStatus.FAILED.value),
    ]
    return RunFailure(events=events, status=RunStatus.FAILED)


def _write_nothing(connection: Connection) -> None:
    """For a turn that changes no rows."""
