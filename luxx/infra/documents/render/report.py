"""Sets reports as PDF with typst: contents, bookmarks and page numbers come from the headings."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

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
    clean,
    plain,
    read_page,
)
from luxx.infra.documents.render.chart_svg import chart_svg
from luxx.infra.documents.render.document import TEXT_WIDTH, is_title_page
from luxx.infra.documents.render.fonts import text_width
from luxx.infra.documents.render.pictures import checked_image
from luxx.infra.documents.render.request import RenderProblem, RenderSource
from luxx.infra.documents.render.scripts import Language
from luxx.infra.documents.render.themes import theme_named
from luxx.infra.documents.render.typeset import pdf_of

_CHART_HEIGHT = 235.0
_LINKS = ("https://", "http://", "mailto:")


def write_report(source: RenderSource) -> tuple[bytes, list[RenderProblem]]:
    """The PDF, and what is wrong with the source."""
    language = Language(source.language, clean("\n".join(source.pages)))
    # Paper is white.
    theme = theme_named(source.theme if source.theme != "night" else "clear")
    writer = _ReportWriter(source, theme)
    pages = [read_page(page) for page in source.pages]
    title, rest = (pages[0].blocks, pages[1:]) if len(pages) > 1 and is_title_page(pages[0]) else ((), pages)
    data: dict[str, Any] = {
        "name": clean(source.name),
        "language": language.tag[:2].lower(),
        "font": language.drawing_font,
        "contents": language.contents,
        "theme": msgspec.to_builtins(theme),
        "title": list(writer.blocks(title)),
        "blocks": [block for page in rest for block in writer.blocks(page.blocks)],
    }
    return pdf_of("report.typ", data), [*writer.problems, *_wrong(pages)]


def _wrong(pages: Sequence[PageSource]) -> Iterator[RenderProblem]:
    for number, page in enumerate(pages, 1):
        for sentence in page.wrong:
            yield RenderProblem(page=number, kind="source", text=f"Page {number}: {sentence}.")


class _ReportWriter:
    def __init__(self, source: RenderSource, theme: Any) -> None:
        self.problems: list[RenderProblem] = []
        self._source = source
        self._theme = theme

    def blocks(self, blocks: Sequence[Block]) -> Iterator[dict[str, Any]]:
        for block in blocks:
            match block:
                case Heading():
                    yield {"kind": "heading", "level": block.level, "spans": _spans(block.spans)}
                case Paragraph():
                    yield {"kind": "paragraph", "spans": _spans(block.spans)}
                case Listing():
                    yield {"kind": "list", "items": [_item(item) for item in block.items]}
                case Flow():
                    steps = [ListItem(0, number, (Span(step),)) for number, step in enumerate(block.steps, 1)]
                    yield {"kind": "list", "items": [_item(item) for item in steps]}
                case Grid():
                    yield _table(block)
                case CodeBlock():
                    yield {"kind": "code", "text": block.text}
                case Quote():
                    yield {"kind": "quote", "paragraphs": [_spans(spans) for spans in block.paragraphs]}
                case ChartBlock():
                    svg = chart_svg(
                        block.chart,
                        self._theme,
                        width=TEXT_WIDTH,
                        height=_CHART_HEIGHT,
                        font=9.5,
                        is_filled=False,
                    )
                    yield {"kind": "svg", "svg": svg, "alt": ", ".join(block.chart.texts)}
                case ImageBlock():
                    yield self._image(block)

    def _image(self, block: ImageBlock) -> dict[str, Any]:
        data = self._source.images.get(block.name)
        size = checked_image(data) if data else None
        if data is None or size is None:
            reason = "is no readable PNG, JPEG or GIF" if data else "was not found"
            text = f"The picture {block.name[:200]} {reason}."
            self.problems.append(RenderProblem(page=None, kind="source", text=text))
            return {
                "kind": "paragraph",
                "spans": _spans((Span(f"[{block.alt or block.name}]", italic=True),)),
            }
        width = min(TEXT_WIDTH, size[0] * 0.75, 560 * size[0] / size[1])
        return {"kind": "image", "data": list(data), "width": width, "alt": block.alt}


def _spans(spans: Sequence[Span]) -> list[dict[str, Any]]:
    return [
        {
            "text": span.text,
            "bold": span.bold,
            "italic": span.italic,
            "code": span.code,
            "struck": span.struck,
            "link": span.link if span.link.startswith(_LINKS) else "",
        }
        for span in spans
    ]


def _item(item: ListItem) -> dict[str, Any]:
    return {"level": item.level, "number": item.number, "spans": _spans(item.spans)}


def _table(grid: Grid) -> dict[str, Any]:
    rows = [grid.header, *grid.rows]
    widths = [
        max(min(30 + text_width(plain(row[c]), 10), 260.0) for row in rows) for c in range(len(grid.header))
    ]
    return {
        "kind": "table",
        "widths": widths,
        "aligns": list(grid.aligns),
        "header": [_spans(cell) for cell in grid.header],
        "rows": [[_spans(cell) for cell in row] for row in grid.rows],
    }
