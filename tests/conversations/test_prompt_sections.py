"""Sections of a prompt: their order and budgets, and the plan of what is sent or summarised first."""

from collections.abc import Sequence

import pytest

from luxx.domain.context.messages import PastMessage
from luxx.domain.context.prompt import (
    HistorySection,
    Prompt,
    SectionKind,
    SendPrompt,
    SummarizeFirst,
    TextSection,
    ToolsSection,
)
from luxx.wire.message import ContextRecord, PromptMessage, SystemPrompt, UserContent, UserPrompt


def characters(messages: Sequence[PromptMessage]) -> int:
    """One token for each character."""
    return sum(len(one.text) for one in messages if isinstance(one, SystemPrompt | UserPrompt))


def section(kind: SectionKind, text: str = "", budget: int | None = None) -> TextSection:
    return TextSection(kind=kind, owner="tests", text=text or kind.value, budget=budget)


def history(*texts: str) -> HistorySection:
    return HistorySection(owner="tests", past=[PastMessage(user=UserContent(text=text)) for text in texts])


def texts_of(prompt: Prompt) -> list[str]:
    sent = prompt.messages(ContextRecord())
    return [one.text for one in sent if isinstance(one, SystemPrompt | UserPrompt)]


def test_sections_are_sent_in_their_order_whatever_order_they_are_given_in() -> None:
    kinds = [kind for kind in SectionKind if kind not in (SectionKind.TOOLS, SectionKind.HISTORY)]
    tools = ToolsSection(owner="tests", tokens=5)

    prompt = Prompt([history("question"), *map(section, reversed(kinds)), tools], characters)

    assert [one.kind for one in prompt.sections] == list(SectionKind)
    system = "\n\n".join(["system", "skills", "memory", "summary"])
    assert prompt.messages(ContextRecord()) == [
        SystemPrompt(text=system), UserPrompt(text="question"), UserPrompt(text="tail"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("budget", "sent"), [(None, "0123456789"), (10, "0123456789"), (4, "0123"), (0, "")], ids=str
)
def test_a_text_is_cut_at_its_budget(budget: int | None, sent: str) -> None:
    memory = section(SectionKind.MEMORY, "0123456789", budget)

    assert texts_of(Prompt([memory, history("question")], characters)) == [
        *([sent] if sent else []), "question",
    ]  # fmt: skip


def test_the_history_gets_what_the_other_sections_leave() -> None:
    turns = history("a" * 10, "b" * 10, "c" * 10)

    def sent(*others: TextSection | ToolsSection) -> list[PromptMessage]:
        return Prompt([*others, turns], characters).fitted(ContextRecord(), 100, 30, 30).messages

    assert len(sent()) == 3
    assert sent(ToolsSection(owner="tests", tokens=5)) == [
        UserPrompt(text="b" * 10),
        UserPrompt(text="c" * 10),
    ]
    tail = section(SectionKind.TAIL, "t" * 5)
    assert sent(tail) == [UserPrompt(text=text) for text in ("b" * 10, "c" * 10, "t" * 5)]


def test_a_plan_asks_for_a_summary_only_of_what_is_left_out_anew() -> None:
    prompt = Prompt([history("a" * 10, "b" * 10, "c" * 10)], characters)
    limits = (100, 20, 20)
    sent = prompt.fitted(ContextRecord(), *limits)
    assert sent.context.messages == 1

    plan = prompt.plan(ContextRecord(), *limits, summarizes=True)

    assert plan == SummarizeFirst(messages=1, without_summary=sent)
    assert prompt.plan(sent.context, *limits, summarizes=True) == prompt.fitted(sent.context, *limits)
    assert prompt.plan(ContextRecord(), 100, 30, 30, summarizes=True).without_summary.context.messages == 0


def test_a_plan_without_summaries_sends_what_fits() -> None:
    prompt = Prompt([history("a" * 10, "b" * 10, "c" * 10)], characters)

    plan = prompt.plan(ContextRecord(), 100, 20, 20)

    assert isinstance(plan, SendPrompt)
    assert plan.without_summary is plan
    assert plan.messages == [UserPrompt(text="b" * 10), UserPrompt(text="c" * 10)]
