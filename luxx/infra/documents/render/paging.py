"""On which pages of a PDF the texts of a source stand."""

import re
from collections.abc import Iterator, Sequence
from io import BytesIO

import pypdfium2
from pypdf import PdfWriter
from pypdf.generic import NameObject

from luxx.infra.documents.render.blocks import Heading, plain, read_page
from luxx.infra.documents.render.request import RenderSource

_DOTS = re.compile(r"(?:\.\s?){6,}")
_SOUGHT = 60
_REPLACEMENT = re.compile(rb"/ActualText\s*(?:<[0-9A-Fa-f\s]*>|\((?:[^()\\]|\\.)*\))")


def pdf_texts(pdf: bytes) -> list[str]:
    """The text of each page."""
    document = pypdfium2.PdfDocument(pdf)
    try:
        return [
            str(document[index].get_textpage().get_text_bounded()).replace("\r\n", "\n")  # pyright: ignore
            for index in range(len(document))
        ]
    finally:
        document.close()


def copyable_pdf(pdf: bytes) -> bytes:
    """The PDF of rpptx or rdocx without replacement texts. They give the first word of a line the whole line
    as such, so that text which is copied in some viewers has everything twice.
    """
    writer = PdfWriter(clone_from=BytesIO(pdf))
    for page in writer.pages:
        content = page.get_contents()
        if content is not None:
            content.set_data(_REPLACEMENT.sub(b"", content.get_data()))
            stream = content.flate_encode()
            page[NameObject("/Contents")] = writer._add_object(stream)  # pyright: ignore[reportPrivateUsage]
    file = BytesIO()
    writer.write(file)
    return file.getvalue()


def heading_pages(headings: Sequence[str], texts: Sequence[str]) -> dict[int, int]:
    """The pages of headings, from 1, by their position. Lines of a table of contents do not count."""
    pages = [
        "".join(_squeezed(line) for line in text.split("\n") if not _DOTS.search(line)) for text in texts
    ]
    found: dict[int, int] = {}
    page, start = 0, 0
    for index, heading in enumerate(headings):
        sought = _squeezed(heading)
        for number in range(page, len(pages)):
            position = pages[number].find(sought, start if number == page else 0)
            if sought and position >= 0:
                found[index], page, start = number + 1, number, position + len(sought)
                break
    return found


def source_pages(source: RenderSource, texts: Sequence[str]) -> list[int]:
    """The page of the source that begins on each page of the file or, if none does, that it continues."""
    beginnings = heading_pages(list(_beginnings(source)), texts)
    first_pages = sorted((file_page, page + 1) for page, file_page in beginnings.items())
    numbers: list[int] = []
    for index in range(1, len(texts) + 1):
        here = [page for file_page, page in first_pages if file_page == index]
        before = [page for file_page, page in first_pages if file_page < index]
        numbers.append(here[0] if here else before[-1] if before else 1)
    return numbers


def _beginnings(source: RenderSource) -> Iterator[str]:
    for page in source.pages:
        blocks = read_page(page).blocks
        headings = [plain(block.spans) for block in blocks if isinstance(block, Heading)]
        yield headings[0] if headings else _squeezed(page)[:_SOUGHT]


def _squeezed(text: str) -> str:
    return "".join(text.split())
