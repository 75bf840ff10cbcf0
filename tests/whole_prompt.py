"""A prompt of which nothing is left out, as a run sends it."""

from collections.abc import Sequence

from luxx.domain.context.messages import PastMessage
from luxx.domain.context.prompt import HistorySection, Prompt, SectionKind, TextSection
from luxx.domain.usage.ledger import estimated_tokens
from luxx.wire.message import ContextRecord, PromptMessage
from luxx.wire.turn import Step


def prompt_messages(
    system: str, past: Sequence[PastMessage], steps: Sequence[Step] = ()
) -> list[PromptMessage]:
    """The system prompt, past messages, then the steps of the current run."""
    sections = [
        TextSection(kind=SectionKind.SYSTEM, owner="tests", text=system),
        HistorySection(owner="tests", past=past, steps=steps),
    ]
    return Prompt(sections, estimated_tokens).messages(ContextRecord())
