"""How similar requests are to learned patterns, and which status a pattern gets."""

from datetime import UTC, datetime, timedelta

import pytest

from luxx.features.patterns.matching import (
    OFFERED,
    REFERENCED,
    UNRARE,
    MatchedPattern,
    best,
    rarity,
    similarity,
    status_after,
)
from luxx.features.patterns.slots import PatternSignature, signature_of
from luxx.wire.patterns import PatternStatus
from tests.patterns.private_texts import REQUESTS

NOW = datetime(2026, 6, 1, tzinfo=UTC)

SAME_KIND = [
    ("Create a sales report for Acme with a bar chart", "Create a sales report for Globex with a bar chart"),
    ("Create the monthly sales report for Acme", "Please write a sales report of this month for Globex"),
    ("Email the invoice to Tom Miller", "Please send Anna the invoice by email"),
    ("Summarize report_a.pdf in 5 bullet points", "Give me a summary of q3.pdf with three bullet points"),
    ("Fix the failing test in payment.py", "The test in orders.py is failing, fix it"),
    ("Translate manual.docx to German", "Translate the manual guide.docx into French"),
    ("Compare prices of Acme and Globex in a table", "Make a table that compares prices of Initech"),
    ("Prepare slides for the board meeting on Monday", "Create slides for the board meeting on 2026-03-05"),
    ("Extract invoice numbers and totals from scan1.pdf", "Extract numbers of all invoices in scan2.pdf"),
    ("Review pull request #123 and list problems", "Please review pull request #77 and list what is wrong"),
    ("Remove duplicate customers from list.csv", "Clean up customers.csv: remove duplicates of customers"),
    ("Write a job description for a Rust developer", "Write the job description for a Python developer"),
    ("Draft a reply to the complaint of Mrs Price", "Draft a polite reply to a complaint by Tom"),
    ("Write release notes for version 2.3", "Write the release notes of version 4.1.0"),
    ("Analyze survey.xlsx and show trends", "Analyze the survey in answers.csv and show main trends"),
    ("Turn notes.txt into meeting minutes", "Write the minutes of the meeting from my notes in call.md"),
    ("Convert data.csv to JSON", "Please convert orders.csv to a JSON file"),
    ("Write SQL to find customers without orders since 2024", "SQL for customers with no orders since March"),
    ("为王伟写一份销售报告", "请给李娜生成一份销售报告"),
    ("生成2024年3月的销售报告，附柱状图", "生成2025年7月的销售报告，并附上柱状图"),
    ("把发票发给张三", "请将发票发送给李四"),
    ("总结合同.pdf的要点", "请总结 协议.pdf 的要点"),
    ("把产品手册翻译成英文", "请将这份产品手册翻译成英文，谢谢"),
    ("对比华为和小米的价格，做成表格", "用表格对比苹果和三星的价格"),
    ("准备3月5日董事会的幻灯片", "为6月8日的董事会准备幻灯片"),
    ("审查这段Python代码并列出问题", "请审查我的代码，列出问题"),
    ("整理会议纪要并发给王芳", "把会议纪要整理好发给赵雷"),
    ("根据工单生成第3周的周报", "请根据工单写第12周的周报"),
    ("写一份前端工程师的招聘启事", "写一份后端工程师的招聘启事"),
    ("起草给腾讯的投诉回复", "起草一份投诉回复给京东"),
    ("制作下季度的预算表", "做一个下季度预算表格"),
    ("用Excel整理客户名单", "把客户名单整理成Excel"),
    ("写一个Python脚本批量重命名文件", "用Python写批量重命名文件的脚本"),
    ("把report.pdf的要点整理成PPT", "请把paper.pdf的要点做成PPT"),
    ("分析survey.csv的问卷结果", "分析 data.xlsx 里的问卷结果"),
    ("review这段code，找bug", "帮我review一下code，找出bug"),
]  # fmt: skip

UNRELATED = [
    ("Create a monthly sales report for Acme", "Fix the failing unit test in payment.py"),
    ("Translate the manual to German", "Email the invoice to Tom"),
    ("Plan a workshop for the marketing team", "Convert data.csv to JSON"),
    ("Write SQL to find customers without orders", "Draft a reply to a complaint"),
    ("Prepare interview questions", "Summarize the contract in bullet points"),
    ("Write release notes", "Write an email to the landlord"),
    ("Create a chart of temperatures", "Create a checklist for employees"),
    ("Delete old log files", "Prepare slides for the board meeting"),
    ("Explain the login flow", "Analyze the survey results"),
    ("Review the contract", "Refactor this function and add tests"),
    ("写一份销售报告", "修复失败的单元测试"),
    ("把手册翻译成英文", "把发票发给王伟"),
    ("准备董事会的幻灯片", "写一个批量重命名文件的脚本"),
    ("整理会议纪要", "对比三家公司的价格"),
    ("起草投诉回复", "分析问卷结果"),
    ("制作预算表", "画一张登录流程图"),
    ("审查代码并列出问题", "写招聘启事"),
    ("用Python写脚本", "用Excel整理客户名单"),
    ("review这段code", "把report翻译成中文"),
    ("写一封邮件给王伟", "写一首诗给妈妈"),
    ("Hi", "Hello Tom"),
    ("请帮我做一下", "请帮我写一个"),
]


