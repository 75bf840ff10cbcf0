"""Refuses pages whose files would take too long to make. Pure.

A renderer takes its whole time for a table of 100,000 cells, a text with as many words in italics, or one
paragraph of a novel's length; each new version of such a source would take it again.
"""

from collections.abc import Iterator, Sequence

from luxx.infra.documents.render.blocks import (
    Block,
    Grid,
    Heading,
    Listing,
    Paragraph,
    Quote,
    Span,
    read_page,
)

MAX_SLIDE_CHARACTERS = 40_000
"""Far more than fits on a slide: 4,000 words have 28,000. Measuring a text takes time that grows with it."""

MAX_PARTS = 40_000
"""Paragraphs, items and cells of a document, and the pieces of text in them that look different."""

MAX_PARAGRAPH = 40_000
"""Characters: ten printed pages."""


class TooLong(ValueError):
    """A page, or the whole, is longer than any that can be shown; the message says which."""


def require_short_slides(pages: Sequence[str]) -> None:
    """Raises TooLong."""
    for number, page in enumerate(pages, start=1):
        if len(page) > MAX_SLIDE_CHARACTERS:
            raise TooLong(
                f"Slide {number} has {len(page):,} characters, and {MAX_SLIDE_CHARACTERS:,} "
                "are the most that one can have. Shorten it, or divide it."
            )


def require_short_document(pages: Sequence[str]) -> None:
    """Raises TooLong."""
    parts = 0
    for number, page in enumerate(pages, start=1):
        for spans in (one for block in read_page(page).blocks for one in _texts(block)):
            parts += 1 + len(spans)
            if (length := sum(len(span.text) for span in spans)) > MAX_PARAGRAPH:
                raise TooLong(
                    f"A paragraph of section {number} has {length:,} characters, and {MAX_PARAGRAPH:,} are "
                    "the most that one can have. Divide it."
                )
            if parts > MAX_PARTS:
                raise TooLong(
                    f"The document has more than {MAX_PARTS:,} paragraphs, items of lists, cells of tables "
                    "and pieces of text with a style of their own. Shorten it, or make several documents."
                )


def _texts(block: Block) -> Iterator[Sequence[Span]]:
    match block:
        case Heading() | Paragraph():
            yield block.spans
        case Listing():
            yield from (item.spans for item in block.items)
        case Grid():
            yield from (cell for row in (block.header, *block.rows) for cell in row)
        case Quote():
            yield from block.paragraphs
        case _:
            yield ()
