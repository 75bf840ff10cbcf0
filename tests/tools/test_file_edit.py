"""file_edit and file_multi_edit on real files: edits are atomic, sequential, and change nothing else."""

import asyncio
import codecs
import ctypes
import fcntl
import json
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from luxx.errors import ToolFailed
from luxx.tools.builtin import builtin_tools
from luxx.tools.executor import ToolExecutor
from luxx.tools.files.workspace import Workspace
from luxx.wire.tool import ToolResult

Run = Callable[..., ToolResult]


@pytest.fixture
def run(builtin_executor: ToolExecutor, context_of: Any, call: Any) -> Run:
    def run_tool(name: str, **arguments: Any) -> ToolResult:
        return asyncio.run(builtin_executor.execute(call(name, arguments), context_of())).result

    return run_tool


@pytest.fixture(autouse=True)
def nothing_is_left_beside(workspace: Path) -> Any:
    yield
    assert [name for name in os.listdir(workspace) if name.startswith(".luxx-")] == []


def test_the_result_names_the_strategy_and_the_changes(run: Run, workspace: Path) -> None:
    (workspace / "a.py").write_text("def f():\n    return 1\n")
    result = run("file_edit", path="a.py", old_string="return 1", new_string="x = 2\n    return x")
    assert result.data == {
        "strategy": "simple",
        "replacements": 1,
        "path": "a.py",
        "lines_added": 2,
        "lines_removed": 1,
        "diff": (
            "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,3 @@\n def f():\n-    return 1\n+    x = 2\n+    return x\n"
        ),
    }
    assert (workspace / "a.py").read_text() == "def f():\n    x = 2\n    return x\n"


def test_all_matches_are_replaced_only_on_request(run: Run, workspace: Path) -> None:
    (workspace / "a.txt").write_text("a b a b a\n")
    refused = run("file_edit", path="a.txt", old_string="a", new_string="c")
    assert "3 places of a.txt" in str(refused.error)
    assert (workspace / "a.txt").read_text() == "a b a b a\n"
    result = run("file_edit", path="a.txt", old_string="a", new_string="c", replace_all=True)
    assert result.data["replacements"] == 3
    assert (workspace / "a.txt").read_text() == "c b c b c\n"


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755, 0o444, 0o777])
def test_byte_order_mark_line_ends_and_mode_of_the_file_are_kept(
    mark: bytes, end: bytes, mode: int, run: Run, workspace: Path
) -> None:
    path = workspace / "a.txt"
    path.write_bytes(mark + end.join([b"one", "zwölf".encode(), b"", b"three"]))
    path.chmod(mode)
    result = run("file_edit", path="a.txt", old_string="one\nzwölf", new_string="1\n漢字\n2")
    assert result.data["strategy"] == "simple"
    assert path.read_bytes() == mark + end.join([b"1", "漢字".encode(), b"2", b"", b"three"])
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_setuid_and_similar_bits_are_not_kept(run: Run, workspace: Path) -> None:
    (workspace / "a.txt").write_text("a")
    (workspace / "a.txt").chmod(0o4755)
    run("file_edit", path="a.txt", old_string="a", new_string="b")
    assert stat.S_IMODE((workspace / "a.txt").stat().st_mode) == 0o755


def test_each_edit_sees_the_result_of_the_earlier_ones(run: Run, workspace: Path) -> None:
    (workspace / "a.txt").write_text("one\ntwo\nthree\n")
    result = run(
        "file_multi_edit",
        path="a.txt",
        edits=[
            {"old_string": "one", "new_string": "two"},
            {"old_string": "two", "new_string": "2", "replace_all": True},
            {"old_string": "  three", "new_string": "3"},
        ],
    )
    assert result.data["edits"] == [
        {"strategy": "simple", "replacements": 1},
        {"strategy": "simple", "replacements": 2},
        {"strategy": "line_trimmed", "replacements": 1},
    ]
    assert (result.data["lines_added"], result.data["lines_removed"]) == (3, 3)
    assert (workspace / "a.txt").read_text() == "2\n2\n3\n"


