"""What learned patterns keep of a text: general words pass, all others become slots."""

import re
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luxx.features.patterns.slots import (
    PatternSignature,
    checked_signature,
    read_signature,
    signature_of,
    signature_text,
    slotted,
    without_checked_numbers,
)
from tests.patterns.private_texts import CARRIERS, PASSPHRASES, REQUESTS, SECRETS

PIECES = st.sampled_from(
    [
        *(
            "report",
            "Report",
            "the",
            "a",
            "I",
            "Acme",
            "Bill",
            "will",
            "sales",
            "password",
            "is",
            "at",
            "dot",
        ),
        *(
            "called",
            "key",
            "api",
            "4242",
            "9f3a",
            "sk",
            "x",
            "{name}",
            "{text}",
            "王伟",
            "高",
            "建设",
            "报告",
        ),
        *(
            "销售",
            "请把",
            "二〇",
            "3月",
            "方向",
            "明",
            "，",
            "。",
            ". ",
            ", ",
            ": ",
            "\n",
            " ",
            " ",
            " ",
            "-",
            "_",
        ),
        *(
            "/",
            "@",
            "(",
            ")",
            '"',
            "```",
            "《",
            "》",
            "\u200b",
            "\u0301",
            "ｒ",
            "е",
            "1.",
            "=",
            "{",
            "}",
            "的",
            "PDF",
        ),
    ]
)


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.lists(PIECES, max_size=25).map("".join), st.text(max_size=40)))
def test_slotted_text_stays_as_it_is_and_has_the_same_signature(text: str):
    once = slotted(text)
    assert slotted(once) == once
    assert signature_of(once) == signature_of(text)


def test_signature_is_readable_and_can_be_read():
    signature = signature_of("Create a sales report with 3 charts and save it as acme.xlsx")
    assert signature_text(signature) == "chart report sale save | file number"
    assert read_signature(signature_text(signature)) == signature
    assert read_signature(signature_text(PatternSignature())) == PatternSignature()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Create a monthly sales report for Acme Corp and save it as sales_report_acme_2024.xlsx.",
            "create a monthly sales report for {name} and save it as {file}.",
        ),
        ("Mark the totals. Read my mail. Read wants it.", "mark the totals. read my mail. {name} wants it."),
        (
            "New Harvest needs a chart. The Acme report. You Wei",
            "{name} needs a chart. the {name} report. {name}",
        ),
        ("Will Bill pay the bill? Ask Mark.", "{name} pay the bill? ask {name}"),
        (
            "请把上个月的销售报告发给王伟，并生成3份柱状图",
            "请把上个月的销售报告发给{name}, 并生成{number}份柱状图",
        ),
        ("打开销售报告.xlsx然后总结要点", "{file}然后总结要点"),
    ],
)
def test_general_words_pass_and_others_become_slots(text: str, expected: str):
    assert slotted(text) == expected


def test_names_of_tools_pass():
    assert slotted("Use web_search_9 for Acme", {"web_search_9"}) == "use web_search_9 for {name}"
    assert slotted("Use web_search_9 for Acme") == "use {text} for {name}"


@pytest.mark.parametrize(
    "number", ["4242 4242 4242 4242", "4242424242424242", "DE89 3704 0044 0532 0130 00", "11010519491231002X"]
)
def test_numbers_with_a_right_checksum_become_slots(number: str):
    assert without_checked_numbers(f"card {number} now") == "card {number} now"
    wrong = number.replace("0", "7", 1) if "0" in number else number.replace("4", "5", 1)
    assert without_checked_numbers(f"card {wrong} now") == f"card {wrong} now"


def _words(text: str) -> Counter[str]:
    """The words and Chinese characters of a slotted text."""
    return Counter(re.findall(r"[a-z]+|[^\W\d_a-z]", re.sub(r"\{[a-z]+\}", " ", text.lower())))


@pytest.mark.parametrize("carrier", CARRIERS)
def test_nothing_of_a_secret_or_name_passes(carrier: str):
    neutral = _words(slotted(carrier.format("{text}")))
    terms = set(signature_of(carrier.format("{text}")).words)
    leaks = {
        secret: (slotted(carrier.format(secret)), passed)
        for secret in SECRETS
        if (passed := _words(slotted(carrier.format(secret))) - neutral)
        or not set(signature_of(carrier.format(secret)).words) <= terms
    }
    assert leaks == {}


@pytest.mark.parametrize(("carrier", "secret"), PASSPHRASES)
def test_words_that_are_a_password_do_not_pass(carrier: str, secret: str):
    neutral = _words(slotted(carrier.format("{text}")))
    assert _words(slotted(carrier.format(secret))) - neutral == Counter()


@pytest.mark.parametrize(("requests", "least"), [(REQUESTS[:30], 0.9), (REQUESTS[30:], 0.9)])
def test_most_words_of_ordinary_requests_pass(requests: list[str], least: float):
    before = sum((_words(request) for request in requests), Counter())
    after = sum((_words(slotted(request)) for request in requests), Counter())
    assert (before & after).total() / before.total() >= least


@pytest.mark.parametrize(
    "piece", ["create a report for Acme ", "报a告.", "4 ", "高建设", "x at y dot ", "#", "a@.", "《"]
)
def test_long_texts_take_time_in_proportion_to_their_length(piece: str):
    def calls(size: int) -> int:
        count = 0

        def count_call(*_: object) -> None:
            nonlocal count
            count += 1

        text = (piece * size)[:size]
        sys.setprofile(count_call)
        try:
            slotted(text)
        finally:
            sys.setprofile(None)
        return count

    slotted(piece)
    assert calls(8_000) < 4.5 * calls(2_000) + 500


def test_the_signature_of_an_import_has_general_words_only() -> None:
    for text in (
        "Make a chart of the sales of Anna in sales.csv",
        "做一个销售图表",
        "Summarise 12 SQL reports in English",
    ):
        signature = signature_of(text)
        assert checked_signature(signature_text(signature)) == signature, text
    foreign = checked_signature("chart anneliese hunter2 4111 王小明 | name password file")
    assert (foreign.words, foreign.slots) == (("chart",), ("file", "name"))
