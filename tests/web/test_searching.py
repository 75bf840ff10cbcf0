"""Searches: saved result pages are parsed, duplicates removed, and another engine is used if one fails."""

import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from luxx.errors import Unavailable
from luxx.infra.config.schema import ToolsConfig
from luxx.infra.documents.reader import PageProcess
from luxx.infra.network.fetch import Fetcher
from luxx.tools.builtin.web import web_access
from luxx.tools.web.clients import WebClient
from luxx.tools.web.search import ENGINES, DdgsEngine, DuckDuckGo
from luxx.tools.web.search_pages import EngineRequest
from luxx.tools.web.search_process import run_engine
from luxx.wire.source import Source, source_of
from web.conftest import WebTools
from web.site import Site, page

SAVED_PAGES = Path(__file__).parent / "saved"


def read_saved_page(name: str) -> str:
    return (SAVED_PAGES / name).read_text("utf-8")


class FixedEngine:
    """An engine that returns the given sources, or fails with `problem`. `queries` are those that it got."""

    def __init__(self, name: str, *sources: Source, problem: str = "") -> None:
        self.name = name
        self.queries: list[str] = []
        self._sources = list(sources)
        self._problem = problem

    async def search(self, query: str, client: WebClient) -> list[Source]:
        self.queries.append(query)
        if self._problem:
            raise Unavailable(self._problem)
        return self._sources


def web_with_engines(*engines: FixedEngine) -> WebTools:
    return WebTools(engines=lambda _fetcher, _pages: engines)


@pytest.fixture
def local_duckduckgo(public_site: Site) -> WebTools:
    """Web tools whose search engine is DuckDuckGo, with `public_site` for its server."""
    url = f"http://public.example:{public_site.port}/html/"
    return WebTools(
        f"public.example:{public_site.port}", engines=lambda fetcher, pages: [DuckDuckGo(fetcher, pages, url)]
    )


def test_the_results_of_a_saved_page_are_read(local_duckduckgo: WebTools, public_site: Site) -> None:
    public_site.routes["/html/"] = page(read_saved_page("duckduckgo.html"))
    result = local_duckduckgo.execute("web_search", query="  why does\nbread rise ")
    assert result.error is None
    assert result.data == {
        "query": "why does bread rise",
        "engine": "DuckDuckGo",
        "sources": [
            {
                "url": "https://www.breadblog.example/why-rises?x=1&y=2",
                "title": "Why bread rises: yeast & time - The Bread Blog",
                "domain": "breadblog.example",
                "snippet": "Bread rises because yeast feeds on sugar and gives off gas…",
            },
            {
                "url": "https://de.wikipedia.example/wiki/B%C3%A4ckerhefe",
                "title": "Bäckerhefe – Wikipedia",
                "domain": "de.wikipedia.example",
                "snippet": "Die Bäckerhefe ist ein Pilz.",
            },
            {
                "url": "https://science.example/yeast.pdf",
                "title": "[PDF] The science of yeast",
                "domain": "science.example",
                "snippet": "",
            },
        ],
    }
    (head,) = public_site.heads
    assert head.startswith("POST /html/ ")
    assert parse_qs(head.partition("\r\n\r\n")[2])["q"] == ["why does bread rise"]


def test_no_more_results_are_given_than_were_asked_for(local_duckduckgo: WebTools, public_site: Site) -> None:
    public_site.routes["/html/"] = page(read_saved_page("duckduckgo.html"))
    result = local_duckduckgo.execute("web_search", query="bread", max_results=2)
    assert len(result.data["sources"]) == 2


def test_results_below_many_open_elements_are_read(local_duckduckgo: WebTools, public_site: Site) -> None:
    public_site.routes["/html/"] = page("<font>" * 3000 + read_saved_page("duckduckgo.html"))
    result = local_duckduckgo.execute("web_search", query="bread")
    assert [source["domain"] for source in result.data["sources"]] == [
        "breadblog.example",
        "de.wikipedia.example",
        "science.example",
    ]


def test_a_search_without_results_is_an_answer(local_duckduckgo: WebTools, public_site: Site) -> None:
    public_site.routes["/html/"] = page(read_saved_page("duckduckgo_none.html"))
    result = local_duckduckgo.execute("web_search", query="qwzxv")
    assert (result.success, result.data["sources"], result.data["note"]) == (True, [], "Nothing was found.")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            page(read_saved_page("duckduckgo_challenge.html"), status="202 Accepted"),
            "it answered 202 Accepted",
        ),
        (page(read_saved_page("duckduckgo_challenge.html")), "a page without results"),
        (page("", status="200 OK"), "a page without results"),
        (page("<div class='result'>" * 200_000), "a page without results"),
        (page("<b>" * 600_000), "a page without results"),
        (page("&amp;<br>" * 200_000), "a page without results"),
        (page("busy", status="503 Busy"), "it answered 503 Service Unavailable"),
        (b"", "sent no valid HTTP response"),
    ],
)
def test_an_engine_that_does_not_answer_is_reported_in_a_sentence(
    local_duckduckgo: WebTools, public_site: Site, answer: bytes, words: str
) -> None:
    public_site.routes["/html/"] = answer
    result = local_duckduckgo.execute("web_search", query="bread")
    assert result.success is False
    assert (result.error or "").startswith("no search engine answers at the moment; try later (DuckDuckGo: ")
    assert words in (result.error or "")