def _pattern(text: str, **values: object) -> MatchedPattern:
    return MatchedPattern(
        **{"id": "p", "signature": signature_of(text), "success_rate": 1.0, "used_at": NOW, **values}  # pyright: ignore
    )


def _rarities(patterns: list[MatchedPattern]) -> dict[str, float]:
    words = [word for pattern in patterns for word in pattern.signature.words]
    return {word: rarity(words.count(word), len(patterns)) for word in set(words)}


@pytest.mark.parametrize("others", [[], REQUESTS], ids=["alone", "among others"])
def test_labelled_pairs(others: list[str]):
    wrong: list[tuple[str, str, float | None]] = []
    offered = 0
    for pairs, is_same in ((SAME_KIND, True), (UNRELATED, False)):
        for one, other in pairs:
            for text, request in ((one, other), (other, one)):
                pattern = _pattern(text)
                rarities = _rarities([pattern, *map(_pattern, others)])
                parts = similarity(signature_of(request), pattern, rarities, NOW)
                if is_same is not (parts is not None and parts.total >= REFERENCED):
                    wrong.append((text, request, parts and parts.total))
                offered += parts is not None and parts.total >= OFFERED
    assert wrong == []
    assert offered >= 1.5 * len(SAME_KIND)  # of twice as many comparisons


def test_each_request_finds_its_own_pattern_among_sixty():
    patterns = [_pattern(text, id=text) for text in REQUESTS]
    rarities = _rarities(patterns)
    for text in REQUESTS:
        matches = best(signature_of(text), patterns, rarities, NOW)
        assert matches[0][0] == text
        assert matches[0][1].total == 100


def test_similarity_counts_words_slots_recency_and_success():
    request = PatternSignature(words=("report", "sale"), slots=("file",))
    pattern = MatchedPattern(
        id="p",
        signature=PatternSignature(words=("chart", "report", "sale"), slots=("file", "name")),
        success_rate=0.8,
        used_at=NOW - timedelta(days=30),
    )
    parts = similarity(request, pattern, {"report": 0.5, "sale": 0.5, "chart": 1.0}, NOW)
    assert parts is not None
    assert (parts.signature, parts.slots, parts.recency) == (25, 10, 7.5)
    assert parts.success == pytest.approx(12)
    assert parts.total == pytest.approx(54.5)


def test_less_than_three_tenths_of_the_rare_words_is_no_match():
    request = PatternSignature(words=("one",))
    pattern = _pattern("", signature=PatternSignature(words=("one", "two", "three", "four")))
    assert similarity(request, pattern, {}, NOW) is None
    assert similarity(request, pattern, {"one": 1, "two": 0.5, "three": 0.5, "four": 0.5}, NOW) is not None
    assert similarity(PatternSignature(), _pattern(""), {}, NOW) is None


def test_words_that_many_patterns_have_count_less():
    assert rarity(0, 10) == 1
    assert rarity(10_000, 10_000) == UNRARE
    values = [rarity(count, 100) for count in range(101)]
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize(("days", "success"), [(89, 15), (90, 12), (400, 12)])
def test_successes_of_long_ago_count_a_fifth_less(days: int, success: float):
    parts = similarity(
        signature_of("sales report"), _pattern("sales report", used_at=NOW - timedelta(days=days)), {}, NOW
    )
    assert parts is not None
    assert parts.success == pytest.approx(success)


def test_the_best_match_is_first_and_equal_ones_are_in_order_of_their_ids():
    patterns = [
        _pattern("sales report", id="b"),
        _pattern("sales report", id="a"),
        _pattern("sales report with a chart", id="c"),
        _pattern("fix the test", id="d"),
    ]
    matches = best(signature_of("a report of sales"), patterns, {}, NOW)
    assert [id_ for id_, _ in matches] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("status", "successes", "failures", "in_row", "days", "expected"),
    [
        ("draft", 2, 0, 0, 0, "draft"),
        ("draft", 3, 0, 0, 0, "active"),
        ("draft", 3, 2, 0, 0, "active"),
        ("draft", 3, 3, 0, 0, "draft"),
        ("active", 3, 3, 3, 0, "active"),
        ("active", 4, 6, 1, 0, "active"),
        ("active", 3, 5, 5, 0, "draft"),
        ("active", 100, 5, 5, 0, "active"),
        ("active", 100, 6, 6, 0, "untrusted"),
        ("draft", 0, 6, 6, 400, "untrusted"),
        ("untrusted", 3, 6, 0, 0, "untrusted"),
        ("untrusted", 9, 6, 0, 0, "active"),
        ("untrusted", 9, 7, 0, 400, "untrusted"),
        ("active", 9, 0, 0, 179, "active"),
        ("active", 9, 0, 0, 180, "archived"),
        ("draft", 0, 0, 0, 180, "archived"),
        ("archived", 9, 0, 0, 0, "active"),
        ("archived", 4, 5, 0, 0, "draft"),
        ("draft", 0, 0, 0, 0, "draft"),
    ],
)
def test_status_follows_from_counts_and_time(
    status: str, successes: int, failures: int, in_row: int, days: int, expected: str
):
    after = status_after(
        PatternStatus(status),
        success_count=successes,
        failure_count=failures,
        failures_in_row=in_row,
        unused=timedelta(days=days),
    )
    assert after == expected
