"""Makes the file of an artifact, checks it and draws its pages. Runs in a process of its own."""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version

import rdocx
import rpptx

from luxx.infra.documents.render.blocks import clean
from luxx.infra.documents.render.chart_spec import WrongChart, read_chart
from luxx.infra.documents.render.chart_svg import chart_svg
from luxx.infra.documents.render.checks import (
    deck_problems,
    deck_texts,
    document_problems,
    glyph_problems,
    report_problems,
    workbook_problems,
)
from luxx.infra.documents.render.deck.writer import write_deck
from luxx.infra.documents.render.document import write_document
from luxx.infra.documents.render.fonts import cjk_font, latin_fonts, missing_characters
from luxx.infra.documents.render.paging import copyable_pdf, heading_pages, pdf_texts, source_pages
from luxx.infra.documents.render.pictures import page_pictures
from luxx.infra.documents.render.report import write_report
from luxx.infra.documents.render.request import FilePage, Rendered, RenderProblem, RenderRequest
from luxx.infra.documents.render.sizes import require_short_document, require_short_slides
from luxx.infra.documents.render.themes import theme_named
from luxx.infra.documents.render.typeset import svg_png
from luxx.infra.documents.render.workbook import write_workbook
from luxx.wire.artifacts import ArtifactType


class UnknownFormat(ValueError):
    """The type of the artifact has no such format; the message says so."""


def make_file(request: RenderRequest) -> Rendered:
    """The file that is asked for. Raises UnknownFormat, or TooLong."""
    if request.source.type is ArtifactType.PPT:
        require_short_slides(request.source.pages)
    elif request.source.type in (ArtifactType.DOCUMENT, ArtifactType.REPORT):
        require_short_document(request.source.pages)
    match request.source.type, request.format:
        case ArtifactType.PPT, "pptx" | "pdf":
            return _make_deck(request)
        case ArtifactType.DOCUMENT, "docx" | "pdf":
            return _make_document(request)
        case ArtifactType.REPORT, "docx":
            return _make_document(request)
        case ArtifactType.REPORT, "pdf":
            return _make_report(request)
        case ArtifactType.SHEET, "xlsx":
            return _make_workbook(request)
        case ArtifactType.CHART, "png" | "svg":
            return _make_chart(request)
        case kind, form:
            raise UnknownFormat(f"An artifact of the type {kind} has no format {form} that is rendered.")


def _make_deck(request: RenderRequest) -> Rendered:
    source = request.source
    deck = write_deck(source)
    texts = deck_texts(deck.data)
    problems = [*deck.problems, *glyph_problems(source.pages), *deck_problems(source, deck.data, texts)]
    drawable = rpptx.Presentation.from_bytes(deck.drawable)
    problems += _overflows(drawable, problems)
    data, pictures = deck.data, dict[int, bytes]()
    if request.format == "pdf" or request.pictures != ():
        pdf = drawable.to_pdf(fonts=_named_fonts(), font_dirs=_cjk_directories())
        data = copyable_pdf(pdf) if request.format == "pdf" else data
        pictures = page_pictures(pdf, request.pictures, request.width)
    return Rendered(
        data=data,
        renderer=_versions("python-pptx", "rpptx", "typst", "pypdfium2"),
        pages=_file_pages(texts, range(1, len(texts) + 1), pictures),
        problems=tuple(sorted(problems, key=lambda problem: problem.page or 0)),
    )


def _make_document(request: RenderRequest) -> Rendered:
    source, has_contents = request.source, request.source.type is ArtifactType.REPORT
    written = write_document(source, has_contents=has_contents)
    pdf = _document_pdf(written.data)
    texts = pdf_texts(pdf)
    if numbers := heading_pages([text for _, text in written.headings], texts):
        written = write_document(source, has_contents=has_contents, pages_of_headings=numbers)
        pdf = _document_pdf(written.data)
        texts = pdf_texts(pdf)
    problems = [*written.problems, *glyph_problems(source.pages), *document_problems(source, written)]
    return _paged(
        request,
        written.data if request.format == "docx" else pdf,
        pdf,
        texts,
        problems,
        _versions("python-docx", "rdocx", "typst", "pypdfium2"),
    )


