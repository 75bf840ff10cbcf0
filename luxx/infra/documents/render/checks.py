"""Checks of a written file: it reopens, has all pages and all text of its source, and no page is blank."""

# The libraries of this module have no complete types.
# pyright: basic

from collections import Counter
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import Any
from zipfile import ZipFile

import rdocx
import rpptx
from docx import Document
from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]
from pptx import Presentation
from pptx.enum.shapes import PP_PLACEHOLDER
from python_calamine import CalamineWorkbook

from luxx.infra.documents.render.blocks import (
    Block,
    ChartBlock,
    CodeBlock,
    Flow,
    Grid,
    Heading,
    ImageBlock,
    Listing,
    PageSource,
    Paragraph,
    Quote,
    plain,
    read_page,
)
from luxx.infra.documents.render.document import WrittenDocument
from luxx.infra.documents.render.fonts import cjk_font, missing_characters
from luxx.infra.documents.render.request import RenderProblem, RenderSource
from luxx.infra.documents.render.scripts import has_east_asian

_SHOWN_CHARACTERS = 12


def page_texts(page: PageSource) -> Iterator[str]:
    """All texts of a page, without marks. Those of pictures are not in it: they are descriptions."""
    for block in page.blocks:
        yield from _block_texts(block)


def _block_texts(block: Block) -> Iterator[str]:
    match block:
        case Heading() | Paragraph():
            yield plain(block.spans)
        case Listing():
            yield from (plain(item.spans) for item in block.items)
        case Grid():
            yield from (plain(cell) for row in (block.header, *block.rows) for cell in row)
        case CodeBlock():
            yield block.text
        case Quote():
            yield from (plain(spans) for spans in block.paragraphs)
        case ChartBlock():
            yield from block.chart.texts
        case Flow():
            yield from block.steps
        case ImageBlock():
            pass


def glyph_problems(pages: Sequence[str]) -> Iterator[RenderProblem]:
    """Pages with characters that no font of the server has."""
    for number, text in enumerate(pages, 1):
        missing = missing_characters(page_texts(read_page(text)))
        if not missing:
            continue
        shown = " ".join(missing[:_SHOWN_CHARACTERS])
        shown += " …" if len(missing) > _SHOWN_CHARACTERS else ""
        lacks_cjk = cjk_font() is None and has_east_asian("".join(missing))
        advice = "Install the extra: pip install 'luxx[artifacts-cjk]'." if lacks_cjk else "Replace them."
        yield RenderProblem(
            page=number,
            kind="glyph",
            text=f"Page {number} has characters that no font of this server has, so pictures and PDF show "
            f"boxes ({shown}). {advice}",
        )


def missing_text(wanted: str, found: str) -> int:
    """How many characters of the text are missing, white space aside."""
    return (Counter("".join(wanted.split())) - Counter("".join(found.split()))).total()


def deck_texts(data: bytes) -> list[str]:
    """The text of each slide of a file, without the page number."""
    return ["\n".join(_slide_texts(slide.shapes)) for slide in Presentation(BytesIO(data)).slides]


def _slide_texts(shapes: Any) -> Iterator[str]:
    for shape in shapes:
        if shape.is_placeholder and shape.placeholder_format.type == PP_PLACEHOLDER.SLIDE_NUMBER:
            continue
        if shape.has_text_frame:
            # A line break within a paragraph is a vertical tab.
            yield shape.text_frame.text.replace("\v", "\n")
        if getattr(shape, "has_table", False):
            yield from (cell.text_frame.text for row in shape.table.rows for cell in row.cells)
        if getattr(shape, "has_chart", False):
            yield from chart_texts(shape.chart)


def chart_texts(chart: Any) -> Iterator[str]:
    """The texts of a native chart: title, labels, names and titles of its axes."""
    root = chart._chartSpace
    name = "{http://schemas.openxmlformats.org/drawingml/2006/main}t"
    yield from ("".join(node.text or "" for node in paragraph.iter(name)) for paragraph in _paragraphs(root))
    plot = chart.plots[0]
    yield from (str(category) for category in plot.categories)
    yield from (str(series.name) for series in plot.series)


def _paragraphs(root: Any) -> Iterator[Any]:
    return root.iter("{http://schemas.openxmlformats.org/drawingml/2006/main}p")


