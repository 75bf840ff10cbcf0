"""Sections of a prompt: their order and budgets, and what the others leave to the history."""

import pytest

from luxx.domain.context.messages import PastMessage
from luxx.domain.context.prompt import History, Prompt, SectionKind, TextSection, ToolsSection, beginning
from luxx.domain.context.tokens import text_tokens
from luxx.domain.context.window import next_cut, window_limits
from luxx.infra.config.schema import ContextConfig
from luxx.wire.message import (
    CompressionStrategy,
    ContextRecord,
    PromptMessage,
    SystemPrompt,
    UserContent,
    UserPrompt,
)

WORDS = "the old pear tree stands behind the wall of the garden " * 20
"""About 300 tokens."""


def section(kind: SectionKind, text: str = "", budget: int | None = None) -> TextSection:
    return TextSection(kind=kind, owner="tests", text=text or kind.value, budget=budget)


def history(*texts: str) -> History:
    return History([PastMessage(user=UserContent(text=text)) for text in texts])


def texts_of(messages: list[PromptMessage]) -> list[str]:
    return [one.text for one in messages if isinstance(one, SystemPrompt | UserPrompt)]


def test_sections_are_sent_in_their_order_whatever_order_they_are_given_in() -> None:
    kinds = [SectionKind.SYSTEM, SectionKind.SKILLS, SectionKind.MEMORY, SectionKind.TAIL]
    tools = ToolsSection(owner="tests", tokens=5)

    prompt = Prompt([*map(section, reversed(kinds)), tools], history("question"))

    assert [one.kind for one in prompt.sections] == [
        SectionKind.SYSTEM, SectionKind.TOOLS, SectionKind.SKILLS, SectionKind.MEMORY, SectionKind.TAIL,
    ]  # fmt: skip
    assert prompt.messages(ContextRecord()) == [
        SystemPrompt(text="system\n\nskills"), UserPrompt(text="question"),
        UserPrompt(text="memory\n\ntail", is_inner=True),
    ]  # fmt: skip


@pytest.mark.parametrize("budget", [None, 300, 40, 1, 0], ids=str)
def test_a_text_is_cut_at_its_budget(budget: int | None) -> None:
    sent = texts_of(
        Prompt([section(SectionKind.SKILLS, WORDS, budget)], history("hi")).messages(ContextRecord())
    )
    if budget == 0:
        assert sent == ["hi"]
        return
    assert sent[1:] == ["hi"]
    assert WORDS.startswith(sent[0])
    assert budget is None or text_tokens(sent[0]) <= budget
    assert (sent[0] == WORDS) == (budget is None or text_tokens(WORDS) <= budget)
    if budget is not None:
        assert beginning(WORDS, budget) == sent[0]


def test_the_history_gets_what_the_other_sections_leave() -> None:
    limits = window_limits(3_000, 100, ContextConfig())

    def sent(*others: TextSection | ToolsSection) -> list[str]:
        prompt = Prompt(others, history("first", *[f"{number} {WORDS}" for number in range(6)]))
        cut = next_cut(prompt, ContextRecord(), limits)
        assert cut is None or cut.strategy == CompressionStrategy.TRUNCATE
        record = ContextRecord() if cut is None else cut.record
        return [text.partition(" ")[0] for text in texts_of(prompt.messages(record))]

    assert sent() == ["first", "0", "1", "2", "3", "4", "5"]
    # Without the two oldest, the prompt would have more than 60 % of the window.
    assert sent(ToolsSection(owner="tests", tokens=900)) == ["first", "3", "4", "5"]
    assert sent(section(SectionKind.TAIL, WORDS * 4)) == ["first", "3", "4", "5", "the"]


def test_a_summary_stands_after_the_first_message_and_replaces_the_one_before() -> None:
    turns = history("first", "second", "third")
    record = ContextRecord(messages=2, kept=((0, 0),), summary="Trees were counted.", is_summarized=True)

    first, summary, third = texts_of(Prompt([], turns).messages(record))

    assert (first, third) == ("first", "third")
    assert summary.endswith("\n\nTrees were counted.")
