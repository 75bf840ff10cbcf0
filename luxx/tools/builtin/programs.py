"""The tools python_eval, python_execute and shell_execute; the last two run programs in the sandbox.

Their results name the files that a program created, changed or deleted, from a snapshot before and one after.
"""

import asyncio
import math
import os
import shutil
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from luxx.errors import ToolFailed
from luxx.infra.network.egress import EgressCaller, EgressSession, ReachedHost, RefusedHost
from luxx.tools.builtin.expression import evaluate
from luxx.tools.builtin.expression_names import MAX_EXPRESSION_LENGTH
from luxx.tools.core import CommandPermission, Risk, ToolContext, ToolDefinition, ToolResult
from luxx.tools.factory import tool
from luxx.tools.files.walk import walk
from luxx.tools.files.workspace import Workspace
from luxx.tools.hooks import SaveFigures, save_no_figures
from luxx.tools.sandbox.plan import ProgramLimits
from luxx.tools.sandbox.process import ExceededLimit, ProgramResult
from luxx.tools.sandbox.python_main import FIGURES
from luxx.tools.sandbox.service import Sandbox

MOST_ENTRIES = 10_000
"""Entries of all kinds in a workspace; with more of them, changes are not reported."""
MOST_NAMES = 100

FileSnapshot = dict[str, tuple[int, int, int]]
"""By path: inode number, size in bytes, and modification time in nanoseconds."""


class FileChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Paths in the workspace, at most MOST_NAMES of each kind; `is_complete`: no change is missing."""

    created: list[str]
    modified: list[str]
    deleted: list[str]
    is_complete: bool = True


def snapshot_files(workspace: Path) -> FileSnapshot | None:
    """All files of the workspace; None if it has more than MOST_ENTRIES entries."""
    snapshot: FileSnapshot = {}
    with Workspace(workspace).open_directory(".") as fd:
        for count, one in enumerate(walk(fd)):
            if count >= MOST_ENTRIES:
                return None
            if one.kind != "file":
                continue
            try:
                status = os.stat(one.name, dir_fd=one.directory_fd, follow_symlinks=False)
            except OSError:
                continue
            snapshot[one.path] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return snapshot


def changes_between(before: FileSnapshot | None, after: FileSnapshot | None) -> FileChanges:
    """The differences; empty and incomplete if one snapshot is None."""
    if before is None or after is None:
        return FileChanges(created=[], modified=[], deleted=[], is_complete=False)
    lists = (
        sorted(after.keys() - before.keys()),
        sorted(name for name in before.keys() & after.keys() if before[name] != after[name]),
        sorted(before.keys() - after.keys()),
    )
    created, modified, deleted = ([_shown(name) for name in one[:MOST_NAMES]] for one in lists)
    is_complete = all(len(one) <= MOST_NAMES for one in lists)
    return FileChanges(created=created, modified=modified, deleted=deleted, is_complete=is_complete)


def _shown(name: str) -> str:
    """The name as valid UTF-8, for JSON."""
    return os.fsencode(name).decode("utf-8", "replace")


MAX_SECONDS = 3600
TIMEOUT: dict[str, Any] = {
    "type": "integer",
    "minimum": 1,
    "maximum": MAX_SECONDS,
    "description": "Seconds after which it is ended; at most what your level allows",
}
QUEUE_SECONDS = 60
"""How long a call may wait for a free sandbox, in addition to the time of its program."""
_MAX_ERROR_CHARACTERS = 300
_MAX_SHOWN_HOSTS = 20
"""Limit for the hosts that a tool description names."""


def max_seconds(sandbox: Sandbox, tool: str) -> float:
    """The timeout of the tool in seconds: the largest limit of all levels plus the time in the queue."""
    return max(sandbox.limits_for(tool, level).seconds for level in CommandPermission) + QUEUE_SECONDS


def risk_of(sandbox: Sandbox, sandboxed_risk: Risk) -> Risk:
    """HIGH if there is no sandbox, so that every call needs an approval."""
    return Risk.HIGH if sandbox.is_unprotected else sandboxed_risk


def workspace_path(context: ToolContext) -> Path:
    if context.permissions.workspace is None:
        raise ToolFailed("this call has no workspace, so it cannot run a program")
    return context.permissions.workspace


def network_description(sandbox: Sandbox) -> str:
    """The part of a tool description about the network; it follows the words "in a sandbox"."""
    hosts = sandbox.egress.hosts
    if not hosts:
        return " without network"
    shown = ", ".join(hosts[:_MAX_SHOWN_HOSTS]) + (", …" if len(hosts) > _MAX_SHOWN_HOSTS else "")
    return f" (network: only HTTP and HTTPS to {shown}, by the proxy in HTTP_PROXY; if that is not set, none)"


def _call_limits(level_limits: ProgramLimits, arguments: dict[str, Any]) -> ProgramLimits:
    """The limits of the user's level, with the call's `timeout` if it is shorter."""
    seconds = min(arguments.get("timeout", level_limits.seconds), level_limits.seconds)
    return replace(level_limits, seconds=seconds)


class NetworkUse(msgspec.Struct, frozen=True, kw_only=True):
    """The hosts that a program reached or was refused; `problem`: why it has no network at all."""

    reached: list[ReachedHost]
    refused: list[RefusedHost]
    problem: str | None


class ProgramCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call as `run_program_call` needs it, without its program."""

    context: ToolContext
    limits: ProgramLimits
    save_figures: SaveFigures
    egress_session: EgressSession | None
    network_problem: str
    is_unprotected: bool


