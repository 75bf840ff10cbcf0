"""Another process swaps directories and files for links while tools read and write.

A reader that checks first and opens later must leak here; otherwise the race would prove nothing.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from luxx.errors import ToolFailed
from luxx.tools.builtin import builtin_tools
from luxx.tools.core import ToolContext
from luxx.tools.executor import ToolExecutor
from luxx.tools.files.descriptors import OpenBeneath, has_openat2, open_beneath_openat2, open_beneath_stepwise
from luxx.tools.files.walk import open_entry, walk
from luxx.tools.files.workspace import Workspace, read_regular
from luxx.wire.tool import ToolCall, ToolResult

SECONDS = 3.0
SECRET = b"the secret of somebody else"
OPENERS = [open_beneath_stepwise, *([open_beneath_openat2] if has_openat2() else [])]


def naive_read(root: Path, path: str) -> bytes:
    """The wrong way: check first, then open."""
    real = os.path.realpath(root / path)
    if not real.startswith(str(root)):
        raise ToolFailed("outside")
    return (root / path).read_bytes()


EXCHANGE = """
import ctypes, os, sys
os.chdir(sys.argv[1])
rename = ctypes.CDLL(None).renameat2
here, exchange = -100, 2
print("ready", flush=True)
while True:
    for name in (b"d", b"f"):
        if rename(here, name, here, name + b".link", exchange) != 0:
            sys.exit("an exchange failed")
