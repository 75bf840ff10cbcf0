"""Documents and reports: headings, contents, text, pages; charts as pictures; fonts."""

import hashlib
import re
import subprocess
import sys
import time
from io import BytesIO
from pathlib import Path

import pypdf
import pytest
from docx import Document
from PIL import Image

from luxx.infra.documents.render.blocks import ChartBlock, Heading, plain, read_page
from luxx.infra.documents.render.checks import document_text, missing_text, page_texts
from luxx.infra.documents.render.sizes import TooLong, require_short_document
from luxx.wire.artifacts import ArtifactType
from render.conftest import example, example_source, pages_of, render

DOCUMENT, REPORT = ArtifactType.DOCUMENT, ArtifactType.REPORT
CASES = [(DOCUMENT, "docx"), (DOCUMENT, "pdf"), (REPORT, "docx"), (REPORT, "pdf")]


def source_headings(kind: ArtifactType, language: str) -> list[str]:
    pages = [read_page(page) for page in example_source(kind, language).pages]
    return [plain(block.spans) for page in pages for block in page.blocks if isinstance(block, Heading)]


def source_text(kind: ArtifactType, language: str) -> str:
    """The text of the source; that of charts is in pictures."""
    pages = [read_page(page) for page in example_source(kind, language).pages]
    charts = [
        text
        for page in pages
        for block in page.blocks
        if isinstance(block, ChartBlock)
        for text in block.chart.texts
    ]
    whole = "".join(text for page in pages for text in page_texts(page))
    for text in charts:
        whole = whole.replace(text, "", 1)
    return whole


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("kind", [DOCUMENT, REPORT])
def test_a_docx_has_the_headings_and_the_text_of_its_source(kind: ArtifactType, language: str) -> None:
    made = example(kind, language, "docx")
    assert made.problems == ()
    document = Document(BytesIO(made.data))
    named = [
        p for p in document.paragraphs if p.style is not None and str(p.style.name).startswith("Heading")
    ]
    assert [paragraph.text for paragraph in named] == source_headings(kind, language)
    assert missing_text(source_text(kind, language), document_text(made.data)) == 0


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("kind", [DOCUMENT, REPORT])
def test_a_pdf_has_text_contents_and_pictures_of_its_pages(kind: ArtifactType, language: str) -> None:
    made = example(kind, language, "pdf")
    assert made.problems == ()
    text = "".join(page.text for page in made.pages)
    assert missing_text(source_text(kind, language), text) == 0
    assert {"en": "Contents", "zh": "目录"}[language] in made.pages[0].text
    assert len(made.pages) == len(pypdf.PdfReader(BytesIO(made.data)).pages)
    for page in made.pages:
        image = Image.open(BytesIO(page.picture))
        assert image.width == 1280
        assert len(page.picture) <= 150_000
        assert len(image.convert("RGB").getcolors(1 << 21) or []) > 1


def test_a_report_has_bookmarks_of_its_headings() -> None:
    outline = pypdf.PdfReader(BytesIO(example(REPORT, "en", "pdf").data)).outline
    flat = [entry for entry in outline if not isinstance(entry, list)]
    assert [str(entry.title) for entry in flat][-3:] == ["Findings", "Evidence in detail", "References"]


def test_contents_of_a_docx_name_the_pages_of_its_headings() -> None:
    document = Document(BytesIO(example(DOCUMENT, "en", "docx").data))
    lines = [
        p.text
        for p in document.paragraphs
        if p.style is not None and p.style.name in ("Contents 1", "Contents 2")
    ]
    assert lines == [
        "Summary\t2",
        "What we ask for\t2",
        "Demand\t2",
        "Lines\t2",
        "How the figures were made\t3",
        "Cost\t3",
    ]
    pages = example(DOCUMENT, "en", "pdf").pages
    assert "Cost" in pages[2].text
    assert [page.source_page for page in pages] == [1, 2, 4]


@pytest.mark.parametrize(("kind", "form"), CASES)
def test_the_same_source_gives_the_same_file(kind: ArtifactType, form: str) -> None:
    again = render(example_source(kind, "zh"), form)
    assert hashlib.sha256(again.data).digest() == hashlib.sha256(example(kind, "zh", form).data).digest()


def test_lists_keep_their_levels_and_numbers() -> None:
    made = render(pages_of(DOCUMENT, "3. three\n4. four\n   - inner\n\nText.\n\n1. one again"), "pdf")
    squeezed = "".join(made.pages[0].text.split())
    assert "3.three4.four" in squeezed
    assert "1.oneagain" in squeezed


