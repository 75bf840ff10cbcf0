"""The web tools with a fake resolver, and sites of this machine that they may or may not reach."""

import asyncio
import json
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
import pytest

from luxx.infra.config.schema import ToolsConfig
from luxx.infra.documents.reader import DocumentProcess, PageProcess
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
    """Resolves every name to this machine, unless `addresses` or `changes` has other addresses for it.

    `changes` has the addresses of the first, second, ... time; the last ones stay.
    """

    def __init__(self) -> None:
        self.addresses: dict[str, list[str]] = {}
        self.changes: dict[str, list[list[str]]] = {}
        self.resolved_hosts: list[str] = []

    async def resolve(self, host: str, port: int) -> list[str]:
        self.resolved_hosts.append(host)
        if later := self.changes.get(host):
            return later.pop(0) if len(later) > 1 else later[0]
        return self.addresses.get(host, ["127.0.0.1"])


class WebTools:
    """The three web tools behind an executor; `execute` runs one of them and fails after RUN_SECONDS."""

    def __init__(
        self,
        *allowed: str,
        resolver: FakeResolver | None = None,
        engines: Callable[[Fetcher, PageProcess], Sequence[SearchEngine]] = lambda _fetcher, _pages: [],
        tls: Callable[[], ssl.SSLContext] = httpx.create_ssl_context,
        **bounds: Any,
    ) -> None:
        self.resolver = resolver or FakeResolver()
        fetcher = Fetcher(WebGuard(allowed), FetchBounds(**({"seconds": 10.0} | bounds)), tls=tls)
        pages = PageProcess()
        access = WebAccess(
            WebReader(fetcher, pages, DocumentProcess()),
            WebSearch(engines(fetcher, pages)),
            WebClients(self._resolve_for),
        )
        self.executor = ToolExecutor(ToolRegistry(web_tools(access)), ToolsConfig())

    def _resolve_for(self, _user_id: int) -> Resolve:
        return self.resolver.resolve

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
    with site() as forbidden:
        forbidden.routes["*"] = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nthe secret"
        yield forbidden


@pytest.fixture
def public_site() -> Iterator[Site]:
    """A site that may be reached as `public.example`, with its port."""
    with site() as reachable:
        yield reachable


@pytest.fixture
def allow_list(public_site: Site) -> dict[str, Any]:
    """Arguments of `run_with_proxy` that allow `public_site`, although it is on this machine."""
    entry = f"public.example:{public_site.port}"
    return {"allow": [entry], "allow_private": (entry,)}


@pytest.fixture
def web(public_site: Site) -> WebTools:
    return WebTools(f"public.example:{public_site.port}")


@pytest.fixture
def base_url(public_site: Site) -> str:
    """The address of `public_site`."""
    return f"http://public.example:{public_site.port}"
