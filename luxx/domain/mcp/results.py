"""What an MCP server returns: its answer to a call as a tool result, and one sentence for why it could not be
started or has ended. Pure.

What text and structured content both say is given once. Images and sounds are named by type and size, images
also by their file. The sentence follows from the limit that the server exceeded, its exit code, and what it
printed on stderr, from which the caller has removed secrets: most failures of servers from package registries
have one of a few causes, whose messages are known.
"""

import binascii
import re
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec.structs import replace

from luxx.domain.mcp.inbox import MOST_PARTS, parts
from luxx.tools.builtin.programs import why_ended
from luxx.tools.sandbox.plan import ProgramLimits
from luxx.tools.sandbox.process import ExceededLimit, ProgramResult
from luxx.wire.tool import UNKNOWN_OUTCOME, ToolResult
from luxx.wire.turn import StepFile

if TYPE_CHECKING:
    from mcp_types import CallToolResult

_NO_REASON = "the tool failed without an error message"


def images_of_answer(answer: "CallToolResult") -> list[bytes]:
    """The bytes of its images, in order; empty where they are no base64."""
    return [_bytes_of(text) for block in answer.content if (text := _image_of(block)) is not None]


def result_of_answer(answer: "CallToolResult", images: Sequence[StepFile | str] = ()) -> ToolResult:
    """Text content as text, structured content as data; both only where the text says more than the data.

    `images`: for each image of the answer its stored file, or why it cannot be shown.
    """
    shown = iter(images)
    blocks = [
        _block_text(block, "" if _image_of(block) is None else next(shown, "")) for block in answer.content
    ]
    structured = answer.structured_content
    if answer.is_error:
        return ToolResult(success=False, data=structured, error="\n".join(blocks) or _NO_REASON)
    if structured is None:
        return ToolResult.ok("\n".join(blocks))
    inner = _unwrapped(structured)
    if _says_same("\n".join(blocks), structured, inner):
        return ToolResult.ok(inner)
    texts = {text.strip() for text in _texts_in(structured)}
    further = [
        block for block in blocks if block.strip() not in texts and not _says_same(block, structured, inner)
    ]
    if not further:
        return ToolResult.ok(inner)
    return ToolResult.ok({"text": "\n".join(further), "structured": structured})


def unknown_outcome(server: str, problem: str) -> ToolResult:
    """The result of a call that has no answer. `problem`: a predicate that follows the server's name."""
    text = f"the MCP server {server} {problem}; the call may have been carried out"
    return ToolResult(success=False, data=UNKNOWN_OUTCOME, error=text)


def _unwrapped(structured: Any) -> Any:
    """Undoes the wrapping of one value, which servers do because structured content has to be an object:
    the official SDK under `result`, others put their text under `content`."""
    if isinstance(structured, dict):
        values = cast("dict[str, Any]", structured)
        if list(values) == ["result"]:
            return values["result"]
        if list(values) == ["content"] and isinstance(values["content"], str):
            return values["content"]
    return cast(Any, structured)


def _says_same(text: str, *values: Any) -> bool:
    """Whether the text is one of the values, as it is or as JSON, or empty."""
    if not text or text in [value for value in values if isinstance(value, str)]:
        return True
    encoded = text.encode("utf-8", "replace")
    if parts(encoded) > MOST_PARTS:
        # Parsing would take too long; the result then holds both.
        return False
    with suppress(msgspec.DecodeError, RecursionError):
        return msgspec.json.decode(encoded) in values
    return False


def _texts_in(value: Any) -> Iterator[str]:
    """All texts in JSON data. Not recursive, because a server chooses the depth."""
    pending = [value]
    while pending:
        current = pending.pop()
        if isinstance(current, str):
            yield current
        elif isinstance(current, dict):
            pending += cast("dict[str, Any]", current).values()
        elif isinstance(current, list):
            pending += cast("list[Any]", current)


def _image_of(block: Any) -> str | None:
    """The base64 text of an image, which may be embedded as a resource; None for anything else."""
    if block.type == "image":
        return block.data
    blob = getattr(block.resource, "blob", None) if block.type == "resource" else None
    is_image = isinstance(blob, str) and str(block.resource.mime_type).startswith("image/")
    return blob if is_image else None


def _bytes_of(base64: str) -> bytes:
    try:
        return b64decode(base64, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _block_text(block: Any, image: StepFile | str) -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            head = f"[{block.type}: {_short(block.mime_type) or 'unknown kind'}, {_bytes_in(block.data)}"
            return f"{head}{_file_of(image)}]"
        case "resource_link":
            return _line("resource", block.uri, block.title or block.name, block.mime_type)
        case "resource":
            return _resource(block.resource, image)
        case _:
            return f"[{_short(str(block.type))}]"


def _resource(resource: Any, image: StepFile | str) -> str:
    head = _line("resource", resource.uri, None, resource.mime_type)
    text = getattr(resource, "text", None)
    if isinstance(text, str):
        return f"{head}\n{text}"
    return f"{head[:-1]}, {_bytes_in(resource.blob)}{_file_of(image)}]"


def _file_of(image: StepFile | str) -> str:
    if isinstance(image, StepFile):
        return f", saved as {image.path}"
    return f", not shown: {_short(image)}" if image else ""


def _line(*values: str | None) -> str:
    first, *others = [_short(value) for value in values if value]
    return f"[{first}: {', '.join(others)}]" if others else f"[{first}]"


def _bytes_in(base64: str) -> str:
    """The decoded size of a base64 text."""
    return f"{len(base64.rstrip('=')) * 3 // 4:,} bytes"


def _short(text: str) -> str:
    return text if len(text) <= 500 else f"{text[:500]}…"


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
