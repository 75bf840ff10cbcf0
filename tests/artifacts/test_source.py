"""Texts divided into pages and joined again, and what is refused as a source."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxx.errors import InvalidInput, TooLarge
from luxx.features.artifacts.downloads import file_name
from luxx.features.artifacts.sheets import to_csv
from luxx.features.artifacts.source import (
    SourceFile,
    SourceLimits,
    SourcePage,
    as_one_page,
    check_paths,
    clean,
    join,
    normalised,
    pages_of_files,
    split,
)
from luxx.wire.artifacts import ArtifactType

PPT, DOCUMENT, SHEET = ArtifactType.PPT, ArtifactType.DOCUMENT, ArtifactType.SHEET
LINES = [
    "# Heading",
    "## Part",
    "text",
    "---",
    "```",
    "~~~",
    "````python",
    "- item",
    "",
    "   ",
    " ---",
    "#no",
]


def texts(type_: ArtifactType, content: str) -> list[str]:
    return [page.text for page in split(type_, content)]


def test_decks_are_divided_at_lines_outside_of_fenced_code() -> None:
    content = "# One\n\n```yaml\n---\na: 1\n---\n```\n\n---\n\n# Two\n~~~\n---\n```\n~~~\n---\n---\n# Three\n"
    assert texts(PPT, content) == [
        "# One\n\n```yaml\n---\na: 1\n---\n```",
        "# Two\n~~~\n---\n```\n~~~",
        "# Three",
    ]


def test_documents_are_divided_before_headings_outside_of_fenced_code() -> None:
    content = "Preface\n\n# One\n\n## Part\n```sh\n# a comment\n```\n# Two\n#hashtag\n"
    assert texts(DOCUMENT, content) == [
        "Preface",
        "# One\n\n## Part\n```sh\n# a comment\n```",
        "# Two\n#hashtag",
    ]


@pytest.mark.parametrize("type_", [PPT, DOCUMENT])
@given(lines=st.lists(st.sampled_from(LINES), min_size=1, max_size=30))
def test_joined_pages_are_divided_into_the_same_pages(type_: ArtifactType, lines: list[str]) -> None:
    try:
        pages = split(type_, "\n".join(lines))
    except InvalidInput:
        return
    assert split(type_, join(type_, pages)) == pages
    for index in range(len(pages)):
        closed = [*pages[:index], SourcePage("```\nopen"), *pages[index + 1 :]]
        assert normalised(type_, normalised(type_, closed)) == normalised(type_, closed)


def test_a_regenerated_page_is_one_page_and_leaves_the_others_as_they_were() -> None:
    pages = split(DOCUMENT, "Preface\n# One\na\n# Two\nb\n# Three\nc")
    for answer in ("no heading", "# New\nx\n# Further\ny", "before\n# After", "```\nopen"):
        (new,) = as_one_page(DOCUMENT, answer, pages[2].text)
        after = normalised(DOCUMENT, [*pages[:2], new, *pages[3:]])
        assert len(after) == len(pages), (answer, after)
        assert (after[:2], after[3:]) == (pages[:2], pages[3:]), answer
    (slide,) = as_one_page(PPT, "# A\n---\n# B", "# Old")
    assert slide.text == "# A\n\n# B"


def test_control_characters_and_lone_surrogates_are_removed() -> None:
    assert clean("a\x00b\x1b\r\nc\rd\te\ud800f\u2028g\x7f") == "ab\nc\nd\tef\ng"


def test_too_many_pages_and_too_much_text_are_refused_with_the_limit() -> None:
    limits = SourceLimits(max_pages=60, max_source_kb=500)
    with pytest.raises(TooLarge, match=r"at most 60 pages.*would have 10000"):
        limits.check(split(PPT, "\n---\n".join(["# a"] * 10_000)))
    with pytest.raises(TooLarge, match="at most 500 KB"):
        limits.check([SourcePage("x" * 600_000)])


def sheet(rows: list[list[Any]], *types: str) -> str:
    columns = [{"name": f"c{index}", "type": type_} for index, type_ in enumerate(types)]
    return json.dumps({"sheets": [{"name": "S", "columns": columns, "rows": rows}]})


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("no JSON", "a sheet is JSON"),
        ('{"sheets": []}', "length"),
        ('{"sheets": [{"name": "S", "columns": [], "rows": []}]}', "columns"),
        ('{"sheets": [], "sheets": []}', "appears twice"),
        (sheet([["a", "b"]], "text"), r"rows\[0\]: it has 2 cells"),
        (sheet([["a"]], "number"), r"rows\[0\]\[0\]: a number is needed"),
        (sheet([[True]], "number"), "a number is needed"),
        (sheet([["yesterday"]], "date"), "a date such as"),
        (sheet([["=HYPERLINK(\"http://x\")"]], "formula"), "HYPERLINK is not allowed"),
        (sheet([["=WEBSERVICE(A1)"]], "formula"), "WEBSERVICE is not allowed"),
        (sheet([["=cmd|'/c calc'!A1"]], "formula"), "other files or programs"),
        (sheet([["=[x.xlsx]S!A1"]], "formula"), "other files or programs"),
        (sheet([["1+1"]], "formula"), "begins with ="),
        ('{"sheets": [{"name": "a/b", "columns": [{"name": "c"}]}]}', "a sheet's name"),
        ('{"sheets": [{"name": "a", "columns": [{"name": "c"}]}, {"name": "A", "columns": [{"name": "c"}]}]}',
         "two sheets are named"),
    ],
)  # fmt: skip
def test_wrong_sheets_are_refused_with_the_place(content: str, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        split(SHEET, content)


def test_only_cells_of_the_type_formula_are_formulas_in_csv() -> None:
    rows = [
        ["=1+1", "=SUM(A1:A2)", -5],
        ["+1", None, 2.5],
        ["-1", "=A1", 0],
        ["@x", None, 1],
        ["\tx", None, 1],
    ]
    pages = split(SHEET, sheet(rows, "text", "formula", "number"))
    assert to_csv([page.text for page in pages]) == (
        "c0,c1,c2\r\n\t=1+1,=SUM(A1:A2),-5\r\n\t+1,,2.5\r\n\t-1,=A1,0\r\n\t@x,,1\r\n\t\tx,,1\r\n"
    )


@pytest.mark.parametrize(
    "path",
    ["../../x", "/etc/passwd", "a//b", ".", "con", "src/AUX.txt", "a\u202eb", "a\\b", "x" * 300, "a. ", ""],
)
def test_paths_that_leave_the_folder_or_cannot_be_stored_everywhere_are_refused(path: str) -> None:
    with pytest.raises(InvalidInput):
        check_paths([path])


def test_paths_are_unique_whatever_their_case() -> None:
    for first, second in (("a.py", "A.py"), ("é", "e\u0301"), ("a", "a/b")):
        with pytest.raises(InvalidInput):
            pages_of_files([SourceFile(path=first, content=""), SourceFile(path=second, content="")])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("../../x", "x.pdf"),
        ("con", "_con.pdf"),
        ("Report.PDF", "Report.pdf"),
        ("a\u202egpj.exe", "a_gpj.exe.pdf"),
        ("...", "file.pdf"),
        ("报告", "报告.pdf"),
    ],
)
def test_names_of_downloads_are_safe(name: str, expected: str) -> None:
    assert file_name(name, "pdf") == expected
    assert len(file_name(name * 300, "pdf").encode()) <= 255


@pytest.mark.parametrize(
    ("chart", "reason"),
    [
        ("[1]", "JSON object"),
        ("{}", "needs series"),
        ('{"type": "cloud", "labels": ["a"], "series": [{"values": [1]}]}', "cloud is no type of a chart"),
        ('{"labels": ["a"], "series": [{"values": ["b"]}]}', "values of a chart are numbers"),
        ('{"labels": ["a"], "series": [{"values": [1, 2]}]}', "2 values, and there are 1 labels"),
        ('{"labels": [["a"]], "series": [{"values": [1]}]}', "labels of a chart are texts"),
        (json.dumps({"series": [{"values": [1] * 201}]}), "at most 200 labels"),
        (json.dumps({"series": [{"values": [1]}] * 13}), "at most 12 series"),
        ('{"series": [{"values": [1]}], "series": []}', "twice"),
    ],
)
def test_what_is_no_chart_is_refused_with_the_reason(chart: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason) as refused:
        split(ArtifactType.CHART, chart)
    assert refused.value.kind == "source_invalid"


def test_a_chart_is_what_the_renderer_reads_also_in_the_form_of_chart_js() -> None:
    given = {"type": "bar", "data": {"labels": ["a"], "datasets": [{"label": "s", "data": [1]}]}}
    (page,) = split(ArtifactType.CHART, json.dumps(given))
    assert json.loads(page.text) == given
