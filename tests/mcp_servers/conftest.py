"""What these tests share: each backend, and servers tried in a loop of their own."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mcp_servers.bench import McpHarness, open_harness

SCENARIO_SECONDS = 100.0

OpenServers = Callable[..., None]


@pytest.fixture(params=["bubblewrap", "landlock"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def open_servers() -> OpenServers:
    """Runs `work(bench)` with these servers configured; nothing where the machine has not this backend."""

    def run(
        servers: list[dict[str, Any]],
        work: Callable[[McpHarness], Awaitable[None]],
        backend: str = "auto",
        **tools: Any,
    ) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(SCENARIO_SECONDS), open_harness(servers, backend, **tools) as harness:
                if harness is not None:
                    await work(harness)

        asyncio.run(bounded())

    return run
