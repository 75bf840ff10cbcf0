"""The run that makes a pattern of a trace: one turn without tools, whose answer is JSON."""

from functools import partial
from importlib.resources import files
from typing import Any

import msgspec
from sqlalchemy import Connection
from sqlalchemy.orm import Session

from luxx.domain.accounts.authentication import user_as_caller
from luxx.domain.context.messages import PastMessage
from luxx.errors import InvalidInput
from luxx.features.patterns.models import NAME_LENGTH, UseKind
from luxx.features.patterns.rows import learn_from, record_use
from luxx.features.patterns.service import MAX_STEPS, MAX_TEXT, NewPattern, PatternStep, add_pattern
from luxx.features.patterns.slots import signature_text, slotted_line
from luxx.features.patterns.traces import Trace
from luxx.infra.clock import utc_now
from luxx.infra.store.tables import Lock, lock_until_commit
from luxx.infra.written_json import written_values
from luxx.runs.orchestration.interface import Orchestration, TurnStart, Write
from luxx.runs.orchestration.single_turn import StoringTurn
from luxx.runs.turn.run_rows import RunHead
from luxx.runs.turn.state import ChatRequest
from luxx.wire.event import CallPurpose
from luxx.wire.message import UserContent
from luxx.wire.orchestration_event import PatternComplete
from luxx.wire.run import RunStatus
from luxx.wire.turn import CHAT_TURN

PROMPT = files("luxx.features.patterns").joinpath("extraction.md").read_text("utf-8").strip()

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
    """The stored request of a run."""

    trace: Trace
    request: ChatRequest


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


_request = msgspec.json.Decoder(PatternRequest)


class ExtractionOrchestration(StoringTurn):
    """One run in one drive. See `Orchestration`."""

    complete = PatternComplete

    def __init__(self, head: RunHead) -> None:
        super().__init__()
        self._head = head
        self._request = _request.decode(head.request)

    def turn(self) -> TurnStart:
        past = [PastMessage(user=UserContent(text=shown(self._request.trace)))]
        return TurnStart(
            turn=CHAT_TURN, request=self._request.request, past=past, purpose=CallPurpose.EXTRACTION
        )

    def read(self, answer: str) -> tuple[PatternComplete, Write]:
        new = read_pattern(answer, self._request.trace)
        write = partial(store_pattern, self._head.user_id, self._request.trace, new)
        return PatternComplete(status=RunStatus.COMPLETED.value, name=new.name), write


def store_pattern(user_id: int, trace: Trace, new: NewPattern, connection: Connection) -> None:
    """Stores a draft with one success; if a similar pattern was stored meanwhile, the run counts for that."""
    lock_until_commit(connection, Lock.USER_NAMES, user_id)
    session, now = Session(bind=connection, join_transaction_mode="create_savepoint"), utc_now()
    if not learn_from(session, user_id, trace.signature, trace.run_id, trace.duration_ms, now):
        caller, signature = user_as_caller(connection, user_id), signature_text(trace.signature)
        row = add_pattern(session, caller, new, now, signature=signature)
        record_use(
            session, row.id, trace.run_id, UseKind.LEARNED, is_success=True,
            duration_ms=trace.duration_ms, now=now,
        )  # fmt: skip
    session.commit()


def shown(trace: Trace) -> str:
    """What a model is shown of a run."""
    parts = [f"Request:\n{trace.goal}"]
    calls = [f"{number}. {call.tool}: {call.about}" for number, call in enumerate(trace.calls, 1)]
    sections = {
        "Plan": [f"- {item}" for item in trace.plan],
        "Calls": calls,
        "Decisions of the person": [f"- {one.text}" for one in trace.decisions],
        "Corrections by the person": [f"- {one.text}" for one in trace.corrections],
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
        return slotted_line(value, tools, most)

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


def load_extraction(session: Session, head: RunHead) -> Orchestration:
    """The orchestration of a run of the kind `pattern`."""
    del session  # Its request has what it needs of the database.
    return ExtractionOrchestration(head)
