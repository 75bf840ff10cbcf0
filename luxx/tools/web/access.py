"""All that the web tools share, made once for a server from its configuration."""

from collections.abc import Callable

from luxx.config import ToolsConfig
from luxx.documents.page import PageProcess
from luxx.documents.pdf import PdfProcess
from luxx.network.fetch import FetchBounds, Fetcher
from luxx.network.guard import Resolve, WebGuard
from luxx.tools.web.duckduckgo import DuckDuckGo
from luxx.tools.web.library import library_engines
from luxx.tools.web.lookups import Lookups
from luxx.tools.web.reading import WebReader
from luxx.tools.web.search import WebSearch

SEARCH_SECONDS = 12.0
"""For one engine's answer: there may be others to ask."""


class WebAccess:
    """`resolve_for` gives the lookup of names for a user."""

    def __init__(self, reader: WebReader, search: WebSearch, resolve_for: Callable[[int], Resolve]) -> None:
        self.reader = reader
        self.search = search
        self.resolve_for = resolve_for


def web_access(config: ToolsConfig) -> WebAccess:
    """Opens nothing, and starts nothing until a tool is used. Raises ConfigError."""
    guard = WebGuard(config.web_allow_private)
    pages = PageProcess()
    searching = Fetcher(guard, FetchBounds(seconds=SEARCH_SECONDS))
    return WebAccess(
        WebReader(Fetcher(guard), pages, PdfProcess()),
        WebSearch([DuckDuckGo(searching, pages), *library_engines(searching, pages)]),
        Lookups().of,
    )
