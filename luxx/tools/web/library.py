"""Other search engines, whose pages the library `ddgs` knows: it says what to ask and reads the answer.

It does both in a process of its own, and never opens a connection: what it wants to send goes through
the guarded transport. Installed by the extra `search`; without it there are no such engines.
"""

from importlib.util import find_spec
from urllib.parse import urlencode

import msgspec

from luxx.documents.page import PageProcess
from luxx.documents.process import Ended
from luxx.errors import Unavailable
from luxx.network.fetch import Fetcher, FetchRequest
from luxx.tools.web.search_pages import MAX_ANSWER, EngineAnswer, EngineQuestion
from luxx.tools.web.visitors import Visitor
from luxx.wire.source import Source

READER = "luxx.tools.web.library_engine"
ENGINES = ("mojeek", "brave", "yahoo")


class LibraryEngine:
    """One engine of the library."""

    def __init__(self, name: str, fetcher: Fetcher, pages: PageProcess) -> None:
        self.name = name
        self._fetcher = fetcher
        self._pages = pages

    async def search(self, query: str, visitor: Visitor) -> list[Source]:
        """Raises LuxxError where it does not answer."""
        wanted = await self._ask(EngineQuestion(engine=self.name, query=query), b"", visitor)
        url = wanted.url
        if wanted.parameters:
            url += f"{'&' if '?' in url else '?'}{urlencode(wanted.parameters)}"
        answer = await self._fetcher.fetch(
            FetchRequest(url=url, form=wanted.form, accept="text/html"), visitor.resolve
        )
        if answer.status != 200:
            raise Unavailable(f"it answered {answer.status_words}")
        question = EngineQuestion(engine=self.name, query=query, is_answered=True)
        return (await self._ask(question, answer.body, visitor)).sources

    async def _ask(self, question: EngineQuestion, page: bytes, visitor: Visitor) -> EngineAnswer:
        told = await self._pages.run(READER, page, question, limit=MAX_ANSWER, user_id=visitor.user_id)
        if isinstance(told, Ended):
            raise Unavailable("its answer cannot be read")
        answer = msgspec.json.decode(told, type=EngineAnswer)
        if answer.problem:
            raise Unavailable(answer.problem)
        return answer


def library_engines(fetcher: Fetcher, pages: PageProcess) -> list[LibraryEngine]:
    """The engines that the library knows, in the order they are asked; none where it is not installed."""
    if find_spec("ddgs") is None:
        return []
    return [LibraryEngine(name, fetcher, pages) for name in ENGINES]
