"""The program tools of a sandbox as a user calls them, and a search for processes by a token."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any

import msgspec

from luxx.infra.config.schema import ToolsConfig
from luxx.tools.builtin.programs import program_tools
from luxx.tools.core import (
    CallPermissions,
    CommandPermission,
    ToolCall,
    ToolCaller,
    ToolContext,
    ToolRegistry,
)
from luxx.tools.executor import ToolExecutor
from luxx.tools.history import Executed
from luxx.tools.sandbox.service import Sandbox


class SandboxClient:
    """Calls the program tools of a sandbox as one user or another."""

    def __init__(self, sandbox: Sandbox, config: ToolsConfig, root_dir: Path) -> None:
        self.sandbox = sandbox
        self.executor = ToolExecutor(ToolRegistry(program_tools(sandbox)), config)
        self.root_dir = root_dir

    def workspace(self, user_id: int = 1) -> Path:
        path = self.root_dir / f"workspaces/{user_id}"
        path.mkdir(parents=True, exist_ok=True)
        return path

    async def call(self, tool: str, user_id: int = 1, level: int = 3, **arguments: Any) -> Executed:
        context = ToolContext(
            caller=ToolCaller(
                user_id=user_id,
                username=f"user{user_id}",
                permission_level=CommandPermission(level),
            ),
            permissions=CallPermissions(workspace=self.workspace(user_id)),
        )
        text = msgspec.json.encode(arguments).decode()
        return await self.executor.execute(ToolCall(call_id="1", name=tool, arguments=text), context)

    async def python(self, code: str, **more: Any) -> Executed:
        return await self.call("python_execute", code=code, **more)

    async def shell(self, command: str, **more: Any) -> Executed:
        return await self.call("shell_execute", command=command, **more)


OpenSandboxClient = Callable[..., AbstractAsyncContextManager[SandboxClient | None]]


def processes_with(token: str) -> list[int]:
    """All processes of the machine that have the token in their command line."""
    pids: list[int] = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            with suppress(OSError):
                if token.encode() in (directory / "cmdline").read_bytes():
                    pids.append(int(directory.name))
    return pids


async def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> float:
    """Waits until the condition is true, and returns the seconds. Fails after the bound."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "the condition never became true"
        await asyncio.sleep(0.005)
    return time.monotonic() - began