def read_only_attributes(path: Path) -> tuple[int, ...]:
    """The attributes of a file that a read does not change."""
    status = path.stat()
    return (
        status.st_ino,
        status.st_mode,
        status.st_nlink,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_if_one_edit_fails_none_is_made(wrong: int, run: Run, workspace: Path) -> None:
    (workspace / "a.txt").write_text("a\nb\nc\n")
    edits = [{"old_string": letter, "new_string": letter.upper()} for letter in "abc"]
    edits[wrong]["old_string"] = "not there"
    before = read_only_attributes(workspace / "a.txt")
    result = run("file_multi_edit", path="a.txt", edits=edits)
    assert f"edit {wrong + 1} of 3, so none was made: old_string is not in a.txt" in str(result.error)
    assert (workspace / "a.txt").read_text() == "a\nb\nc\n"
    assert read_only_attributes(workspace / "a.txt") == before


async def test_a_cancelled_edit_changes_nothing(
    builtin_executor: ToolExecutor, context_of: Any, call: Any, workspace: Path
) -> None:
    (workspace / "a.txt").write_text("a\n")
    edit = {"old_string": "a", "new_string": "b"}
    for name, arguments in (("file_edit", edit), ("file_multi_edit", {"edits": [edit]})):
        tool_call = call(name, {"path": "a.txt", **arguments})
        executed = await builtin_executor.execute(tool_call, context_of(cancelled=lambda: True))
        assert "cancelled; nothing was changed" in str(executed.result.error)
    assert (workspace / "a.txt").read_text() == "a\n"


def test_edits_that_undo_each_other_change_nothing_and_say_so(run: Run, workspace: Path) -> None:
    (workspace / "a.txt").write_text("a\n")
    edits = [{"old_string": "a", "new_string": "b"}, {"old_string": "b", "new_string": "a"}]
    assert "leaves a.txt as it is" in str(run("file_multi_edit", path="a.txt", edits=edits).error)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"path": "a.txt", "edits": []}, "arguments.edits"),
        ({"path": "a.txt", "edits": [{"old_string": "a"}]}, '"new_string" is missing'),
        ({"path": "a.txt", "edits": [{"old_string": "a", "new_string": "b", "all": 1}]}, '"all"'),
        ({"path": "a.txt", "edits": [{"old_string": 1, "new_string": "b"}]}, "edits[0].old_string"),
        ({"path": "a.txt", "edits": [{"old_string": "a", "new_string": "b"}] * 101}, "arguments.edits"),
    ],
)
def test_invalid_edits_are_named(arguments: dict[str, Any], words: str, run: Run, workspace: Path) -> None:
    (workspace / "a.txt").write_text("a")
    assert words in str(run("file_multi_edit", **arguments).error)
    assert (workspace / "a.txt").read_text() == "a"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"caf\xe9 one", "not UTF-8 text (byte 0xe9 at offset 3)"),
        ("one".encode("utf-16"), "UTF-16 text"),
        (codecs.BOM_UTF16_BE + "one".encode("utf-16-be"), "UTF-16 text"),
        ("one".encode("utf-32"), "UTF-32 text"),
        (b"one\0\1", "binary file of 5 bytes"),
        (b"one " + b"x" * 10_000 + b"\xff", "byte 0xff at offset 10,004"),
    ],
)
def test_a_file_that_is_not_utf8_is_not_changed(data: bytes, words: str, run: Run, workspace: Path) -> None:
    (workspace / "a").write_bytes(data)
    assert words in str(run("file_edit", path="a", old_string="one", new_string="1").error)
    assert (workspace / "a").read_bytes() == data


def test_a_link_is_not_edited_and_another_name_of_the_file_stays_as_it_was(run: Run, workspace: Path) -> None:
    (workspace / "a.txt").write_text("one")
    (workspace / "link").symlink_to("a.txt")
    os.link(workspace / "a.txt", workspace / "other")
    assert "link that is not followed" in str(
        run("file_edit", path="link", old_string="one", new_string="1").error
    )
    run("file_edit", path="other", old_string="one", new_string="1")
    assert (workspace / "a.txt").read_text() == "one"
    assert (workspace / "other").read_text() == "1"


# --- concurrent writes ------------------------------------------------------------------------------


async def test_edits_of_one_file_at_the_same_time_are_all_made(
    builtin_executor: ToolExecutor, context_of: Any, call: Any, workspace: Path
) -> None:
    (workspace / "a.txt").write_text("".join(f"<{n}>\n" for n in range(24)))
    calls = [
        call("file_edit", {"path": "a.txt", "old_string": f"<{n}>", "new_string": f"[{n}]"}, f"call-{n}")
        for n in range(24)
    ]
    executions = await builtin_executor.process_tool_calls_parallel(calls, context_of())
    assert [executed.result.error for executed in executions] == [None] * 24
    assert (workspace / "a.txt").read_text() == "".join(f"[{n}]\n" for n in range(24))


