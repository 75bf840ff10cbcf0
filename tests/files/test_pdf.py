"""Malicious PDFs: each gives a sentence within its bounds, and no process is left."""

import asyncio
import os
import time
from pathlib import Path

import pytest
from pypdf import PdfWriter

from files.sample_files import pdf, pdf_of
from luxx.domain.files.attachments import DocumentReader
from luxx.domain.files.storage import OpenFile, WorkspaceFiles
from luxx.errors import InvalidInput, TooLarge

MIB = 1024 * 1024
WAIT_SECONDS = 30.0


def open_file(tmp_path: Path, data: bytes) -> OpenFile:
    (tmp_path / "a.pdf").write_bytes(data)
    return WorkspaceFiles(tmp_path).open_download("a.pdf")


def read(tmp_path: Path, data: bytes, characters: int = 100_000, **bounds: int) -> str:
    file = open_file(tmp_path, data)

    async def work() -> str:
        return await DocumentReader(**bounds).text_of(file, characters=characters, user_id=1)

    try:
        return asyncio.run(work())
    finally:
        file.close()
        assert children() == []


def children() -> list[str]:
    """Child processes that read a PDF."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text("ascii").split()
    processes: list[str] = []
    for number in listed:
        try:
            processes.append(Path(f"/proc/{number}/cmdline").read_bytes().decode().replace("\0", " "))
        except FileNotFoundError:
            continue
    return [line for line in processes if "pdf_text" in line]


def test_a_pdf_is_read_within_the_bounds(tmp_path: Path) -> None:
    assert read(tmp_path, pdf("one", "two")) == "one\n\ntwo"


def test_a_pdf_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    slow = pdf_of(b"1 0 0 1 5 5 Tm (a) Tj " * 1_000_000)
    started = time.monotonic()
    with pytest.raises(InvalidInput, match=r"a\.pdf takes too long"):
        read(tmp_path, slow, seconds=1)
    assert time.monotonic() - started < WAIT_SECONDS


def test_a_pdf_that_needs_too_much_memory_is_ended(tmp_path: Path) -> None:
    bomb = pdf_of(b"(" + b"A" * (60 * MIB) + b") Tj")
    assert len(bomb) < MIB
    with pytest.raises(InvalidInput, match=r"a\.pdf needs too much memory"):
        read(tmp_path, bomb, memory_bytes=180 * MIB)


def test_a_pdf_with_more_text_than_a_message_may_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TooLarge, match="too much text"):
        read(tmp_path, pdf(*["a" * 50] * 20), characters=500)


def test_a_pdf_with_thousands_of_pages_is_refused(tmp_path: Path) -> None:
    writer = PdfWriter()
    for _ in range(2001):
        writer.add_blank_page(10, 10)
    writer.write(tmp_path / "pages.pdf")
    with pytest.raises(TooLarge, match="too many pages"):
        read(tmp_path, (tmp_path / "pages.pdf").read_bytes())


async def test_a_reader_that_is_cancelled_leaves_no_process(tmp_path: Path) -> None:
    slow = pdf_of(b"1 0 0 1 5 5 Tm (a) Tj " * 1_000_000)
    file = open_file(tmp_path, slow)

    task = asyncio.create_task(DocumentReader().text_of(file, characters=1000, user_id=1))
    async with asyncio.timeout(WAIT_SECONDS):
        while not children():  # noqa: ASYNC110 - another process gives no event
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    file.close()
    assert children() == []
