"""What a stream has shown of a run so far: the part that chats, rooms and tasks share. Pure.

`answer.py`, `room.py` and `task.py` say what is shown of each; `follower.py` does the network calls and the
terminal.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType

from luxx.app.cli.menu import Choice, FrameQuestion
from luxx.app.cli.screen import Piece, PieceKind, ToolCard, note
from luxx.wire.event import ENDING_EVENT_TYPES, PAUSE_EVENT_TYPES
from luxx.wire.message import Quotation
from luxx.wire.run import ENDED, ChosenBy, RunStatus
from luxx.wire.turn import StepType, Usage

EXIT_FAILED = 1
EXIT_WAITS = 3
EXIT_STOPPED = 130

SETTLE_SECONDS = 0.3
"""The silence after which a choice is asked that follows from the absence of events."""

SUBAGENT_POLL_SECONDS = 2.0  # See `poll_delay`.
MAX_RESULT_CHARS, MAX_STEP_CHARS = 200, 2000


@dataclass(frozen=True, kw_only=True)
class FollowedSubject:
    """The chat, room or task whose run is followed, and what the follower does differently for it.

    `what` is its name in sentences. `again`: the command that follows or resumes it.
    """

    what: str
    id: str
    again: str
    stop_path: str = ""
    """The path that pauses it; empty: Ctrl-C cancels its run."""
    takes_lines: bool = True
    """Whether lines may be typed at any time; else only the menu of a question reads what is typed."""
    question_color: str = ""
    shows_all_questions: bool = False
    """Whether a question that nobody here can answer is shown before the command leaves."""
    prints_state: bool = False
    """Whether the state of the run is the first of the JSON lines."""
    says_waiting: bool = False
    """Whether it is said that a lost connection is made again, and that the end is waited for."""
    says_closed_output: bool = True
    """Whether it is said that the run goes on after the output was closed."""


class FrameStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step in a frame: `delta` is the new text, `content` and `arguments` are complete. `notice`: why there
    is no text."""

    index: int
    type: str
    status: str = ""
    name: str = ""
    id_ref: str = ""
    content: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    success: bool = True
    duration_ms: int | None = None
    notice: str = ""

    def added_to(self, text: str) -> str:
        """The text of the step after this frame, which was `text` before."""
        return text + self.delta if isinstance(self.delta, str) else str(self.content or "")


class FollowedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the run when the stream began."""

    id: str
    status: str = ""
    last_seq: int = 0
    error: str | None = None


class FollowedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a room. `quoted`: what a reply answers; null if it was deleted."""

    id: str
    seat_id: int | None = None
    content: str = ""
    sender_name: str = ""
    sender_color: str | None = None
    quoted: Quotation | UnsetType | None = UNSET


class FollowedPlanStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a plan."""

    id: str
    name: str
    depends_on: list[str] = []


class RunFrame(FrameQuestion, frozen=True, kw_only=True):
    """The fields of frames that a terminal shows, among them those of a question; a frame has some of them.

    `seq` is 0 for frames that are not in the event log. `turns` are steps that were approved, or how many
    turns were left out of a prompt. `message` is a stored message in the event of that name, or a sentence.
    """

    type: str
    seq: int = 0
    question_id: str = ""
    prompt: str = ""
    msg_id: str = ""
    step_id: str = ""
    run: FollowedRun | None = None
    step: FrameStep | None = None
    message: str | FollowedMessage = ""
    content: str = ""
    is_snapshot: bool = False
    status: str = ""
    finish: str | None = None
    reason: str = ""
    target: str = ""
    reasons: list[str] = []
    delay_ms: int = 0
    duration_ms: int = 0
    error: str = ""
    subagent_run_id: str = ""
    usage: Usage | None = None
    cost: float | None = None
    seat_id: int | None = None
    sender_name: str = ""
    sender_color: str = ""
    round: int = 0
    max_rounds: int = 0
    rounds: int = 0
    stop_reason: str = ""
    phrase: str | None = None
    by: str = ""
    agent_name: str = ""
    score: float | None = None
    user: str = ""
    action: str = ""
    turns: tuple[str, ...] | int = ()
    compression_strategy: str = ""
    name: str = ""
    attempt: int = 1
    because: str = ""
    steps: tuple[FollowedPlanStep, ...] = ()
    result: str | None = None
    payload: dict[str, str] = {}


COMPRESSIONS = {
    "clear": "the model reads old results of tools shortened from here on",
    "summarize": "the model reads a summary of older messages from here on",
    "truncate": "the model does not read the oldest messages from here on",
}


def _about_call(frame: RunFrame) -> str:
    """What is said about the next call of the model, or about what a check found."""
    if frame.type == "verdict":
        return _shortened(f"check of {frame.target}: {' '.join([frame.result or '', *frame.reasons])}")
    if frame.type == "retrying":
        return f"trying again in {frame.delay_ms / 1000:.1f} s: {frame.reason}"
    return COMPRESSIONS.get(frame.compression_strategy, "the model reads the whole conversation again")


class RunTranscript(ABC):
    """The transcript of a run. `receive` applies a frame and returns what is to be shown."""

    subagent_prefix = "a subagent: "
    """Stands before the questions of subagents."""

    def __init__(self, subject: FollowedSubject, *, is_verbose: bool = False) -> None:
        self.subject = subject
        self.run_id, self.last_seq, self.error = "", 0, ""
        self.questions: dict[str, FrameQuestion] = {}
        self.subagents: set[str] = set()
        """The runs of subagents that have not ended."""
        self.status = ""
        """How the run ended, or that it is paused, once it has stopped."""
        self.usage, self.cost = Usage(), None
        self._is_verbose = is_verbose
        self._asking_turns: dict[str, str] = {}
        """The turn of each question, by the id of the question."""
        self._old_questions: set[str] = set()
        """The questions that were asked before the stream began."""
        self._shown_calls: set[tuple[str, int]] = set()
        self._arguments: dict[str, str] = {}
        """The arguments of each call, by the id of the call."""
        self._attached_seq, self._attached_status = 0, ""

    @abstractmethod
    def receive_event(self, frame: RunFrame) -> list[Piece]:
        """The pieces of an event that only a chat, a room or a task has."""

    @abstractmethod
    def turn_name(self, frame: RunFrame) -> str:
        """The name of the seat or step that the frame belongs to; empty in a chat."""

    def choices(self) -> list[Choice]:
        """What a person has to choose now."""
        return []

    def progress(self) -> str:
        """One line: how far the run is."""
        return ""

    def request_of(self, line: str) -> tuple[str, object] | None:
        """The path and the body to send for a line that a person types; None: the line means nothing."""
        del line
        return None

    def outcome(self, *, is_stopped: bool) -> tuple[int, list[str]]:
        """The exit code and what is said at the end. `is_stopped`: with Ctrl-C."""
        what, again = self.subject.what, self.subject.again
        match self.status if self.has_ended else "":
            case RunStatus.COMPLETED.value:
                return 0, []
            case RunStatus.PAUSED.value:
                sentence = f"paused; `{again}` resumes the {what}"
            case "":
                sentence = f"left; the {what} goes on, `{again}` follows it"
            case _:
                return EXIT_FAILED, []
        return EXIT_STOPPED if is_stopped else EXIT_WAITS, [sentence]

    def answer_path(self, question: FrameQuestion) -> str:
        return f"/runs/{question.run_id or self.run_id}/questions/{question.question_id}/answer"

    def waiting(self, question: FrameQuestion, path: str) -> str:
        """The sentence for a person who has to answer a question elsewhere, with a POST to this path."""
        what, again = self.subject.what, self.subject.again
        return f"the {what} waits for a person: {question.prompt} (POST {path}); `{again}` follows it again"

    @property
    def is_caught_up(self) -> bool:
        """Whether all events were received that were in the log when the stream began."""
        return self.last_seq >= self._attached_seq

    @property
    def has_old_questions(self) -> bool:
        """Whether a question is open that was asked before the stream began."""
        return bool(self._old_questions & self.questions.keys())

    @property
    def has_ended(self) -> bool:
        return bool(self.status) and self.is_caught_up

    def receive(self, frame: RunFrame) -> list[Piece]:
        """Applies a frame; events that were received before change nothing."""
        if frame.seq:
            if frame.seq <= self.last_seq:
                return []
            self.last_seq = frame.seq
            self.status = ""
        if frame.run is not None:
            self._attach(frame.run)
        match frame.type:
            case "process_step" if frame.step is not None:
                return [*self.receive_event(frame), *self._step(frame, frame.step)]
            case "cost_update" if frame.usage is not None:
                self.usage, self.cost = frame.usage, frame.cost
                return []
            case "question_asked":
                self._add_asked(frame)
                return []
            case "question_answered":
                self.questions.pop(frame.question_id, None)
                return []
            case "retrying" | "context_compressed" | "verdict" | "ui_command":
                return self._notes(frame)
            case "warning" if isinstance(frame.message, str):
                return [note(frame.message)]
            case "error" if isinstance(frame.message, str):
                self.error = frame.message
                return []
            case "subagent_assigned" if frame.by != ChosenBy.ROUTER:
                change_set = self.subagents.discard if frame.status in ENDED else self.subagents.add
                change_set(frame.subagent_run_id)
                return []
            case _:
                pieces = self.receive_event(frame)
        self._close(frame)
        return pieces

    def _notes(self, frame: RunFrame) -> list[Piece]:
        """Of a command for the page its texts, unless it is old; a terminal has no lists and pages."""
        if frame.type != "ui_command":
            return [note(f"{_prefix(self.turn_name(frame))}{_about_call(frame)}")]
        shown = ("title", "text", "message") if frame.seq > self._attached_seq else ()
        return [note(frame.payload[name]) for name in shown if name in frame.payload]

    def _attach(self, run: FollowedRun) -> None:
        self.run_id = run.id
        self._attached_seq, self._attached_status = run.last_seq, run.status
        if run.status in ENDED and run.last_seq <= self.last_seq and not self.status:
            self.status, self.error = run.status, run.error or self.error

    def _close(self, frame: RunFrame) -> None:
        """Sets the status at an event after which the stream ends.

        A pause in the log from before the stream began was followed by a resume, unless the run was paused.
        """
        if frame.type in ENDING_EVENT_TYPES:
            self.questions.clear()
            self.status = frame.status or RunStatus.COMPLETED.value
        elif frame.type in PAUSE_EVENT_TYPES:
            is_new = frame.seq > self._attached_seq or self._attached_status == RunStatus.PAUSED
            self.questions.clear()
            self.status = RunStatus.PAUSED.value if is_new else ""

    def add_subagent_question(self, question: FrameQuestion) -> None:
        """Adds a question that is in the event log of another run."""
        self._add_question(question, self.subagent_prefix, "")

    def _add_question(self, question: FrameQuestion, prefix: str, turn: str) -> None:
        """Adds a question of a turn, whose name stands before it; nothing if it was added before."""
        if question.question_id in self._asking_turns:
            return
        self._asking_turns[question.question_id] = turn
        fields = {name: getattr(question, name) for name in FrameQuestion.__struct_fields__}
        fields["prompt"] = f"{prefix}{question.prompt}"
        self.questions[question.question_id] = FrameQuestion(**fields)

    def _add_asked(self, frame: RunFrame) -> None:
        self._add_question(frame, _prefix(self.turn_name(frame)), frame.msg_id or frame.step_id)
        if frame.seq <= self._attached_seq:
            self._old_questions.add(frame.question_id)

    def end_turn(self, turn: str) -> None:
        """Forgets the open questions of a turn that is over."""
        for question_id in [one for one in self.questions if self._asking_turns.get(one) == turn]:
            del self.questions[question_id]

    def poll_delay(self) -> float | None:
        """The silence after which the client looks again: for choices, and for questions of subagents."""
        if self.has_old_questions or any(choice.is_settled for choice in self.choices()):
            return SETTLE_SECONDS
        return SUBAGENT_POLL_SECONDS if self.subagents else None

    def totals(self) -> str:
        """The tokens and the cost so far, or that the run waits for a slot."""
        if self._attached_status == RunStatus.QUEUED and not self.last_seq:
            return "waiting for a free slot"
        tokens = f"{self.usage.total_tokens:,} tokens"
        return tokens if self.cost is None else f"{tokens}, ${self.cost:.4f}"

    def _step(self, frame: RunFrame, step: FrameStep) -> list[Piece]:
        """The pieces for a logged step: tools always, thinking and text of task steps if verbose."""
        if not frame.seq:
            return []
        name, key = self.turn_name(frame), (frame.msg_id or frame.step_id, step.index)
        match step.type:
            case StepType.TOOL_CALL if key not in self._shown_calls:
                self._shown_calls.add(key)
                return [self._call_card(name, step)]
            case StepType.TOOL_RESULT:
                return [self._result_card(name, step)]
            case StepType.TEXT if step.notice and not frame.step_id:
                return [note(f"{_prefix(name)}{step.notice}")]
            case StepType.THINKING if self._is_verbose:
                return [note(f"{name} thinks: {_shortened(str(step.content or ''))}")]
            case StepType.TEXT if self._is_verbose and frame.step_id:
                return [note(f"{name}: {_shortened(str(step.content or ''))}")]
            case _:
                return []

    def _call_card(self, name: str, step: FrameStep) -> Piece:
        arguments = self._arguments[step.id_ref] = str(step.arguments or "")
        card = ToolCard(call_id=step.id_ref, name=step.name, arguments=arguments)
        return Piece(PieceKind.TOOL_CALL, f"{name} → {step.name} {arguments}".strip(), card=card)

    def _result_card(self, name: str, step: FrameStep) -> Piece:
        result = str(step.content or "")
        card = ToolCard(
            call_id=step.id_ref,
            name=step.name,
            arguments=self._arguments.get(step.id_ref, ""),
            result=result,
            is_successful=step.success,
            duration_ms=step.duration_ms,
        )
        duration = "" if step.duration_ms is None else f" ({step.duration_ms} ms)"
        line = _shortened(" ".join(result.split()), MAX_RESULT_CHARS)
        text = f"{name} {'✓' if step.success else '✗'} {step.name}{duration} {line}".removeprefix(" ")
        return Piece(PieceKind.TOOL_RESULT, text, card=card)


def _prefix(name: str) -> str:
    return f"{name}: " if name else ""


def _shortened(text: str, most: int = MAX_STEP_CHARS) -> str:
    return text if len(text) <= most else text[:most] + "…"
