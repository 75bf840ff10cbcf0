"""All that the web tools share, made once for a server from its configuration."""

from luxx.config import ToolsConfig
from luxx.documents.page import PageProcess
from luxx.documents.pdf import PdfProcess
from luxx.documents.process import RunReader, read_in_process
from luxx.network.fetch import FetchBounds, Fetcher
from luxx.network.guard import WebGuard
from luxx.tools.web.duckduckgo import DuckDuckGo
from luxx.tools.web.library import library_engines
from luxx.tools.web.lookups import Lookups
from luxx.tools.web.reading import WebReader
from luxx.tools.web.search import WebSearch
from luxx.tools.web.visitors import Visitors

SEARCH_SECONDS = 12.0
"""For one engine's answer: there may be others to ask."""


class WebAccess:
    """One per server."""

    def __init__(self, reader: WebReader, search: WebSearch, visitors: Visitors) -> None:
        self.reader = reader
        self.search = search
        self.visitors = visitors


def web_access(config: ToolsConfig, run_reader: RunReader = read_in_process) -> WebAccess:
    """Opens nothing, and starts nothing until a tool is used. Raises ConfigError."""
    guard = WebGuard(config.web_allow_private)
    pages = PageProcess(run_reader)
    searching = Fetcher(guard, FetchBounds(seconds=SEARCH_SECONDS))
    return WebAccess(
        WebReader(Fetcher(guard), pages, PdfProcess(run_reader)),
        WebSearch([DuckDuckGo(searching, pages), *library_engines(searching, pages)]),
        Visitors(Lookups().of),
    )
