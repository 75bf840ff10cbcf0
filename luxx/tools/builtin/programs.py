"""What python_execute and shell_execute share: a call's limits, and the answer about a program."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from luxx.errors import ToolFailed
from luxx.network.outing import Outing, Reached, Refused, Traveller
from luxx.tools.core import ToolContext, ToolResult
from luxx.tools.marks import KeepFigures
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
_MOST_SHOWN = 20
"""Hosts that a description names."""


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


def network_words(sandbox: Sandbox) -> str:
    """What a model is told of the network of its programs, after the words "in a sandbox"."""
    hosts = sandbox.way_out.hosts
    if not hosts:
        return " without network"
    shown = ", ".join(hosts[:_MOST_SHOWN]) + (", …" if len(hosts) > _MOST_SHOWN else "")
    return f" (network: only HTTP and HTTPS to {shown}, by the proxy in HTTP_PROXY; if that is not set, none)"


class NetworkUse(msgspec.Struct, frozen=True, kw_only=True):
    """Where a program was, and where it was not let; `problem`: why it could be nowhere."""

    reached: list[Reached]
    refused: list[Refused]
    problem: str | None


class Going(msgspec.Struct, frozen=True, kw_only=True):
    """What `run_and_tell` has to know of a call besides its program."""

    context: ToolContext
    limits: Limits
    keep_figures: KeepFigures
    outing: Outing | None
    network_problem: str
    is_unprotected: bool


def going_of(
    sandbox: Sandbox, tool: str, context: ToolContext, limits: Limits, keep_figures: KeepFigures
) -> Going:
    """With what the program may do outside, where it has a way out."""
    who = Traveller(
        user_id=context.user_id,
        username=context.username,
        tenant_id=context.tenant_id,
        call_id=context.marks.call_id,
        tool=tool,
        run_id=context.run_id,
    )
    way_out = sandbox.way_out
    return Going(
        context=context,
        limits=limits,
        keep_figures=keep_figures,
        outing=way_out.outing(who),
        network_problem=way_out.problem,
        is_unprotected=sandbox.is_unprotected,
    )


async def run_and_tell(going: Going, run: Callable[[], Awaitable[Ran]]) -> ToolResult:
    """The answer of a program: how it ended, what it printed, which files are different now."""
    workspace, marks = workspace_for(going.context), going.context.marks
    before = await asyncio.to_thread(look, workspace)
    try:
        ran = await run()
    finally:
        # What runs unprotected may have been anywhere, and nobody has seen where.
        marks.is_untrusted = going.is_unprotected or (going.outing is not None and bool(going.outing.reached))
    changes = changes_between(before, await asyncio.to_thread(look, workspace))
    figures = _figures(changes)
    data: dict[str, Any] = {
        "exit_code": ran.exit_code,
        "stdout": ran.stdout.decode("utf-8", "replace"),
        "stderr": ran.stderr.decode("utf-8", "replace"),
        "truncated": ran.is_truncated,
        "limit": ran.hit,
        "duration_ms": round(ran.seconds * 1000),
        "files": changes,
        "figures": figures,
        **await _images(going, workspace, figures),
    }
    if going.outing is not None:
        data["network"] = NetworkUse(
            reached=going.outing.reached, refused=going.outing.refused, problem=going.network_problem or None
        )
    if ran.exit_code == 0 and ran.hit is None:
        return ToolResult.ok(data)
    return ToolResult(success=False, data=data, error=why_ended(ran, going.limits))


async def _images(going: Going, workspace: Path, figures: list[str]) -> dict[str, Any]:
    """The figures as images of the step; of those that cannot be shown, why."""
    if not figures:
        return {}
    kept = await going.keep_figures(going.context.user_id, workspace, figures)
    going.context.marks.images.extend(kept.images)
    return {"images": kept.images, **({"not_shown": kept.problems} if kept.problems else {})}


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
        case Hit.MACHINE:
            return "the program was ended: the machine had too little memory left; try again later"
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
