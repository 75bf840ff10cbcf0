"""Fixtures: a workspace, a context for a user, and an executor of given tools."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from luxx.infra.config.schema import ToolsConfig
from luxx.tools.builtin import builtin_tools
from luxx.tools.core import (
    CallActions,
    CallPermissions,
    CommandPermission,
    ToolCall,
    ToolCaller,
    ToolContext,
    ToolRegistry,
)
from luxx.tools.executor import ToolExecutor

CallMaker = Callable[..., ToolCall]
ContextMaker = Callable[..., ToolContext]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


@pytest.fixture
def context_of(workspace: Path) -> ContextMaker:
    def make(level: int = 4, user_id: int = 1, **more: Any) -> ToolContext:
        def given(part: type[msgspec.Struct]) -> dict[str, Any]:
            return {name: more.pop(name) for name in part.__struct_fields__ if name in more}

        caller = {
            "user_id": user_id,
            "username": f"user{user_id}",
            "permission_level": CommandPermission(level),
        }
        context = ToolContext(
            caller=ToolCaller(**caller | given(ToolCaller)),
            permissions=CallPermissions(**{"workspace": workspace} | given(CallPermissions)),
            actions=CallActions(**given(CallActions)),
        )
        assert not more, f"no part of a context has the fields {sorted(more)}"
        return context

    return make


@pytest.fixture
def call() -> CallMaker:
    def make(name: str, arguments: dict[str, Any] | str | None = None, call_id: str = "call-1") -> ToolCall:
        text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments or {}).decode()
        return ToolCall(call_id=call_id, name=name, arguments=text)

    return make


@pytest.fixture
def builtin_executor() -> ToolExecutor:
    return ToolExecutor(ToolRegistry(builtin_tools()), ToolsConfig())
