"""The row of knowledge bases: indexing a PDF of 200 pages, against reading its text with pypdf alone."""

import asyncio
import io
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

from tests.bench.figures import Figures
from tests.bench.load import Broken
from tests.bench.processes import ROOT, Api, luxx_server
from tests.bench.upstream import Upstream

PAGES, LINES, WORDS_OF_LINE = 200, 25, 12
INDEX_SECONDS = 120.0
LOOK_SECONDS = 0.2
READ = """
import json, sys, time
from pypdf import PdfReader
size = sum(len(page.extract_text()) for page in PdfReader(sys.argv[1]).pages)
print(json.dumps([time.process_time(), size]))
"""


async def documents_row(_upstream: Upstream, figures: Figures, rounds: int) -> AsyncIterator[None]:
    """CPU of indexing one document, of the server and the process that reads."""
    with luxx_server() as server, tempfile.TemporaryDirectory(prefix="luxx-bench-pdf-") as folder:
        api = await asyncio.to_thread(Api, server.port)
        base = await asyncio.to_thread(api.new_base)
        for number in range(rounds + 1):
            data = await asyncio.to_thread(_document, number)
            path = Path(folder) / "document.pdf"
            path.write_bytes(data)
            floor = await asyncio.to_thread(_read, path)
            begin = server.cpu_with_ended()
            chunks = await asyncio.to_thread(_index, api, base, f"{number}.pdf", data)
            cost = server.cpu_with_ended() - begin
            if chunks < PAGES:
                raise Broken(f"the document has {chunks} chunks of {PAGES} pages at least")
            if number > 0:  # The first round loads what is read and indexed with.
                figures.add("documents", f"PDF of {PAGES} pages, pypdf alone", floor, "s")
                figures.add("documents", f"PDF of {PAGES} pages, indexed by luxx", cost, "s")
                figures.add("documents", "luxx / pypdf", cost / floor, "×", at_most=1.5)
                yield
        api.close()


def _document(seed: int) -> bytes:
    """A PDF with lines of text on each page."""
    random_ = random.Random(seed)
    words = [f"word{number}" for number in range(5_000)]
    name = NameObject
    font = DictionaryObject(
        {
            name("/Type"): name("/Font"),
            name("/Subtype"): name("/Type1"),
            name("/BaseFont"): name("/Helvetica"),
        }
    )
    writer = PdfWriter()
    for _ in range(PAGES):
        page = writer.add_blank_page(600, 800)
        page[name("/Resources")] = DictionaryObject({name("/Font"): DictionaryObject({name("/F1"): font})})
        lines = [" ".join(random_.choices(words, k=WORDS_OF_LINE)) for _ in range(LINES)]
        stream = DecodedStreamObject()
        stream.set_data(
            f"BT /F1 10 Tf 20 780 Td 14 TL {' '.join(f'({line}) Tj T*' for line in lines)} ET".encode()
        )
        page[name("/Contents")] = stream.flate_encode()
    written = io.BytesIO()
    writer.write(written)
    return written.getvalue()


def _read(path: Path) -> float:
    """CPU seconds of pypdf in a process of its own, its start included."""
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path)], cwd=ROOT, capture_output=True, check=True, timeout=120
    )
    seconds, size = json.loads(done.stdout)
    if size < PAGES * LINES * WORDS_OF_LINE:
        raise Broken(f"pypdf read only {size} characters")
    return seconds


def _index(api: Api, base: str, name: str, data: bytes) -> int:
    """Adds a document and waits until it is indexed; returns the number of its chunks."""
    document = api.add_document(base, name, data)
    until = time.monotonic() + INDEX_SECONDS
    while time.monotonic() < until:
        shown = api.document(base, document)
        if shown["status"] == "synced":
            return shown["chunks"]
        if shown["status"] not in ("pending", "running"):
            raise Broken(f"the document is {shown['status']}: {shown['reason']}")
        time.sleep(LOOK_SECONDS)
    raise Broken("the document was not indexed in time")
