"""shell_execute: a command line in the sandbox."""

import shutil
from typing import Any

from msgspec.structs import replace

from luxx.tools.builtin.programs import (
    TIMEOUT,
    going_of,
    longest,
    network_words,
    risk_of,
    run_and_tell,
    workspace_for,
)
from luxx.tools.core import CommandPermission, Risk, ToolContext, ToolDefinition, ToolResult
from luxx.tools.factory import tool
from luxx.tools.marks import KeepFigures, keep_no_figures
from luxx.tools.sandbox.service import Sandbox

MAX_COMMAND_LENGTH = 30_000
"""In characters: as an argument a command may have 128 KiB."""

NAME = "shell_execute"


def shell_tool(sandbox: Sandbox, keep_figures: KeepFigures = keep_no_figures) -> ToolDefinition:
    """The tool on one server's sandbox."""
    bash = shutil.which("bash", path="/usr/bin:/bin")
    # Nothing in the workspace or in HOME may add to a command that was allowed.
    shell = ("/bin/sh",) if bash is None else (bash, "--noprofile", "--norc")

    @tool(
        name=NAME,
        description=(
            f"Run a shell command in the workspace, in a sandbox{network_words(sandbox)}: the workspace can "
            "be written, the system only read, nothing else is there. Gives exit code, stdout, stderr and "
            "the files that changed. Nothing goes on running afterwards; files stay."
        ),
        parameters={
            "command": {
                "type": "string",
                "minLength": 1,
                "maxLength": MAX_COMMAND_LENGTH,
                "description": "For example: grep -rn milk notes | head",
            },
            "timeout": TIMEOUT,
        },
        required_params=["command"],
        category="code",
        required_permission=CommandPermission.EXECUTE,
        starts_programs=True,
        is_egress=sandbox.way_out.is_wanted or sandbox.is_unprotected,
        risk=risk_of(sandbox, Risk.HIGH),
        timeout=longest(sandbox, NAME),
    )
    async def shell_execute(arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        workspace = workspace_for(context)
        given = sandbox.limits_for(NAME, context.user_permission_level)
        limits = replace(given, seconds=min(arguments.get("timeout", given.seconds), given.seconds))
        argv = (*shell, "-c", arguments["command"])
        going = going_of(sandbox, NAME, context, limits, keep_figures)
        return await run_and_tell(
            going, lambda: sandbox.run_sandboxed(argv, workspace, limits, outing=going.outing)
        )

    return shell_execute.definition
