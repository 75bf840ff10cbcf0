"""A file of a workspace that is a PDF, as text for a message; reading it is `documents/pdf.py`'s."""

import os

from luxx.documents.pdf import MAX_PDF_BYTES, MEMORY_BYTES, SECONDS, PdfProcess
from luxx.documents.process import RunReader, read_in_process
from luxx.errors import InvalidInput, LuxxError, TooLarge
from luxx.files.storage import OpenFile


class PdfReader:
    """One per server; `run_reader` runs the module that reads."""

    def __init__(
        self,
        run_reader: RunReader = read_in_process,
        *,
        memory_bytes: int = MEMORY_BYTES,
        seconds: int = SECONDS,
    ) -> None:
        self._process = PdfProcess(run_reader, memory_bytes=memory_bytes, seconds=seconds)

    async def text_of(self, file: OpenFile, *, characters: int, user_id: int) -> str:
        """The text of a PDF, of at most that many characters.

        Raises InvalidInput or TooLarge with the reason, Unavailable where too many are being read.
        """
        if file.size > MAX_PDF_BYTES:
            raise TooLarge(f"{file.name} has more than {MAX_PDF_BYTES // 2**20} MiB, the most for a PDF")
        with file.using() as fd:
            os.lseek(fd, 0, os.SEEK_SET)
            answer = await self._process.read(fd, characters=characters, user_id=user_id)
        if answer.error:
            raise _failure(file.name, answer.error)
        if not answer.text.strip():
            raise _refused(f"{file.name} has no text in it: its pages are images")
        return answer.text


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
