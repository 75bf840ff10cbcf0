"""What a stream has shown of a run with several turns so far: the part that rooms and tasks share. Pure.

`room.py` and `task.py` say what is shown of each; `follower.py` does the network calls and the terminal.
"""

from abc import ABC, abstractmethod

import msgspec
from msgspec import UNSET, UnsetType

from luxx.app.cli.chat.transcript import SUBAGENT_POLL_SECONDS, FrameStep, result_line
from luxx.app.cli.menu import CHOICE, FrameOption, FrameQuestion
from luxx.app.cli.screen import Piece, PieceKind, note
from luxx.wire.event import ENDING_EVENT_TYPES, PAUSE_EVENT_TYPES
from luxx.wire.run import ENDED, RunStatus
from luxx.wire.turn import StepType, Usage

SETTLE_SECONDS = 0.3
"""The silence after which a choice is asked that follows from the absence of events."""

MAX_STEP_CHARS = 2000
RESTARTED = "[the server restarted this message]"


class FollowedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the run when the stream began."""

    id: str
    status: str
    last_seq: int = 0
    error: str | None = None


class FollowedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a room."""

    id: str
    seat_id: int | None = None
    content: str = ""
    sender_name: str = ""
    sender_color: str | None = None


class FollowedPlanStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a plan."""

    id: str
    name: str
    depends_on: list[str] = []


class RunFrame(FrameQuestion, frozen=True, kw_only=True):
    """The fields of the frames of rooms and tasks that a terminal shows; a frame has some of them.

    `seq` is 0 for frames that are not in the event log. `message` is a stored message in the event of that
    name, else a sentence.
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
    user: str = ""
    action: str = ""
    turns: tuple[str, ...] = ()
    name: str = ""
    attempt: int = 1
    because: str = ""
    steps: tuple[FollowedPlanStep, ...] = ()
    result: str | None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of a person that the run waits for, without a question in its log: an approval, the floor.

    `requests` are the path and the body to send for each option of the question.
    """

    question: FrameQuestion
    requests: list[tuple[str, object]]
    is_settled: bool = False
    """Whether it is asked only after SETTLE_SECONDS of silence."""


def choice_question(question_id: str, prompt: str, options: list[tuple[str, str]]) -> FrameQuestion:
    """The question of a choice, with the label and the description of each option."""
    listed = [FrameOption(label=label, description=description) for label, description in options]
    return FrameQuestion(question_id=question_id, kind=CHOICE, prompt=prompt, options=listed, required=True)


class GrowingText:
    """A text on the server, and what the screen shows of it. Resuming a stream neither repeats nor loses."""

    def __init__(self) -> None:
        self.text = ""
        self._displayed = ""

    def rest(self, *, is_whole: bool = False) -> list[Piece]:
        """What the screen lacks. `is_whole`: the text does not grow any more."""
        if self.text.startswith(self._displayed):
            new, restarted = self.text[len(self._displayed) :], []
        elif self._displayed.startswith(self.text) and not is_whole:
            return []  # The server repeats the text and has not passed the displayed part yet.
        else:
            new, restarted = self.text, [note(RESTARTED)]
        self._displayed = self.text
        return [*restarted, *([Piece(PieceKind.TEXT, new)] if new else [])]

    @property
    def is_begun(self) -> bool:
        return bool(self._displayed)


class RunTranscript(ABC):
    """The transcript of a run. `receive` applies a frame and returns what is to be shown."""

    def __init__(self, *, is_verbose: bool) -> None:
        self.last_seq = 0
        self.error = ""
        self.questions: dict[str, FrameQuestion] = {}
        self.subagents: set[str] = set()
        """The runs of subagents that have not ended."""
        self.status = ""
        """completed, failed, terminated or paused, once the run has stopped."""
        self.usage, self.cost = Usage(), None
        self._is_verbose = is_verbose
        self._asking_turns: dict[str, str] = {}
        """The turn of each question, by the id of the question."""
        self._old_questions: set[str] = set()
        """The questions that were asked before the stream began."""
        self._shown_calls: set[tuple[str, int]] = set()
        self._attached_seq = 0
        self._attached_status = ""

    @abstractmethod
    def receive_event(self, frame: RunFrame) -> list[Piece]:
        """The pieces of an event of a room or a task."""

    @abstractmethod
    def turn_name(self, frame: RunFrame) -> str:
        """The name of the seat or step that the frame belongs to."""

    @abstractmethod
    def choices(self) -> list[Choice]:
        """What a person has to choose now."""

    @abstractmethod
    def progress(self) -> str:
        """One line: how far the run is."""

    @abstractmethod
    def request_of(self, line: str) -> tuple[str, object] | None:
        """The path and the body to send for a line that a person types; None: the line means nothing."""

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
            case "retrying":
                when = f"trying again in {frame.delay_ms / 1000:.1f} s"
                return [note(f"{self.turn_name(frame)}: {when}: {frame.reason}")]
            case "warning" if isinstance(frame.message, str):
                return [note(frame.message)]
            case "error" if isinstance(frame.message, str):
                self.error = frame.message
                return []
            case "subagent_assigned":
                change_set = self.subagents.discard if frame.status in ENDED else self.subagents.add
                change_set(frame.subagent_run_id)
                return []
            case _:
                pieces = self.receive_event(frame)
        self._close(frame)
        return pieces

    def _attach(self, run: FollowedRun) -> None:
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

    def add_question(self, question: FrameQuestion, name: str, turn: str) -> None:
        """Adds a question of a turn, which has this name; nothing if it was added before."""
        if question.question_id in self._asking_turns:
            return
        self._asking_turns[question.question_id] = turn
        self.questions[question.question_id] = FrameQuestion(
            question_id=question.question_id,
            run_id=question.run_id,
            kind=question.kind,
            prompt=f"{name}: {question.prompt}",
            options=question.options,
            multiple=question.multiple,
            required=question.required,
            arguments=question.arguments,
            because=question.because,
        )

    def _add_asked(self, frame: RunFrame) -> None:
        self.add_question(frame, self.turn_name(frame), frame.msg_id or frame.step_id)
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
        """The notes for a logged step: tools always, thinking and text of task steps if verbose."""
        if not frame.seq:
            return []
        name, key = self.turn_name(frame), (frame.msg_id or frame.step_id, step.index)
        match step.type:
            case StepType.TOOL_CALL if key not in self._shown_calls:
                self._shown_calls.add(key)
                return [note(f"{name} → {step.name} {_text(step.arguments)}".rstrip())]
            case StepType.TOOL_RESULT:
                return [note(f"{name} {result_line(step)}")]
            case StepType.TEXT if step.notice and frame.msg_id:
                return [note(f"{name}: {step.notice}")]
            case StepType.THINKING if self._is_verbose:
                return [note(f"{name} thinks: {_shortened(_text(step.content))}")]
            case StepType.TEXT if self._is_verbose and frame.step_id:
                return [note(f"{name}: {_shortened(_text(step.content))}")]
            case _:
                return []


def _text(value: str | UnsetType) -> str:
    return "" if value is UNSET else str(value)


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_STEP_CHARS else text[:MAX_STEP_CHARS] + "…"
