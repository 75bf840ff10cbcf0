"""Documents of all formats become parts with their places; hostile ones end in a sentence."""

import asyncio
from collections.abc import Iterator

import pytest
from knowledge_documents import (
    DOCUMENTS,
    HOSTILE,
    WORKSHEET,
    entries_of,
    far_cells,
    handbook_docx,
    paragraph,
    pdf,
    sales_xlsx,
    word_xml,
    zip_of,
)

from luxx.domain.files.names import extension_of
from luxx.infra.documents.document_text import read
from luxx.infra.documents.formats import format_of_extension, problem_sentence
from luxx.infra.documents.parts import Document, Part
from luxx.infra.documents.reader import DocumentProcess

Place = tuple[object, tuple[str, ...], str]


def process(name: str, data: bytes, characters: int = 1_000_000, may_cut: bool = False) -> Document:
    """Reads a document as the server does."""
    reading = DocumentProcess().read(
        data, extension=extension_of(name), characters=characters, user_id=1, may_cut=may_cut
    )
    return asyncio.run(reading)


def places(document: Document) -> Iterator[Place]:
    for part in document.parts:
        yield part.page or part.slide or part.rows, part.headings, part.text


READ: dict[str, tuple[str, list[Place]]] = {
    "handbook.docx": (
        "Bakery handbook",
        [
            (None, ("Bakery handbook",), "This handbook is for new bakers."),
            (None, ("Bakery handbook", "Ovens"), "The stone oven is heated to 260 degrees."),
            (
                None,
                ("Bakery handbook", "Ovens", "Cleaning"),
                "Ovens are cleaned every Thursday.\n\nUse the brass brush\n\n"
                "Oven | Keeper\nNorth | Maria Okafor",
            ),
            (None, ("Bakery handbook", "面包"), "酸面团需要发酵十八个小时。"),
        ],
    ),
    "plan.pptx": (
        "Plan for 2027",
        [
            (1, ("Plan for 2027",), "Two new shops"),
            (2, ("Budget",), "Rent is 84,000 euros\nFlour is 31,500 euros\n\nNotes: Ask the bank in March."),
            (
                3,
                ("Opening hours",),
                "The shop in Ghent opens at 6:30\n\nDay | Staff\nSunday | four bakers",
            ),
        ],
    ),
    "stock.ods": ("", [((2, 3), ("Store",), "Rye | 40\nOats | 25.5")]),
    "stock.xls": ("", [((2, 2), ("Store",), "Rye | 40")]),
    "novel.epub": (
        "The Lamp",
        [
            (None, ("First night",), "Ida lit the lamp & waited.\n\nA note"),
            (None, ("Second night",), "The lamp went out at **nine**."),
            (None, ("第三夜",), "灯又亮了。"),
        ],
    ),
    "orders.csv": (
        "",
        [((2, 3), (), "Ann | Gent | 12,5\nBob; Sons | Liège | 7"), ((5, 5), (), "Total |  | 19,5")],
    ),
    "notes.md": (
        "Rules",
        [
            (None, (), "Before"),
            (None, ("Rules",), "Be kind."),
            (None, ("Rules", "Doors"), "Lock door 7.\n\n```\n# no heading\n```"),
            (None, ("Empty",), ""),
            (None, ("Title",), "End."),
        ],
    ),
    "plain.txt": ("", [(None, (), "The code of the gate is 4711.\n\nAsk Zoë.")]),
    "page.html": (
        "Shop",
        [
            (None, ("Shop",), "We sell " + ("rye bread and oat bread on all days of the week. " * 5).strip()),
            (None, ("Shop", "Delivery"), "Within two days."),
        ],
    ),
    "data.json": ("", [(None, (), '{\n  "shop": {\n    "name": "北店",\n    "tables": 14\n  }\n}')]),
    "code.py": ("", [(None, (), "def bake(minutes):\n    return minutes * 2")]),
}


@pytest.mark.parametrize("name", READ)
def test_a_document_is_read_as_parts_that_know_their_place(name: str) -> None:
    title, expected = READ[name]
    document = read(DOCUMENTS[name](), extension_of(name), 1_000_000, may_cut=False)
    assert (document.error, document.detail, document.warnings) == ("", "", [])
    assert list(places(document)) == expected
    assert document.title == title
    assert document.format == format_of_extension(extension_of(name))


