"""The readers of pages and PDFs run in the sandbox, as seen from outside while a server reads one."""

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from files.sample_files import pdf, pdf_of

from luxx.infra.config.schema import ToolsConfig
from luxx.infra.documents.bounds import PageRequest
from luxx.infra.documents.reader import DocumentProcess, PageProcess
from luxx.infra.documents.render.files import make_file
from luxx.infra.documents.render.process import RenderFailed, RenderProcess
from luxx.infra.documents.render.request import RenderRequest, RenderSource
from luxx.tools.sandbox.service import Sandbox
from luxx.wire.artifacts import ArtifactType
from sandbox.attacked_server import Attacker, Child, Json, attacked_server, children_once, in_force

SLOW_PAGE = "<p><b>word</b> <i>word</i>" * 12_000
SLOW_PDF = pdf_of(*[b"1 0 0 1 5 5 Tm (a) Tj " * 5_000] * 3)
FILTER = "2"
"""`Seccomp` in /proc/PID/status of a process with a filter."""


@pytest.fixture
def attacker(tmp_path: Path, backend: str) -> Iterator[Attacker]:
    with attacked_server(tmp_path, {"LUXX_TOOLS__SANDBOX": backend}) as attacked:
        if in_force(attacked) != backend:
            pytest.skip(f"{backend} does not work here")
        yield attacked


def is_waiting(child: Child) -> bool:
    return child.status.get("Seccomp") == FILTER


@pytest.mark.parametrize("kind", ["page", "pdf"])
def test_a_document_is_read_in_the_sandbox(attacker: Attacker, backend: str, kind: str) -> None:
    works: dict[str, Callable[[], Json]] = {
        "page": lambda: attacker.read(SLOW_PAGE, "text/html"),
        "pdf": lambda: attacker.read(SLOW_PDF, "application/pdf"),
    }
    module = f"luxx.infra.documents.{kind}_text"
    with attacker.meanwhile(works[kind]) as answers:
        processes = children_once(attacker.server, module, more=is_waiting)
    server = Child(attacker.server.pid)
    readers = [process for process in processes if module in process.command and is_waiting(process)]
    for process in readers:
        assert process.status["NoNewPrivs"] == "1"
        assert int(process.status["CapEff"], 16) == int(process.status["CapBnd"], 16) == 0
        assert not [path for path in process.descriptors.values() if str(attacker.server.data_dir) in path]
        if backend == "bubblewrap":
            assert not set(process.namespaces.values()) & set(server.namespaces.values())
            assert process.status["Uid"].split()[0] != "0"
    # A process outside the sandbox that reads the document itself would have no filter.
    others = [process for process in processes if module in process.command and not is_waiting(process)]
    assert all("bwrap" in process.command for process in others), [
        process.command[:100] for process in others
    ]
    assert answers[0]["success"], answers
    assert "word" in answers[0]["data"]["content"] or "a" in answers[0]["data"]["content"]


def read_beneath(shown: Path, backend: str) -> tuple[str, str]:
    """The texts of a page and a PDF. The directory around the server's code is hidden, the code is not."""

    async def work() -> tuple[str, str]:
        sandbox = Sandbox(ToolsConfig(sandbox=backend), shown / "data", shown / "workspaces", [shown])  # type: ignore[arg-type]
        await sandbox.open()
        await sandbox.readers.open()
        if sandbox.backend_name == "none":
            pytest.skip(f"{backend} does not work here")
        try:
            assert sandbox.readers.backend_name == backend, sandbox.readers.problem
            run = sandbox.readers.run
            text = await PageProcess(run).read(b"<p>a page", PageRequest(url="http://a/", characters=100))
            with tempfile.TemporaryFile() as file:
                file.write(pdf("one", "two"))
                file.flush()
                text_read = await DocumentProcess(run).read(
                    file.fileno(), extension="pdf", characters=100, user_id=1
                )
            return text.text, text_read.text
        finally:
            await sandbox.close()

    return asyncio.run(work())


def test_readers_see_their_code_when_its_surroundings_are_hidden(backend: str) -> None:
    here = Path(__file__).parents[2]
    assert read_beneath(here, backend) == ("a page", "one\n\ntwo")


@pytest.mark.heavy
@pytest.mark.parametrize("backend", ["bubblewrap", "landlock"])
async def test_bounds_hold_in_the_sandbox_and_nothing_is_left(backend: str, tmp_path: Path) -> None:
    sandbox = Sandbox(ToolsConfig(sandbox=backend), tmp_path / "data", tmp_path / "workspaces")  # type: ignore[arg-type]
    await sandbox.open()
    await sandbox.readers.open()
    if sandbox.backend_name == "none":
        pytest.skip(f"{backend} does not work here")
    run = sandbox.readers.run
    others = child_pids()
    try:
        slow = pdf_of(b"1 0 0 1 5 5 Tm (a) Tj " * 1_000_000)
        bomb = pdf_of(b"(" + b"A" * (60 << 20) + b") Tj")
        late = await DocumentProcess(run, seconds=1).read(slow, extension="pdf", characters=1000, user_id=1)
        assert late.error == "time"
        swollen = await DocumentProcess(run, memory_bytes=180 << 20).read(
            bomb, extension="pdf", characters=1000, user_id=1
        )
        assert swollen.error == "memory"
        long = await DocumentProcess(run).read(
            pdf(*["a" * 50] * 20), extension="pdf", characters=500, user_id=1
        )
        assert long.error == "long"
        fine = await DocumentProcess(run).read(pdf("one"), extension="pdf", characters=500, user_id=1)
        assert fine.text == "one"
    finally:
        await sandbox.close()
    assert [pid for pid in child_pids() - others if "pdf_text" in Child(pid).command] == []


def child_pids() -> set[int]:
    """The children of this process; tests before may have left some, such as those of a browser."""
    return {int(one) for one in Path(f"/proc/self/task/{os.getpid()}/children").read_text("ascii").split()}


async def test_artifacts_are_rendered_in_the_sandbox(backend: str, tmp_path: Path) -> None:
    sandbox = Sandbox(ToolsConfig(sandbox=backend), tmp_path / "data", tmp_path / "workspaces")  # type: ignore[arg-type]
    await sandbox.open()
    await sandbox.readers.open()
    if sandbox.backend_name == "none":
        pytest.skip(f"{backend} does not work here")
    chart = '```chart\n{"labels": ["a"], "series": [{"values": [1]}]}\n```'
    source = RenderSource(type=ArtifactType.PPT, name="Deck", pages=(f"# 标题 and chart\n\n{chart}",))
    try:
        render = RenderProcess(sandbox.readers.run).render
        made = await render(RenderRequest(source=source, format="pptx", pictures=None), user_id=1)
        outside = make_file(RenderRequest(source=source, format="pptx", pictures=None))
        assert made.data == outside.data
        assert [page.picture for page in made.pages] == [page.picture for page in outside.pages]
        with pytest.raises(RenderFailed, match="memory"):
            await RenderProcess(sandbox.readers.run, memory_bytes=120 << 20).render(
                RenderRequest(source=source, format="pptx"), user_id=1
            )
    finally:
        await sandbox.close()
