"""Web search: tries search engines one after the other until one has results; removes duplicates."""

import re
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
from msgspec.structs import replace

from luxx.errors import LuxxError, ToolFailed, Unavailable
from luxx.infra.documents.reader import PageProcess, ReadFailure
from luxx.infra.network.fetch import Fetcher, FetchRequest
from luxx.tools.hooks import describe_error
from luxx.tools.web.clients import WebClient
from luxx.tools.web.search_pages import DUCKDUCKGO, MAX_ANSWER, SEARCH_URL, EngineRequest, EngineResponse
from luxx.wire.source import Source, citable

_TRACKING = re.compile(r"utm_\w+|fbclid|gclid|msclkid|mc_[ce]id")


class SearchEngine(Protocol):
    """`name`: the display name."""

    name: str

    async def search(self, query: str, client: WebClient) -> list[Source]:
        """The results, best first. Raises LuxxError with the reason if the search fails."""
        ...


class WebSearchResults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`sources` are the results, best first."""

    query: str
    engine: str
    sources: list[Source]
    note: str = ""


class WebSearch:
    """One per server. Uses an engine only if those before it fail or find nothing."""

    def __init__(self, engines: Sequence[SearchEngine]) -> None:
        self.engines = engines

    async def search(self, query: str, max_results: int, client: WebClient) -> WebSearchResults:
        """At most `max_results` results. Raises ToolFailed if no engine answers."""
        problems: list[str] = []
        answering_engine = ""
        for engine in self.engines:
            try:
                async with client.slots:
                    sources = unique_sources(await engine.search(query, client))
            except Exception as error:
                # Also an unexpected page of one engine must not stop the search with the others.
                reason = error.message if isinstance(error, LuxxError) else describe_error(error)
                problems.append(f"{engine.name}: {reason}")
                continue
            if sources:
                return WebSearchResults(query=query, engine=engine.name, sources=sources[:max_results])
            answering_engine = answering_engine or engine.name
        if answering_engine:
            note = "Nothing was found."
            return WebSearchResults(query=query, engine=answering_engine, sources=[], note=note)
        raise ToolFailed(f"no search engine answers at the moment; try later ({'; '.join(problems)})")


def unique_sources(sources: Sequence[Source]) -> list[Source]:
    """The sources with a valid URL and a title, each page once."""
    unique: dict[str, Source] = {}
    for source in citable(*sources):
        if source.title:
            unique.setdefault(_normalized_url(source.url), source)
    return list(unique.values())


def _normalized_url(url: str) -> str:
    """A key that is equal for different spellings of the same page's URL."""
    parts = urlsplit(url)
    query = [(name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True)
             if not _TRACKING.fullmatch(name)]  # fmt: skip
    host = parts.netloc.lower().removeprefix("www.")
    return f"{host}{parts.path.rstrip('/')}?{urlencode(query)}"


SEARCH_PROCESS = "luxx.tools.web.search_process"


class _EngineAccess:
    """Fetches the page of a search engine, and has a separate process parse it."""

    def __init__(self, fetcher: Fetcher, pages: PageProcess) -> None:
        self._fetcher = fetcher
        self._pages = pages

    async def results(self, request: FetchRequest, engine: EngineRequest, client: WebClient) -> list[Source]:
        """The results on the page. Raises LuxxError if the engine does not answer."""
        answer = await self._fetcher.fetch(request, client.resolve)
        # DuckDuckGo answers suspected bots with status 202.
        if answer.status != 200:
            raise Unavailable(f"it answered {answer.status_words}")
        return (await self.run(replace(engine, is_answered=True), answer.body, client)).sources

    async def run(self, request: EngineRequest, page: bytes, client: WebClient) -> EngineResponse:
        output = await self._pages.run(
            SEARCH_PROCESS, page, request, limit=MAX_ANSWER, user_id=client.user_id
        )
        if isinstance(output, ReadFailure):
            raise Unavailable("the answer of the search engine cannot be read")
        response = msgspec.json.decode(output, type=EngineResponse)
        if response.problem:
            raise Unavailable(response.problem)
        return response


class DuckDuckGo:
    """Searches with DuckDuckGo's HTML page. One per server."""

    name = DUCKDUCKGO

    def __init__(self, fetcher: Fetcher, pages: PageProcess, url: str = SEARCH_URL) -> None:
        self._access = _EngineAccess(fetcher, pages)
        self._url = url

    async def search(self, query: str, client: WebClient) -> list[Source]:
        """Raises LuxxError if it does not answer or shows a CAPTCHA."""
        request = FetchRequest(url=self._url, form={"q": query, "kl": "wt-wt"}, accept="text/html")
        return await self._access.results(request, EngineRequest(engine=self.name, query=query), client)


ENGINES = ("mojeek", "brave", "yahoo")


class DdgsEngine:
    """One search engine of the library `ddgs`."""

    def __init__(self, name: str, fetcher: Fetcher, pages: PageProcess) -> None:
        self.name = name
        self._access = _EngineAccess(fetcher, pages)

    async def search(self, query: str, client: WebClient) -> list[Source]:
        """Raises LuxxError if it does not answer."""
        engine = EngineRequest(engine=self.name, query=query)
        captured = await self._access.run(engine, b"", client)
        url = captured.url
        if captured.parameters:
            url += f"{'&' if '?' in url else '?'}{urlencode(captured.parameters)}"
        request = FetchRequest(url=url, form=captured.form, accept="text/html")
        return await self._access.results(request, engine, client)


def ddgs_engines(fetcher: Fetcher, pages: PageProcess) -> list[DdgsEngine]:
    """The engines of the library in the order of use; none if the library is not installed."""
    if find_spec("ddgs") is None:
        return []
    return [DdgsEngine(name, fetcher, pages) for name in ENGINES]
