"""DuckDuckGo's page for browsers without scripts: asked here, read in a process by `duckduckgo_page.py`."""

import msgspec

from luxx.documents.page import PageProcess
from luxx.documents.process import Ended
from luxx.errors import Unavailable
from luxx.network.fetch import Fetcher, FetchRequest
from luxx.tools.web.search_pages import MAX_ANSWER, SEARCH_URL, NoQuestion, ResultPage
from luxx.tools.web.visitors import Visitor
from luxx.wire.source import Source

READER = "luxx.tools.web.duckduckgo_page"


class DuckDuckGo:
    """One per server."""

    name = "DuckDuckGo"

    def __init__(self, fetcher: Fetcher, pages: PageProcess, url: str = SEARCH_URL) -> None:
        self._fetcher = fetcher
        self._pages = pages
        self._url = url

    async def search(self, query: str, visitor: Visitor) -> list[Source]:
        """Raises LuxxError where it does not answer, or asks whether a person is there."""
        asked = FetchRequest(url=self._url, form={"q": query, "kl": "wt-wt"}, accept="text/html")
        answer = await self._fetcher.fetch(asked, visitor.resolve)
        # 202 is how it answers whom it takes for a robot.
        if answer.status != 200:
            raise Unavailable(f"it answered {answer.status_words}")
        told = await self._pages.run(
            READER, answer.body, NoQuestion(), limit=MAX_ANSWER, user_id=visitor.user_id
        )
        page = ResultPage() if isinstance(told, Ended) else msgspec.json.decode(told, type=ResultPage)
        if not page.sources and not page.is_empty:
            raise Unavailable("it answered with a page that holds no results")
        return page.sources
