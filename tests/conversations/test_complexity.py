"""Which messages look complex enough to be planned."""

import pytest

from luxx.features.chats.complexity import is_complex, signs_of

LONG = "It should be written for people who have never seen the figures, with one page for each part. " * 3


@pytest.mark.parametrize(
    ("text", "signs"),
    [
        ("hi", []),
        ("What is the capital of France?", []),
        (LONG, ["long"]),
        ("Translate this and explain it.", ["requests"]),
        ("Compare Q3 and Q4.", ["requests", "analysis", "periods"]),
        ("How did sales change in the past six months?", ["periods"]),
        ("- the code\n- the budget", ["requests", "domains"]),
        ("分析 Q3 和 Q4 的收入，另外比较客户的意见", ["requests", "analysis", "periods", "domains"]),
        ("过去 6 个月怎么样？", ["periods"]),
        ("In 2024 there was one.", []),
        ("thinking", []),
    ],
)
def test_the_signs_of_a_message(text: str, signs: list[str]) -> None:
    assert signs_of(text) == signs
    assert is_complex(text) is (len(signs) >= 3)


def test_a_pasted_book_is_read_at_its_beginning_only() -> None:
    assert signs_of("a" * 1_000_000 + " compare Q1 and Q2") == ["long"]
