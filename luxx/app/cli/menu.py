"""The menu of a question or an approval: its lines, and what a typed line answers.

Chats, rooms and tasks show the same menu; `chat/terminal_input.py` and `runs/follower.py` read the lines.
"""

import os
import sys
from typing import Any, Protocol

import msgspec

from luxx.wire.run import LOOP_DECISION, LoopChoice, QuestionKind

PROMPT = "answer> "
READ_BYTES = 65536
CHOICE = "choice"
"""The kind of a question that is not in a log, such as an approval; its answer is one of its options."""


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
    decision_type: str = ""
    server: str = ""
    authorization_url: str = ""
    requested_schema: dict[str, Any] = {}
    url: str = ""


class ListedQuestion(FrameQuestion, frozen=True, kw_only=True):
    """A question in a list of the API."""

    question_id: str = msgspec.field(name="id")
    subject_id: str


class QuestionPage(msgspec.Struct, frozen=True, kw_only=True):
    items: list[ListedQuestion]


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of a person that the run waits for, without a question in its log: an approval, the floor.

    `requests` are the path and the body to send for each option of the question.
    """

    question: FrameQuestion
    requests: list[tuple[str, object]]
    is_settled: bool = False
    """Whether it is asked only after a short silence, because it follows from the absence of events."""


def choice_question(question_id: str, prompt: str, options: list[tuple[str, str]]) -> FrameQuestion:
    """The question of a choice, with the label and the description of each option."""
    listed = [FrameOption(label=label, description=description) for label, description in options]
    return FrameQuestion(question_id=question_id, kind=CHOICE, prompt=prompt, options=listed, required=True)


class Unanswered(Exception):
    """The person at the menu typed Ctrl-D."""


class Interrupted(Exception):
    """The person typed Ctrl-C."""


class Menu(Protocol):
    """Asks the person at the terminal."""

    async def answer(self, question: FrameQuestion) -> str | list[str]:
        """Raises Unanswered, Interrupted."""
        ...


def question_lines(question: FrameQuestion) -> list[str]:
    """The lines that show a question, with its options numbered from 1."""
    lines = [f"? {question.prompt}"]
    if question.because:
        lines.append(f"  ({question.because})")
    if question.arguments:
        lines.append(f"  {question.arguments}")
    if question.authorization_url:
        lines.append(f"  open this address in a browser: {question.authorization_url}")
    if question.url:
        lines.append(f"  open this address in a browser, if you trust it: {question.url}")
    if question.requested_schema:
        lines.append(f"  what you type goes to {question.server} only")
    for number, option in enumerate(question.options, 1):
        description = f": {option.description}" if option.description else ""
        mark = " (recommended)" if option.is_recommended else ""
        lines.append(f"  {number}. {option.label}{description}{mark}")
    return lines


def parse_answer(question: FrameQuestion, line: str) -> str | list[str] | None:
    """The answer for a typed line, or None if the line is no answer.

    A number selects an option, several numbers select several if allowed, an empty line selects the
    recommended options. Any other text is the answer itself, but a permission or a choice takes only one of
    its options.
    """
    text = line.strip()
    if not text:
        recommended = [option.label for option in question.options if option.is_recommended]
        return (recommended if question.multiple else recommended[0]) if recommended else None
    numbers = [part for part in text.replace(",", " ").split() if part]
    most = len(question.options)
    if question.multiple and len(numbers) > 1 and all(number_in(part, most) for part in numbers):
        return [question.options[int(part) - 1].label for part in numbers]
    answer = question.options[int(text) - 1].label if number_in(text, most) else text
    if question.decision_type == LOOP_DECISION and answer == LoopChoice.CORRECT:
        return None  # Own words are the correction.
    if question.kind in (CHOICE, QuestionKind.PERMISSION, QuestionKind.SIGN_IN, QuestionKind.ELICITATION):
        return {option.label.casefold(): option.label for option in question.options}.get(answer.casefold())
    return answer


def typed_lines() -> list[str]:
    """The lines that were typed at the terminal; none for Ctrl-D, and where the terminal is gone."""
    try:
        data = os.read(sys.stdin.fileno(), READ_BYTES)
    except OSError:
        data = b""
    return data.decode("utf-8", "replace").splitlines()


def wanted_answer(question: FrameQuestion) -> str:
    """What to type, for a person who typed something else."""
    count = len(question.options)
    if question.decision_type == LOOP_DECISION:
        return "type another number, or in your own words what the model is to do instead"
    return f"type a number from 1 to {count}" if count else "type an answer"


def number_in(text: str, most: int) -> int:
    """The number from 1 to `most` (below 10,000) that somebody typed; 0: it is none."""
    is_number = text.isascii() and text.isdigit() and len(text) < 5
    return int(text) if is_number and int(text) <= most else 0
