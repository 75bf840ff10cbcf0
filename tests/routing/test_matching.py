"""Requests are matched with skills and agents by words: the labelled requests reach their figures."""

from pathlib import Path

import pytest

from luxx.domain.agents.document import shipped_documents
from luxx.domain.routing.matching import RoutedItem, Router, Trigger, TriggerType, clauses_of
from luxx.domain.skills.registry import read_skills
from routing.requests import OWN, Labelled, items, labelled


def found(router: Router, text: str) -> str | None:
    above = router.match(text).above
    return above[0].item.name if above else None


def outcome(router: Router, requests: list[Labelled]) -> dict[str, int]:
    """How many requests are right, wrong, silent and false."""
    counted = {"right": 0, "wrong": 0, "silent": 0, "false": 0, "unrelated": 0}
    for request in requests:
        name = found(router, request.text)
        if request.expected is None:
            counted["unrelated" if name is None else "false"] += 1
        elif name is None:
            counted["silent"] += 1
        else:
            counted["right" if name == request.expected else "wrong"] += 1
    return counted


def test_labelled_requests_reach_their_figures_without_a_false_match() -> None:
    requests = [Labelled(query["text"], query["expected"]) for query in labelled()["queries"]]
    counted = outcome(Router(items()), requests)
    assert counted["right"] >= 37, counted
    assert (counted["wrong"], counted["false"]) == (0, 0), counted
    firsts = [(Router(items()).match(each.text).ranked[:3], each.expected) for each in requests]
    in_three = sum(expected in [match.item.name for match in best] for best, expected in firsts if expected)
    assert in_three >= 48


def test_requests_that_nobody_tuned_for_are_found_and_unrelated_ones_are_not() -> None:
    counted = outcome(Router(items()), OWN)
    assert counted["right"] >= 22, counted
    assert counted["wrong"] == 0, counted
    assert counted["false"] <= 1, counted


SHIPPED = {
    "code-review": (
        "Please review my code in orders.py",
        "Review this diff before I merge it",
        "Can you do a code review of this pull request?",
        "帮我做一次代码审查",
        "请审查这段代码有没有错误",
    ),
    "doc-coauthoring": (
        "Let's write a design document for the new cache",
        "Help me draft a proposal for the board",
        "Write a decision record about the database with me",
        "我们一起写文档吧：新的缓存方案",
        "帮我起草提案",
    ),
    "deep-research": (
        "Research the market for heat pumps and write a report",
        "Write a research report about sodium batteries",
        "Deep research: who makes bread machines in Europe?",
        "请写一份关于固态电池的调研报告",
        "帮我深入研究一下垂直农业",
    ),
    "ppt": (
        "Make a presentation about our results of 2026",
        "Create slides from these notes",
        "I need a pitch deck for investors",
        "帮我做一个PPT，介绍我们的新产品",
        "制作幻灯片：季度总结",
    ),
    None: (
        "What is a code review?",
        "什么是幻灯片？",
        "Review my holiday plans",
        "Write a letter to my landlord",
        "Write code that sorts a list",
        "Summarise the document in my workspace",
        "总结一下这份文档",
        "把这句话翻译成法语",
    ),
}


def test_skills_that_come_with_luxx_are_found_beside_its_agents_and_not_by_other_requests() -> None:
    skills = [
        RoutedItem(
            kind="skill", name=skill.name, description=skill.description, triggers=skill.trigger_patterns
        )
        for skill in read_skills(["builtin"], Path()).skills.values()
    ]
    agents = [
        RoutedItem(
            kind="agent", name=one.name, description=one.description, triggers=tuple(one.trigger_patterns)
        )
        for one in shipped_documents().values()
    ]
    router = Router([*skills, *agents])
    for expected, texts in SHIPPED.items():
        assert [found(router, text) for text in texts] == [expected] * len(texts)


def item(name: str, description: str = "", **fields: object) -> RoutedItem:
    return RoutedItem(kind="skill", name=name, description=description, **fields)  # pyright: ignore


OTHERS = items()