def _document_pdf(data: bytes) -> bytes:
    pdf = rdocx.Document.from_bytes(data).to_pdf(fonts=_named_fonts(), font_dirs=_cjk_directories())
    return copyable_pdf(pdf)


def _make_report(request: RenderRequest) -> Rendered:
    pdf, problems = write_report(request.source)
    texts = pdf_texts(pdf)
    problems += [*glyph_problems(request.source.pages), *report_problems(request.source, texts)]
    return _paged(request, pdf, pdf, texts, problems, _versions("typst", "pypdfium2"))


def _paged(
    request: RenderRequest,
    data: bytes,
    pdf: bytes,
    texts: Sequence[str],
    problems: Sequence[RenderProblem],
    renderer: str,
) -> Rendered:
    pictures = page_pictures(pdf, request.pictures, request.width) if request.pictures != () else {}
    return Rendered(
        data=data,
        renderer=renderer,
        pages=_file_pages(texts, source_pages(request.source, texts), pictures),
        problems=tuple(sorted(problems, key=lambda problem: problem.page or 0)),
    )


def _make_workbook(request: RenderRequest) -> Rendered:
    data, problems = write_workbook(request.source)
    return Rendered(
        data=data,
        renderer=_versions("xlsxwriter"),
        problems=(*problems, *workbook_problems(request.source, data)),
    )


def _make_chart(request: RenderRequest) -> Rendered:
    source = request.source
    try:
        spec = read_chart(clean("".join(source.pages)))
    except WrongChart as error:
        raise UnknownFormat(f"The chart cannot be drawn: {error}.") from error
    svg = chart_svg(spec, theme_named(source.theme))
    picture = svg_png(svg, 960, 540, scale=request.width / 960)
    page = FilePage(
        index=1, source_page=1, text="\n".join(spec.texts), picture=picture if request.pictures != () else b""
    )
    missing = missing_characters(spec.texts)
    return Rendered(
        data=svg.encode() if request.format == "svg" else picture,
        renderer=_versions("typst"),
        pages=(page,),
        problems=tuple(glyph_problems(["".join(missing)])),
    )


def _overflows(drawable: rpptx.Presentation, known: Sequence[RenderProblem]) -> list[RenderProblem]:
    """Text that is taller than its frame when it is drawn, on pages where none was expected to be."""
    reported = {problem.page for problem in known if problem.kind == "overflow"}
    problems: list[RenderProblem] = []
    for frame in drawable.text_layout(fonts=_named_fonts(), font_dirs=_cjk_directories()):
        page, room = frame.slide_index + 1, frame.usable.height
        if page in reported or room <= 0 or frame.height <= room * 1.02:
            continue
        reported.add(page)
        excess = round((frame.height / room - 1) * 100)
        text = f"A text of page {page} needs {excess} % more space than there is. Shorten it."
        problems.append(RenderProblem(page=page, kind="overflow", text=text))
    return problems


def _file_pages(
    texts: Sequence[str], source_pages: Sequence[int], pictures: Mapping[int, bytes]
) -> tuple[FilePage, ...]:
    return tuple(
        FilePage(index=index, source_page=page, text=text, picture=pictures.get(index, b""))
        for index, (text, page) in enumerate(zip(texts, source_pages, strict=True), 1)
    )


@cache
def _named_fonts() -> list[tuple[str, bytes]]:
    """Arimo by the name that files use, so that pictures do not depend on the fonts of the system."""
    files = sorted(latin_fonts().glob("*.ttf"), reverse=True)
    return [("Arial", file.read_bytes()) for file in files]


def _cjk_directories() -> list[str]:
    cjk = cjk_font()
    return [] if cjk is None else [str(cjk.parent)]


def _versions(*names: str) -> str:
    return ", ".join(f"{name} {version(name)}" for name in names)
