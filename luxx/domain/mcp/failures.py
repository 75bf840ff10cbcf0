"""Says in one sentence why an MCP server could not be started or has ended. Pure.

The sentence follows from the limit that the server exceeded, its exit code, and what it printed on stderr:
most failures of servers from package registries have one of a few causes, whose messages are known. Not here:
removing secrets from stderr, which the caller has done.
"""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from msgspec.structs import replace

from luxx.tools.builtin.programs import why_ended
from luxx.tools.sandbox.plan import ProgramLimits
from luxx.tools.sandbox.process import ExceededLimit, ProgramResult

MOST_LINES, MOST_CHARACTERS = 20, 2_000
"""Of stderr, as it is shown beside the reason."""

_MOST_LINE = 300
_KILLED = (-9, 137)
_DOWNLOADERS = frozenset({"npx", "bunx", "pnpx", "uvx", "pipx"})
_DOWNLOADING_COMMANDS = frozenset(
    {("npm", "exec"), ("pnpm", "dlx"), ("yarn", "dlx"), ("uv", "tool"), ("uv", "run")}
)

_ERROR_LINE = re.compile(
    r"^(?:npm (?:error|ERR!) (?!A complete log|code |errno |syscall |type )"
    r"|[\w.]*(?:Error|Exception)\b|FATAL ERROR: |bwrap: )"
)
_FILES = re.compile(r"\bEMFILE\b|\bENFILE\b|[Tt]oo many open files")
_MEMORY = re.compile(
    r"heap out of memory|process out of memory|Cannot allocate memory|\bMemoryError\b|\bENOMEM\b|bad_alloc"
)
_PROCESSES = re.compile(r"can't start new thread|\bEAGAIN\b|Resource temporarily unavailable")
_NETWORK = re.compile(
    r"\b(?:EAI_AGAIN|EAI_FAIL|ENOTFOUND|ENETUNREACH|EAFNOSUPPORT)\b|Address family not supported"
    r"|Temporary failure in name resolution|Name or service not known|Network is unreachable"
    r"|Could not resolve host|dns error|failed to lookup address"
)
_MODULE = re.compile(r"""(?:Cannot find (?:module|package)|No module named) ['"]([^'"\n]{1,200})['"]""")
_FILE = re.compile(
    r"[Nn]o such file or directory|[Pp]ermission denied|[Oo]peration not permitted|Read-only file system"
    r"|\b(?:ENOENT|EACCES|EPERM|EROFS)\b"
)
_SHOW = "name its directory in `reads`, or put it below the server's `workspace`"


def last_lines(stderr: str) -> str:
    """The end of what the server printed on stderr, without blank lines; may be empty."""
    lines = [line.rstrip()[:_MOST_LINE] for line in stderr.splitlines() if line.strip()]
    return "\n".join(lines[-MOST_LINES:])[-MOST_CHARACTERS:]


def reason_of_end(ended: ProgramResult, stderr: str, limits: ProgramLimits, command: Sequence[str]) -> str:
    """Why the process ended, as a clause. `stderr` has no secrets."""
    line = _error_line(stderr)
    if ended.exceeded_limit is not None:
        return why_ended(ended, limits) + _hint(ended.exceeded_limit)
    cause = _cause(stderr, limits, command)
    if cause is None and ended.exit_code in _KILLED:
        cause = "it was killed, probably because the machine had no memory left"
    if cause is not None:
        return f"{cause}: {line}" if line else cause
    exit_only = why_ended(replace(ended, stderr=b""), limits)
    return f"{exit_only}: {line}" if line else exit_only


def reason_of_silence(seconds: float, stderr: str, limits: ProgramLimits, command: Sequence[str]) -> str:
    """Why a server that still runs was not ready in time, as a predicate that follows its name."""
    was_not_ready = f"was not ready within {seconds:g} seconds"
    line = _error_line(stderr)
    cause = _cause(stderr, limits, command) or _downloads(command)
    if cause is None:
        hint = "it may need a longer start_seconds, or it is no MCP server on standard input and output"
        return f"{was_not_ready}: {line}" if line else f"{was_not_ready}: {hint}"
    return f"{was_not_ready}: {cause}: {line}" if line else f"{was_not_ready}: {cause}"


def _cause(stderr: str, limits: ProgramLimits, command: Sequence[str]) -> str | None:
    if _FILES.search(stderr):
        return f"it opened more than {limits.open_files:,} files{_raise('open_files')}"
    if _MEMORY.search(stderr):
        return f"it needed more than {limits.memory_mb} MiB of memory{_raise('memory_mb')}"
    if found := _MODULE.search(stderr):
        return (
            f"the module {found[1]} is not installed, or the server may not read it; install it, and {_SHOW}"
        )
    if _NETWORK.search(stderr):
        return _downloads(command) or "it needs the network, which MCP servers do not have"
    if _PROCESSES.search(stderr):
        return f"it started more than {limits.processes} processes and threads{_raise('processes')}"
    if _FILE.search(stderr):
        return f"a file is missing, or the server has no access to it; {_SHOW}"
    return None


def _downloads(command: Sequence[str]) -> str | None:
    """The reason if this command first downloads the server that it starts."""
    program = PurePosixPath(command[0]).name
    if program not in _DOWNLOADERS and (program, *command[1:2]) not in _DOWNLOADING_COMMANDS:
        return None
    return (
        f"{program} downloads what it starts, and MCP servers have no network; install the server "
        "first, and name its program in `command`"
    )


def _raise(key: str) -> str:
    return f"; raise {key} of mcp in tools.limits"


def _hint(limit: ExceededLimit) -> str:
    match limit:
        case ExceededLimit.MEMORY:
            return _raise("memory_mb")
        case ExceededLimit.PROCESSES:
            return _raise("processes")
        case ExceededLimit.CPU:
            return _raise("cpu_seconds")
        case ExceededLimit.DISK:
            return _raise("disk_mb")
        case ExceededLimit.FILE:
            return _raise("file_mb")
        case _:
            return ""


def _error_line(stderr: str) -> str:
    """The line that names the error: not always the last one, which in Node.js is its version."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    error = [line for line in lines if _ERROR_LINE.match(line)]
    return (error or lines or [""])[-1][:_MOST_LINE]
