"""The web tools with a fake resolver, and sites of this machine that they may or may not reach."""

import asyncio
import json
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
import pytest

from luxx.infra.config.schema import ToolsConfig
from luxx.infra.documents.reader import PageProcess, PdfProcess
from luxx.infra.network.fetch import FetchBounds, Fetcher
from luxx.infra.network.hosts import Resolve, WebGuard
from luxx.tools.builtin.web import WebAccess, web_tools
from luxx.tools.core import CommandPermission, ToolCall, ToolCaller, ToolContext, ToolRegistry
from luxx.tools.executor import ToolExecutor
from luxx.tools.web.clients import WebClients
from luxx.tools.web.reading import WebReader
from luxx.tools.web.search import SearchEngine, WebSearch
from luxx.wire.tool import ToolResult
from web.site import Site, site

RUN_SECONDS = 60.0


class FakeResolver:
    """A resolver: every name is this machine unless set otherwise. `asked` are the names in order."""

    def __init__(self) -> None:
        self.addresses: dict[str, list[str]] = {}
        self.changes: dict[str, list[list[str]]] = {}
        self.asked: list[str] = []

    async def resolve(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        if later := self.changes.get(host):
            return later.pop(0) if len(later) > 1 else later[0]
        return self.addresses.get(host, ["127.0.0.1"])


class WebTools:
    """The three tools behind an executor; `execute` drives one within bounds of time."""

    def __init__(
        self,
        *allowed: str,
        names: FakeResolver | None = None,
        engines: Callable[[Fetcher, PageProcess], Sequence[SearchEngine]] = lambda _fetcher, _pages: [],
        tls: Callable[[], ssl.SSLContext] = httpx.create_ssl_context,
        **bounds: Any,
    ) -> None:
        self.names = names or FakeResolver()
        fetcher = Fetcher(WebGuard(allowed), FetchBounds(**({"seconds": 10.0} | bounds)), tls=tls)
        pages = PageProcess()
        access = WebAccess(
            WebReader(fetcher, pages, PdfProcess()),
            WebSearch(engines(fetcher, pages)),
            WebClients(self._resolve_for),
        )
        self.executor = ToolExecutor(ToolRegistry(web_tools(access)), ToolsConfig())

    def _resolve_for(self, _user_id: int) -> Resolve:
        return self.names.resolve

    async def call(self, name: str, user_id: int = 1, **arguments: Any) -> ToolResult:
        context = ToolContext(
            caller=ToolCaller(user_id=user_id, username="ann", permission_level=CommandPermission.READ_ONLY)
        )
        text = json.dumps(arguments)
        executed = await self.executor.execute(ToolCall(call_id="c", name=name, arguments=text), context)
        return executed.result

    def execute(self, name: str, **arguments: Any) -> ToolResult:
        async def bounded() -> ToolResult:
            async with asyncio.timeout(RUN_SECONDS):
                return await self.call(name, **arguments)

        return asyncio.run(bounded())

    def fetch(self, url: str, **more: Any) -> ToolResult:
        return self.execute("web_fetch", url=url, **more)

    def read(self, url: str, **more: Any) -> dict[str, Any]:
        """The data of a page that can be read."""
        result = self.fetch(url, **more)
        assert result.error is None
        return result.data

    def refusal(self, url: str, **more: Any) -> str:
        """The error for a page that cannot be read."""
        result = self.fetch(url, **more)
        assert not result.success
        assert result.error is not None
        return result.error


@pytest.fixture
def forbidden_site() -> Iterator[Site]:
    """A site of this machine that no tool may reach."""
    with site() as one:
        one.routes["*"] = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nthe secret"
        yield one


@pytest.fixture
def public() -> Iterator[Site]:
    """A site that may be reached as `public.example`, with its port."""
    with site() as one:
        yield one


@pytest.fixture
def listed(public: Site) -> dict[str, Any]:
    """An allow list with `public`, which may be reached although it is on this machine."""
    entry = f"public.example:{public.port}"
    return {"allow": [entry], "private": (entry,)}


@pytest.fixture
def web(public: Site) -> WebTools:
    return WebTools(f"public.example:{public.port}")


@pytest.fixture
def base_url(public: Site) -> str:
    """The address of `public`."""
    return f"http://public.example:{public.port}"
