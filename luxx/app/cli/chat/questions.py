"""Shows questions at the terminal and parses typed lines to answers. `client.py` does the network calls."""

import signal
import sys
from collections.abc import Callable

import msgspec

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


def typed_answer(question: FrameQuestion, line: str) -> str | list[str] | None:
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
        while (answer := typed_answer(question, read(PROMPT))) is None:
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
