"""Somebody in the workspace swaps directories and files for links while tools read and write.

A reader that looks first and opens later must leak here, or the race is not one.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from luxx.errors import ToolFailed
from luxx.tools.confine import Workspace, read_regular
from luxx.tools.openat import OpenBeneath, has_openat2, open_beneath_openat2, open_beneath_stepwise
from luxx.tools.walk import open_found, walk

SECONDS = 3.0
SECRET = b"the secret of somebody else"
OPENERS = [open_beneath_stepwise, *([open_beneath_openat2] if has_openat2() else [])]


def naive_read(root: Path, path: str) -> bytes:
    """What one must not do: check, then open."""
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
def flipping(root: Path, outside: Path) -> Iterator[None]:
    """`d` is now a directory and now a link out; `f` now a file and now a link to the secret."""
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
    """How often something was read, and how often it was the secret."""
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
    found: list[bytes] = []
    with files.open_directory(".") as directory:
        for item in walk(directory):
            with suppress(OSError, ToolFailed):
                fd = open_found(item)
                try:
                    found.append(read_regular(fd, item.name, 1000))
                finally:
                    os.close(fd)
    return b"".join(found)


@pytest.mark.parametrize("opener", OPENERS, ids=lambda opener: opener.__name__)
def test_nothing_leaks_in_a_race_in_which_a_naive_reader_leaks(
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
    with flipping(workspace, outside):
        for name, read in readers.items():
            results[name] = count(read, time.monotonic() + SECONDS / len(readers))
    for name in ("directory", "file", "walk"):
        reads, leaks = results[name]
        assert (reads > 0, leaks) == (True, 0), name
    assert results["write"][0] > 0
    assert os.listdir(outside) == ["f"]
    assert (outside / "f").read_bytes() == SECRET
    assert results["naive"][1] + results["naive file"][1] > 0, "the race was none"
