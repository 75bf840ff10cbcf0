"""What `luxx chat` shows of a run: stream frames as pieces of text. `client.py` does the network calls."""

import msgspec
from msgspec import UNSET, UnsetType

from luxx.app.cli.menu import FrameQuestion
from luxx.app.cli.screen import Piece, PieceKind, ToolCard, note
from luxx.wire.event import CLOSING_EVENT_TYPES
from luxx.wire.run import ENDED
from luxx.wire.turn import StepType

MAX_RESULT_CHARS = 200
SUBAGENT_POLL_SECONDS = 2.0  # See `poll_delay`.


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


class FrameRun(msgspec.Struct, frozen=True, kw_only=True):
    """The run when the stream began; `last_seq` is the number of the last event in its log."""

    id: str
    last_seq: int = 0


class StreamFrame(FrameQuestion, frozen=True, kw_only=True):
    """The fields of a frame that a terminal shows, among them those of a question.

    `seq` is 0 for frames that are not in the event log.
    """

    type: str
    seq: int = 0
    run: FrameRun | None = None
    step: FrameStep | None = None
    message: str = ""
    reason: str = ""
    delay_ms: int = 0
    status: str = ""
    finish: str | None = None
    question_id: str = ""
    subagent_run_id: str = ""
    prompt: str = ""


class Transcript:
    """What a stream has shown of a run so far. Resuming the stream neither repeats nor loses text."""

    def __init__(self) -> None:
        self.run_id = ""
        self.last_seq = 0
        self.status = ""
        self.finish = ""
        self.error = ""
        self.is_over = False
        self.questions: dict[str, FrameQuestion] = {}
        self.subagents: set[str] = set()
        """The runs of subagents that have not ended."""
        self.thinking = ""
        """What the model thought last."""
        self._attached_seq = 0
        self._asked_ids: set[str] = set()
        # By step index: the text as on the server, the text as on the screen, the tool calls shown.
        self._texts: dict[int, str] = {}
        self._displayed: dict[int, str] = {}
        self._shown_calls: set[int] = set()
        self._arguments: dict[str, str] = {}
        """The arguments of each call, by the id of the call."""

    @property
    def is_caught_up(self) -> bool:
        """Whether all events were received that were in the log when the stream began."""
        return self.last_seq >= self._attached_seq

    def receive(self, frame: StreamFrame) -> list[Piece]:
        """Applies a frame and returns the pieces to show."""
        if frame.seq:
            if frame.seq <= self.last_seq:
                return []
            self.last_seq = frame.seq
        if frame.run is not None:
            self.run_id, self._attached_seq = frame.run.id, frame.run.last_seq
            self._texts.clear()
        if frame.subagent_run_id:
            change_set = self.subagents.discard if frame.status in ENDED else self.subagents.add
            change_set(frame.subagent_run_id)
        if frame.type in CLOSING_EVENT_TYPES:
            self.is_over = True
            self.status, self.finish = frame.status, frame.finish or ""
        match frame.type:
            case "process_step" if frame.step is not None:
                return self._step(frame.step, is_logged=frame.seq > 0)
            case "question_asked":
                self.add_question(frame)
                return []
            case "question_answered":
                self.questions.pop(frame.question_id, None)
                return []
            case "retrying":
                return [note(f"trying again in {frame.delay_ms / 1000:.1f} s: {frame.reason}")]
            case "warning":
                return [note(frame.message)]
            case "error":
                self.error = frame.message
                return []
            case _:
                return []

    def poll_delay(self) -> float | None:
        """The silence after which the client polls for questions of subagents, which come in no frame."""
        return SUBAGENT_POLL_SECONDS if self.subagents else None

    def add_question(self, question: FrameQuestion) -> None:
        """Adds a question, unless it was added before."""
        if question.question_id not in self._asked_ids:
            self._asked_ids.add(question.question_id)
            self.questions[question.question_id] = question

    def _step(self, step: FrameStep, *, is_logged: bool) -> list[Piece]:
        match step.type:
            case StepType.TEXT if step.notice:
                return [note(step.notice)]
            case StepType.TEXT:
                return self._append(PieceKind.TEXT, step, is_logged=is_logged)
            case StepType.THINKING:
                return self._append(PieceKind.THINKING, step, is_logged=is_logged)
            case StepType.TOOL_CALL if is_logged and step.index not in self._shown_calls:
                self._shown_calls.add(step.index)
                return [self._call(step)]
            case StepType.TOOL_RESULT:
                return [self._result(step)]
            case _:
                return []

    def _call(self, step: FrameStep) -> Piece:
        arguments = self._arguments[step.id_ref] = str(step.arguments or "")
        card = ToolCard(call_id=step.id_ref, name=step.name, arguments=arguments)
        return Piece(PieceKind.TOOL_CALL, f"→ {step.name} {arguments}".rstrip(), card=card)

    def _result(self, step: FrameStep) -> Piece:
        card = ToolCard(
            call_id=step.id_ref,
            name=step.name,
            arguments=self._arguments.get(step.id_ref, ""),
            result=str(step.content or ""),
            is_successful=step.success,
            duration_ms=step.duration_ms,
        )
        return Piece(PieceKind.TOOL_RESULT, result_line(step), card=card)

    def _append(self, kind: PieceKind, step: FrameStep, *, is_logged: bool) -> list[Piece]:
        """Updates the text of a step and returns what the screen lacks of it."""
        so_far, displayed = self._texts.get(step.index, ""), self._displayed.get(step.index, "")
        text = so_far + step.delta if isinstance(step.delta, str) else step.content or ""
        self._texts[step.index] = text
        if kind is PieceKind.THINKING:
            self.thinking = text
        if text.startswith(displayed):
            new = text[len(displayed) :]
        elif displayed.startswith(text) and not is_logged:
            return []  # The server repeats the step and has not passed the displayed text yet.
        else:
            self._displayed[step.index] = text
            return [note("[the server restarted this step]"), Piece(kind, text)]
        self._displayed[step.index] = text
        return [Piece(kind, new)] if new else []


def result_line(step: FrameStep) -> str:
    """One line for a tool's result, shortened."""
    duration = "" if step.duration_ms is None else f" ({step.duration_ms} ms)"
    result_text = " ".join((step.content or "").split())
    shortened = result_text if len(result_text) <= MAX_RESULT_CHARS else result_text[:MAX_RESULT_CHARS] + "…"
    return f"{'✓' if step.success else '✗'} {step.name}{duration} {shortened}"
