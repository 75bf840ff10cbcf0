"""PDFs as text: the process that reads one (`pdf_text.py`) is started, bounded and killed here."""

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from luxx.errors import InvalidInput, LuxxError, TooLarge, Unavailable
from luxx.files.storage import OpenFile

SCRIPT = Path(__file__).with_name("pdf_text.py")
MAX_PDF_BYTES = 50 * 1024 * 1024
MEMORY_BYTES = 768 * 1024 * 1024
"""Address space of the process: reading a book of 50 MB takes less, a bomb more."""

SECONDS = 30
AT_ONCE = 2
"""Processes of one server; more wait for their turn."""

PATIENCE_SECONDS = 60.0
"""How long a PDF may wait for its turn and then be read."""


class _Answer(msgspec.Struct, frozen=True):
    text: str = ""
    pages: int = 0
    error: str = ""


class PdfReader:
    """One per process."""

    def __init__(self, *, memory_bytes: int = MEMORY_BYTES, seconds: int = SECONDS) -> None:
        self._memory_bytes = memory_bytes
        self._seconds = seconds
        self._places = asyncio.Semaphore(AT_ONCE)

    async def text_of(self, file: OpenFile, *, characters: int) -> str:
        """The text of a PDF, of at most that many characters.

        Raises InvalidInput or TooLarge with the reason, Unavailable where too many are being read.
        """
        if file.size > MAX_PDF_BYTES:
            raise TooLarge(f"{file.name} has more than {MAX_PDF_BYTES // 2**20} MiB, the most for a PDF")
        try:
            async with asyncio.timeout(PATIENCE_SECONDS), self._places:
                answer = await self._read(file, characters)
        except TimeoutError as error:
            raise Unavailable("too many PDFs are being read just now; try again", kind="pdf_busy") from error
        if answer.error:
            raise _failure(file.name, answer.error)
        if not answer.text.strip():
            raise _refused(f"{file.name} has no text in it: its pages are images")
        return answer.text

    async def _read(self, file: OpenFile, characters: int) -> _Answer:
        with file.using() as fd:
            os.lseek(fd, 0, os.SEEK_SET)
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",  # else this folder's modules would stand in for the library's own imports
                str(SCRIPT), str(self._memory_bytes), str(self._seconds), str(characters),
                stdin=fd,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={},
                start_new_session=True,
            )  # fmt: skip
        try:
            async with asyncio.timeout(self._seconds + 1):
                # In JSON a character takes twelve bytes at most.
                return await _heard(child, limit=12 * characters + 1000)
        except TimeoutError:
            return _Answer(error="time")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await asyncio.shield(child.wait())


async def _heard(child: asyncio.subprocess.Process, limit: int) -> _Answer:
    assert child.stdout is not None
    said = bytearray()
    while piece := await child.stdout.read(65_536):
        said += piece
        if len(said) > limit:
            return _Answer(error="long")
    try:
        return msgspec.json.decode(said, type=_Answer)
    except msgspec.DecodeError:
        # The kernel ended it: for its time by one of these signals, else for its memory.
        is_late = await child.wait() in (-signal.SIGXCPU, -signal.SIGKILL)
        return _Answer(error="time" if is_late else "memory")


def _failure(name: str, error: str) -> LuxxError:
    match error:
        case "encrypted":
            return _refused(f"{name} is encrypted; attach it without a password")
        case "memory":
            return _refused(f"{name} needs too much memory to be read")
        case "time":
            return _refused(f"{name} takes too long to be read")
        case "pages":
            return TooLarge(f"{name} has too many pages; attach a part of it")
        case "long":
            return TooLarge(f"{name} has too much text to be attached; attach a part of it")
        case _:
            return _refused(f"{name} is damaged or no PDF")


def _refused(sentence: str) -> InvalidInput:
    return InvalidInput(sentence, kind="attachment_unreadable")
