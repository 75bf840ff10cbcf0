"""A prompt of which nothing is left out, as a run sends it."""

from collections.abc import Sequence

from luxx.domain.context.messages import PastMessage
from luxx.domain.context.prompt import History, Prompt, SectionKind, TextSection
from luxx.wire.message import ContextRecord, PromptMessage
from luxx.wire.turn import Step


def prompt_messages(
    system: str, past: Sequence[PastMessage], steps: Sequence[Step] = ()
) -> list[PromptMessage]:
    """The system prompt, past messages, then the steps of the current run."""
    history = History(past)
    history.extend(steps, [])
    section = TextSection(kind=SectionKind.SYSTEM, owner="tests", text=system)
    return Prompt([section], history).messages(ContextRecord())
