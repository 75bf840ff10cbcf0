"""Cached results of tools that a user clears at one of two servers are gone at the other."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from api.server_process import ServerProcess
from store.databases import new_database

from scenarios.client import AsyncApiClient
from scenarios.tool_controller import CONTROLLED_TOOLS, ToolController

SOON_SECONDS = 20.0

pytestmark = pytest.mark.heavy


@pytest.fixture
def two_servers(tmp_path: Path, postgresql: str) -> Iterator[list[ServerProcess]]:
    environment = {
        "LUXX_DATABASE__URL": new_database(postgresql, tmp_path.name),
        "LUXX_APP__SECRET_KEY": "a secret that all servers of one database share, long enough",
        "LUXX_WORKSPACE__ROOT": str(tmp_path / "workspaces"),
    }
    with ExitStack() as stack:
        yield [
            stack.enter_context(ServerProcess(tmp_path / name, **CONTROLLED_TOOLS, **environment))
            for name in ("a", "b")
        ]


async def test_clearing_the_cache_at_one_server_clears_it_at_the_other(
    two_servers: list[ServerProcess],
) -> None:
    first, second = two_servers
    async with (
        ToolController(answers=True) as controller,
        AsyncApiClient(first.url) as ann_at_first,
        AsyncApiClient(second.url) as ann_at_second,
    ):
        arguments = {"arguments": {"port": controller.port, "key": "once"}}

        async def visit() -> int:
            await ann_at_second.post("/tools/visit_again/execute", arguments)
            return len(controller.visits)

        assert [await visit(), await visit()] == [1, 1]
        response = await ann_at_first.ask("DELETE", "/tools/cache")
        assert response.json()["data"] == {"cleared": 0}
        async with asyncio.timeout(SOON_SECONDS):
            while await visit() == 1:  # noqa: ASYNC110 - asked over HTTP
                await asyncio.sleep(0.05)
