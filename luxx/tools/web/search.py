"""Searches of the web: engines asked one after the other until one answers, results once each."""

import re
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from luxx.errors import LuxxError, ToolFailed, Unavailable
from luxx.infra.documents.reader import PageProcess, ReadFailure
from luxx.infra.network.fetch import Fetcher, FetchRequest
from luxx.tools.hooks import describe_error
from luxx.tools.web.search_pages import (
    MAX_ANSWER,
    SEARCH_URL,
    EngineRequest,
    EngineResponse,
    NoRequest,
    ResultPage,
)
from luxx.tools.web.visitors import WebClient
from luxx.wire.step import Source, citable

_TRACKING = re.compile(r"utm_\w+|fbclid|gclid|msclkid|mc_[ce]id")


class SearchEngine(Protocol):
    """`name` is what a person calls it."""

    name: str

    async def search(self, query: str, client: WebClient) -> list[Source]:
        """What it finds, best first. Raises LuxxError with the reason where it does not answer."""
        ...


class SearchResults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`sources` are the results, best first."""

    query: str
    engine: str
    sources: list[Source]
    note: str = ""


class WebSearch:
    """One per server. The first engine is asked first; the others only where it fails or finds nothing."""

    def __init__(self, engines: Sequence[SearchEngine]) -> None:
        self.engines = engines

    async def search(self, query: str, max_results: int, client: WebClient) -> SearchResults:
        """At most so many results. Raises ToolFailed where no engine answers."""
        async with client.slot():
            return await self._search(query, max_results, client)

    async def _search(self, query: str, max_results: int, client: WebClient) -> SearchResults:
        problems: list[str] = []
        answering_engine = ""
        for engine in self.engines:
            try:
                sources = unique_sources(await engine.search(query, client))
            except LuxxError as error:
                problems.append(f"{engine.name}: {error.message}")
                continue
            except Exception as error:
                # Whatever one engine's page brings about, there are others.
                problems.append(f"{engine.name}: {describe_error(error)}")
                continue
            if sources:
                return SearchResults(query=query, engine=engine.name, sources=sources[:max_results])
            answering_engine = answering_engine or engine.name
        if answering_engine:
            return SearchResults(query=query, engine=answering_engine, sources=[], note="Nothing was found.")
        raise ToolFailed(f"no search engine answers just now; try later ({'; '.join(problems)})")


def unique_sources(sources: Sequence[Source]) -> list[Source]:
    """Without what is no web address and without repetitions of the same page."""
    unique: dict[str, Source] = {}
    for source in citable(*sources):
        if source.title:
            unique.setdefault(_normalized_url(source.url), source)
    return list(unique.values())


def _normalized_url(url: str) -> str:
    """One spelling for addresses that lead to the same page."""
    parts = urlsplit(url)
    query = [(name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True)
             if not _TRACKING.fullmatch(name)]  # fmt: skip
    host = parts.netloc.lower().removeprefix("www.")
    return f"{host}{parts.path.rstrip('/')}?{urlencode(query)}"


DUCKDUCKGO_READER = "luxx.tools.web.duckduckgo_page"


class DuckDuckGo:
    """One per server."""

    name = "DuckDuckGo"

    def __init__(self, fetcher: Fetcher, pages: PageProcess, url: str = SEARCH_URL) -> None:
        self._fetcher = fetcher
        self._pages = pages
        self._url = url

    async def search(self, query: str, client: WebClient) -> list[Source]:
        """Raises LuxxError where it does not answer, or asks whether a person is there."""
        request = FetchRequest(url=self._url, form={"q": query, "kl": "wt-wt"}, accept="text/html")
        answer = await self._fetcher.fetch(request, client.resolve)
        # 202 is how it answers whom it takes for a robot.
        if answer.status != 200:
            raise Unavailable(f"it answered {answer.status_words}")
        output = await self._pages.run(
            DUCKDUCKGO_READER, answer.body, NoRequest(), limit=MAX_ANSWER, user_id=client.user_id
        )
        page = (
            ResultPage() if isinstance(output, ReadFailure) else msgspec.json.decode(output, type=ResultPage)
        )
        if not page.sources and not page.is_empty:
            raise Unavailable("it answered with a page that holds no results")
        return page.sources


LIBRARY_READER = "luxx.tools.web.library_engine"
ENGINES = ("mojeek", "brave", "yahoo")


class LibraryEngine:
    """One engine of the library."""

    def __init__(self, name: str, fetcher: Fetcher, pages: PageProcess) -> None:
        self.name = name
        self._fetcher = fetcher
        self._pages = pages

    async def search(self, query: str, client: WebClient) -> list[Source]:
        """Raises LuxxError where it does not answer."""
        request = await self._run_engine_process(EngineRequest(engine=self.name, query=query), b"", client)
        url = request.url
        if request.parameters:
            url += f"{'&' if '?' in url else '?'}{urlencode(request.parameters)}"
        answer = await self._fetcher.fetch(
            FetchRequest(url=url, form=request.form, accept="text/html"), client.resolve
        )
        if answer.status != 200:
            raise Unavailable(f"it answered {answer.status_words}")
        question = EngineRequest(engine=self.name, query=query, is_answered=True)
        return (await self._run_engine_process(question, answer.body, client)).sources

    async def _run_engine_process(
        self, question: EngineRequest, page: bytes, client: WebClient
    ) -> EngineResponse:
        output = await self._pages.run(
            LIBRARY_READER, page, question, limit=MAX_ANSWER, user_id=client.user_id
        )
        if isinstance(output, ReadFailure):
            raise Unavailable("its answer cannot be read")
        answer = msgspec.json.decode(output, type=EngineResponse)
        if answer.problem:
            raise Unavailable(answer.problem)
        return answer


def library_engines(fetcher: Fetcher, pages: PageProcess) -> list[LibraryEngine]:
    """The engines that the library knows, in the order they are asked; none where it is not installed."""
    if find_spec("ddgs") is None:
        return []
    return [LibraryEngine(name, fetcher, pages) for name in ENGINES]
