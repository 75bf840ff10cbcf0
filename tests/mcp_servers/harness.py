"""Runs MCP servers in a sandbox behind an executor, and shows what a user of a tenant gets from them."""

import asyncio
import atexit
import importlib.util
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import mcp_types
import msgspec

from luxx.domain.mcp.approval import Withheld
from luxx.domain.mcp.server import ServerState
from luxx.domain.mcp.service import McpServers, McpStatus
from luxx.infra.config.schema import Config
from luxx.tools.core import (
    CommandPermission,
    ToolCall,
    ToolCaller,
    ToolContext,
    ToolDefinition,
    ToolRegistry,
    ToolSet,
)
from luxx.tools.executor import ToolExecutor
from luxx.tools.history import Executed
from luxx.tools.sandbox.service import Sandbox

SAMPLES = Path(__file__).parent / "samples"
WAIT_SECONDS = 30.0
TENANTS = {"default": 1, "other": 2}
SDK_PACKAGES = frozenset(
    {
        "_cffi_backend", "annotated_types", "anyio", "attr", "attrs", "click", "cryptography", "h11",
        "httpcore2", "httpx2", "idna", "jsonschema", "jsonschema_specifications", "jwt", "mcp", "mcp_types",
        "opentelemetry", "opentelemetry_api", "pydantic", "pydantic_core", "python_multipart", "referencing",
        "rpds", "sniffio", "sse_starlette", "starlette", "typing_extensions", "typing_inspection", "uvicorn",
    }
)  # fmt: skip


@cache
def sdk_packages() -> Path:
    """The packages of the official SDK in the place where `luxx packages` installs them."""
    folder = Path(tempfile.mkdtemp(prefix="luxx-mcp-packages-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)
    for name in sorted(SDK_PACKAGES):
        module_spec = importlib.util.find_spec(name)
        if module_spec is None:
            continue
        locations = list(module_spec.submodule_search_locations or ())
        if locations:
            shutil.copytree(locations[0], folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif module_spec.origin is not None:
            shutil.copy(module_spec.origin, folder)
    for dist_info in Path(str(mcp_types.__file__)).parents[1].glob("*.dist-info"):
        if dist_info.name.partition("-")[0] in SDK_PACKAGES:
            shutil.copytree(dist_info, folder / dist_info.name)
    return folder


class McpHarness:
    """Starts the configured servers. Programs of the sandbox can read `root_dir`, as an operator has to
    ensure."""

    def __init__(self, root_dir: Path, config: Config, sandbox: Sandbox) -> None:
        self.root_dir = root_dir
        self.sandbox = sandbox
        self.executor = ToolExecutor(
            ToolRegistry(), config.tools, is_sandboxed=lambda: sandbox.backend_name != "none"
        )

        async def tenants() -> Mapping[str, int]:
            return TENANTS

        async def compare_and_record(*_: object) -> dict[str, Withheld]:
            return {}

        self.servers = McpServers(config, sandbox, tenants, compare_and_record)

    @property
    def tools(self) -> ToolSet:
        """The tools of the tenant `default`."""
        return self.servers.tools_for(TENANTS["default"])

    def workspace(self, name: str = "notes") -> Path:
        return self.root_dir / "workspaces/mcp" / f"default_{name}"

    def tool(self, name: str, server: str = "notes") -> ToolDefinition:
        found = self.tools.lookup(f"mcp__default_{server}__{name}")
        assert found is not None, [tool.name for tool in self.tools.list_all()]
        return found[0]

    async def wait_for_state(self, state: ServerState, server: int = 0) -> McpStatus:
        """The status of the server with this index, as soon as it has this state."""
        return await until(lambda: self.servers.statuses[server], lambda status: status.state == state)

    async def call(
        self, tool: str, server: str = "notes", tenant_id: int = 1, level: int = 3, **arguments: Any
    ) -> Executed:
        context = ToolContext(
            caller=ToolCaller(
                user_id=1,
                username="ann",
                permission_level=CommandPermission(level),
                tenant_id=tenant_id,
                tools=self.servers.tools_for(tenant_id),
            )
        )
        text = msgspec.json.encode(arguments).decode()
        call = ToolCall(call_id="1", name=f"mcp__default_{server}__{tool}", arguments=text)
        return await self.executor.execute(call, context)


@asynccontextmanager
async def open_harness(
    servers: list[dict[str, Any]], backend: str = "auto", **tools: Any
) -> AsyncIterator[McpHarness | None]:
    """A harness with these servers; None if this machine does not offer the backend."""
    with tempfile.TemporaryDirectory(prefix="luxx-mcp-") as name:
        root_dir = Path(name)
        os.chmod(root_dir, 0o755)
        (root_dir / "data").mkdir(mode=0o755)
        (root_dir / "workspaces").mkdir(mode=0o755)
        (root_dir / "data/packages").symlink_to(sdk_packages())
        settings = {
            "tools": {"sandbox": backend, **tools},
            "workspace": {"root": str(root_dir / "workspaces")},
            "mcp": {"servers": servers},
        }
        config = msgspec.convert(settings, Config)
        sandbox = Sandbox(config.tools, root_dir / "data", root_dir / "workspaces")
        await sandbox.open()
        if sandbox.backend_name == "none" and not sandbox.is_unprotected and backend != "auto":
            yield None
            return
        harness = McpHarness(root_dir, config, sandbox)
        harness.servers.open()
        try:
            yield harness
        finally:
            await harness.servers.close()
            await sandbox.close()


async def until(look: Any, is_it: Any) -> Any:
    """The result of `look` when `is_it` accepts it."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_it(result := look()):
        assert time.monotonic() < deadline, result
        await asyncio.sleep(0.02)
    return result


def script(name: str, text: str, **more: Any) -> dict[str, Any]:
    """A configured server that is a short Python script without dependencies."""
    return {"name": name, "command": ["python3", "-I", "-S", "-u", "-c", text], **more}


def sample_server(name: str, file: str, **more: Any) -> dict[str, Any]:
    """A configured server that is a file of `samples`."""
    return {
        "name": name,
        "command": ["python3", str(readable(file))],
        "reads": [str(readable(file).parent)],
        **more,
    }


@cache
def readable(file: str) -> Path:
    """A copy that every user of the machine may read."""
    folder = Path(tempfile.mkdtemp(prefix="luxx-mcp-sample-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)
    copied = folder / file
    shutil.copy(SAMPLES / file, copied)
    copied.chmod(0o644)
    return copied


def processes_in(workspace: Path) -> list[int]:
    """The processes whose working directory it is, also inside a sandbox."""
    expected = workspace.stat()
    pids: list[int] = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            with suppress(OSError):
                # In a sandbox the path differs, the device and the inode do not.
                actual = os.stat(directory / "cwd")
                if (actual.st_dev, actual.st_ino) == (expected.st_dev, expected.st_ino):
                    pids.append(int(directory.name))
    return pids