@pytest.mark.parametrize(("kind", "form"), CASES)
def test_cells_beyond_the_header_and_breaks_in_cells_are_in_the_file(kind: ArtifactType, form: str) -> None:
    table = "| a | b |\n| - | - |\n| one<br>two | x \\|\\| y | **z** |\n| only |\n\nText<br/>below `<br>`"
    made = render(pages_of(kind, f"# Table\n\n{table}"), form)
    text = document_text(made.data) if form == "docx" else "".join(page.text for page in made.pages)
    squeezed = "".join(text.split())
    assert "onetwo" in squeezed
    assert "x||y|z" in squeezed
    assert squeezed.count("<br>") == 1
    if form == "docx":
        (grid,) = Document(BytesIO(made.data)).tables
        assert [cell.text for cell in grid.rows[1].cells] == ["one\ntwo", "x || y | z"]


def test_surplus_cells_are_read_in_time_that_grows_with_their_number() -> None:
    row = f"|{'b|' * 1000}\n"
    started = time.monotonic()
    (grid,) = read_page(f"|a|\n|-|\n{row * 250}").blocks
    assert time.monotonic() - started < 5
    assert {plain(cells[0]).count("b") for cells in grid.rows} == {1000}


def test_a_picture_that_is_missing_is_a_problem_and_one_that_is_there_is_in_the_file() -> None:
    file = BytesIO()
    Image.new("RGB", (40, 20), "red").save(file, "PNG")
    source = pages_of(DOCUMENT, "![Red](a.png)\n\n![Lost](b.png)", images={"a.png": file.getvalue()})
    made = render(source, "docx")
    assert [(problem.page, problem.kind) for problem in made.problems] == [(1, "source")]
    assert "b.png" in made.problems[0].text
    assert len(Document(BytesIO(made.data)).inline_shapes) == 1


@pytest.mark.parametrize(("kind", "form"), CASES)
def test_code_of_renderers_in_the_source_stays_text(kind: ArtifactType, form: str) -> None:
    hostile = '# #read("/etc/passwd") and {{x}}\n\n#import "x.typ" `#eval("1+1")` $ x^2 $ <b>&lt;'
    made = render(pages_of(kind, hostile), form)
    text = "".join("".join(page.text.split()) for page in made.pages)
    assert '#read("/etc/passwd")' in text
    assert '#eval("1+1")' in text
    assert "root:" not in text
    assert made.problems == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("- x\n" * 120_000, "more than 40,000"),
        ("|a|b|\n|-|-|\n" + "|c|d|\n" * 80_000, "more than 40,000"),
        ("**a*b_c" * 68_000, "characters"),
        ("[a](http://b) " * 34_000, "characters"),
        ("[a](http://b)\n\n" * 30_000, "more than 40,000"),
        ("[" * 480_000, "480,000 characters"),
        ("*a **b " * 68_000, "characters"),
    ],
    ids=["lists", "tables", "emphasis", "links", "paragraphs", "brackets", "open emphasis"],
)
def test_a_text_that_takes_too_long_is_refused_before_a_file_is_made(text: str, reason: str) -> None:
    with pytest.raises(TooLong, match=reason):
        require_short_document([f"# Title\n\n{text}"])


def test_a_long_document_of_a_usual_form_is_no_problem() -> None:
    rows = "|a|b|c|d|\n|-|-|-|-|\n" + "|one|**two**|three|four|\n" * 2_000
    require_short_document([f"# Title\n\n{'word ' * 7_000}\n\n{rows}" for _ in range(2)])


def test_an_empty_page_is_a_problem() -> None:
    made = render(pages_of(DOCUMENT, "# One", ""), "docx")
    assert [(problem.page, problem.kind) for problem in made.problems] == [(2, "blank")]


WITHOUT_CJK = """
import sys
sys.modules["noto_cjk_sans_otc"] = None
from render.conftest import example_source, render
from luxx.wire.artifacts import ArtifactType
made = render(example_source(ArtifactType.PPT, "zh"), "pptx")
print(*[problem.page for problem in made.problems if problem.kind == "glyph"])
print(made.problems[0].text)
"""


def test_without_the_cjk_font_the_pages_with_such_text_are_named() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_CJK],
        capture_output=True, text=True, timeout=60, check=True, cwd=root / "tests",
        env={"PYTHONPATH": f"{root}:{root}/tests"},
    )  # fmt: skip
    pages, text = done.stdout.splitlines()
    assert pages == "1 2 3 4 5 6 7 8 9 10"
    assert re.search(r"^Page 1 has characters that no font .* pip install 'luxx\[artifacts-cjk\]'\.$", text)
