"""The row of artifacts: a deck of ten slides with pictures, in a process as servers start it."""

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator

from luxx.infra.documents.render.process import RenderProcess
from luxx.infra.documents.render.request import RenderRequest, RenderSource
from luxx.wire.artifacts import ArtifactType
from tests.bench.figures import Figures
from tests.bench.load import Broken
from tests.bench.processes import ROOT
from tests.bench.upstream import Upstream

DECK = ROOT / "docs" / "examples" / "artifacts" / "deck.en.md"
SLIDES = 10
DECK_SECONDS = 5.0
WRITE = """
import io, json, sys, time
begin = time.perf_counter()
from pptx import Presentation
presentation = Presentation()
for page in json.load(sys.stdin):
    slide = presentation.slides.add_slide(presentation.slide_layouts[1])
    slide.placeholders[1].text_frame.text = page
file = io.BytesIO()
presentation.save(file)
import rpptx
pdf = rpptx.Presentation.from_bytes(file.getvalue()).to_pdf()
import pypdfium2
for page in pypdfium2.PdfDocument(pdf):
    page.render(scale=1280 / page.get_width()).to_pil().save(io.BytesIO(), "PNG")
print(time.perf_counter() - begin)
"""


async def decks_row(_upstream: Upstream, figures: Figures, rounds: int) -> AsyncIterator[None]:
    """Time of a deck with all checks and pictures, against its libraries alone with plain slides."""
    pages = tuple(re.split(r"^---\n", DECK.read_text("utf-8"), flags=re.MULTILINE))
    source = RenderSource(type=ArtifactType.PPT, name="Deck", pages=pages)
    process = RenderProcess()
    for number in range(rounds + 1):
        floor = await asyncio.to_thread(_plain_deck, pages)
        begin = time.perf_counter()
        made = await process.render(RenderRequest(source=source, format="pptx", pictures=None), user_id=1)
        cost = time.perf_counter() - begin
        if len(made.pages) != SLIDES or made.problems or not all(page.picture for page in made.pages):
            raise Broken(f"the deck has {len(made.pages)} slides and {len(made.problems)} problems")
        if number > 0:  # The first round loads what is read.
            figures.add("decks", f"{SLIDES} plain slides, the libraries alone", floor, "s")
            figures.add("decks", f"{SLIDES} slides, checked and drawn", cost, "s", at_most=DECK_SECONDS)
            figures.add("decks", "luxx / libraries", cost / floor, "×", at_most=4.0)
            yield


def _plain_deck(pages: tuple[str, ...]) -> float:
    done = subprocess.run(
        [sys.executable, "-c", WRITE],
        input=json.dumps(pages),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return float(done.stdout)