def new_program_call(
    sandbox: Sandbox, tool: str, context: ToolContext, limits: ProgramLimits, save_figures: SaveFigures
) -> ProgramCall:
    """The call with a new egress session, if the sandbox has a network."""
    caller = EgressCaller(
        user_id=context.caller.user_id,
        username=context.caller.username,
        tenant_id=context.caller.tenant_id,
        call_id=context.metadata.call_id,
        tool=tool,
        run_id=context.caller.run_id,
    )
    egress = sandbox.egress
    return ProgramCall(
        context=context,
        limits=limits,
        save_figures=save_figures,
        egress_session=egress.session(caller),
        network_problem=egress.problem,
        is_unprotected=sandbox.is_unprotected,
    )


async def run_program_call(
    program_call: ProgramCall, run: Callable[[], Awaitable[ProgramResult]]
) -> ToolResult:
    """Run the program; the result has its exit code, its output, and the files that changed."""
    workspace, metadata = workspace_path(program_call.context), program_call.context.metadata
    before = await asyncio.to_thread(snapshot_files, workspace)
    try:
        ran = await run()
    finally:
        # The network use of an unprotected program is unknown, so its output counts as untrusted.
        metadata.is_untrusted = program_call.is_unprotected or (
            program_call.egress_session is not None and bool(program_call.egress_session.reached)
        )
    changes = changes_between(before, await asyncio.to_thread(snapshot_files, workspace))
    figures = _figures(changes)
    data: dict[str, Any] = {
        "exit_code": ran.exit_code,
        "stdout": ran.stdout.decode("utf-8", "replace"),
        "stderr": ran.stderr.decode("utf-8", "replace"),
        "truncated": ran.is_truncated,
        "limit": ran.exceeded_limit,
        "duration_ms": round(ran.seconds * 1000),
        "files": changes,
        "figures": figures,
        **await _images(program_call, workspace, figures),
    }
    if program_call.egress_session is not None:
        data["network"] = NetworkUse(
            reached=program_call.egress_session.reached,
            refused=program_call.egress_session.refused,
            problem=program_call.network_problem or None,
        )
    if ran.exit_code == 0 and ran.exceeded_limit is None:
        return ToolResult.ok(data)
    return ToolResult(success=False, data=data, error=why_ended(ran, program_call.limits))


async def _images(program_call: ProgramCall, workspace: Path, figures: list[str]) -> dict[str, Any]:
    """Add the figures to the images of the step; return them, and why others cannot be shown."""
    if not figures:
        return {}
    saved = await program_call.save_figures(program_call.context.caller.user_id, workspace, figures)
    program_call.context.metadata.images.extend(saved.images)
    return {"images": saved.images, **({"not_shown": saved.problems} if saved.problems else {})}


def _figures(changes: FileChanges) -> list[str]:
    return [name for name in changes.created if name.startswith(f"{FIGURES}/figure-")]


