"""The quota for tools that write files: `files.quota_mb` applies to them as it does to uploads.

A hook before each of these tools measures the user's workspace. `disk_mb` in `tools.limits` bounds what a
program writes while it runs.
"""

from collections.abc import Callable
from pathlib import Path

from luxx.domain.files.storage import WorkspaceFiles
from luxx.errors import LuxxError, NotFound, ToolFailed
from luxx.infra.config.schema import FilesConfig
from luxx.tools.hooks import HookedCall, HookPhase, ToolHook

MIB = 1024 * 1024
FILE_TOOLS = ("file_write", "file_edit", "file_multi_edit")
PROGRAM_TOOLS = ("python_execute", "shell_execute")
PROGRAM_QUOTA_FACTOR = 2
"""A program starts up to this multiple of the quota, because it may be needed to delete files."""


def quota_hooks(path_of: Callable[[int], Path], config: FilesConfig) -> list[ToolHook]:
    """Hooks that refuse calls of writing tools if the workspace is full. `path_of` maps a user to a path."""
    quota = int(config.quota_mb * MIB)

    def check_write(call: HookedCall) -> None:
        content = call.arguments.get("content")
        size = len(content.encode("utf-8", "replace")) if isinstance(content, str) else 0
        _check(path_of(call.user_id), size, quota, quota)

    def check_program(call: HookedCall) -> None:
        _check(path_of(call.user_id), 0, PROGRAM_QUOTA_FACTOR * quota, quota)

    checks = [(name, check_write) for name in FILE_TOOLS] + [(name, check_program) for name in PROGRAM_TOOLS]
    return [ToolHook(tools=name, phase=HookPhase.BEFORE, function=check) for name, check in checks]


def _check(workspace: Path, size: int, limit: int, quota: int) -> None:
    """Raises ToolFailed if the workspace would exceed `limit` bytes, or cannot be measured."""
    try:
        used_bytes = WorkspaceFiles(workspace).used_bytes()
    except NotFound:
        return
    except LuxxError as error:
        raise ToolFailed(error.message) from error
    if used_bytes + size > limit:
        raise ToolFailed(
            f"the workspace uses {used_bytes / MIB:.1f} MiB of {quota / MIB:g} MiB (files.quota_mb); "
            "delete files that are no longer needed"
        )