def test_readers_see_all_edits_of_a_call_or_none(run: Run, workspace: Path) -> None:
    path = workspace / "a.txt"
    path.write_text("old\n" * 10_000)
    contents_read: list[set[str]] = []
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            contents_read.append({str(len(text := path.read_text())), *text.split("\n")})

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for old, new in [("old", "new"), ("new", "old")] * 3:
            edits = [{"old_string": old, "new_string": new, "replace_all": True}]
            assert run("file_multi_edit", path="a.txt", edits=edits).success
    finally:
        is_over.set()
        reader.join(20)
    assert contents_read
    assert all(content in ({"40000", "old", ""}, {"40000", "new", ""}) for content in contents_read)


def test_a_concurrent_write_before_the_edit_is_not_lost(workspace: Path) -> None:
    path = workspace / "a.txt"
    path.write_text("mine")

    def work(data: bytes) -> bytes:
        path.write_text("theirs, and longer")
        return b"changed"

    with pytest.raises(ToolFailed, match="written by another program in the meantime"):
        Workspace(workspace).change("a.txt", work)
    assert path.read_text() == "theirs, and longer"

    def replaced(data: bytes) -> bytes:
        Workspace(workspace).write("a.txt", b"replaced")
        return b"changed"

    with pytest.raises(ToolFailed, match="written by another program in the meantime"):
        Workspace(workspace).change("a.txt", replaced)
    assert path.read_text() == "replaced"


@contextmanager
def at_the_last_moment(step: str, act: Callable[[], None]) -> Iterator[None]:
    """Calls `act` once, in this thread, right before the next audited event `step` of a draft."""
    left = [act]
    here = threading.get_ident()

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event == step and left and threading.get_ident() == here and ".luxx-" in str(arguments):
            left.pop()()

    sys.addaudithook(look)
    yield
    assert not left, f"there was no {step}"


def write_anew(workspace: Path) -> None:
    Workspace(workspace).write("a.txt", b"theirs, and longer")


def write_into(workspace: Path) -> None:
    (workspace / "a.txt").write_text("theirs, and longer")


def move_here(workspace: Path) -> None:
    (workspace / "theirs").write_text("theirs, and longer")
    (workspace / "theirs").rename(workspace / "a.txt")


def link_here(workspace: Path) -> None:
    move_here(workspace)
    (workspace / "a.txt").rename(workspace / "theirs")
    (workspace / "a.txt").symlink_to("theirs")


@pytest.mark.parametrize("write", [write_anew, write_into, move_here, link_here])
def test_a_write_during_an_edit_is_not_lost(write: Callable[[Path], None], workspace: Path) -> None:
    (workspace / "a.txt").write_text("mine")
    with (
        at_the_last_moment("open", lambda: write(workspace)),
        pytest.raises(ToolFailed, match="written by another program in the meantime"),
    ):
        Workspace(workspace).change("a.txt", lambda data: b"changed")
    assert (workspace / "a.txt").read_text() == "theirs, and longer"


def test_a_file_that_is_removed_while_it_is_edited_does_not_come_back(workspace: Path) -> None:
    (workspace / "a.txt").write_text("mine")
    with (
        at_the_last_moment("open", lambda: (workspace / "a.txt").unlink()),
        pytest.raises(ToolFailed, match="written by another program in the meantime"),
    ):
        Workspace(workspace).change("a.txt", lambda data: b"changed")
    assert not (workspace / "a.txt").exists()


@pytest.mark.parametrize("newer", [1, 2, 3])
def test_a_write_between_the_last_check_and_the_exchange_is_restored(
    newer: int, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "a.txt").write_text("mine")
    exchange = ctypes.CDLL(None, use_errno=True).renameat2
    written: list[bytes] = []

    def exchange_late(*arguments: Any) -> int:
        if len(written) < newer:
            written.append(b"theirs, number %d" % len(written))
            Workspace(workspace).write("a.txt", written[-1])
        return int(exchange(*arguments))

    monkeypatch.setattr("luxx.tools.files.descriptors._renameat2", exchange_late)
    with pytest.raises(ToolFailed, match="written by another program in the meantime"):
        Workspace(workspace).change("a.txt", lambda data: b"changed")
    assert len(written) == newer
    assert (workspace / "a.txt").read_bytes() == written[-1]


