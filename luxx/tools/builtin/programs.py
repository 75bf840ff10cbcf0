"""The tools python_eval, python_execute and shell_execute; the last two run programs in the sandbox.

Their results name the files that a program created, changed or deleted, from a snapshot before and one after.
"""

import asyncio
import math
import os
import shutil
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from luxx.errors import ToolFailed
from luxx.infra.network.egress import EgressCaller, ReachedHost, RefusedHost
from luxx.tools.builtin.expression import evaluate
from luxx.tools.builtin.expression_names import MAX_EXPRESSION_LENGTH
from luxx.tools.builtin.file import printable_path
from luxx.tools.core import CommandPermission, Risk, ToolContext, ToolDefinition, ToolResult
from luxx.tools.factory import ToolFunction, tool
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
        for count, entry in enumerate(walk(fd)):
            if count >= MOST_ENTRIES:
                return None
            if entry.kind == "file":
                with suppress(OSError):
                    status = os.stat(entry.name, dir_fd=entry.directory_fd, follow_symlinks=False)
                    snapshot[entry.path] = (status.st_ino, status.st_size, status.st_mtime_ns)
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
    created, modified, deleted = ([printable_path(name) for name in names[:MOST_NAMES]] for names in lists)
    is_complete = all(len(names) <= MOST_NAMES for names in lists)
    return FileChanges(created=created, modified=modified, deleted=deleted, is_complete=is_complete)


