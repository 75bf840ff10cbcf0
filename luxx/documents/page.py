"""Web pages as text, for whoever fetched one: the process that reads it is `page_text.py`."""

from enum import StrEnum

import msgspec

from luxx.documents.places import Places
from luxx.documents.process import Bounds, Ended, RunReader, read_in_process
from luxx.errors import Unavailable

MEMORY_BYTES = 640 * 1024 * 1024
"""Address space of the process: five million bytes of small paragraphs take a third of it."""

SECONDS = 5
"""Of work; a page of a megabyte takes one."""

WAIT_SECONDS = 15.0
"""By the clock: others go first on a busy machine."""

AT_ONCE = 4
PER_USER = 2
"""Processes of one server, and of one user; more wait for their turn."""

PATIENCE_SECONDS = 30.0
"""How long a page may wait for its turn."""


MOST_LINKS = 50
LINK_BYTES = 200


class PageForm(StrEnum):
    MARKDOWN = "markdown"
    TEXT = "text"
    HTML = "html"


class PageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`url` is what links are relative to, `charset` what the server said. Not `is_html`: a plain text.

    `links` are given at most, and these take `LINK_BYTES` each on the average.
    """

    url: str
    form: PageForm = PageForm.MARKDOWN
    characters: int
    links: int = MOST_LINKS
    charset: str = ""
    is_html: bool = True


class PageLink(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    url: str


class PageText(msgspec.Struct, frozen=True, kw_only=True):
    """`error` is binary, memory, time, long or broken with the reason; empty where there is a text."""

    text: str = ""
    title: str = ""
    description: str = ""
    links: list[PageLink] = []
    charset: str = ""
    is_cut: bool = False
    error: str = ""


class PageProcess:
    """One per server; `run_reader` runs the module that reads."""

    def __init__(
        self,
        run_reader: RunReader = read_in_process,
        *,
        memory_bytes: int = MEMORY_BYTES,
        seconds: int = SECONDS,
    ) -> None:
        self._run_reader = run_reader
        self._bounds = Bounds(memory=memory_bytes, seconds=seconds, wait=WAIT_SECONDS)
        self._places = Places(in_all=AT_ONCE, per_user=PER_USER, patience=PATIENCE_SECONDS)

    async def read(self, data: bytes, asked: PageRequest, user_id: int = 0) -> PageText:
        """The page made readable, for a user. Raises Unavailable where too many are being read."""
        limit = 12 * asked.characters + 500_000
        answer = await self.run("luxx.documents.page_text", data, asked, limit=limit, user_id=user_id)
        if isinstance(answer, Ended):
            return PageText(error=answer)
        try:
            return msgspec.json.decode(answer, type=PageText)
        except msgspec.DecodeError:
            return PageText(error=Ended.MEMORY)

    async def run(
        self, module: str, data: bytes, asked: msgspec.Struct, *, limit: int, user_id: int = 0
    ) -> bytes | Ended:
        """The same process and bounds for another `module` that reads pages.

        Its input is what is `asked`, on a line of its own, and the page: anybody of this machine may read the
        arguments of a process.
        """
        given = msgspec.json.encode(asked) + b"\n" + data
        try:
            async with self._places.of(user_id):
                return await self._run_reader(module, [], given, self._bounds, limit=limit)
        except TimeoutError as error:
            raise Unavailable("too many pages are being read just now; try again") from error
