"""Parses the pages of search engines, in a separate process without network access.

DuckDuckGo's page is parsed here, those of other engines by the library `ddgs`, whose engines get another HTTP
client. In the first run it captures the request that the server has to send; in the second run it returns the
page that the server fetched. stdin: a line with the request, the page.
"""

import importlib
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import msgspec
from bs4 import BeautifulSoup, Tag

from luxx.infra.documents.bounds import limit, storable
from luxx.infra.documents.charset import decode
from luxx.tools.web.search_pages import DUCKDUCKGO, SEARCH_URL, EngineRequest, EngineResponse
from luxx.wire.source import Source, source_of

MAX_RESULTS = 50
MAX_PAGE = 500_000
"""Characters of a page that are parsed; DuckDuckGo's pages have some 50,000."""
_RESULT, _ADVERTISEMENT = "result", "result--ad"


def main() -> None:
    request = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineRequest)
    engines: Any = None if request.engine == DUCKDUCKGO else importlib.import_module("ddgs.engines")
    limit(int(sys.argv[1]), int(sys.argv[2]))
    page = sys.stdin.buffer.read()
    response = (
        read_duckduckgo(page) if engines is None else run_engine(engines.ENGINES["text"], request, page)
    )
    sys.stdout.buffer.write(msgspec.json.encode(response))
    sys.stdout.buffer.flush()


# --- engines of the library -------------------------------------------------------------------------


class _RequestCaptured(Exception):
    """Ends a search as soon as the engine sends its request."""


class _Page:
    """The response to the engine's request."""

    def __init__(self, text: str) -> None:
        self.status_code = 200
        self.text = text
        self.content = text.encode()


class _Connection:
    """Replaces the library's HTTP client. Without a `page` it captures the request and ends the search."""

    def __init__(self, page: str | None) -> None:
        self.client = _NullClient()
        self.captured = EngineResponse()
        self._page = page

    def request(self, method: str, url: str, **options: dict[str, str] | None) -> _Page:
        if self._page is not None:
            return _Page(self._page)
        form = _texts(options.get("data")) if method == "POST" else None
        self.captured = EngineResponse(url=url, parameters=_texts(options.get("params")), form=form)
        raise _RequestCaptured


def _texts(fields: dict[str, str] | None) -> dict[str, str]:
    return {str(name): str(value) for name, value in (fields or {}).items()}


class _NullClient:
    """Ignores the cookies and headers that an engine sets."""

    def set_cookies(self, *_ignored: Any) -> None: ...

    def headers_update(self, *_ignored: Any) -> None: ...


def run_engine(engines: dict[str, Any], request: EngineRequest, page: bytes) -> EngineResponse:
    """The request that the server has to send, or the results of the page."""
    engine_class = engines.get(request.engine)
    if engine_class is None:
        return EngineResponse(problem="the ddgs library no longer has this engine")
    engine = engine_class.__new__(engine_class)
    connection = _Connection(storable(decode(page, "utf-8").text) if request.is_answered else None)
    engine.http_client = connection
    try:
        results: list[Any] = engine.search(request.query, region="us-en", safesearch="moderate") or []
    except _RequestCaptured:
        return connection.captured
    except Exception as error:
        return EngineResponse(problem=f"its page cannot be read ({type(error).__name__})")
    sources = [source_of(str(each.href), str(each.title), str(each.body)) for each in results[:MAX_RESULTS]]
    return EngineResponse(sources=sources)


# --- DuckDuckGo -------------------------------------------------------------------------------------


def read_duckduckgo(data: bytes) -> EngineResponse:
    """The results of the page, without advertisements."""
    page = BeautifulSoup(storable(decode(data, "utf-8").text)[:MAX_PAGE], "lxml")
    sources = list(islice(_sources(page), MAX_RESULTS))
    if not sources and page.find(class_="no-results") is None:
        return EngineResponse(problem="it answered with a page without results")
    return EngineResponse(sources=sources)


def _sources(page: BeautifulSoup) -> Iterator[Source]:
    """Begins at the titles: a page may nest thousands of blocks, and each would be searched to its end."""
    read_blocks: set[int] = set()
    for title in page.find_all(class_="result__a"):
        block = title.find_parent("div", class_=_RESULT)
        if block is None or id(block) in read_blocks:
            continue
        read_blocks.add(id(block))
        url = target_of(str(title.get("href", "")))
        if url and _ADVERTISEMENT not in (block.get("class") or ()):
            yield source_of(url, title.get_text(), _text(block.find(class_="result__snippet")))


def _text(element: Tag | None) -> str:
    return "" if element is None else element.get_text()


def target_of(href: str) -> str:
    """The URL of a result, without the engine's redirect; empty for an advertisement or an invalid URL."""
    try:
        parts = urlsplit(urljoin(SEARCH_URL, href.strip()))
    except ValueError:
        return ""
    if (parts.hostname or "").removeprefix("www.").endswith("duckduckgo.com"):
        if parts.path != "/l/":
            return ""
        return next(iter(parse_qs(parts.query).get("uddg", [])), "")
    return parts.geturl() if parts.scheme in ("http", "https") else ""


if __name__ == "__main__":
    main()