def test_a_keyword_item_needs_a_whole_phrase_and_a_semantic_one_ignores_its_triggers() -> None:
    trigger = (Trigger(pattern="monthly report"), Trigger(pattern="月度报告"))
    description = "Writes the monthly sales report."
    for kind, texts in {
        TriggerType.KEYWORD: {
            "the monthly report please": True,
            "report the monthly sales": False,
            "写月度报告": True,
        },
        TriggerType.SEMANTIC: {"report the monthly sales": True, "写月度报告": False},
        TriggerType.HYBRID: {"report the monthly sales": True, "写月度报告": True},
    }.items():
        router = Router([*OTHERS, item("sales-report", description, trigger_type=kind, triggers=trigger)])
        assert {text: found(router, text) == "sales-report" for text in texts} == texts, kind


def test_a_match_says_which_triggers_and_words_it_found() -> None:
    router = Router([*OTHERS, item("pdf-forms", "Fills forms.", triggers=(Trigger(pattern="pdf form"),))])
    match = router.match("Please fill this PDF form!").ranked[0]
    assert match.item.name == "pdf-forms"
    assert match.reasons == ("trigger: pdf form", "words: fill, pdf, form")


def test_the_weight_of_a_trigger_counts() -> None:
    def score(weight: float) -> float:
        triggers = (Trigger(pattern="quarterly figures", weight=weight),)
        return (
            Router([*OTHERS, item("finance", "Money.", triggers=triggers)]).match("figures").ranked[0].score
        )

    assert score(0.5) < score(1) < score(5)


@pytest.mark.parametrize(
    "text",
    ["What is a pull request?", "What's OCR?", "what does PDF form stand for", "pdf form是什么?", "", " \n"],
)
def test_a_question_for_the_meaning_of_a_word_matches_nothing(text: str) -> None:
    triggers = tuple(Trigger(pattern=each) for each in ("pull request", "ocr", "pdf form"))
    matches = Router([*OTHERS, item("words", "Pull request, OCR, PDF form", triggers=triggers)]).match(text)
    assert matches.ranked == ()
    assert matches.is_definition


def test_the_rest_of_a_request_counts_beside_a_question_for_a_meaning() -> None:
    router = Router([*OTHERS, item("pdf-forms", "Fills PDF forms.")])
    assert found(router, "Fill the PDF form. What is a deductible?") == "pdf-forms"


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("Do not fill the PDF form", False),
        ("Please don't fill the PDF form yet.", False),
        ("Summarise the letter, but never fill the PDF form", False),
        ("Write a letter instead of filling the PDF form", False),
        ("请不要填写PDF表格", False),
        ("别填写PDF表格，总结一下", False),
        ("Do not translate the letter, only fill the PDF form", True),
        ("Don't forget to fill the PDF form", True),
        ("Why don't you fill the PDF form?", True),
        ("I do not know how to fill the PDF form", True),
        ("Never mind the letter. Fill the PDF form", True),
        ("不用翻译，请填写PDF表格", True),
        ("请特别仔细地填写PDF表格", True),
    ],
)
def test_what_a_request_excludes_is_not_what_it_asks_for(text: str, asks: bool) -> None:
    router = Router([*OTHERS, item("pdf-forms", "Fills PDF forms. 填写PDF表格。")])
    matches = router.match(text)
    assert (bool(matches.above), matches.is_definition) == (asks, False)


def test_of_a_long_text_its_beginning_and_its_end_are_matched() -> None:
    router = Router([*OTHERS, item("pdf-forms", "Fills PDF forms.")])
    filler = "nothing here " * 100_000
    assert found(router, f"Fill the PDF form: {filler}") == "pdf-forms"
    assert found(router, f"{filler} Fill the PDF form") == "pdf-forms"
    assert found(router, f"{filler} Fill the PDF form {filler}") is None


def test_no_items_match_nothing() -> None:
    assert Router([]).match("Fill the PDF form").ranked == ()


def test_a_request_has_clauses() -> None:
    assert clauses_of("Review the diff and translate it. Also write 2.4 notes!") == [
        "Review the diff",
        "translate it.",
        "write 2.4 notes!",
    ]
    assert clauses_of("审查代码,另外写发布说明。还有翻译") == ["审查代码,", "写发布说明。", "翻译"]
