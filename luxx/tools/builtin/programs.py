"""What python_execute and shell_execute share: a call's limits, and the answer about a program."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from luxx.errors import ToolFailed
from luxx.tools.core import ToolContext, ToolResult
from luxx.tools.sandbox.changes import Changes, changes_between, look
from luxx.tools.sandbox.inside import FIGURES
from luxx.tools.sandbox.jail import Hit, Ran
from luxx.tools.sandbox.limits import Limits
from luxx.tools.sandbox.service import Sandbox
from luxx.wire.tool import CommandPermission, Risk

MOST_SECONDS = 3600
TIMEOUT: dict[str, Any] = {
    "type": "integer",
    "minimum": 1,
    "maximum": MOST_SECONDS,
    "description": "Seconds after which it is ended; at most what your level allows",
}
QUEUE_SECONDS = 60
"""How long a call may wait for its turn on top of what its program may take."""
_MOST_ERROR = 300


def longest(sandbox: Sandbox, tool: str) -> float:
    """Seconds that no call of the tool takes, whoever makes it."""
    return max(sandbox.limits_for(tool, level).seconds for level in CommandPermission) + QUEUE_SECONDS


def risk_of(sandbox: Sandbox, held_in: Risk) -> Risk:
    """What runs unprotected is always asked about."""
    return Risk.HIGH if sandbox.is_unprotected else held_in


def workspace_for(context: ToolContext) -> Path:
    if context.workspace is None:
        raise ToolFailed("there is no workspace here, so no program can be run")
    return context.workspace


async def run_and_tell(workspace: Path, limits: Limits, run: Callable[[], Awaitable[Ran]]) -> ToolResult:
    """The answer of a program: how it ended, what it printed, which files are different now."""
    before = await asyncio.to_thread(look, workspace)
    ran = await run()
    changes = changes_between(before, await asyncio.to_thread(look, workspace))
    data: dict[str, Any] = {
        "exit_code": ran.exit_code,
        "stdout": ran.stdout.decode("utf-8", "replace"),
        "stderr": ran.stderr.decode("utf-8", "replace"),
        "truncated": ran.is_truncated,
        "limit": ran.hit,
        "duration_ms": round(ran.seconds * 1000),
        "files": changes,
        "figures": _figures(changes),
    }
    if ran.exit_code == 0 and ran.hit is None:
        return ToolResult.ok(data)
    return ToolResult(success=False, data=data, error=why_ended(ran, limits))


def _figures(changes: Changes) -> list[str]:
    return [name for name in changes.created if name.startswith(f"{FIGURES}/figure-")]


def why_ended(ran: Ran, limits: Limits) -> str:
    """A sentence on a program that did not end well."""
    match ran.hit:
        case Hit.TIME:
            return f"the program was ended: it took longer than {limits.seconds:g} seconds"
        case Hit.CPU:
            return (
                f"the program was ended: it used more than {limits.cpu_seconds:g} seconds of processor time"
            )
        case Hit.MEMORY:
            return f"the program was ended: it used more than {limits.memory_mb} MiB of memory"
        case Hit.PROCESSES:
            return f"the program was ended: it had more than {limits.processes} processes and threads"
        case Hit.FILE:
            return f"the program was ended: it wrote a file of more than {limits.file_mb} MiB"
        case Hit.DISK:
            return f"the program was ended: it wrote more than {limits.disk_mb} MiB"
        case Hit.OUTPUT:
            return f"the program was ended: it printed far more than {limits.output_kb} KiB"
        case None:
            return _exit(ran)


def _exit(ran: Ran) -> str:
    said = ran.stderr.decode("utf-8", "replace").strip().splitlines()
    number = -ran.exit_code if ran.exit_code < 0 else ran.exit_code - 128
    if number in {int(one) for one in signal.Signals}:
        words = f"the program was ended by {signal.Signals(number).name}"
    else:
        words = f"the program ended with exit code {ran.exit_code}"
    return f"{words}: {said[-1][:_MOST_ERROR]}" if said else words