def test_the_next_engine_is_asked_where_one_fails_or_finds_nothing() -> None:
    failing, empty = FixedEngine("a", problem="it is tired"), FixedEngine("b")
    good, unused = FixedEngine("c", source_of("https://x.example/", "X", "")), FixedEngine("d")
    result = web_with_engines(failing, empty, good, unused).execute("web_search", query="x")
    assert (result.data["engine"], [source["url"] for source in result.data["sources"]]) == (
        "c",
        ["https://x.example/"],
    )
    assert [len(engine.queries) for engine in (failing, empty, good, unused)] == [1, 1, 1, 0]
    no_sources = web_with_engines(failing, empty).execute("web_search", query="x")
    assert (no_sources.success, no_sources.data["engine"]) == (True, "b")


def test_a_page_appears_once_and_invalid_addresses_are_left_out() -> None:
    engine = FixedEngine(
        "a",
        source_of("https://www.x.example/a/?utm_source=b", "A", "first"),
        source_of("http://x.example/a", "A again", "second"),
        source_of("https://x.example/a?page=2", "A, page 2", ""),
        source_of("ftp://x.example/a", "no page", ""),
        source_of("javascript:alert(1)", "no page", ""),
        source_of("https://x.example/untitled", "", ""),
        source_of("https://[", "no address", ""),
    )
    sources = web_with_engines(engine).execute("web_search", query="x").data["sources"]
    assert [source["title"] for source in sources] == ["A", "A, page 2"]


def test_a_search_made_before_is_answered_from_the_cache() -> None:
    engine = FixedEngine("a", source_of("https://x.example/", "X", ""))
    web = web_with_engines(engine)
    assert web.execute("web_search", query="x") == web.execute("web_search", query="x")
    assert engine.queries == ["x"]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"query": ""},
        {"query": "x" * 401},
        {"query": "x", "max_results": 0},
        {"query": "x", "max_results": 21},
    ],
)
def test_a_search_out_of_bounds_is_not_run(arguments: dict[str, object]) -> None:
    engine = FixedEngine("a")
    assert "was not run" in (web_with_engines(engine).execute("web_search", **arguments).error or "")
    assert web_with_engines(engine).execute("web_search", query=" \n ").error == (
        "the query is empty; write what to search for"
    )
    assert engine.queries == []


def test_the_engine_is_requested_through_the_guarded_transport() -> None:
    # The fake resolver resolves each name to this machine, which the guard refuses.
    result = WebTools(engines=lambda fetcher, pages: [DuckDuckGo(fetcher, pages)]).execute(
        "web_search", query="x"
    )
    assert "html.duckduckgo.com:443 is not on the public internet" in (result.error or "")


def test_the_library_opens_no_connection_of_its_own() -> None:
    def engines(fetcher: Fetcher, pages: PageProcess) -> list[DdgsEngine]:
        return [DdgsEngine("mojeek", fetcher, pages)]

    # As above: the guard refuses the request that the library would send itself.
    result = WebTools(engines=engines).execute("web_search", query="why does bread rise")
    assert "www.mojeek.com:443 is not on the public internet" in (result.error or "")


def library_engines() -> Any:
    """The text engines of `ddgs` by name."""
    return importlib.import_module("ddgs.engines").ENGINES["text"]


@pytest.mark.parametrize("name", ENGINES)
def test_the_library_has_the_engines_that_are_used(name: str) -> None:
    request = run_engine(library_engines(), EngineRequest(engine=name, query="why bread"), b"")
    assert request.problem == ""
    assert request.url.startswith("https://")
    assert "why bread" in (request.parameters | (request.form or {})).values()


def test_results_parsed_by_the_library_are_used() -> None:
    request = EngineRequest(engine="mojeek", query="x", is_answered=True)
    answer = run_engine(library_engines(), request, read_saved_page("mojeek.html").encode())
    assert [(source.url, source.title, source.snippet) for source in answer.sources] == [
        (
            "https://www.breadblog.example/why-rises",
            "Why bread rises",
            "Yeast feeds on sugar and gives off gas.",
        ),
        ("https://science.example/yeast", "Yeast", "A small mushroom."),
    ]


def test_an_engine_that_the_library_removed_is_skipped() -> None:
    assert run_engine({}, EngineRequest(engine="gone", query="x"), b"").problem


def test_the_engines_are_duckduckgo_and_those_of_the_library_if_installed() -> None:
    access = web_access(ToolsConfig())
    names = [engine.name for engine in access.search.engines]
    assert names == ["DuckDuckGo", *(ENGINES if find_spec("ddgs") else ())]
