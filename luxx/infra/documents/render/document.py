"""Writes documents and reports as docx files, with real headings, lists, tables and a table of contents."""

# The libraries of this module have no complete types.
# pyright: basic

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

import msgspec
from docx import Document
from docx.enum.text import WD_ALIGN_PARAGRAPH, WD_TAB_ALIGNMENT, WD_TAB_LEADER
from docx.oxml import OxmlElement, parse_xml
from docx.oxml.ns import nsdecls, qn
from docx.shared import Emu, Pt, RGBColor

from luxx.infra.documents.render.archive_bytes import fixed_archive
from luxx.infra.documents.render.blocks import (
    Block,
    ChartBlock,
    CodeBlock,
    Flow,
    Grid,
    Heading,
    ImageBlock,
    Listing,
    ListItem,
    PageSource,
    Paragraph,
    Quote,
    Span,
    Spans,
    clean,
    plain,
    read_page,
)
from luxx.infra.documents.render.chart_svg import chart_svg
from luxx.infra.documents.render.document_styles import BULLETS, add_numbering, style_document
from luxx.infra.documents.render.fonts import text_width
from luxx.infra.documents.render.pictures import checked_image
from luxx.infra.documents.render.request import RenderProblem, RenderSource
from luxx.infra.documents.render.scripts import CODE_FONT, Language, script_runs
from luxx.infra.documents.render.themes import Theme, theme_named
from luxx.infra.documents.render.typeset import svg_png

TEXT_WIDTH = 453.5
"""Points between the margins of an A4 page."""
_MOST_HEIGHT = 560.0
_CONTENTS_FROM = 4
_CONTENTS_LEVELS = 2
_ROWS_TOGETHER = 12


class WrittenDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A docx file; `headings` are its headings with their levels, in order."""

    data: bytes
    headings: tuple[tuple[int, str], ...]
    problems: tuple[RenderProblem, ...]


def write_document(
    source: RenderSource, *, has_contents: bool, pages_of_headings: Mapping[int, int] | None = None
) -> WrittenDocument:
    """The docx file. `pages_of_headings` are the pages on which headings stand, by their position, for the
    table of contents; a document with few headings has no such table unless `has_contents`.
    """
    language = Language(source.language, clean("\n".join(source.pages)))
    writer = _DocumentWriter(source, language, theme_named(source.theme))
    pages = [read_page(page) for page in source.pages]
    return writer.write(pages, has_contents=has_contents, numbers=pages_of_headings or {})


def is_title_page(page: PageSource) -> bool:
    """Whether a section is a title with a few lines below it."""
    first, *rest = page.blocks or (Paragraph(()),)
    lines = [block for block in rest if isinstance(block, Paragraph) and len(plain(block.spans)) <= 160]
    return isinstance(first, Heading) and first.level == 1 and len(lines) == len(rest) <= 3


class _DocumentWriter:
    def __init__(self, source: RenderSource, language: Language, theme: Theme) -> None:
        self._source = source
        self._language = language
        self._theme = theme
        self._document = Document()
        self._headings: list[tuple[int, str]] = []
        self._problems: list[RenderProblem] = []
        self._page = 0
        self._breaks_before_heading = False
        style_document(self._document, theme, language)
        properties = self._document.core_properties
        properties.title, properties.author, properties.comments = clean(source.name)[:255], "", ""
        properties.language = language.tag

    def write(
        self, pages: Sequence[PageSource], *, has_contents: bool, numbers: Mapping[int, int]
    ) -> WrittenDocument:
        headings = [
            block for page in pages for block in page.blocks if isinstance(block, Heading) and block.spans
        ]
        has_contents = has_contents or len([h for h in headings if h.level <= 2]) >= _CONTENTS_FROM
        has_title = has_contents and bool(pages) and is_title_page(pages[0])
        if has_contents and not has_title:
            self._add_contents(headings, numbers)
        for number, page in enumerate(pages, 1):
            self._page = number
            self._add_page(page, is_title=has_title and number == 1)
            if has_title and number == 1:
                self._add_contents(headings, numbers, first=1)
        file = BytesIO()
        self._document.save(file)
        return WrittenDocument(
            data=fixed_archive(file.getvalue()),
            headings=tuple(self._headings),
            problems=tuple(self._problems),
        )

    def _report(self, text: str) -> None:
        self._problems.append(RenderProblem(page=self._page, kind="source", text=text))

    def _add_page(self, page: PageSource, *, is_title: bool) -> None:
        for sentence in page.wrong:
            self._report(f"Page {self._page}: {sentence}.")
        for block in page.blocks:
            self._add_block(block, is_title=is_title)

    def _add_block(self, block: Block, *, is_title: bool) -> None:
        match block:
            case Heading():
                self._add_heading(block, is_title=is_title)
            case Paragraph():
                self._write(self._document.add_paragraph(style="Subtitle" if is_title else None), block.spans)
            case Listing():
                self._add_list(block.items)
            case Grid():
                self._add_table(block)
            case CodeBlock():
                self._add_code(block)
            case Quote():
                for spans in block.paragraphs:
                    self._write(self._document.add_paragraph(style="Quote"), spans)
            case ImageBlock():
                self._add_image(block)
            case ChartBlock():
                svg = chart_svg(
                    block.chart, self._theme, width=TEXT_WIDTH, height=230, font=9.5, is_filled=False
                )
                self._add_picture(
                    svg_png(svg, TEXT_WIDTH, 230, scale=3), TEXT_WIDTH, ", ".join(block.chart.texts)
                )
            case Flow():
                self._add_list(
                    [ListItem(0, index, (Span(step),)) for index, step in enumerate(block.steps, 1)]
                )

    def _add_heading(self, block: Heading, *, is_title: bool) -> None:
        paragraph = self._document.add_paragraph(style=f"Heading {block.level}")
        if is_title:
            paragraph.paragraph_format.space_before = Pt(0)
            paragraph.paragraph_format.space_after = Pt(14)
        elif self._breaks_before_heading:
            paragraph.paragraph_format.page_break_before = True
            self._breaks_before_heading = False
        size = 30 if is_title else None
        identifier = str(len(self._headings) + 1)
        start, end = OxmlElement("w:bookmarkStart"), OxmlElement("w:bookmarkEnd")
        start.set(qn("w:id"), identifier)
        start.set(qn("w:name"), f"_Toc{identifier}")
        end.set(qn("w:id"), identifier)
        paragraph._p.append(start)
        self._write(paragraph, block.spans, size=size)
        paragraph._p.append(end)
        self._headings.append((block.level, plain(block.spans)))

    def _write(
        self, paragraph: Any, spans: Spans, *, size: float | None = None, colour: str = "", bold: bool = False
    ) -> None:
        for span in spans:
            for number, piece in enumerate(span.text.split("\n")):
                if number:
                    paragraph.add_run().add_break()
                for text, is_east_asian in script_runs(piece):
                    run = self._add_run(paragraph, text, span.link)
                    self._style_run(run, span, is_east_asian=is_east_asian)
                    if size is not None:
                        run.font.size = Pt(size)
                    if colour:
                        run.font.color.rgb = RGBColor.from_string(colour)
                    if bold:
                        run.font.bold = True

    def _add_run(self, paragraph: Any, text: str, link: str) -> Any:
        run = paragraph.add_run(text)
        if link.startswith(("https://", "http://", "mailto:")) and len(link) < 2000:
            kind = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/hyperlink"
            element = OxmlElement("w:hyperlink")
            element.set(qn("r:id"), paragraph.part.relate_to(link, kind, is_external=True))
            run._r.addprevious(element)
            element.append(run._r)
            run.font.color.rgb = RGBColor.from_string(self._theme.accent)
            run.font.underline = True
        return run

    def _style_run(self, run: Any, span: Span, *, is_east_asian: bool) -> None:
        if span.bold:
            run.font.bold = True
        if span.italic:
            run.font.italic = True
        if span.struck:
            run.font.strike = True
        if span.code:
            run.font.name = CODE_FONT
        language = OxmlElement("w:lang")
        if is_east_asian:
            language.set(qn("w:eastAsia"), self._language.east_asian)
            fonts = run._r.get_or_add_rPr().get_or_add_rFonts()
            fonts.set(qn("w:hint"), "eastAsia")
        else:
            language.set(qn("w:val"), "en-US" if self._language.is_east_asian else self._language.tag)
        run._r.get_or_add_rPr().append(language)

    def _add_list(self, items: Sequence[ListItem]) -> None:
        numbers: dict[int, int] = {}
        for item in items:
            for level in [level for level in numbers if level > item.level]:
                del numbers[level]
            if item.number is None:
                identifier = BULLETS
            else:
                if item.level not in numbers or item.number == 1:
                    numbers[item.level] = add_numbering(self._document, item.level, item.number)
                identifier = numbers[item.level]
            paragraph = self._document.add_paragraph(style="List Paragraph")
            properties = paragraph._p.get_or_add_pPr()
            numbering = properties.get_or_add_numPr()
            numbering.get_or_add_ilvl().val = item.level
            numbering.get_or_add_numId().val = identifier
            self._write(paragraph, item.spans)

    def _add_table(self, grid: Grid) -> None:
        rows = [grid.header, *grid.rows]
        table = self._document.add_table(rows=len(rows), cols=len(grid.header))
        table.autofit = False
        widths = _column_widths(rows)
        for column, width in zip(table.columns, widths, strict=True):
            column.width = Pt(width)
        theme = self._theme
        table._tbl.tblPr.append(parse_xml(f'<w:tblInd {nsdecls("w")} w:w="110" w:type="dxa"/>'))
        table._tbl.tblPr.append(parse_xml(_CELL_MARGINS))
        for number, (row, cells) in enumerate(zip(table.rows, rows, strict=True)):
            properties = row._tr.get_or_add_trPr()
            properties.append(OxmlElement("w:cantSplit"))
            if number == 0:
                properties.append(OxmlElement("w:tblHeader"))
            for cell, spans, align, width in zip(row.cells, cells, grid.aligns, widths, strict=True):
                cell.width = Pt(width)
                paragraph = cell.paragraphs[0]
                paragraph.style = "Table Text"
                paragraph.paragraph_format.keep_with_next = number + 1 < len(rows) <= _ROWS_TOGETHER
                paragraph.alignment = {
                    "right": WD_ALIGN_PARAGRAPH.RIGHT,
                    "center": WD_ALIGN_PARAGRAPH.CENTER,
                }.get(align, WD_ALIGN_PARAGRAPH.LEFT)
                self._write(
                    paragraph, spans, colour=theme.accent_text if number == 0 else "", bold=number == 0
                )
                cell._tc.get_or_add_tcPr().append(parse_xml(_border("bottom", theme.line)))
                if number == 0:
                    cell._tc.get_or_add_tcPr().append(parse_xml(_shading(theme.accent)))
        self._document.add_paragraph(style="After Table")

    def _add_code(self, block: CodeBlock) -> None:
        paragraph = self._document.add_paragraph(style="Code")
        self._write(paragraph, (Span(block.text, code=True),))

    def _add_image(self, block: ImageBlock) -> None:
        data = self._source.images.get(block.name)
        size = checked_image(data) if data else None
        if data is None or size is None:
            reason = "is no readable PNG, JPEG or GIF" if data else "was not found"
            self._report(f"The picture {block.name[:200]} of page {self._page} {reason}.")
            self._write(self._document.add_paragraph(), (Span(f"[{block.alt or block.name}]", italic=True),))
            return
        width = min(TEXT_WIDTH, size[0] * 0.75, _MOST_HEIGHT * size[0] / size[1])
        self._add_picture(data, width, block.alt)

    def _add_picture(self, data: bytes, width: float, alt: str) -> None:
        paragraph = self._document.add_paragraph()
        shape = paragraph.add_run().add_picture(BytesIO(data), width=Emu(round(width * 12_700)))
        shape._inline.docPr.set("descr", alt[:500])

    def _add_contents(self, headings: Sequence[Heading], numbers: Mapping[int, int], first: int = 0) -> None:
        self._document.add_paragraph(self._language.contents, style="Contents Heading")
        shown = [(i, h) for i, h in enumerate(headings) if h.level <= _CONTENTS_LEVELS and i >= first]
        for order, (index, heading) in enumerate(shown):
            paragraph = self._document.add_paragraph(style=f"Contents {heading.level}")
            paragraph.paragraph_format.tab_stops.add_tab_stop(
                Pt(TEXT_WIDTH), WD_TAB_ALIGNMENT.RIGHT, WD_TAB_LEADER.DOTS
            )
            if order == 0:
                _add_field_mark(paragraph, "begin")
                _add_instruction(paragraph, f' TOC \\o "1-{_CONTENTS_LEVELS}" \\h \\z \\u ')
                _add_field_mark(paragraph, "separate")
            link = OxmlElement("w:hyperlink")
            link.set(qn("w:anchor"), f"_Toc{index + 1}")
            before = len(paragraph._p)
            self._write(paragraph, (Span(plain(heading.spans)),))
            paragraph.add_run("\t")
            paragraph.add_run(str(numbers.get(index, "")))
            moved = list(paragraph._p)[before:]
            paragraph._p.append(link)
            link.extend(moved)
            if order == len(shown) - 1:
                _add_field_mark(paragraph, "end")
        self._breaks_before_heading = True


_CELL_MARGINS = (
    f'<w:tblCellMar {nsdecls("w")}><w:top w:w="70" w:type="dxa"/><w:left w:w="110" w:type="dxa"/>'
    '<w:bottom w:w="70" w:type="dxa"/><w:right w:w="110" w:type="dxa"/></w:tblCellMar>'
)


def _border(side: str, colour: str) -> str:
    return (
        f'<w:tcBorders {nsdecls("w")}><w:{side} w:val="single" w:sz="6" w:space="0" w:color="{colour}"/>'
        "</w:tcBorders>"
    )


def _shading(colour: str) -> str:
    return f'<w:shd {nsdecls("w")} w:val="clear" w:color="auto" w:fill="{colour}"/>'


def _add_field_mark(paragraph: Any, kind: str) -> None:
    mark = OxmlElement("w:fldChar")
    mark.set(qn("w:fldCharType"), kind)
    paragraph.add_run()._r.append(mark)


def _add_instruction(paragraph: Any, text: str) -> None:
    instruction = OxmlElement("w:instrText")
    instruction.set(qn("xml:space"), "preserve")
    instruction.text = text
    paragraph.add_run()._r.append(instruction)


def _column_widths(rows: Sequence[Sequence[Spans]]) -> list[float]:
    wanted = [
        max(min(24 + text_width(plain(row[column]), 10), 240.0) for row in rows)
        for column in range(len(rows[0]))
    ]
    return [TEXT_WIDTH * width / sum(wanted) for width in wanted]
