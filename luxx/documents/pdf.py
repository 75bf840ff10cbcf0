"""PDFs as text, for whoever has one: the process that reads it is `pdf_text.py`."""

import msgspec

from luxx.documents.places import Places
from luxx.documents.process import Bounds, Ended, RunReader, read_in_process
from luxx.errors import Unavailable

MAX_PDF_BYTES = 50 * 1024 * 1024
MEMORY_BYTES = 768 * 1024 * 1024
"""Address space of the process: reading a book of 50 MB takes less, a bomb more."""

SECONDS = 30
AT_ONCE = 2
PER_USER = 1
"""Processes of one server, and of one user; more wait for their turn."""

PATIENCE_SECONDS = 60.0
"""How long a PDF may wait for its turn."""


class PdfText(msgspec.Struct, frozen=True):
    """`error` is encrypted, memory, time, pages, long or broken; empty where there is a text."""

    text: str = ""
    title: str = ""
    pages: int = 0
    is_cut: bool = False
    error: str = ""


class PdfProcess:
    """One per server; `run_reader` runs the module that reads."""

    def __init__(
        self,
        run_reader: RunReader = read_in_process,
        *,
        memory_bytes: int = MEMORY_BYTES,
        seconds: int = SECONDS,
    ) -> None:
        self._run_reader = run_reader
        self._bounds = Bounds(memory=memory_bytes, seconds=seconds)
        self._places = Places(in_all=AT_ONCE, per_user=PER_USER, patience=PATIENCE_SECONDS)

    async def read(
        self, given: int | bytes, *, characters: int, user_id: int, may_cut: bool = False
    ) -> PdfText:
        """The text of a PDF, a descriptor or bytes; past `characters` cut, or an error if it may not be.

        Raises Unavailable where too many are being read.
        """
        try:
            async with self._places.of(user_id):
                answer = await self._run_reader(
                    "luxx.documents.pdf_text",
                    [str(characters), str(int(may_cut))],
                    given,
                    self._bounds,
                    # In JSON a character takes twelve bytes at most.
                    limit=12 * characters + 10_000,
                )
        except TimeoutError as error:
            raise Unavailable("too many PDFs are being read just now; try again", kind="pdf_busy") from error
        if isinstance(answer, Ended):
            return PdfText(error=answer)
        try:
            return msgspec.json.decode(answer, type=PdfText)
        except msgspec.DecodeError:
            return PdfText(error=Ended.MEMORY)