def deck_problems(source: RenderSource, data: bytes, texts: Sequence[str]) -> Iterator[RenderProblem]:
    """What is wrong with a written deck."""
    yield from archive_problems(data)
    issues = rpptx.Presentation.from_bytes(data).validate()
    if issues:
        text = f"The file has {len(issues)} mistakes that PowerPoint may repair."
        yield RenderProblem(page=None, kind="not_reopened", text=text)
    if len(texts) != len(source.pages):
        text = f"The file has {len(texts)} slides, and the source has {len(source.pages)} pages."
        yield RenderProblem(page=None, kind="not_reopened", text=text)
        return
    slides = Presentation(BytesIO(data)).slides
    for number, (page, text, slide) in enumerate(zip(source.pages, texts, slides, strict=True), 1):
        if not text.strip() and len(slide.shapes) < 2:
            sentence = f"Page {number} is empty. Write something on it, or delete it."
            yield RenderProblem(page=number, kind="blank", text=sentence)
        yield from text_problems(number, page, text)


def text_problems(number: int, page: str, text: str) -> Iterator[RenderProblem]:
    """Whether the text of a page is in the file."""
    if lost := missing_text("".join(page_texts(read_page(page))), text):
        sentence = f"{lost} characters of page {number} are not in the file."
        yield RenderProblem(page=number, kind="missing_text", text=sentence)


def archive_problems(data: bytes) -> Iterator[RenderProblem]:
    """Names that occur twice in an Office file, and relations with one id."""
    with ZipFile(BytesIO(data)) as archive:
        names = archive.namelist()
        twice = {name for name, count in Counter(names).items() if count > 1}
        for name in names:
            if name.endswith(".rels"):
                ids = Counter(relation.get("Id") for relation in etree.fromstring(archive.read(name)))
                twice |= {f"{name}#{identifier}" for identifier, count in ids.items() if count > 1}
    if twice:
        text = f"Names occur twice in the file: {', '.join(sorted(twice))[:300]}."
        yield RenderProblem(page=None, kind="not_reopened", text=text)


def document_problems(source: RenderSource, written: WrittenDocument) -> Iterator[RenderProblem]:
    """What is wrong with a written document. Charts are pictures in it, whose texts are descriptions."""
    yield from archive_problems(written.data)
    if not rdocx.Document.from_bytes(written.data).validate().is_valid:
        yield RenderProblem(
            page=None, kind="not_reopened", text="The file has mistakes that Word may repair."
        )
    document = Document(BytesIO(written.data))
    headings = [p.text for p in document.paragraphs if str(p.style and p.style.name).startswith("Heading")]
    if headings != [text for _, text in written.headings]:
        text = "The headings of the file are not those of the source."
        yield RenderProblem(page=None, kind="not_reopened", text=text)
    text = document_text(written.data)
    for number, page in enumerate(source.pages, 1):
        yield from _page_problems(number, page, text)


def document_text(data: bytes) -> str:
    """The text of a docx file in its order, with the descriptions of its pictures."""
    body = Document(BytesIO(data)).element.body
    parts: list[str] = []
    for element in body.iter():
        if element.tag.endswith("}t"):
            parts.append(element.text or "")
        elif element.tag.endswith("}docPr"):
            parts.append(element.get("descr") or "")
    return "".join(parts)


def report_problems(source: RenderSource, texts: Sequence[str]) -> Iterator[RenderProblem]:
    """What is wrong with a report as PDF."""
    text = "".join(texts)
    for number, page in enumerate(source.pages, 1):
        yield from _page_problems(number, page, text)


def _page_problems(number: int, page: str, text: str) -> Iterator[RenderProblem]:
    """Whether a section is in a file whose pages are others than those of the source."""
    blocks = read_page(page).blocks
    wanted = [text for block in blocks if not isinstance(block, ChartBlock) for text in _block_texts(block)]
    if not blocks:
        sentence = f"Page {number} is empty. Write something on it, or delete it."
        yield RenderProblem(page=number, kind="blank", text=sentence)
    if lost := missing_text("".join(wanted), text):
        sentence = f"{lost} characters of page {number} are not in the file."
        yield RenderProblem(page=number, kind="missing_text", text=sentence)


def workbook_problems(source: RenderSource, data: bytes) -> Iterator[RenderProblem]:
    """What is wrong with a written workbook."""
    yield from archive_problems(data)
    names = CalamineWorkbook.from_filelike(BytesIO(data)).sheet_names
    if len(names) != len(source.pages):
        text = f"The file has {len(names)} sheets, and the source has {len(source.pages)}."
        yield RenderProblem(page=None, kind="not_reopened", text=text)
