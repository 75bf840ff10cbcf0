"""Shapes of slides: text, tables, flows, cards and code, as native objects that people can edit."""

# The libraries of this module have no complete types.
# pyright: basic

from collections.abc import Sequence
from typing import Any

from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]
from pptx.dml.color import RGBColor
from pptx.enum.shapes import MSO_SHAPE
from pptx.enum.text import MSO_ANCHOR, PP_ALIGN
from pptx.oxml.ns import qn
from pptx.util import Emu, Pt

from luxx.infra.documents.render.blocks import CodeBlock, Flow, Grid, Quote, Span, Spans, plain
from luxx.infra.documents.render.deck.layout import (
    EAST_ASIAN_LINE,
    LINE,
    SIZES,
    Fit,
    Line,
    fit,
    height_of,
    single,
)
from luxx.infra.documents.render.deck.masters import EMU, Box
from luxx.infra.documents.render.fonts import text_width, wrapped_lines
from luxx.infra.documents.render.scripts import CODE_FONT, Language, has_east_asian, script_runs
from luxx.infra.documents.render.themes import Theme

_PLAIN_TABLE = "{2D5ABB26-0587-4C30-8999-92F81FD0307C}"
_TABLE_SIZES = (18.0, 16.0, 14.0, 12.0, 11.0, 10.0)
_FLOW_SIZES = (20.0, 18.0, 16.0, 14.0, 12.0, 11.0)
_CODE_SIZES = (18.0, 16.0, 14.0, 12.0, 11.0, 10.0)
_PAD_X, _PAD_Y = 9.0, 6.0


def rgb(colour: str) -> RGBColor:
    return RGBColor.from_string(colour)


