"""Fixtures: each backend, and a client of a sandbox."""

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
    """Opens a client whose sandbox is closed afterwards.

    Yields None for a backend that this host cannot offer: there is nothing to test. `test_escapes` prints
    which backends these are.
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
