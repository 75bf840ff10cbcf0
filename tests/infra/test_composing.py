"""Composed text: the same letters as Unicode's NFC, with a bound on the marks that have to be sorted."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxx.infra.store.search_words import MAX_MARKS, PIECE, composed

MARKS = "\u0301\u0323\u0344\u0f71\u0f72\u0f73"


@given(st.text(st.sampled_from("ae 中\u1100\u1161\u11a8" + MARKS), max_size=MAX_MARKS))
def test_text_with_few_marks_is_what_unicode_composes(text: str) -> None:
    assert composed(text) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize("marks", ["\u0f72\u0f71", "\u0f73", "\u0344", "\u0323\u0344"])
@pytest.mark.parametrize("lead", [0, PIECE - MAX_MARKS])
def test_a_long_run_of_marks_is_cut_and_the_text_around_it_is_not(marks: str, lead: int) -> None:
    text = "a" * lead + "e\u0301" + marks * 500_000 + "z"
    whole = composed(text)
    assert whole.startswith("a" * lead)
    assert whole.endswith("z")
    assert len(whole) < lead + 3 * MAX_MARKS * (len(text) // PIECE + 2)
    assert unicodedata.is_normalized("NFC", whole)
