"""Writes decks: the pages of a source as slides of a pptx file."""

# The libraries of this module have no complete types.
# pyright: basic

from collections.abc import Sequence
from io import BytesIO
from typing import Any

import msgspec
from pptx.enum.text import MSO_ANCHOR
from pptx.opc.packuri import PackURI
from pptx.util import Emu

from luxx.infra.documents.render.archive_bytes import fixed_archive
from luxx.infra.documents.render.blocks import (
    Block,
    ChartBlock,
    CodeBlock,
    Flow,
    Grid,
    ImageBlock,
    PageSource,
    Quote,
    clean,
    plain,
    read_page,
)
from luxx.infra.documents.render.chart_spec import ChartSpec
from luxx.infra.documents.render.chart_svg import chart_svg
from luxx.infra.documents.render.deck.chart import add_chart
from luxx.infra.documents.render.deck.layout import (
    COVER_SIZES,
    SIZES,
    TITLE_SIZES,
    Content,
    Fit,
    Layout,
    Line,
    columns_of,
    content_of,
    fit,
    height_of,
    is_number,
    layout_of,
    lines_of,
    single,
    spread_of,
)
from luxx.infra.documents.render.deck.masters import (
    BODY,
    COVER_TEXT,
    COVER_TITLE,
    LAYOUTS,
    LEFT,
    RIGHT,
    SECTION_TEXT,
    SECTION_TITLE,
    TITLE,
    Box,
)
from luxx.infra.documents.render.deck.presentation import add_number, empty_presentation, name_chart
from luxx.infra.documents.render.deck.shapes import Painter
from luxx.infra.documents.render.pictures import checked_image
from luxx.infra.documents.render.request import RenderProblem, RenderSource
from luxx.infra.documents.render.scripts import Language
from luxx.infra.documents.render.themes import Theme, theme_named
from luxx.infra.documents.render.typeset import svg_png

_TEXT_SHARE = 0.38
_GAP = 36.0


class Deck(msgspec.Struct, frozen=True, kw_only=True):
    """A pptx file, and what is wrong with its source. `drawable` is the same file with pictures in place of
    charts, because the renderer of pictures draws charts in another way than PowerPoint.
    """

    data: bytes
    drawable: bytes
    problems: tuple[RenderProblem, ...]


class _DrawnChart(msgspec.Struct, frozen=True):
    slide: Any
    frame: Any
    chart: ChartSpec
    box: Box
    title: str


def write_deck(source: RenderSource) -> Deck:
    """The deck, with a slide for each page."""
    language = Language(source.language, clean("\n".join(source.pages)))
    writer = _DeckWriter(source, language, theme_named(source.theme))
    for index, page in enumerate(source.pages):
        writer.add(read_page(page), index + 1)
    data = writer.save()
    return Deck(data=data, drawable=writer.drawable() or data, problems=tuple(writer.problems))