def test_rows_of_a_sheet_keep_their_numbers_and_the_names_of_the_columns() -> None:
    document = process("sales.xlsx", sales_xlsx())
    sales, total, people = document.parts
    assert (sales.rows, sales.headings) == ((2, 400), ("Sales 2026",))
    assert sales.columns == "Product | Units | Sold on | In stock"
    lines = sales.text.split("\n")
    assert lines[137 - 2] == "Bread type 136 | 952 | 2026-01-25 | TRUE"
    # The value of a formula, not the formula.
    assert (total.rows, total.text, total.columns) == ((403, 403), "Total | 558600", sales.columns)
    assert (people.rows, people.columns, people.headings) == ((4, 5), "Name | City", ("People",))
    assert people.text == "Ann | Ghent\n李雷 | 上海"
    assert document.warnings == ["hidden sheets were left out: 1"]
    assert document.title == "Sales"


def test_a_pdf_is_read_page_by_page() -> None:
    document = process("report.pdf", DOCUMENTS["report.pdf"]())
    assert [part.page for part in document.parts] == list(range(1, 13))
    assert document.parts[6].text == "Page 7 tells that crate 7 weighs 21 kilograms."
    pages = process("report.docx", pdf("one", "", "three"))
    assert list(places(pages)) == [(1, (), "one"), (3, (), "three")]
    assert pages.pages == 3
    assert pages.warnings == [
        "the content is pdf, although the name says docx",
        "pages without text, such as scanned ones: 1",
    ]


def test_pages_of_a_word_file_are_those_that_word_has_noted() -> None:
    page_break = "<w:lastRenderedPageBreak/>"
    deleted = "<w:p><w:del><w:r><w:delText>deleted</w:delText></w:r></w:del></w:p>"
    body = (
        paragraph("one")
        + paragraph("two", page_break)
        + deleted
        + f"<w:p><w:r><w:t>still two</w:t>{page_break}<w:t>, now three</w:t></w:r></w:p>"
        + paragraph("three")
    )
    document = read(word_xml(body), "docx", 1000, may_cut=False)
    assert list(places(document)) == [
        (1, (), "one"),
        (2, (), "two\n\nstill two, now three"),
        (3, (), "three"),
    ]


def test_a_file_is_read_by_its_content_and_a_wrong_name_is_mentioned() -> None:
    document = read(handbook_docx(), "xlsx", 100_000, may_cut=False)
    assert (document.format, document.warnings) == (
        "docx",
        ["the content is docx, although the name says xlsx"],
    )
    assert read(handbook_docx(), "", 100_000, may_cut=False).parts == document.parts


def test_a_longer_text_is_refused_or_cut() -> None:
    data = b"# A\n\nword word word\n\n# B\n\n" + b"word " * 1000
    refused = read(data, "md", 500, may_cut=False)
    assert problem_sentence("a.md", refused) == "a.md has too much text to be read; use a part of it"
    cut = process("a.md", data, 500, may_cut=True)
    assert cut.is_cut
    assert cut.parts[0] == Part(text="word word word", headings=("A",))
    assert 400 < len(cut.text) <= 500


@pytest.mark.parametrize(("name", "make", "words"), HOSTILE, ids=[case[0] + case[2][:12] for case in HOSTILE])
def test_a_hostile_document_ends_in_one_sentence(name: str, make: object, words: str) -> None:
    data: bytes = make()  # type: ignore[operator]
    if name.endswith(".pdf"):
        document = process(name, data)
    else:
        document = read(data, extension_of(name), 1_000_000, may_cut=False)
    sentence = problem_sentence(name, document)
    assert sentence.startswith(name)
    assert words in sentence
    assert "\n" not in sentence
    assert "Error" not in sentence
    assert "root:" not in str(document)


def test_what_is_too_heavy_for_its_process_is_reported_in_a_sentence() -> None:
    assert problem_sentence("a.xlsx", process("a.xlsx", far_cells())) == (
        "a.xlsx needs too much memory to be read"
    )


@pytest.mark.heavy
def test_a_million_cells_are_read_within_the_bounds() -> None:
    row = "".join(f"<c><v>{one}</v></c>" for one in range(50))
    sheet = "".join(f'<row r="{number}">{row}</row>' for number in range(1, 20_001))
    entries = {"xl/worksheets/sheet1.xml": f"{WORKSHEET}{sheet}</sheetData></worksheet>"}
    data = zip_of({**entries_of(sales_xlsx()), **entries})
    document = process("a.xlsx", data, 20_000_000)
    assert document.error == ""
    assert document.parts[0].rows == (1, 20_000)