WRITES_ON = """
import os, sys
os.chdir(sys.argv[1])
print("ready", flush=True)
number = 0
while True:
    number += 1
    with open("next", "w") as file:
        file.write(f"{number:09}")
    os.rename("next", "a.txt")
    print(number, flush=True)
"""


def test_continuous_writes_during_edits_are_never_undone(workspace: Path) -> None:
    path = workspace / "a.txt"
    path.write_text("000000000")
    command = [sys.executable, "-c", WRITES_ON, str(workspace)]
    made = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            for _ in range(300):
                with suppress(ToolFailed):
                    Workspace(workspace).change("a.txt", lambda data: data[:9] + b" edited")
                    made += 1
                acknowledged = int(process.stdout.readline())
                assert int(path.read_text()[:9]) >= acknowledged
        finally:
            process.kill()
    assert made < 300


def test_a_file_is_edited_on_a_file_system_without_exchange(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "a.txt").write_text("mine")
    monkeypatch.setattr("luxx.tools.files.descriptors._renameat2", None)
    Workspace(workspace).change("a.txt", lambda data: b"changed")
    assert (workspace / "a.txt").read_text() == "changed"
    with (
        at_the_last_moment("open", lambda: write_anew(workspace)),
        pytest.raises(ToolFailed, match="written by another program in the meantime"),
    ):
        Workspace(workspace).change("a.txt", lambda data: b"changed again")
    assert (workspace / "a.txt").read_text() == "theirs, and longer"


def test_an_edit_that_is_stopped_while_the_file_is_written_changes_nothing(
    builtin_executor: ToolExecutor, context_of: Any, call: Any, workspace: Path
) -> None:
    (workspace / "a.txt").write_text("a\n")
    stopped: list[bool] = []
    tool_call = call("file_edit", {"path": "a.txt", "old_string": "a", "new_string": "b"})
    context = context_of(cancelled=lambda: bool(stopped))
    tool = builtin_executor.registry.get("file_edit")
    assert tool is not None
    with at_the_last_moment("open", lambda: stopped.append(True)), pytest.raises(ToolFailed) as refused:
        tool.handler(json.loads(tool_call.arguments), context)
    assert "cancelled; nothing was changed" in refused.value.message
    assert (workspace / "a.txt").read_text() == "a\n"


def test_the_wait_for_a_locked_file_is_bounded(run: Run, workspace: Path) -> None:
    (workspace / "a.txt").write_text("one")
    with open(workspace / "a.txt") as open_file:
        fcntl.flock(open_file, fcntl.LOCK_EX)
        with pytest.raises(ToolFailed, match="being changed by something else"):
            Workspace(workspace, lock_timeout_seconds=0.1).change("a.txt", lambda data: b"1")
    assert run("file_edit", path="a.txt", old_string="one", new_string="1").success


def test_a_failed_change_leaves_no_descriptor_open(run: Run, workspace: Path) -> None:
    (workspace / "a.txt").write_text("one")
    (workspace / "dir").mkdir()
    run("file_read", path="a.txt")
    before = len(os.listdir("/proc/self/fd"))
    for path in ("a.txt", "dir", "none", "none/below", "a.txt/below", "."):
        assert not run("file_edit", path=path, old_string="not there", new_string="1").success
    assert run("file_edit", path="a.txt", old_string="one", new_string="1").success
    assert len(os.listdir("/proc/self/fd")) == before


# --- the documentation ------------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "agents" / "file-tools.md"


def test_the_answers_that_the_documentation_shows_are_the_real_ones(run: Run) -> None:
    page = PAGE.read_text("utf-8")
    calls = [
        (name, json.loads(text)) for name, text in re.findall(r"^tool (\w+) '(.*)'$", page, re.MULTILINE)
    ]
    shown = [
        json.loads(block) for block in re.findall(r"^```json\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    ]
    answers = [run(name, **arguments) for name, arguments in calls]
    assert [answer.error for answer in answers] == [None] * len(calls)
    assert {name for name, _ in calls} == {tool.name for tool in builtin_tools() if tool.category == "file"}
    assert len(shown) == 2
    assert [answer for answer in shown if answer not in [answer.data for answer in answers]] == []
