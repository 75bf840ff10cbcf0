"""What learned patterns keep of a text: general words pass, all others become slots."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luxx.features.patterns.slots import (
    PatternSignature,
    read_signature,
    signature_of,
    signature_text,
    slotted,
    without_checked_numbers,
)

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
