"""What these tests share: each backend, and a desk with a sandbox behind it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from luxx.infra.config.schema import ToolsConfig
from luxx.tools.sandbox.service import Sandbox
from sandbox.client import OpenSandboxClient, SandboxClient


@pytest.fixture(params=["bubblewrap", "landlock"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def open_sandbox_client(tmp_path: Path) -> OpenSandboxClient:
    """Opens a desk whose sandbox is closed afterwards.

    None for a backend that this host cannot offer, which leaves nothing to test; `test_escapes` tells which
    these are.
    """

    @asynccontextmanager
    async def opened(backend: str = "auto", **more: Any) -> AsyncIterator[SandboxClient | None]:
        config = msgspec.convert({"sandbox": backend, **more}, ToolsConfig)
        sandbox = Sandbox(config, tmp_path / "data", tmp_path / "workspaces")
        await sandbox.open()
        try:
            yield None if sandbox.backend_name == "none" else SandboxClient(sandbox, config, tmp_path)
        finally:
            await sandbox.close()

    return opened
