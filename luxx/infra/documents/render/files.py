"""Makes the file of an artifact, checks it and draws its pages. Runs in a process of its own."""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version

import rpptx

from luxx.infra.documents.render.checks import deck_problems, deck_texts, glyph_problems
from luxx.infra.documents.render.deck.writer import write_deck
from luxx.infra.documents.render.fonts import cjk_font, latin_fonts
from luxx.infra.documents.render.pictures import page_pictures
from luxx.infra.documents.render.request import FilePage, Rendered, RenderProblem, RenderRequest
from luxx.wire.artifacts import ArtifactType


class UnknownFormat(ValueError):
    """The type of the artifact has no such format; the message says so."""


def make_file(request: RenderRequest) -> Rendered:
    """The file that is asked for. Raises UnknownFormat."""
    match request.source.type, request.format:
        case ArtifactType.PPT, "pptx" | "pdf":
            return _make_deck(request)
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
        data = pdf if request.format == "pdf" else data
        pictures = page_pictures(pdf, request.pictures, request.width)
    return Rendered(
        data=data,
        renderer=_versions("python-pptx", "rpptx", "typst", "pypdfium2"),
        pages=_file_pages(texts, range(1, len(texts) + 1), pictures),
        problems=tuple(sorted(problems, key=lambda problem: problem.page or 0)),
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
