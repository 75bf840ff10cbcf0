"""Parses DuckDuckGo's page of results in a separate process. stdin: a line with the request, the page."""

import sys
from urllib.parse import parse_qs, urljoin, urlsplit

import msgspec

from luxx.infra.documents.bounds import limit, storable
from luxx.infra.documents.charset import decode
from luxx.infra.documents.content import HtmlElement, parse_html
from luxx.tools.web.search_pages import SEARCH_URL, ResultPage
from luxx.wire.step import Source, source_of

MAX_RESULTS = 50


def main() -> None:
    limit(int(sys.argv[1]), int(sys.argv[2]))
    sys.stdin.buffer.readline()
    answer = read(sys.stdin.buffer.read())
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    sys.stdout.buffer.flush()


def read(data: bytes) -> ResultPage:
    """The results of the page, without advertisements."""
    root, _ = parse_html(storable(decode(data, "utf-8").text))
    if root is None:
        return ResultPage()
    sources = [
        source
        for block in root.iter("div")
        if "result" in _classes(block) and "result--ad" not in _classes(block)
        if (source := _source(block)) is not None
    ]
    is_empty = any("no-results" in _classes(element) for element in root.iter("div", "span"))
    return ResultPage(sources=sources[:MAX_RESULTS], is_empty=is_empty)


def _source(block: HtmlElement) -> Source | None:
    title = _first(block, "result__a")
    snippet = _first(block, "result__snippet")
    url = "" if title is None else target_of(title.attrib.get("href", ""))
    if title is None or not url:
        return None
    return source_of(url, title.text_content(), "" if snippet is None else snippet.text_content())


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


def _first(block: HtmlElement, name: str) -> HtmlElement | None:
    return next((element for element in block.iter("a", "div", "span") if name in _classes(element)), None)


def _classes(element: HtmlElement) -> list[str]:
    return element.attrib.get("class", "").split()


if __name__ == "__main__":
    main()
