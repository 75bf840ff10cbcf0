"""What these tests share: each backend, and a desk with a sandbox behind it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from luxx.infra.config.schema import ToolsConfig
from luxx.tools.sandbox.service import Sandbox
from sandbox.desk import OpenSandboxClient, SandboxClient

T = TypeVar("T")


@pytest.fixture(params=["bubblewrap", "landlock"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def open_sandbox_client(tmp_path: Path) -> OpenSandboxClient:
    """Runs `work(desk)` in a loop, with a sandbox that is closed afterwards.

    A backend that this host cannot offer leaves nothing to test; `test_escapes` tells which these are.
    """

    def run(work: Callable[[SandboxClient], Awaitable[T]], backend: str = "auto", **more: Any) -> T | None:
        async def at_work() -> T | None:
            config = msgspec.convert({"sandbox": backend, **more}, ToolsConfig)
            sandbox = Sandbox(config, tmp_path / "data", tmp_path / "workspaces")
            await sandbox.open()
            try:
                if sandbox.backend_name == "none":
                    return None
                return await work(SandboxClient(sandbox, config, tmp_path))
            finally:
                await sandbox.close()

        return asyncio.run(at_work())

    return run
