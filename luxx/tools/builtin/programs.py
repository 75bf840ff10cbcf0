"""What python_execute and shell_execute share: a call's limits, and the answer about a program."""

import asyncio
import math
import shutil
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from luxx.errors import ToolFailed
from luxx.infra.network.egress import Outing, Reached, Refused, Traveller
from luxx.tools.builtin.expression import evaluate
from luxx.tools.builtin.expression_names import MAX_EXPRESSION_LENGTH
from luxx.tools.core import CommandPermission, Risk, ToolContext, ToolDefinition, ToolResult
from luxx.tools.factory import tool
from luxx.tools.marks import KeepFigures, keep_no_figures
from luxx.tools.sandbox.changes import Changes, changes_between, look
from luxx.tools.sandbox.inside import FIGURES
from luxx.tools.sandbox.plan import Limits
from luxx.tools.sandbox.process import Hit, Ran
from luxx.tools.sandbox.service import Sandbox

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


MAX_CODE_LENGTH = 200_000
EXECUTE = "python_execute"


@tool(
    name="python_eval",
    description=(
        "Evaluate one Python expression: arithmetic, comparisons, text, lists, dicts, sets, comprehensions, "
        "f-strings, and the usual functions with those of math and statistics. No statements, imports, "
        "lambdas or attributes; the work it may do is bounded."
    ),
    parameters={
        "expression": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_EXPRESSION_LENGTH,
            "description": "For example: sum(x**2 for x in range(10))",
        }
    },
    required_params=["expression"],
    category="code",
    required_permission=CommandPermission.EXECUTE,
    risk=Risk.LOW,
    repeatable=True,
)
def python_eval(arguments: dict[str, Any]) -> dict[str, Any]:
    value = evaluate(arguments["expression"])
    return {"result": _plain(value), "type": type(value).__name__}


def python_tool(sandbox: Sandbox, keep_figures: KeepFigures = keep_no_figures) -> ToolDefinition:
    """python_execute on one server's sandbox."""

    @tool(
        name=EXECUTE,
        description=(
            f"Run a Python program in the workspace, in a sandbox{network_words(sandbox)}: the workspace can "
            "be written, the system only read, nothing else is there. Print what you want to know. Gives "
            "exit code, stdout, stderr and the files that changed; open matplotlib figures are saved, named "
            "and shown. Each program starts anew; files stay."
        ),
        parameters={
            "code": {"type": "string", "minLength": 1, "maxLength": MAX_CODE_LENGTH},
            "timeout": TIMEOUT,
        },
        required_params=["code"],
        category="code",
        required_permission=CommandPermission.EXECUTE,
        starts_programs=True,
        is_egress=sandbox.way_out.is_wanted or sandbox.is_unprotected,
        risk=risk_of(sandbox, Risk.MEDIUM),
        timeout=longest(sandbox, EXECUTE),
    )
    async def python_execute(arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        workspace, code = workspace_for(context), arguments["code"]
        given = sandbox.limits_for(EXECUTE, context.user_permission_level)
        limits = replace(given, seconds=min(arguments.get("timeout", given.seconds), given.seconds))
        going = going_of(sandbox, EXECUTE, context, limits, keep_figures)
        return await run_and_tell(
            going, lambda: sandbox.run_python(code, workspace, given, limits.seconds, going.outing)
        )

    return python_execute.definition


def _plain(value: Any) -> Any:
    """The value as JSON can say it: tuples and sets as lists, keys as text, inf and nan as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("list[Any]", value)]
    if isinstance(value, set):
        return [_plain(item) for item in sorted(cast("set[Any]", value), key=repr)]
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else repr(key): _plain(item)
            for key, item in cast("dict[Any, Any]", value).items()
        }
    return value


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
