"""The row of documents: a page and a PDF read by a process in the sandbox, and by one without."""

import asyncio
import io
import resource
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from pypdf import PdfWriter

from luxx.infra.config.schema import ToolsConfig
from luxx.infra.documents.bounds import PageRequest
from luxx.infra.documents.reader import DocumentProcess, PageProcess, RunReader, read_in_process
from luxx.tools.sandbox.service import Sandbox
from tests.bench.figures import Figures
from tests.bench.load import Broken
from tests.bench.upstream import Upstream

TIMES = 10
PAGE = b"<title>A page</title>" + b"<p>Some <b>words</b> of a <a href='/page'>page</a>.</p>\n" * 200
PAUSE_SECONDS = 0.5
"""Between two documents, as between two steps of a model; the next process is prewarmed by then."""


class _Cost:
    """Wall and CPU seconds of each document; the CPU time includes all ended child processes."""

    def __init__(self) -> None:
        self.walls: list[float] = []
        self.cpu = 0.0

    async def measure(self, read: Callable[[], Awaitable[None]]) -> None:
        before = _cpu()
        for _ in range(TIMES):
            began = time.perf_counter()
            await read()
            self.walls.append(time.perf_counter() - began)
            await asyncio.sleep(PAUSE_SECONDS)
        self.cpu = (_cpu() - before) / TIMES


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _pdf() -> bytes:
    writer = PdfWriter()
    for _ in range(5):
        writer.add_blank_page(300, 300)
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


async def pages_row(_upstream: Upstream, figures: Figures, rounds: int) -> AsyncIterator[None]:
    """One document after the other, alternately with and without the sandbox."""
    with tempfile.TemporaryDirectory(prefix="luxx-bench-pages-") as folder:
        sandbox = Sandbox(ToolsConfig(), Path(folder) / "data", Path(folder) / "workspaces")
        await sandbox.open()
        await sandbox.readers.open()
        try:
            if sandbox.readers.backend_name == "none":
                raise Broken("no sandbox holds readers here; `luxx doctor` says why")
            for _ in range(rounds):
                await _measure(sandbox, figures)
                yield
        finally:
            await sandbox.close()


async def _measure(sandbox: Sandbox, figures: Figures) -> None:
    pdf = _pdf()
    for kind in ("page", "PDF"):
        costs: dict[str, _Cost] = {}
        runs: dict[str, RunReader] = {"bare": read_in_process, "sandbox": sandbox.readers.run}
        for name, run in runs.items():
            pages, pdfs = PageProcess(run), DocumentProcess(run)

            async def read(
                pages: PageProcess = pages, pdfs: DocumentProcess = pdfs, kind: str = kind
            ) -> None:
                if kind == "page":
                    answer = await pages.read(PAGE, PageRequest(url="http://a/", characters=100_000))
                else:
                    answer = await pdfs.read(pdf, extension="pdf", characters=100_000, user_id=1)
                if answer.error:
                    raise Broken(f"the {kind} was not read: {answer.error}")

            await read()
            costs[name] = _Cost()
            await costs[name].measure(read)
        bare, sandboxed = costs["bare"], costs["sandbox"]
        figures.add("pages", f"{kind}, a process, wall", statistics.median(bare.walls) * 1e3, "ms")
        figures.add("pages", f"{kind}, in the sandbox, wall", statistics.median(sandboxed.walls) * 1e3, "ms")
        figures.add("pages", f"{kind}, a process, CPU", bare.cpu * 1e3, "ms")
        figures.add("pages", f"{kind}, in the sandbox, CPU", sandboxed.cpu * 1e3, "ms")
