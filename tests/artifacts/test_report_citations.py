"""The citations of reports: what is found in the text, what is wrong with it, and the references."""

import pytest

from luxx.features.artifacts.citations import (
    CitedSource,
    checked_quotations,
    citations_in,
    cited_sources,
    folded_text,
    numbers_to_read,
    problems_of,
    with_references,
)

KNOWN = {
    number: CitedSource(
        number=number, address=f"https://{number}.example/a_b?q=<x>", title=f"Page *{number}*"
    )
    for number in (1, 2, 7)
}
TEXTS = {1: "Bread **rises** in [two hours](https://x.example/(a)), at 27 °C.", 2: "面包要发酵两个小时。"}


def found(*pages: str) -> list[tuple[int, int, str | None]]:
    return [(one.page, one.number, one.quotation) for one in citations_in(pages)]


def test_citations_are_found_outside_code() -> None:
    text = 'One [S1], two [S2 "two words"], three [S7 “a "b" c”].\n\n`[S3]` ``a ` [S4]``\n\n```\n[S5]\n```\n'
    assert found(text, "~~~\n[S8]\n~~~~\n[S9]") == [
        (1, 1, None), (1, 2, "two words"), (1, 7, 'a "b" c'), (2, 9, None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text", ["[s1]", "[S]", "[S1 two]", "[S 1]", "[S1, S2]", "[S1234567]", "S1", '[S1 "open]']
)
def test_what_only_resembles_a_citation_is_none(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize(
    "quotation",
    [
        "Bread rises in two hours",
        "bread  RISES in two hours, at 27 °C",
        "Ｂread—rises",
        "rises in “two hours”",
    ],
)
def test_words_of_the_page_are_found_whatever_their_case_marks_and_links(quotation: str) -> None:
    assert problems_of([f'[S1 "{quotation}"]'], KNOWN, TEXTS) == []


def test_words_in_chinese_are_found() -> None:
    assert problems_of(["[S2 “要发酵两个小时”]"], KNOWN, TEXTS) == []
    assert [one.page for one in problems_of(["[S2 “要发酵三个小时”]"], KNOWN, TEXTS)] == [1]


def test_invented_unread_and_misquoted_sources_are_named_with_their_pages() -> None:
    pages = ["Fine [S1].", "Invented [S9], twice [S9].", '[S1 "Bread falls"], [S7 "anything"] and [S1 "…"]']
    problems = problems_of(pages, KNOWN, TEXTS)
    assert [(one.page, one.kind) for one in problems] == [(2, "citation"), *[(3, "citation")] * 3]
    assert "[S9] is no page that was read" in problems[0].text
    assert "S1 does not have the words “Bread falls”" in problems[1].text
    assert "S7" in problems[2].text
    assert "Read the page again" in problems[2].text
    assert numbers_to_read(pages) == {1, 7}


def test_a_quotation_that_was_found_before_needs_no_text_any_more() -> None:
    earlier = ['[S1 "rises in two hours"]', '[S1 "falls"]']
    checked = checked_quotations(earlier, problems_of(earlier, KNOWN, TEXTS))
    assert checked == {(1, "rises in two hours")}
    assert [one.page for one in problems_of(earlier, KNOWN, {}, checked)] == [2]


def test_references_are_numbered_by_their_first_citation_and_written_by_the_server() -> None:
    pages = ['# A\n\nTwo [S7 "x"], one [S1], two again [S7].', "# B\n\nUnknown [S9], `[S1]`."]
    sources = cited_sources(pages, KNOWN)
    assert [source.number for source in sources] == [7, 1]
    first, second, references = with_references(pages, sources, "References")
    link = "[\\[1\\]](<https://7.example/a_b?q=%3Cx%3E>)"
    assert first == f"# A\n\nTwo {link}, one [\\[2\\]](<https://1.example/a_b?q=%3Cx%3E>), two again {link}."
    assert second == pages[1]
    assert references.splitlines() == [
        "# References",
        "",
        "1. Page \\*7\\*. <https://7.example/a_b?q=%3Cx%3E>",
        "2. Page \\*1\\*. <https://1.example/a_b?q=%3Cx%3E>",
    ]
    assert with_references(["# A"], [], "References") == ["# A"]


def test_long_texts_are_read_in_time_that_grows_with_their_length() -> None:
    """Patterns that try each beginning again would take minutes."""
    hostile = ['[S1 "' * 50_000, "[S1 “" * 50_000, "`" * 200_000, "](" * 100_000, "[S1" + " " * 200_000]
    for text in hostile:
        assert found(text) == []
        folded_text(text)
