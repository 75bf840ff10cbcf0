"""Files, paths and lines made to hang, flood or mislead: each file tool reports a sentence in time."""

import asyncio
import json
import os
import re
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from luxx.tools.builtin import builtin_tools
from luxx.tools.executor import ToolExecutor
from luxx.tools.history import CallStatus, Executed

SECRET = "the secret of somebody else"
SECONDS = 20.0
MEGABYTE = 1024 * 1024
MEMORY_MB = 64
SENTENCE = re.compile(r"[^\n]{10,300}")
CLASS_NAME = re.compile(r"\b[A-Z]\w*(Error|Exception)\b|Traceback|Errno")

EDIT = {"old_string": "one", "new_string": "1"}
TOOLS: dict[str, dict[str, Any]] = {
    "file_read": {},
    "file_write": {"content": "mine"},
    "file_list": {"recursive": True},
    "file_exists": {},
    "file_grep": {"pattern": "secret|one"},
    "file_glob": {"pattern": "**"},
    "file_edit": EDIT,
    "file_multi_edit": {"edits": [EDIT]},
}
READERS = ["file_read", "file_grep", "file_edit", "file_multi_edit"]
DIRECTORIES = ["file_list", "file_glob"]


def test_every_file_tool_is_covered() -> None:
    assert set(TOOLS) == {tool.name for tool in builtin_tools() if tool.category == "file"}


# --- special files ----------------------------------------------------------------------------------


def make_device(path: Path) -> None:
    """/dev/zero, which never ends; a pipe instead if only root may create devices."""
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        os.mkfifo(path)


def make_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


def make_large(path: Path) -> None:
    """200 MB of lines."""
    piece = (b"x" * 99 + b"\n") * 10_000
    with path.open("wb") as file:
        for _ in range(200):
            file.write(piece)


def make_long_line(path: Path) -> None:
    """A line of a gigabyte, most of it a hole."""
    with path.open("wb") as file:
        file.write(b"x" * 10_000)
        file.truncate(1 << 30)


def make_beyond(path: Path) -> None:
    """A hole of a terabyte."""
    with path.open("wb") as file:
        file.truncate(1 << 40)


Make = Callable[[Path], Any]
THINGS: dict[str, tuple[Make, dict[str, str]]] = {
    "pipe": (
        os.mkfifo,
        dict.fromkeys(["file_read", "file_edit", "file_multi_edit"], "is not a regular file")
        | {"file_write": "special file", "file_grep": "neither a file nor a directory"}
        | {"file_list": "not a directory", "file_glob": "not a directory"},
    ),
    "device": (
        make_device,
        dict.fromkeys(["file_read", "file_edit", "file_multi_edit"], "is not a regular file")
        | {"file_write": "special file", "file_grep": "neither a file nor a directory"}
        | {"file_list": "not a directory", "file_glob": "not a directory"},
    ),
    "socket": (
        make_socket,
        dict.fromkeys(["file_read", "file_edit", "file_multi_edit"], "is not a regular file")
        | {"file_write": "special file", "file_grep": "neither a file nor a directory"}
        | {"file_list": "not a directory", "file_glob": "not a directory"},
    ),
    "directory": (
        os.mkdir,
        dict.fromkeys(["file_read", "file_write", "file_edit", "file_multi_edit"], "is a directory"),
    ),
    "link out": (
        lambda path: path.symlink_to(path.parent.parent / "secret.txt"),
        dict.fromkeys(TOOLS, r"workspace|link"),
    ),
    "link to a directory out": (
        lambda path: path.symlink_to(path.parent.parent),
        dict.fromkeys(TOOLS, r"workspace|link"),
    ),
    "link to a process": (
        lambda path: path.symlink_to("/proc/self/environ"),
        dict.fromkeys(TOOLS, r"workspace|link"),
    ),
    "link in a circle": (
        lambda path: path.symlink_to(path.name),
        dict.fromkeys(TOOLS, r"link"),
    ),
    "link to nothing": (
        lambda path: path.symlink_to("nothing"),
        dict.fromkeys([*DIRECTORIES, *READERS], "does not exist|link") | {"file_write": "link"},
    ),
    "nothing": (
        lambda path: None,
        dict.fromkeys([*DIRECTORIES, *READERS], "does not exist"),
    ),
    "binary": (
        lambda path: path.write_bytes(b"ELF\0one\1"),
        dict.fromkeys(["file_read", "file_edit", "file_multi_edit"], "binary file of 8 bytes")
        | dict.fromkeys(DIRECTORIES, "not a directory"),
    ),
    "latin": (
        lambda path: path.write_bytes(b"caf\xe9 one\n"),
        dict.fromkeys(["file_edit", "file_multi_edit"], r"not UTF-8 text \(byte 0xe9 at offset 3\)")
        | dict.fromkeys(DIRECTORIES, "not a directory"),
    ),
    "wide": (
        lambda path: path.write_bytes("one\n".encode("utf-16")),
        dict.fromkeys(["file_read", "file_edit", "file_multi_edit"], "UTF-16 text")
        | dict.fromkeys(DIRECTORIES, "not a directory"),
    ),
    "large": (
        make_large,
        dict.fromkeys(["file_grep", "file_edit", "file_multi_edit"], "has 200,000,000 bytes; more than")
        | dict.fromkeys(DIRECTORIES, "not a directory"),
    ),
    "long line": (
        make_long_line,
        dict.fromkeys(["file_grep", "file_edit", "file_multi_edit"], "has 1,073,741,824 bytes; more than")
        | {"file_read": "binary file of 1,073,741,824 bytes"}
        | dict.fromkeys(DIRECTORIES, "not a directory"),
    ),
    "terabyte": (
        make_beyond,
        dict.fromkeys(READERS, "has 1,099,511,627,776 bytes") | dict.fromkeys(DIRECTORIES, "not a directory"),
    ),
}
"""How each file is made, and the error by tool; tools that are not listed read it without an error."""