"""


@contextmanager
def swapping_links(root: Path, outside: Path) -> Iterator[None]:
    """`d` alternates between a directory and a link outside, `f` between a file and a link to the secret."""
    os.symlink(outside, root / "d.link")
    os.symlink(outside / "f", root / "f.link")
    command = [sys.executable, "-c", EXCHANGE, str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield
            assert process.poll() is None, "the race ended early"
        finally:
            process.kill()


def count(read: Callable[[], bytes], until: float) -> tuple[int, int]:
    """The number of successful reads, and the number of those that returned the secret."""
    reads = leaks = 0
    while time.monotonic() < until:
        try:
            data = read()
        except (ToolFailed, OSError):
            continue
        reads += 1
        leaks += SECRET in data
    return reads, leaks


def search(files: Workspace) -> bytes:
    matches: list[bytes] = []
    with files.open_directory(".") as directory:
        for item in walk(directory):
            with suppress(OSError, ToolFailed):
                fd = open_entry(item)
                try:
                    matches.append(read_regular(fd, item.name, 1000))
                finally:
                    os.close(fd)
    return b"".join(matches)


@pytest.mark.parametrize("opener", OPENERS, ids=lambda opener: opener.__name__)
def test_the_workspace_does_not_leak_in_a_race_in_which_a_naive_reader_does(
    opener: OpenBeneath, workspace: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_bytes(SECRET)
    (workspace / "d").mkdir()
    (workspace / "d" / "f").write_bytes(b"own")
    (workspace / "f").write_bytes(b"own")
    files = Workspace(workspace, opener)
    results: dict[str, tuple[int, int]] = {}

    def write() -> bytes:
        files.write("d/new", b"mine")
        files.write("f.new", b"mine")
        return b""

    readers: dict[str, Callable[[], bytes]] = {
        "naive": lambda: naive_read(workspace, "d/f"),
        "naive file": lambda: naive_read(workspace, "f"),
        "directory": lambda: files.read("d/f"),
        "file": lambda: files.read("f"),
        "walk": lambda: search(files),
        "write": write,
    }
    with swapping_links(workspace, outside):
        for name, read in readers.items():
            results[name] = count(read, time.monotonic() + SECONDS / len(readers))
    for name in ("directory", "file", "walk"):
        reads, leaks = results[name]
        assert (reads > 0, leaks) == (True, 0), name
    assert results["write"][0] > 0
    assert os.listdir(outside) == ["f"]
    assert (outside / "f").read_bytes() == SECRET
    assert results["naive"][1] + results["naive file"][1] > 0, "the race was none"


# --- through each tool ------------------------------------------------------------------------------

OUTSIDE_NAME = "only-outside.txt"
# Arguments that would work on the secret as well: the diff would show it, and the file would change.
EDIT = {"old_string": "o", "new_string": "0", "replace_all": True}
UNDO = {"old_string": "0", "new_string": "o", "replace_all": True}
CALLS: dict[str, list[dict[str, Any]]] = {
    "file_read": [{"path": "d/f"}, {"path": "f"}],
    "file_list": [{"path": "d"}, {"recursive": True}],
    "file_exists": [{"path": f"d/{OUTSIDE_NAME}"}, {"path": "d/f"}],
    "file_grep": [{"pattern": "secret|own", "path": path} for path in (".", "d", "d/f", "f")],
    "file_glob": [{"pattern": "**"}, {"pattern": "d/*"}, {"pattern": "*", "path": "d"}],
    "file_write": [{"path": "d/new", "content": "mine"}, {"path": "d/e/e", "content": "mine"}],
    "file_edit": [{"path": "d/f", **EDIT}, {"path": "d/f", **UNDO}],
    "file_multi_edit": [{"path": "d/f", "edits": [EDIT, UNDO, EDIT]}, {"path": "d/f", "edits": [UNDO]}],
}


class Race:
    """A workspace whose `d` and `f` alternate between inside and outside, and the results of reads through
    them."""

    def __init__(self, root: Path, outside: Path, executor: ToolExecutor, context: ToolContext) -> None:
        outside.mkdir()
        (outside / "f").write_bytes(SECRET)
        (outside / OUTSIDE_NAME).write_bytes(SECRET)
        (root / "d").mkdir()
        (root / "d" / "f").write_bytes(b"own")
        (root / "f").write_bytes(b"own")
        self._root = root
        self._outside = outside
        self._executor = executor
        self._context = context
        self.done = 0
        self.leaks = 0
        self.naive_leaks = 0

    async def run(self, name: str, seconds: float) -> None:
        """Calls the tool and the naive reader alternately."""
        until = time.monotonic() + seconds
        calls = [
            ToolCall(call_id="call", name=name, arguments=json.dumps(arguments)) for arguments in CALLS[name]
        ]
        while time.monotonic() < until:
            for call in calls:
                result = (await self._executor.execute(call, self._context)).result
                self.done += result.success
                self.leaks += _has_leaked(name, result)
                self._read_naively()

    def is_untouched_outside(self) -> bool:
        names = sorted(os.listdir(self._outside))
        return names == ["f", OUTSIDE_NAME] and all(
            (self._outside / name).read_bytes() == SECRET for name in names
        )

    def _read_naively(self) -> None:
        for path in ("d/f", "f"):
            with suppress(ToolFailed, OSError):
                self.naive_leaks += SECRET in naive_read(self._root, path)


def _has_leaked(name: str, result: ToolResult) -> bool:
    output = str(result.data) + str(result.error)
    if name == "file_exists":
        return result.success and result.data["exists"] and OUTSIDE_NAME in result.data["path"]
    return SECRET.decode() in output or OUTSIDE_NAME in output


@pytest.fixture
def race(workspace: Path, tmp_path: Path, builtin_executor: ToolExecutor, context_of: Any) -> Race:
    return Race(workspace, tmp_path / "outside", builtin_executor, context_of())


def test_every_file_tool_is_in_the_race() -> None:
    assert set(CALLS) == {tool.name for tool in builtin_tools() if tool.category == "file"}


async def test_no_file_tool_leaks_in_a_short_race_in_which_a_naive_reader_does(
    race: Race, workspace: Path, tmp_path: Path
) -> None:
    with swapping_links(workspace, tmp_path / "outside"):
        for name in CALLS:
            race.done = 0
            await race.run(name, SECONDS / len(CALLS))
            assert (race.done > 0, race.leaks) == (True, 0), name
    assert race.is_untouched_outside()
    assert race.naive_leaks > 0, "the race was none"


@pytest.mark.heavy
@pytest.mark.parametrize("name", CALLS)
async def test_the_tool_does_not_leak_in_seconds_of_a_race_in_which_a_naive_reader_does(
    name: str, race: Race, workspace: Path, tmp_path: Path
) -> None:
    with swapping_links(workspace, tmp_path / "outside"):
        await race.run(name, SECONDS)
    print(
        f"{name}: {race.done} calls done, {race.leaks} leaks; a naive reader leaked {race.naive_leaks} times"
    )
    assert (race.done > 0, race.leaks) == (True, 0)
    assert race.is_untouched_outside()
    assert race.naive_leaks > 0, "the race was none"
