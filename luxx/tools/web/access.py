"""Builds the objects that the web tools share, once per server, from the configuration."""

from luxx.infra.config.schema import ToolsConfig
from luxx.infra.documents.reader import PageProcess, PdfProcess, RunReader, read_in_process
from luxx.infra.network.fetch import FetchBounds, Fetcher
from luxx.infra.network.hosts import WebGuard
from luxx.tools.web.reading import WebReader
from luxx.tools.web.search import DuckDuckGo, WebSearch, ddgs_engines
from luxx.tools.web.visitors import DnsLookups, WebClients

SEARCH_SECONDS = 12.0
"""Timeout per search engine, short because there are other engines to try."""


class WebAccess:
    """One per server."""

    def __init__(self, reader: WebReader, search: WebSearch, clients: WebClients) -> None:
        self.reader = reader
        self.search = search
        self.clients = clients


def web_access(config: ToolsConfig, run_reader: RunReader = read_in_process) -> WebAccess:
    """Opens no connection and starts no process before a tool is used. Raises ConfigError."""
    guard = WebGuard(config.web_allow_private)
    pages = PageProcess(run_reader)
    search_fetcher = Fetcher(guard, FetchBounds(seconds=SEARCH_SECONDS))
    return WebAccess(
        WebReader(Fetcher(guard), pages, PdfProcess(run_reader)),
        WebSearch([DuckDuckGo(search_fetcher, pages), *ddgs_engines(search_fetcher, pages)]),
        WebClients(DnsLookups().for_user),
    )