def why_ended(ran: ProgramResult, limits: ProgramLimits) -> str:
    """The error message for a program that failed or exceeded a limit."""
    match ran.exceeded_limit:
        case ExceededLimit.TIME:
            return f"the program was ended: it took longer than {limits.seconds:g} seconds"
        case ExceededLimit.CPU:
            return (
                f"the program was ended: it used more than {limits.cpu_seconds:g} seconds of processor time"
            )
        case ExceededLimit.MEMORY:
            return f"the program was ended: it used more than {limits.memory_mb} MiB of memory"
        case ExceededLimit.MACHINE_MEMORY:
            return "the program was ended: the machine had too little memory left; try again later"
        case ExceededLimit.PROCESSES:
            return f"the program was ended: it had more than {limits.processes} processes and threads"
        case ExceededLimit.FILE:
            return f"the program was ended: it wrote a file of more than {limits.file_mb} MiB"
        case ExceededLimit.DISK:
            return f"the program was ended: it wrote more than {limits.disk_mb} MiB"
        case ExceededLimit.OUTPUT:
            return f"the program was ended: it printed far more than {limits.output_kb} KiB"
        case None:
            return _exit(ran)


def _exit(ran: ProgramResult) -> str:
    error_lines = ran.stderr.decode("utf-8", "replace").strip().splitlines()
    number = -ran.exit_code if ran.exit_code < 0 else ran.exit_code - 128
    if number in {int(one) for one in signal.Signals}:
        message = f"the program was ended by {signal.Signals(number).name}"
    else:
        message = f"the program ended with exit code {ran.exit_code}"
    return f"{message}: {error_lines[-1][:_MAX_ERROR_CHARACTERS]}" if error_lines else message


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


def python_tool(sandbox: Sandbox, save_figures: SaveFigures = save_no_figures) -> ToolDefinition:
    """python_execute in one server's sandbox."""

    @tool(
        name=EXECUTE,
        description=(
            f"Run a Python program in the workspace, in a sandbox{network_description(sandbox)}: "
            "the workspace can be written, the system only read, nothing else is there. Print what you want "
            "to know. Gives exit code, stdout, stderr and the files that changed; open matplotlib figures "
            "are saved, named and shown. Each program starts anew; files stay."
        ),
        parameters={
            "code": {"type": "string", "minLength": 1, "maxLength": MAX_CODE_LENGTH},
            "timeout": TIMEOUT,
        },
        required_params=["code"],
        category="code",
        required_permission=CommandPermission.EXECUTE,
        starts_programs=True,
        is_egress=sandbox.egress.is_configured or sandbox.is_unprotected,
        risk=risk_of(sandbox, Risk.MEDIUM),
        timeout=max_seconds(sandbox, EXECUTE),
    )
    async def python_execute(arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        workspace, code = workspace_path(context), arguments["code"]
        level_limits = sandbox.limits_for(EXECUTE, context.caller.permission_level)
        limits = _call_limits(level_limits, arguments)
        program_call = new_program_call(sandbox, EXECUTE, context, limits, save_figures)
        return await run_program_call(
            program_call,
            lambda: sandbox.run_python(
                code, workspace, level_limits, limits.seconds, program_call.egress_session
            ),
        )

    return python_execute.definition


def _plain(value: Any) -> Any:
    """The value as JSON data: tuples and sets become lists; keys, inf and nan become text."""
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
"""In characters. Linux limits an argument to 128 KiB, and a character takes up to four bytes."""

NAME = "shell_execute"


def shell_tool(sandbox: Sandbox, save_figures: SaveFigures = save_no_figures) -> ToolDefinition:
    """shell_execute in one server's sandbox."""
    shell = _shell_argv()

    @tool(
        name=NAME,
        description=(
            f"Run a shell command in the workspace, in a sandbox{network_description(sandbox)}: "
            "the workspace can be written, the system only read, nothing else is there. Gives exit code, "
            "stdout, stderr and the files that changed. Nothing goes on running afterwards; files stay."
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
        is_egress=sandbox.egress.is_configured or sandbox.is_unprotected,
        risk=risk_of(sandbox, Risk.HIGH),
        timeout=max_seconds(sandbox, NAME),
    )
    async def shell_execute(arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        workspace = workspace_path(context)
        level_limits = sandbox.limits_for(NAME, context.caller.permission_level)
        limits = _call_limits(level_limits, arguments)
        argv = (*shell, "-c", arguments["command"])
        program_call = new_program_call(sandbox, NAME, context, limits, save_figures)
        return await run_program_call(
            program_call,
            lambda: sandbox.run_sandboxed(
                argv, workspace, limits, egress_session=program_call.egress_session
            ),
        )

    return shell_execute.definition


def _shell_argv() -> tuple[str, ...]:
    bash = shutil.which("bash", path="/usr/bin:/bin")
    # Start-up files in the workspace or in HOME must not add to an approved command.
    return ("/bin/sh",) if bash is None else (bash, "--noprofile", "--norc")