@tool(
    name="python_eval",
    is_self_contained=True,
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


MAX_CODE_LENGTH = 200_000
MAX_COMMAND_LENGTH = 30_000
"""In characters. Linux limits an argument to 128 KiB, and a character takes up to four bytes."""

_TIMEOUT: dict[str, Any] = {
    "type": "integer",
    "minimum": 1,
    "maximum": 3600,
    "description": "Seconds after which it is ended; at most what your level allows",
}
_QUEUE_SECONDS = 60
"""How long a call may wait for a free sandbox, in addition to the time of its program."""
_MAX_ERROR_CHARACTERS = 300
_MAX_SHOWN_HOSTS = 20
"""Limit for the hosts that a tool description names."""


FoldersOfSkills = Callable[[ToolContext], Awaitable[tuple[tuple[str, Path], ...]]]
"""The name and the real path of the folder of each skill that a program of this call may read."""


async def no_skills(context: ToolContext) -> tuple[tuple[str, Path], ...]:
    """Default for programs that have no skills."""
    return ()


class ProgramFiles(msgspec.Struct, frozen=True):
    """What programs read and leave besides their workspace."""

    save_figures: SaveFigures = save_no_figures
    skills: FoldersOfSkills = no_skills


_NO_FILES = ProgramFiles()


def program_tools(sandbox: Sandbox, files: ProgramFiles = _NO_FILES) -> list[ToolDefinition]:
    """The tools python_execute and shell_execute in one server's sandbox."""
    return [_python_tool(sandbox, files), _shell_tool(sandbox, files)]


def _python_tool(sandbox: Sandbox, files: ProgramFiles) -> ToolDefinition:
    @_program_tool(
        sandbox,
        name="python_execute",
        description=(
            f"Run a Python program in the workspace, in a sandbox{_network_description(sandbox)}: "
            "the workspace can be written, the system only read, nothing else is there. Print what you want "
            "to know. Gives exit code, stdout, stderr and the files that changed; open matplotlib figures "
            "are saved, named and shown. Each program starts anew; files stay."
        ),
        parameters={"code": {"type": "string", "minLength": 1, "maxLength": MAX_CODE_LENGTH}},
        risk=Risk.MEDIUM,
    )
    async def python_execute(arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        program = _Program(sandbox, "python_execute", arguments, context)
        run = partial(
            sandbox.run_python,
            arguments["code"],
            program.workspace,
            program.level_limits,
            program.limits.seconds,
            program.egress_session,
        )
        return await program.result(run, files)

    return python_execute.definition


def _shell_tool(sandbox: Sandbox, files: ProgramFiles) -> ToolDefinition:
    shell = _shell_argv()

    @_program_tool(
        sandbox,
        name="shell_execute",
        description=(
            f"Run a shell command in the workspace, in a sandbox{_network_description(sandbox)}: "
            "the workspace can be written, the system only read, nothing else is there. Gives exit code, "
            "stdout, stderr and the files that changed. Nothing goes on running afterwards; files stay."
        ),
        parameters={
            "command": {
                "type": "string",
                "minLength": 1,
                "maxLength": MAX_COMMAND_LENGTH,
                "description": "For example: grep -rn milk notes | head",
            }
        },
        risk=Risk.HIGH,
    )
    async def shell_execute(arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        program = _Program(sandbox, "shell_execute", arguments, context)
        argv = (*shell, "-c", arguments["command"])
        run = partial(
            sandbox.run_sandboxed,
            argv,
            program.workspace,
            program.limits,
            egress_session=program.egress_session,
        )
        return await program.result(run, files)

    return shell_execute.definition


def _program_tool(
    sandbox: Sandbox, *, name: str, description: str, parameters: dict[str, Any], risk: Risk
) -> Callable[[Callable[..., Any]], ToolFunction]:
    """`@tool` for a tool that starts programs. Without a sandbox, every call needs an approval."""
    longest_seconds = max(sandbox.limits_for(name, level).seconds for level in CommandPermission)
    return tool(
        name=name,
        description=description,
        parameters={**parameters, "timeout": _TIMEOUT},
        required_params=list(parameters),
        category="code",
        required_permission=CommandPermission.EXECUTE,
        starts_programs=True,
        is_egress=sandbox.egress.is_configured or sandbox.is_unprotected,
        risk=Risk.HIGH if sandbox.is_unprotected else risk,
        timeout=longest_seconds + _QUEUE_SECONDS,
    )


def _network_description(sandbox: Sandbox) -> str:
    """The part of a tool description about the network; it follows the words "in a sandbox"."""
    hosts = sandbox.egress.hosts
    if not hosts:
        return " without network"
    shown = ", ".join(hosts[:_MAX_SHOWN_HOSTS]) + (", …" if len(hosts) > _MAX_SHOWN_HOSTS else "")
    return f" (network: only HTTP and HTTPS to {shown}, by the proxy in HTTP_PROXY; if that is not set, none)"


def _shell_argv() -> tuple[str, ...]:
    bash = shutil.which("bash", path="/usr/bin:/bin")
    # Start-up files in the workspace or in HOME must not add to an approved command.
    return ("/bin/sh",) if bash is None else (bash, "--noprofile", "--norc")


class _NetworkUse(msgspec.Struct, frozen=True, kw_only=True):
    """The hosts that a program reached or was refused; `problem`: why it has no network at all."""

    reached: list[ReachedHost]
    refused: list[RefusedHost]
    problem: str | None


class _Program:
    """The program of one call: its workspace, its limits and, if there is a network, an egress session.

    `limits` are those of the user's level, with the call's `timeout` if it is shorter.
    """

    def __init__(self, sandbox: Sandbox, tool: str, arguments: dict[str, Any], context: ToolContext) -> None:
        if context.permissions.workspace is None:
            raise ToolFailed("this call has no workspace, so it cannot run a program")
        self.workspace = context.permissions.workspace
        self.level_limits = sandbox.limits_for(tool, context.caller.permission_level)
        seconds = min(arguments.get("timeout", self.level_limits.seconds), self.level_limits.seconds)
        self.limits = replace(self.level_limits, seconds=seconds)
        caller = context.caller
        self.egress_session = sandbox.egress.session(
            EgressCaller(
                user_id=caller.user_id,
                username=caller.username,
                tenant_id=caller.tenant_id,
                call_id=context.metadata.call_id,
                tool=tool,
                run_id=caller.run_id,
            )
        )
        self._network_problem = sandbox.egress.problem
        self._is_unprotected = sandbox.is_unprotected
        self._context = context

    async def result(self, run: Callable[..., Awaitable[ProgramResult]], files: ProgramFiles) -> ToolResult:
        """Run the program; the result has its exit code, its output, and the files that changed."""
        metadata = self._context.metadata
        skills = await files.skills(self._context)
        before = await asyncio.to_thread(snapshot_files, self.workspace)
        try:
            ran = await run(skills=skills)
        finally:
            # The network use of an unprotected program is unknown, so its output counts as untrusted.
            metadata.is_untrusted = self._is_unprotected or (
                self.egress_session is not None and bool(self.egress_session.reached)
            )
        changes = changes_between(before, await asyncio.to_thread(snapshot_files, self.workspace))
        figures = [name for name in changes.created if name.startswith(f"{FIGURES}/figure-")]
        data: dict[str, Any] = {
            "exit_code": ran.exit_code,
            "stdout": ran.stdout.decode("utf-8", "replace"),
            "stderr": ran.stderr.decode("utf-8", "replace"),
            "truncated": ran.is_truncated,
            "limit": ran.exceeded_limit,
            "duration_ms": round(ran.seconds * 1000),
            "files": changes,
            "figures": figures,
        }
        if figures:
            saved = await files.save_figures(self._context.caller.user_id, self.workspace, figures)
            metadata.files.extend(saved.images)
            data |= {"images": saved.images, **({"not_shown": saved.problems} if saved.problems else {})}
        if self.egress_session is not None:
            data["network"] = _NetworkUse(
                reached=self.egress_session.reached,
                refused=self.egress_session.refused,
                problem=self._network_problem or None,
            )
        if ran.exit_code == 0 and ran.exceeded_limit is None:
            return ToolResult.ok(data)
        return ToolResult(success=False, data=data, error=why_ended(ran, self.limits))


def why_ended(ran: ProgramResult, limits: ProgramLimits) -> str:
    """The error message for a program that failed or exceeded a limit."""
    match ran.exceeded_limit:
        case ExceededLimit.TIME:
            reason = f"it took longer than {limits.seconds:g} seconds"
        case ExceededLimit.CPU:
            reason = f"it used more than {limits.cpu_seconds:g} seconds of processor time"
        case ExceededLimit.MEMORY:
            reason = f"it used more than {limits.memory_mb} MiB of memory"
        case ExceededLimit.MACHINE_MEMORY:
            reason = "the machine had too little memory left; try again later"
        case ExceededLimit.PROCESSES:
            reason = f"it had more than {limits.processes} processes and threads"
        case ExceededLimit.FILE:
            reason = f"it wrote a file of more than {limits.file_mb} MiB"
        case ExceededLimit.DISK:
            reason = f"it wrote more than {limits.disk_mb} MiB"
        case ExceededLimit.OUTPUT:
            reason = f"it printed far more than {limits.output_kb} KiB"
        case None:
            return _exit(ran)
    return f"the program was ended: {reason}"


def _exit(ran: ProgramResult) -> str:
    error_lines = ran.stderr.decode("utf-8", "replace").strip().splitlines()
    number = -ran.exit_code if ran.exit_code < 0 else ran.exit_code - 128
    if number in set(signal.Signals):
        message = f"the program was ended by {signal.Signals(number).name}"
    else:
        message = f"the program ended with exit code {ran.exit_code}"
    return f"{message}: {error_lines[-1][:_MAX_ERROR_CHARACTERS]}" if error_lines else message