class Painter:
    """Adds shapes to slides, in one theme and language."""

    def __init__(self, theme: Theme, language: Language) -> None:
        self.theme = theme
        self._language = language

    def fill_frame(
        self,
        frame: Any,
        lines: Sequence[Line],
        size: float,
        *,
        colour: str = "",
        align: Any = None,
        spread: float = 1.0,
    ) -> None:
        """Writes lines into a text frame; `spread` multiplies the space between them."""
        paragraph = frame.paragraphs[0]
        for index, line in enumerate(lines):
            if index:
                paragraph = frame.add_paragraph()
            self._style_paragraph(paragraph, line, size, spread)
            if align is not None:
                paragraph.alignment = align
            own = colour or (
                self.theme.accent if line.is_accent else self.theme.muted if line.is_muted else ""
            )
            self.write_runs(paragraph, line.spans, size * line.scale, colour=own, bold=line.bold)

    def _style_paragraph(self, paragraph: Any, line: Line, size: float, spread: float) -> None:
        properties = paragraph._p.get_or_add_pPr()
        if line.level > 0:
            properties.set("lvl", str(line.level))
        properties.set("marL", str(round(line.indent(size) * EMU)))
        properties.set("indent", str(round(-line.hanging(size) * EMU)))
        paragraph.space_after = Pt(line.space_after(size) * spread)
        if line.level < 0:
            properties.append(etree.SubElement(properties, qn("a:buNone")))
        elif line.number is not None:
            bullet = etree.SubElement(properties, qn("a:buAutoNum"), type="arabicPeriod")
            if line.number > 1:
                bullet.set("startAt", str(min(line.number, 32_767)))

    def write_runs(
        self, paragraph: Any, spans: Sequence[Span], size: float, *, colour: str = "", bold: bool = False
    ) -> None:
        """Adds the runs of a line, one for each script."""
        for span in spans:
            for number, piece in enumerate(span.text.split("\n")):
                if number:
                    paragraph.add_line_break()
                for text, is_east_asian in script_runs(piece):
                    run = paragraph.add_run()
                    run.text = text
                    run.font.size = Pt(size)
                    if bold or span.bold:
                        run.font.bold = True
                    if span.italic:
                        run.font.italic = True
                    if colour:
                        run.font.color.rgb = rgb(colour)
                    if span.code:
                        run.font.name = CODE_FONT
                    properties = run._r.get_or_add_rPr()
                    if span.struck:
                        properties.set("strike", "sngStrike")
                    properties.set("lang", self._language.east_asian if is_east_asian else self._latin)
                    if span.link.startswith(("https://", "http://", "mailto:")) and len(span.link) < 2000:
                        run.hyperlink.address = span.link

    @property
    def _latin(self) -> str:
        return "en-US" if self._language.is_east_asian else self._language.tag

    def text_box(self, shapes: Any, box: Box, name: str) -> Any:
        """The frame of a new box without margins."""
        shape = shapes.add_textbox(*(Emu(number) for number in box.emu))
        shape.name = name
        frame = shape.text_frame
        frame.word_wrap = True
        frame.margin_left = frame.margin_right = frame.margin_top = frame.margin_bottom = 0
        return frame

    def panel(self, shapes: Any, box: Box, colour: str, *, is_round: bool = True, name: str = "Panel") -> Any:
        """A filled rectangle, with the radius of eight points."""
        form = MSO_SHAPE.ROUNDED_RECTANGLE if is_round else MSO_SHAPE.RECTANGLE
        shape = shapes.add_shape(form, *(Emu(number) for number in box.emu))
        shape.name = name
        if is_round:
            shape.adjustments[0] = min(0.5, 8 / min(box.width, box.height))
        shape.fill.solid()
        shape.fill.fore_color.rgb = rgb(colour)
        shape.line.fill.background()
        style = shape._element.find(qn("p:style"))
        if style is not None:
            shape._element.remove(style)
        return shape

    def table(self, shapes: Any, grid: Grid, box: Box) -> Fit:
        """A table as tall as its text; the result says how much of the box it fills."""
        rows = [grid.header, *grid.rows]
        widths = _column_widths(rows, box.width)
        size, heights = _TABLE_SIZES[-1], list[float]()
        for size in _TABLE_SIZES:
            heights = [_row_height(row, widths, size) for row in rows]
            if sum(heights) <= box.height:
                break
        filled = sum(heights) / box.height
        heights = [
            number + min(14.0, max(0.0, 0.9 * box.height - sum(heights)) / len(rows)) for number in heights
        ]
        height = sum(heights)
        frame = shapes.add_table(
            len(rows), len(widths), *(Emu(n) for n in Box(box.x, box.y, box.width, height).emu)
        )
        table = frame.table
        frame._element.find(".//" + qn("a:tableStyleId")).text = _PLAIN_TABLE
        table.horz_banding = False
        for column, width in zip(table.columns, widths, strict=True):
            column.width = Emu(round(width * EMU))
        for number, (row, cells) in enumerate(zip(table.rows, rows, strict=True)):
            row.height = Emu(round(heights[number] * EMU))
            for cell, spans, align in zip(row.cells, cells, grid.aligns, strict=True):
                self._fill_cell(cell, spans, size, align, is_header=number == 0)
        return Fit(size, filled)

    def _fill_cell(self, cell: Any, spans: Spans, size: float, align: str, *, is_header: bool) -> None:
        theme = self.theme
        cell.margin_left = cell.margin_right = Pt(_PAD_X)
        cell.margin_top = cell.margin_bottom = Pt(_PAD_Y)
        cell.vertical_anchor = MSO_ANCHOR.MIDDLE
        paragraph = cell.text_frame.paragraphs[0]
        paragraph.alignment = {"right": PP_ALIGN.RIGHT, "center": PP_ALIGN.CENTER}.get(align, PP_ALIGN.LEFT)
        self.write_runs(
            paragraph, spans, size, colour=theme.accent_text if is_header else theme.text, bold=is_header
        )
        properties = cell._tc.get_or_add_tcPr()
        for side in ("lnL", "lnR", "lnT"):
            etree.SubElement(etree.SubElement(properties, qn(f"a:{side}"), w="0"), qn("a:noFill"))
        line = etree.SubElement(properties, qn("a:lnB"), w="9525")
        colour = theme.accent if is_header else theme.line
        etree.SubElement(etree.SubElement(line, qn("a:solidFill")), qn("a:srgbClr"), val=colour)
        if is_header:
            etree.SubElement(
                etree.SubElement(properties, qn("a:solidFill")), qn("a:srgbClr"), val=theme.accent
            )
        else:
            etree.SubElement(properties, qn("a:noFill"))

    def flow(self, shapes: Any, flow: Flow, box: Box) -> Fit:
        """Steps from left to right, in as many rows as they need, with arrows between."""
        steps = flow.steps
        rows = 1 if len(steps) <= 5 else 2 if len(steps) <= 10 else -(-len(steps) // 5)
        across = -(-len(steps) // rows)
        gap = 34.0 if across <= 4 else 26.0
        width = (box.width - gap * (across - 1)) / across
        row_gap = 28.0
        height = min(150.0, (box.height - row_gap * (rows - 1)) / rows)
        top = box.y + max(0.0, (box.height - rows * height - (rows - 1) * row_gap) / 2 - 14)
        fits = [fit([Line(spans=single(s), bold=True)], width - 24, height - 40, _FLOW_SIZES) for s in steps]
        size, filled = min(f.size for f in fits), max(f.filled for f in fits)
        for index, step in enumerate(steps):
            row, column = divmod(index, across)
            place = Box(box.x + column * (width + gap), top + row * (height + row_gap), width, height)
            self._flow_step(shapes, place, step, size, index)
            if column + 1 < across and index + 1 < len(steps):
                self._arrow(shapes, Box(place.x + width + gap / 2 - 8, place.y + height / 2 - 8, 16, 16))
        return Fit(size, filled)

    def _flow_step(self, shapes: Any, box: Box, text: str, size: float, index: int) -> None:
        panel = self.panel(shapes, box, self.theme.surface, name=f"Step {index + 1}")
        frame = panel.text_frame
        frame.word_wrap = True
        frame.margin_left = frame.margin_right = Pt(12)
        frame.margin_top = frame.margin_bottom = Pt(14)
        frame.vertical_anchor = MSO_ANCHOR.MIDDLE
        self.fill_frame(
            frame, [Line(spans=single(text), bold=True)], size, colour=self.theme.title, align=PP_ALIGN.CENTER
        )
        colour = self.theme.series[index % 6] if index < 6 else self.theme.accent
        self.panel(shapes, Box(box.x + 12, box.y, box.width - 24, 5), colour, is_round=False, name="Mark")

    def _arrow(self, shapes: Any, box: Box) -> None:
        shape = shapes.add_shape(MSO_SHAPE.CHEVRON, *(Emu(number) for number in box.emu))
        shape.name = "Arrow"
        shape.fill.solid()
        shape.fill.fore_color.rgb = rgb(self.theme.accent)
        shape.line.fill.background()

    def cards(self, shapes: Any, quotes: Sequence[Quote], box: Box) -> Fit:
        """Large numbers side by side, each with its caption."""
        gap = 24.0
        width = (box.width - gap * (len(quotes) - 1)) / len(quotes)
        inner, caption_height = width - 48, box.height - 150
        number_size = min(
            60.0,
            *(60 * inner / max(1.0, text_width(plain(q.paragraphs[0]), 60, bold=True)) for q in quotes),
        )
        captions = [[Line(spans=spans) for spans in quote.paragraphs[1:]] for quote in quotes]
        fits = [fit(lines, inner, caption_height, SIZES[1:]) for lines in captions]
        size, filled = min(f.size for f in fits), max(f.filled for f in fits)
        for index, (quote, lines) in enumerate(zip(quotes, captions, strict=True)):
            place = Box(box.x + index * (width + gap), box.y, width, box.height)
            self.panel(shapes, place, self.theme.surface, name=f"Card {index + 1}")
            self.panel(
                shapes, Box(place.x, place.y + 20, 5, 84), self.theme.accent, is_round=False, name="Mark"
            )
            top = self.text_box(shapes, Box(place.x + 24, place.y + 24, inner, 80), f"Number {index + 1}")
            top.vertical_anchor = MSO_ANCHOR.MIDDLE
            self.write_runs(
                top.paragraphs[0], quote.paragraphs[0], number_size, colour=self.theme.accent, bold=True
            )
            if lines:
                below = self.text_box(
                    shapes, Box(place.x + 24, place.y + 124, inner, caption_height), f"Caption {index + 1}"
                )
                self.fill_frame(below, lines, size, colour=self.theme.text)
        return Fit(size, filled)

    def code(self, shapes: Any, block: CodeBlock, box: Box) -> Fit:
        """Code on a panel, with a font of equal widths."""
        lines = [Line(spans=(Span(line or " ", code=True),)) for line in block.text.split("\n")]
        inner = Box(box.x + 20, box.y + 16, box.width - 40, box.height - 32)
        size, filled = _CODE_SIZES[-1], 1.0
        for size in _CODE_SIZES:
            filled = (
                sum(
                    wrapped_lines(line.spans, size, inner.width)
                    * size
                    * (EAST_ASIAN_LINE if has_east_asian(plain(line.spans)) else LINE)
                    for line in lines
                )
                / inner.height
            )
            if filled <= 1:
                break
        height = min(box.height, filled * inner.height * 1.04 + 36)
        panel = self.panel(shapes, Box(box.x, box.y, box.width, height), self.theme.surface, name="Code")
        frame = panel.text_frame
        frame.word_wrap = True
        frame.margin_left = frame.margin_right = Pt(20)
        frame.margin_top = frame.margin_bottom = Pt(16)
        frame.vertical_anchor = MSO_ANCHOR.TOP
        for index, line in enumerate(lines):
            paragraph = frame.add_paragraph() if index else frame.paragraphs[0]
            paragraph.alignment = PP_ALIGN.LEFT
            self.write_runs(paragraph, line.spans, size, colour=self.theme.text)
        return Fit(size, filled)


def _column_widths(rows: Sequence[Sequence[Spans]], width: float) -> list[float]:
    """Widths in proportion to the longest texts, none below the longest word as far as there is room."""
    columns = range(len(rows[0]))
    wanted = [
        max(min(40 + text_width(plain(row[column]), 14), 420.0) for row in rows) + 2 * _PAD_X
        for column in columns
    ]
    total = sum(wanted)
    return [width * share / total for share in wanted]


def _row_height(row: Sequence[Spans], widths: Sequence[float], size: float) -> float:
    return 2 * _PAD_Y + max(
        height_of([Line(spans=spans or single(" "), bold=False)], size, width - 2 * _PAD_X)
        for spans, width in zip(row, widths, strict=True)
    )
