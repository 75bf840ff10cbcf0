"""What these tests share: each backend, and servers tried in a loop of their own."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mcp_servers.bench import Bench, bench

TRY_SECONDS = 100.0

TryServers = Callable[..., None]


@pytest.fixture(params=["bubblewrap", "landlock"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def try_servers() -> TryServers:
    """Runs `work(bench)` with these servers configured; nothing where the machine has not this backend."""

    def run(
        servers: list[dict[str, Any]],
        work: Callable[[Bench], Awaitable[None]],
        backend: str = "auto",
        **tools: Any,
    ) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(TRY_SECONDS), bench(servers, backend, **tools) as place:
                if place is not None:
                    await work(place)

        asyncio.run(bounded())

    return run
