"""What `luxx chat` shows and asks at the terminal: stream frames as pieces of text, and questions.

`client.py` does the network calls.
"""

import signal
import sys
from collections.abc import Callable

import msgspec
from msgspec import UNSET, UnsetType

from luxx.app.cli.screen import Piece, PieceKind, note
from luxx.wire.event import CLOSING_EVENT_TYPES
from luxx.wire.run import ENDED
from luxx.wire.turn import StepType

ReadLine = Callable[[str], str]
PROMPT = "answer> "


class FrameOption(msgspec.Struct, frozen=True, kw_only=True):
    label: str
    description: str = ""
    is_recommended: bool = False


class FrameQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A question in a stream frame. `run_id`: the run that asks, which may be a subagent's."""

    question_id: str
    run_id: str = ""
    kind: str = ""
    prompt: str
    options: list[FrameOption] = []
    multiple: bool = False
    required: bool = False
    arguments: str = ""
    because: str = ""


class ListedQuestion(FrameQuestion, frozen=True, kw_only=True):
    """A question in a list of the API."""

    question_id: str = msgspec.field(name="id")
    subject_id: str

    def as_frame(self) -> FrameQuestion:
        return msgspec.structs.replace(self, prompt=f"[a subagent] {self.prompt}")


class Unanswered(Exception):
    """No terminal is attached, or the user typed Ctrl-D."""


def question_lines(question: FrameQuestion) -> list[str]:
    """The lines that show a question, with its options numbered from 1."""
    lines = [f"? {question.prompt}"]
    if question.because:
        lines.append(f"  ({question.because})")
    if question.arguments:
        lines.append(f"  {question.arguments}")
    for number, option in enumerate(question.options, 1):
        description = f": {option.description}" if option.description else ""
        mark = " (recommended)" if option.is_recommended else ""
        lines.append(f"  {number}. {option.label}{description}{mark}")
    return lines


def parse_answer(question: FrameQuestion, line: str) -> str | list[str] | None:
    """The answer for a typed line, or None if an empty line has no recommended option.

    A number selects an option, several numbers select several if allowed, an empty line selects the
    recommended options. Any other text is the answer itself.
    """
    text = line.strip()
    if not text:
        recommended = [option.label for option in question.options if option.is_recommended]
        return (recommended if question.multiple else recommended[0]) if recommended else None
    numbers = [part for part in text.replace(",", " ").split() if part]
    if question.multiple and len(numbers) > 1 and all(_is_choice(question, part) for part in numbers):
        return [question.options[int(part) - 1].label for part in numbers]
    return question.options[int(text) - 1].label if _is_choice(question, text) else text


def read_answer(question: FrameQuestion, read: ReadLine = input) -> str | list[str]:
    """Reads lines until one is an answer; blocks the event loop. Raises Unanswered, KeyboardInterrupt."""
    if not sys.stdin.isatty():
        raise Unanswered
    previous_handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        while (answer := parse_answer(question, read(PROMPT))) is None:
            pass
        return answer
    except EOFError:
        sys.stderr.write("\n")
        raise Unanswered from None
    finally:
        signal.signal(signal.SIGINT, previous_handler)


def _is_choice(question: FrameQuestion, text: str) -> bool:
    is_number = text.isascii() and text.isdigit() and len(text) < 4
    return is_number and 1 <= int(text) <= len(question.options)


MAX_RESULT_CHARS = 200
SUBAGENT_POLL_SECONDS = 2.0  # See `poll_delay`.


class FrameStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step in a frame: `delta` is the new text, `content` and `arguments` are complete."""

    index: int
    type: str
    status: str = ""
    name: str = ""
    content: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    success: bool = True
    duration_ms: int | None = None


class FrameRun(msgspec.Struct, frozen=True, kw_only=True):
    id: str


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
    question_id: str = ""
    subagent_run_id: str = ""
    prompt: str = ""


class Transcript:
    """What a stream has shown of a run so far. Resuming the stream neither repeats nor loses text."""

    def __init__(self) -> None:
        self.run_id = ""
        self.last_seq = 0
        self.status = ""
        self.error = ""
        self.is_over = False
        self.questions: dict[str, FrameQuestion] = {}
        self.subagents: set[str] = set()
        """The runs of subagents that have not ended."""
        self._asked_ids: set[str] = set()
        # By step index: the text as on the server, the text as on the screen, the tool calls shown.
        self._texts: dict[int, str] = {}
        self._displayed: dict[int, str] = {}
        self._shown_calls: set[int] = set()

    def receive(self, frame: StreamFrame) -> list[Piece]:
        """Applies a frame and returns the pieces to show."""
        if frame.seq:
            if frame.seq <= self.last_seq:
                return []
            self.last_seq = frame.seq
        if frame.run is not None:
            self.run_id = frame.run.id
            self._texts.clear()
        if frame.subagent_run_id:
            change_set = self.subagents.discard if frame.status in ENDED else self.subagents.add
            change_set(frame.subagent_run_id)
        if frame.type in CLOSING_EVENT_TYPES:
            self.is_over = True
            self.status = frame.status
        match frame.type:
            case "process_step" if frame.step is not None:
                return self._step(frame.step, is_logged=frame.seq > 0)
            case "question_asked":
                return self.add_question(frame)
            case "question_answered":
                is_open = self.questions.pop(frame.question_id, None) is not None
                return [note("the question was answered elsewhere")] if is_open else []
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

    def add_question(self, question: FrameQuestion) -> list[Piece]:
        """Adds a question and returns its pieces; none if it was added before."""
        if question.question_id in self._asked_ids:
            return []
        self._asked_ids.add(question.question_id)
        self.questions[question.question_id] = question
        return [note(line) for line in question_lines(question)]

    def _step(self, step: FrameStep, *, is_logged: bool) -> list[Piece]:
        match step.type:
            case StepType.TEXT:
                return self._append(PieceKind.TEXT, step, is_logged=is_logged)
            case StepType.THINKING:
                return self._append(PieceKind.THINKING, step, is_logged=is_logged)
            case StepType.TOOL_CALL if is_logged and step.index not in self._shown_calls:
                self._shown_calls.add(step.index)
                return [note(f"→ {step.name} {step.arguments or ''}".rstrip())]
            case StepType.TOOL_RESULT:
                return [note(result_line(step))]
            case _:
                return []

    def _append(self, kind: PieceKind, step: FrameStep, *, is_logged: bool) -> list[Piece]:
        """Updates the text of a step and returns what the screen lacks of it."""
        so_far, displayed = self._texts.get(step.index, ""), self._displayed.get(step.index, "")
        text = so_far + step.delta if isinstance(step.delta, str) else step.content or ""
        self._texts[step.index] = text
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