@pytest.fixture
def execute(builtin_executor: ToolExecutor, context_of: Any, call: Any) -> Callable[..., Executed]:
    def run_tool(name: str, arguments: dict[str, Any] | str) -> Executed:
        start = time.monotonic()
        executed = asyncio.run(builtin_executor.execute(call(name, arguments), context_of()))
        assert time.monotonic() - start < SECONDS
        return executed

    return run_tool


def require_sentence(words: str | None, workspace: Path) -> None:
    assert words is not None
    assert SENTENCE.fullmatch(words), words
    assert not CLASS_NAME.search(words), words
    assert str(workspace) not in words
    assert SECRET not in words


@pytest.fixture
def thing(request: pytest.FixtureRequest, workspace: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    (workspace.parent / "secret.txt").write_text(SECRET)
    make, words = THINGS[request.param]
    path = workspace / "thing"
    make(path)
    yield path, words
    # Large files are deleted at once.
    if path.is_file():
        path.unlink()


@pytest.mark.parametrize("thing", THINGS, indirect=True)
def test_each_tool_names_the_problem_of_a_special_file(
    thing: tuple[Path, dict[str, str]], execute: Callable[..., Executed], workspace: Path
) -> None:
    path, words = thing
    for name, arguments in TOOLS.items():
        if name == "file_write":
            continue
        before = os.lstat(path) if path.is_symlink() or path.exists() else None
        executed = execute(name, {**arguments, "path": "thing"})
        assert SECRET not in str(executed.result), name
        if name in words:
            require_sentence(executed.result.error, workspace)
            assert re.search(words[name], str(executed.result.error)), (name, executed.result.error)
        else:
            assert executed.result.success, (name, executed.result.error)
        after = os.lstat(path) if before is not None else None
        assert after is None or before is None or after.st_ino == before.st_ino, name
    executed = execute("file_write", {"path": "thing", "content": "mine"})
    if "file_write" in words:
        require_sentence(executed.result.error, workspace)
        assert re.search(words["file_write"], str(executed.result.error)), executed.result.error
    else:
        assert path.read_text() == "mine"
    assert (workspace.parent / "secret.txt").read_text() == SECRET
    assert sorted(os.listdir(workspace.parent)) == ["secret.txt", "workspace"]


@pytest.mark.parametrize("thing", THINGS, indirect=True)
def test_directory_tools_skip_files_that_they_cannot_read(
    thing: tuple[Path, dict[str, str]], execute: Callable[..., Executed], workspace: Path
) -> None:
    (workspace / "plain.txt").write_text("one\n")
    for name, place in (("file_grep", "matches"), ("file_glob", "files"), ("file_list", "entries")):
        executed = execute(name, TOOLS[name])
        assert executed.result.success, executed.result.error
        paths = {entry["path"] for entry in executed.result.data[place]}
        assert "plain.txt" in paths
        assert SECRET not in str(executed.result)
        assert not any("secret" in path for path in paths)


def test_grep_names_skipped_files_and_the_reason(execute: Callable[..., Executed], workspace: Path) -> None:
    make_beyond(workspace / "beyond")
    (workspace / "binary").write_bytes(b"one\0")
    (workspace / "plain").write_text("one\n")
    result = execute("file_grep", {"pattern": "one"}).result.data
    assert (result["count"], result["files_searched"], result["files_skipped"]) == (1, 2, 2)
    assert result["passed_over"] == [
        {
            "path": "beyond",
            "because": "beyond has 1,099,511,627,776 bytes; more than 10,485,760 bytes are not read at once",
        },
        {"path": "binary", "because": "it is binary"},
    ]


# --- paths ------------------------------------------------------------------------------------------

PATHS = {
    "a\0b": "NUL character",
    "../secret.txt": "leads out of the workspace",
    "/etc/passwd": "outside the workspace",
    "x" * 300: "longer than 255 bytes",
    "é/" * 1_500: "longer than 4095 bytes",
    "d/" * 65 + "f": "directories deep",
}


@pytest.mark.parametrize("path", PATHS, ids=range(len(PATHS)))
@pytest.mark.parametrize("name", TOOLS)
def test_each_tool_names_the_problem_of_a_path(
    name: str, path: str, execute: Callable[..., Executed], workspace: Path
) -> None:
    executed = execute(name, {**TOOLS[name], "path": path})
    require_sentence(executed.result.error, workspace)
    assert PATHS[path] in str(executed.result.error)
    assert os.listdir(workspace) == []


@pytest.mark.parametrize("escape", ["\\ud800", "\\udfff", "\\ud800\\ud800", "a\\udc00b"])
@pytest.mark.parametrize("name", TOOLS)
def test_a_lone_surrogate_is_no_path(
    name: str, escape: str, execute: Callable[..., Executed], workspace: Path
) -> None:
    rest = json.dumps(TOOLS[name])[1:-1]
    executed = execute(name, f'{{"path": "{escape}" {"," if rest else ""} {rest}}}')
    assert executed.status in (CallStatus.INVALID, CallStatus.FAILED)
    require_sentence(executed.result.error, workspace)
    assert os.listdir(workspace) == []


@pytest.mark.parametrize("name", ["file_write", "file_edit", "file_multi_edit"])
def test_a_lone_surrogate_is_no_text(name: str, builtin_executor: ToolExecutor, context_of: Any) -> None:
    context = context_of()
    (context.permissions.workspace / "a.txt").write_text("one")
    definition = builtin_executor.registry.get(name)
    assert definition is not None
    edit = {"old_string": "one", "new_string": "\ud800"}
    arguments = {"path": "a.txt", "content": "\udc00", **edit, "edits": [edit]}
    with pytest.raises(Exception, match="lone surrogate") as caught:
        definition.handler(arguments, context)
    require_sentence(str(caught.value), context.permissions.workspace)
    assert (context.permissions.workspace / "a.txt").read_text() == "one"


@pytest.mark.parametrize("pattern", ["../*", "a/../../*", "/etc/*", "a\0*", "x" * 201, ""])
def test_a_glob_that_leads_out_is_refused(
    pattern: str, execute: Callable[..., Executed], workspace: Path
) -> None:
    (workspace.parent / "secret.txt").write_text(SECRET)
    executed = execute("file_glob", {"pattern": pattern})
    assert not executed.result.success
    assert "secret" not in str(executed.result.error)


# --- lines and memory -------------------------------------------------------------------------------


def test_a_large_file_is_read_page_by_page(execute: Callable[..., Executed], workspace: Path) -> None:
    make_large(workspace / "large")
    try:
        page = execute("file_read", {"path": "large", "offset": 1_999_000, "limit": 3}).result.data
        assert page["content"] == ("x" * 99 + "\n") * 3
        assert (page["total_lines"], page["next_offset"]) == (2_000_000, 1_999_003)
        assert page["note"] == "The file has 997 more lines; read on with offset 1999003."
        last = execute("file_read", {"path": "large", "offset": 1_999_999}).result.data
        assert (last["lines"], last["truncated"]) == (1, False)
        beyond = execute("file_read", {"path": "large", "offset": 10**30}).result
        assert "has 2000000 lines; there is none at offset" in str(beyond.error)
    finally:
        (workspace / "large").unlink()


def test_a_line_too_long_to_give_is_cut_and_the_next_one_can_be_read(
    execute: Callable[..., Executed], workspace: Path
) -> None:
    (workspace / "a").write_bytes(b"first\n" + "é".encode() * 2 * MEGABYTE + b"\nlast\n")
    page = execute("file_read", {"path": "a", "offset": 1})
    assert "Line 1 has more than 1,048,576 bytes; the rest of it is left out." in page.result.data["note"]
    assert "read on with offset 2" in page.result.data["note"]
    assert page.full_output is not None
    assert "\ufffd" not in page.full_output
    assert execute("file_read", {"path": "a", "offset": 2}).result.data["content"] == "last\n"


def test_bytes_that_are_not_utf8_are_shown_as_such_and_named(
    execute: Callable[..., Executed], workspace: Path
) -> None:
    (workspace / "latin").write_bytes(b"caf\xe9\nplain\n")
    page = execute("file_read", {"path": "latin"}).result.data
    assert page["content"] == "caf\ufffd\nplain\n"
    assert page["note"] == "Some bytes are not UTF-8; each is shown as U+FFFD."
    assert "note" not in execute("file_read", {"path": "latin", "offset": 1}).result.data


def test_the_byte_order_mark_of_a_text_is_not_shown(
    execute: Callable[..., Executed], workspace: Path
) -> None:
    (workspace / "a").write_bytes("\ufeffone\n".encode())
    assert execute("file_read", {"path": "a"}).result.data["content"] == "one\n"


MEASURE = """
import json, re, sys, time
from pathlib import Path
from luxx.tools.builtin import builtin_tools
from luxx.tools.core import CallPermissions, CommandPermission, ToolCaller, ToolContext
from luxx.tools.hooks import result_of, result_of_error

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024

context = ToolContext(
    caller=ToolCaller(user_id=1, username="ann", permission_level=CommandPermission.ADMIN),
    permissions=CallPermissions(workspace=Path(sys.argv[1])),
)
tools = {tool.name: tool.handler for tool in builtin_tools()}
answers = []
for name, arguments in json.loads(sys.argv[2]):
    before, start = peak(), time.monotonic()
    try:
        success = result_of(tools[name](arguments, context)).success
    except Exception as error:
        success = result_of_error(error).success
    answers.append([name, success, peak() - before, time.monotonic() - start])
print(json.dumps(answers))
"""


def test_no_tool_takes_more_memory_for_a_larger_file(workspace: Path) -> None:
    make_large(workspace / "large")
    make_long_line(workspace / "long")
    (workspace / "lines").write_bytes(b"\n" * 10 * MEGABYTE)
    (workspace / "line").write_bytes(b"x" * 30 * MEGABYTE)
    calls = [
        [name, {**TOOLS[name], "path": path}]
        for path in ("large", "long", "lines", "line")
        for name in TOOLS
        if name != "file_write"
    ]
    calls += [
        ["file_grep", TOOLS["file_grep"]],
        ["file_read", {"path": "lines", "offset": 9_000_000, "limit": 100_000}],
    ]
    try:
        finished = subprocess.run(
            [sys.executable, "-c", MEASURE, str(workspace), json.dumps(calls)],
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
    finally:
        for path in workspace.iterdir():
            path.unlink()
    answers = json.loads(finished.stdout)
    assert len(answers) == len(calls)
    for (name, _, grown_mb, seconds), (_, arguments) in zip(answers, calls, strict=True):
        assert grown_mb <= MEMORY_MB, (name, arguments, grown_mb)
        assert seconds < SECONDS, (name, arguments, seconds)


@pytest.mark.parametrize("limit", [1, 7, 5000, 100_000])
def test_the_pages_of_a_large_file_contain_all_of_it(
    limit: int, execute: Callable[..., Executed], workspace: Path
) -> None:
    lines = [f"{n} " + "é" * (n * 7919 % 300) + "\n" for n in range(16_000)]
    (workspace / "a").write_text("".join(lines) + "end")
    lines.append("end")
    for start in (0, 5_230, 9_999, 15_990, 16_000):
        offset = start
        pieces: list[str] = []
        for _ in range(4):
            page = execute("file_read", {"path": "a", "offset": offset, "limit": limit}).result.data
            assert page["total_lines"] == 16_001
            pieces.append(page["content"])
            offset += page["lines"]
            assert page["truncated"] == (offset < 16_001)
            if not page["truncated"]:
                break
        assert "".join(pieces) == "".join(lines[start:offset])
        assert offset > start