class _DeckWriter:
    def __init__(self, source: RenderSource, language: Language, theme: Theme) -> None:
        self.problems: list[RenderProblem] = []
        self._source = source
        self._painter = Painter(theme, language)
        self._theme = theme
        self._presentation = empty_presentation(theme, language, clean(source.name))
        self._layouts: dict[str, Any] = dict(zip(LAYOUTS, self._presentation.slide_layouts, strict=True))
        self._page = 0
        self._charts: list[_DrawnChart] = []

    def save(self) -> bytes:
        file = BytesIO()
        self._presentation.save(file)
        return fixed_archive(file.getvalue())

    def drawable(self) -> bytes:
        """The file with pictures in the place of its charts; empty without a chart. Ends the writing."""
        if not self._charts:
            return b""
        for drawn in self._charts:
            box, frame = drawn.box, drawn.frame._element
            title = "" if drawn.chart.title == drawn.title else None
            svg = chart_svg(
                drawn.chart,
                self._theme,
                width=box.width,
                height=box.height,
                title=title,
                font=13,
                is_filled=False,
            )
            picture = drawn.slide.shapes.add_picture(
                BytesIO(svg_png(svg, box.width, box.height)), *(Emu(number) for number in box.emu)
            )
            frame.getparent().replace(frame, picture._element)
        file = BytesIO()
        self._presentation.save(file)
        return file.getvalue()

    def add(self, page: PageSource, number: int) -> None:
        """Adds the slide of a page."""
        self._page = number
        for sentence in page.wrong:
            self._report("source", f"Page {number}: {sentence}.")
        content = content_of(page)
        layout = layout_of(page, content, is_first=number == 1)
        if page.layout and page.layout != layout:
            names = ", ".join(Layout)
            self._report(
                "source",
                f"Page {number} asks for the layout {page.layout}, which does not exist ({names}) or does "
                f"not suit its content; the layout is {layout}.",
            )
        match layout:
            case Layout.TITLE:
                self._add_cover(content, "cover", COVER_TITLE, COVER_TEXT)
            case Layout.SECTION:
                self._add_cover(content, "section", SECTION_TITLE, SECTION_TEXT)
            case Layout.TWO:
                self._add_columns(content)
            case Layout.NUMBER:
                self._add_numbers(content)
            case Layout.QUOTE:
                self._add_quote(content)
            case _:
                self._add_content(content)

    def _report(self, kind: str, text: str) -> None:
        self.problems.append(RenderProblem(page=self._page, kind=kind, text=text))

    def _slide(
        self, layout: str, title: Content, box: Box = TITLE, sizes: Sequence[float] = TITLE_SIZES
    ) -> Any:
        slide = self._presentation.slides.add_slide(self._layouts[layout])
        holder = slide.shapes.title
        if not title.title:
            holder._element.getparent().remove(holder._element)
        else:
            line = Line(spans=title.title, bold=True)
            fitted = fit([line], box.width, box.height, sizes)
            self._check(fitted, "title")
            self._painter.write_runs(holder.text_frame.paragraphs[0], title.title, fitted.size)
        if layout not in ("cover", "section"):
            add_number(slide, self._layouts[layout])
        return slide

    def _check(self, fitted: Fit, what: str = "text") -> None:
        if fitted.filled > 1.005:
            excess = round((fitted.filled - 1) * 100)
            self._report(
                "overflow",
                f"The {what} of page {self._page} needs {excess} % more space than there is, at the smallest "
                f"size of {fitted.size:g} points. Shorten it, or divide it into several pages.",
            )

    def _fill(
        self, slide: Any, index: int, lines: Sequence[Line], box: Box, *, moved: bool = False, top: float = 0
    ) -> None:
        """Writes lines into a placeholder; it is removed if there are none."""
        holder = slide.placeholders[index]
        if not lines:
            holder._element.getparent().remove(holder._element)
            return
        if moved:
            holder.left, holder.top, holder.width, holder.height = (Emu(number) for number in box.emu)
        sizes = [size for size in SIZES if not top or size <= top]
        fitted = fit(lines, box.width, box.height, sizes)
        self._check(fitted)
        self._painter.fill_frame(
            holder.text_frame, lines, fitted.size, spread=1.0 if moved else spread_of(fitted)
        )

    def _add_cover(self, content: Content, layout: str, title_box: Box, text_box: Box) -> None:
        slide = self._slide(layout, content, title_box, COVER_SIZES)
        lines = [
            msgspec.structs.replace(line, is_accent=False, bold=False) for line in lines_of(content.texts)
        ]
        holder = slide.placeholders[1]
        if not lines:
            holder._element.getparent().remove(holder._element)
            return
        fitted = fit(lines, text_box.width, text_box.height, SIZES)
        self._check(fitted)
        self._painter.fill_frame(holder.text_frame, lines, fitted.size, colour=self._theme.cover_muted)

    def _add_columns(self, content: Content) -> None:
        slide = self._slide("two", content)
        columns = [lines_of(column) for column in columns_of(content.texts)]
        fits = [fit(lines, box.width, box.height) for lines, box in zip(columns, (LEFT, RIGHT), strict=True)]
        smaller = min(fits, key=lambda fitted: fitted.size)
        self._check(max(fits, key=lambda fitted: fitted.filled))
        for index, lines in enumerate(columns, 1):
            fitted = Fit(smaller.size, max(each.filled for each in fits))
            self._painter.fill_frame(
                slide.placeholders[index].text_frame, lines, fitted.size, spread=spread_of(fitted)
            )
        middle = (LEFT.x + LEFT.width + RIGHT.x) / 2
        self._painter.panel(
            slide.shapes, Box(middle - 0.5, BODY.y, 1, BODY.height - 20), self._theme.line, is_round=False
        ).name = "Line"

    def _add_numbers(self, content: Content) -> None:
        quotes = [block for block in content.texts if isinstance(block, Quote)]
        others = lines_of([block for block in content.texts if not isinstance(block, Quote)])
        if len(quotes) == 1 or not all(is_number(quote) for quote in quotes):
            slide = self._slide("content", content)
            first, *rest = [spans for quote in quotes for spans in quote.paragraphs]
            number = Line(spans=first, bold=True, is_accent=True, scale=4.0)
            lines = [number, *(Line(spans=spans, scale=1.2) for spans in rest), *others]
            fitted = fit(lines, BODY.width, BODY.height - 60, SIZES)
            self._check(fitted)
            holder = slide.placeholders[1]
            self._painter.fill_frame(holder.text_frame, lines, fitted.size)
            holder.text_frame.vertical_anchor = MSO_ANCHOR.MIDDLE
            return
        slide = self._slide("content" if others else "title", content)
        height = height_of(others, 18, BODY.width) if others else 0.0
        cards = Box(BODY.x, BODY.y + 8, BODY.width, min(250.0, BODY.height - height - 40))
        if others:
            below = Box(
                BODY.x,
                cards.y + cards.height + 28,
                BODY.width,
                BODY.y + BODY.height - cards.y - cards.height - 28,
            )
            self._fill(slide, 1, others, below, moved=True, top=18)
        self._check(self._painter.cards(slide.shapes, quotes, cards), "text of the cards")

    def _add_quote(self, content: Content) -> None:
        slide = self._slide("content", content)
        quote, *rest = content.texts
        assert isinstance(quote, Quote)
        first, *more = quote.paragraphs
        lines = [
            Line(spans=first, scale=1.25),
            *(Line(spans=spans, is_muted=True) for spans in more),
            *lines_of(rest),
        ]
        box = Box(BODY.x + 32, BODY.y + 12, BODY.width - 120, BODY.height - 60)
        self._fill(slide, 1, lines, box, moved=True)
        fitted = fit(lines, box.width, box.height)
        self._painter.panel(
            slide.shapes,
            Box(BODY.x, box.y, 6, min(box.height, fitted.filled * box.height)),
            self._theme.accent,
            is_round=False,
            name="Mark",
        )

    def _add_content(self, content: Content) -> None:
        lines, objects = lines_of(content.texts), content.objects
        if not objects:
            slide = self._slide("content", content)
            self._fill(slide, 1, lines, BODY)
            return
        slide = self._slide("content" if lines else "title", content)
        box = BODY
        is_beside = len(objects) == 1 and isinstance(objects[0], ChartBlock | ImageBlock)
        if lines and is_beside:
            text = Box(BODY.x, BODY.y, BODY.width * _TEXT_SHARE, BODY.height)
            self._fill(slide, 1, lines, text, moved=True, top=20)
            x = text.x + text.width + _GAP
            box = Box(x, BODY.y, BODY.x + BODY.width - x, BODY.height)
        elif lines:
            size = next(
                (s for s in SIZES[2:] if height_of(lines, s, BODY.width) <= BODY.height * 0.42), SIZES[-1]
            )
            height = min(height_of(lines, size, BODY.width), BODY.height * 0.5)
            self._fill(slide, 1, lines, Box(BODY.x, BODY.y, BODY.width, height + 1), moved=True, top=size)
            box = Box(BODY.x, BODY.y + height + 20, BODY.width, BODY.height - height - 20)
        self._add_objects(slide, objects, box, plain(content.title))

    def _add_objects(self, slide: Any, objects: Sequence[Block], box: Box, title: str) -> None:
        each = (box.height - 16 * (len(objects) - 1)) / len(objects)
        for index, block in enumerate(objects):
            place = Box(box.x, box.y + index * (each + 16), box.width, each)
            match block:
                case Grid():
                    self._check(self._painter.table(slide.shapes, block, place), "table")
                case ChartBlock():
                    frame = add_chart(self._painter, slide.shapes, block.chart, place, title=title)
                    name_chart(frame.chart.part, self._page, index)
                    self._charts.append(_DrawnChart(slide, frame, block.chart, place, title))
                case Flow():
                    self._check(self._painter.flow(slide.shapes, block, place), "flow")
                case CodeBlock():
                    self._check(self._painter.code(slide.shapes, block, place), "code")
                case ImageBlock():
                    self._add_image(slide, block, place)
                case _:
                    pass

    def _add_image(self, slide: Any, block: ImageBlock, box: Box) -> None:
        data = self._source.images.get(block.name)
        size = checked_image(data) if data else None
        if data is None or size is None:
            reason = "is no readable PNG, JPEG or GIF" if data else "was not found"
            self._report("source", f"The picture {block.name[:200]} of page {self._page} {reason}.")
            panel = self._painter.panel(slide.shapes, box, self._theme.surface, name="Missing picture")
            panel.text_frame.word_wrap = True
            panel.text_frame.vertical_anchor = MSO_ANCHOR.MIDDLE
            text = block.alt or block.name
            self._painter.fill_frame(
                panel.text_frame, [Line(spans=single(text))], 16, colour=self._theme.muted
            )
            return
        scale = min(box.width / size[0], box.height / size[1])
        width, height = size[0] * scale, size[1] * scale
        place = Box(box.x + (box.width - width) / 2, box.y + (box.height - height) / 2, width, height)
        picture = slide.shapes.add_picture(BytesIO(data), *(Emu(number) for number in place.emu))
        picture.name = "Picture"
        picture._element.nvPicPr.cNvPr.set("descr", block.alt)
        part = slide.part.related_part(picture._element.blip_rId)
        part.partname = PackURI(f"/ppt/media/picture{part.sha1[:12]}.{part.partname.ext}")
