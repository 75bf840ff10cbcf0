"""LibreOffice as a referee: it breaks the lines of our files where our pictures do, and draws them alike."""

import os
import re
import shutil
import subprocess
from collections import Counter
from io import BytesIO
from pathlib import Path

import numpy as np
import pypdfium2
import pytest
from numpy.typing import NDArray
from PIL import Image

from luxx.infra.documents.render.fonts import font_directories
from luxx.infra.documents.render.paging import pdf_texts
from luxx.infra.documents.render.request import Rendered
from luxx.wire.artifacts import ArtifactType
from render.conftest import deck, example, render

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(shutil.which("soffice") is None, reason="LibreOffice is not installed"),
]
CHART_PAGES = (4, 8)
"""Pages of the example whose chart LibreOffice draws in its own way."""
SENTENCE = "The junction at Central delays line four by three minutes on each journey in the morning. "
CHINESE = "中央枢纽在每个早晨使四号线的每一次行程延误三分钟，因此需要在明年进行改造。"


def converted(data: bytes, name: str, folder: Path) -> bytes:
    """The PDF that LibreOffice makes of a file, with our fonts."""
    fonts = folder / ".fonts"
    fonts.mkdir(exist_ok=True)
    for directory in font_directories():
        link = fonts / directory.parent.name
        if not link.exists():
            link.symlink_to(directory)
    path = folder / name
    path.write_bytes(data)
    subprocess.run(
        ["soffice", "--headless", "--convert-to", "pdf", "--outdir", str(folder), str(path)],
        env={**os.environ, "HOME": str(folder)}, capture_output=True, check=True, timeout=180,
    )  # fmt: skip
    return path.with_suffix(".pdf").read_bytes()


def lines(text: str) -> Counter[str]:
    """The lines without white space, and without the dots of a table of contents."""
    squeezed = ("".join(line.split()) for line in text.split("\n"))
    return Counter(re.sub(r"\.{4,}", "", line) for line in squeezed if line)


def similarity(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """The mean structural similarity of blocks of 8 × 8 pixels."""

    def blocks(image: NDArray[np.float64]) -> NDArray[np.float64]:
        height, width = (side // 8 * 8 for side in image.shape)
        cut = image[:height, :width].reshape(height // 8, 8, width // 8, 8)
        return cut.transpose(0, 2, 1, 3).reshape(-1, 64)

    x, y = blocks(a), blocks(b)
    mean_x, mean_y = x.mean(1), y.mean(1)
    both = ((x - mean_x[:, None]) * (y - mean_y[:, None])).mean(1)
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    above = (2 * mean_x * mean_y + c1) * (2 * both + c2)
    return float((above / ((mean_x**2 + mean_y**2 + c1) * (x.var(1) + y.var(1) + c2))).mean())


def gray(image: Image.Image) -> NDArray[np.float64]:
    return np.asarray(image.convert("L").resize((640, 360)), dtype=np.float64)


def more_pages() -> list[str]:
    pages: list[str] = []
    for count in (3, 5, 8, 11, 14):
        pages.append(f"# Text of {count} sentences\n\n" + SENTENCE * count)
        pages.append(f"# {count} 句话的文字\n\n" + CHINESE * count)
    return pages


def test_thirty_slides_are_drawn_as_libreoffice_draws_them(tmp_path: Path) -> None:
    more = more_pages()
    decks: list[tuple[Rendered, bytes, list[int]]] = []
    for language in ("en", "zh"):
        pdf = example(ArtifactType.PPT, language, "pdf").data
        skipped = [page for page in range(1, 11) if page in CHART_PAGES]
        decks.append((example(ArtifactType.PPT, language, "pptx"), pdf, skipped))
    source = deck(*more)
    decks.append((render(source, "pptx", pictures=None), render(source, "pdf").data, []))
    equal = total = 0
    similarities: list[float] = []
    for number, (made, pdf, skipped) in enumerate(decks):
        theirs = converted(made.data, f"deck{number}.pptx", tmp_path)
        document = pypdfium2.PdfDocument(theirs)
        assert len(document) == len(made.pages) == 10
        for index, (own, other) in enumerate(zip(pdf_texts(pdf), pdf_texts(theirs), strict=True), 1):
            picture = document[index - 1].render(scale=1.0).to_pil()
            similarities.append(
                similarity(gray(Image.open(BytesIO(made.pages[index - 1].picture))), gray(picture))
            )
            if index not in skipped:
                equal += (lines(own) & lines(other)).total()
                total += max(lines(own).total(), lines(other).total())
    assert equal / total >= 0.95, f"{equal} of {total} lines"
    assert sum(similarities) / len(similarities) >= 0.8, similarities
    assert min(similarities) >= 0.6, similarities


def test_a_document_has_the_same_pages_in_libreoffice(tmp_path: Path) -> None:
    for language in ("en", "zh"):
        made = example(ArtifactType.DOCUMENT, language, "docx")
        theirs = pdf_texts(converted(made.data, f"document-{language}.docx", tmp_path))
        assert len(theirs) == len(made.pages)
        # A table may begin on another page.
        own, other = lines("\n".join(page.text for page in made.pages)), lines("\n".join(theirs))
        assert (own & other).total() >= 0.95 * other.total()
