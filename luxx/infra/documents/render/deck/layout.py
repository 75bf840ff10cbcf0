"""What a page of a deck looks like: its layout, which follows from its blocks, and the size of its text."""

import re
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from luxx.infra.documents.render.blocks import (
    Block,
    Heading,
    ImageBlock,
    Listing,
    PageSource,
    Paragraph,
    Quote,
    Span,
    Spans,
    plain,
)
from luxx.infra.documents.render.fonts import wrapped_lines
from luxx.infra.documents.render.scripts import has_east_asian

SIZES = (24.0, 20.0, 18.0, 16.0, 14.0, 12.0)
"""The sizes of text in points; a text takes the largest one that fits."""
TITLE_SIZES = (30.0, 28.0, 26.0, 24.0, 20.0, 18.0)
COVER_SIZES = (44.0, 40.0, 36.0, 32.0, 28.0, 24.0)
LINE, EAST_ASIAN_LINE = 1.2, 1.35
"""The height of a line in ems; fonts of East Asian text have taller lines."""
_NUMBER = re.compile(r"\D{0,4}\d[\d.,\s]{0,14}\s?[^\d\s]{0,12}")
_MOST_CARDS = 4


class Layout(StrEnum):
    """The layouts; a comment `<!-- layout: x -->` names one."""

    TITLE = "title"
    SECTION = "section"
    BULLETS = "bullets"
    TWO = "two"
    TABLE = "table"
    CHART = "chart"
    FLOW = "flow"
    NUMBER = "number"
    QUOTE = "quote"
    IMAGE = "image"
    CODE = "code"


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A paragraph of a frame. `level` is -1 for one without bullet; `scale` multiplies its size."""

    spans: Spans
    level: int = -1
    number: int | None = None
    scale: float = 1.0
    bold: bool = False
    is_accent: bool = False
    is_muted: bool = False

    def hanging(self, size: float) -> float:
        """The room for a bullet or a number."""
        return (
            0.0
            if self.level < 0
            else size * (0.95 if self.number is None else 1.0 + 0.6 * len(str(self.number)))
        )

    def indent(self, size: float) -> float:
        return 0.0 if self.level < 0 else self.hanging(size) + size * 1.1 * self.level

    def space_after(self, size: float) -> float:
        return round(size * (0.25 if self.level > 0 else 0.5), 1)


class Fit(msgspec.Struct, frozen=True):
    """The size that text takes, and how much of its space it fills: more than 1 does not fit."""

    size: float
    filled: float


class Content(msgspec.Struct, frozen=True):
    """The blocks of a page by their role; `objects` are tables, charts, flows, pictures and code."""

    title: Spans
    texts: tuple[Block, ...]
    objects: tuple[Block, ...]


def content_of(page: PageSource) -> Content:
    """The title is the first heading that stands before everything else, or of level 1."""
    title: Spans = ()
    rest = list(page.blocks)
    for index, block in enumerate(rest):
        if isinstance(block, Heading) and (index == 0 or block.level == 1):
            title = block.spans
            del rest[index]
            break
    return Content(
        title,
        tuple(block for block in rest if isinstance(block, Heading | Paragraph | Listing | Quote)),
        tuple(block for block in rest if not isinstance(block, Heading | Paragraph | Listing | Quote)),
    )


def layout_of(page: PageSource, content: Content, *, is_first: bool) -> Layout:
    """What the page asks for, if it has the blocks for it; else what its blocks suggest."""
    suggested = _suggested(content, is_first=is_first)
    if page.layout not in tuple(Layout):
        return suggested
    wanted = Layout(page.layout)
    fits = {
        Layout.TITLE: not content.objects,
        Layout.SECTION: not content.objects,
        Layout.TWO: len(columns_of(content.texts)) == 2 and not content.objects,
        Layout.NUMBER: any(isinstance(block, Quote) for block in content.texts) and not content.objects,
        Layout.QUOTE: any(isinstance(block, Quote) for block in content.texts) and not content.objects,
        Layout.BULLETS: not content.objects,
    }
    return wanted if fits.get(wanted, wanted is suggested) else suggested


def _suggested(content: Content, *, is_first: bool) -> Layout:
    texts, objects = content.texts, content.objects
    if objects:
        names = {
            "Grid": Layout.TABLE,
            "ChartBlock": Layout.CHART,
            "Flow": Layout.FLOW,
            "CodeBlock": Layout.CODE,
        }
        return names.get(type(objects[0]).__name__, Layout.IMAGE)
    are_short = all(isinstance(block, Paragraph | Heading) for block in texts)
    if is_first and content.title and len(texts) <= 3 and are_short:
        return Layout.TITLE
    if not texts:
        return Layout.SECTION
    if len(columns_of(texts)) == 2:
        return Layout.TWO
    quotes = [block for block in texts if isinstance(block, Quote)]
    if quotes and all(is_number(quote) for quote in quotes) and len(quotes) <= _MOST_CARDS:
        return Layout.NUMBER
    return Layout.QUOTE if len(quotes) == 1 and quotes[0] is texts[0] else Layout.BULLETS


def is_number(quote: Quote) -> bool:
    """Whether a quote begins with a number that is shown large."""
    return bool(quote.paragraphs) and _NUMBER.fullmatch(plain(quote.paragraphs[0]).strip()) is not None


def columns_of(texts: Sequence[Block]) -> list[list[Block]]:
    """The columns that begin at headings; empty if something stands before the first one."""
    columns: list[list[Block]] = []
    for block in texts:
        if isinstance(block, Heading):
            columns.append([])
        elif not columns:
            return []
        columns[-1].append(block)
    return columns


def lines_of(blocks: Sequence[Block]) -> list[Line]:
    """The paragraphs of blocks of text."""
    lines: list[Line] = []
    for block in blocks:
        match block:
            case Heading():
                lines.append(Line(spans=block.spans, bold=True, is_accent=True))
            case Paragraph():
                lines.append(Line(spans=block.spans))
            case Listing():
                lines += [Line(spans=i.spans, level=i.level, number=i.number) for i in block.items]
            case Quote():
                lines += [
                    Line(spans=tuple(msgspec.structs.replace(s, italic=True) for s in spans), is_muted=True)
                    for spans in block.paragraphs
                ]
            case _:
                pass
    return [line for line in lines if line.spans]


def height_of(lines: Sequence[Line], size: float, width: float) -> float:
    """The height of lines in points."""
    height = 0.0
    for line in lines:
        own = size * line.scale
        count = wrapped_lines(line.spans, own, width - line.indent(size), bold=line.bold)
        em = EAST_ASIAN_LINE if has_east_asian(plain(line.spans)) else LINE
        height += count * own * em + line.space_after(size)
    return height - lines[-1].space_after(size) if lines else 0.0


def fit(lines: Sequence[Line], width: float, height: float, sizes: Sequence[float] = SIZES) -> Fit:
    """The largest size at which the lines fit."""
    filled = 0.0
    for size in sizes:
        filled = height_of(lines, size, width) / height
        if filled <= 1:
            return Fit(size, filled)
    return Fit(sizes[-1], filled)


def spread_of(fitted: Fit) -> float:
    """How much wider than usual the space between lines is, where there is much room."""
    return 1.0 + min(0.9, max(0.0, 0.85 - fitted.filled) * 2.0)


def single(text: str) -> Spans:
    return (Span(text),)


def has_image(content: Content) -> bool:
    return any(isinstance(block, ImageBlock) for block in content.objects)
