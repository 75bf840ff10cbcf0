"""The storage below the file routes: races with links, unnamed drafts, counting of used bytes."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from luxx.domain.files import storage
from luxx.domain.files import storage as measuring
from luxx.domain.files.storage import WorkspaceFiles, measure
from luxx.errors import Conflict, LuxxError, NotFound

SECRET = b"the secret of somebody else"
SECONDS = 1.0
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


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    made.mkdir()
    return made


@pytest.fixture
def workspace_files(root: Path) -> WorkspaceFiles:
    return WorkspaceFiles(root)


@contextmanager
def swapping_links(root: Path, outside: Path) -> Iterator[None]:
    """`d` alternates between a folder and a link outside, `f` between a file and a link to the secret."""
    (root / "d.link").symlink_to(outside)
    (root / "f.link").symlink_to(outside / "f")
    command = [sys.executable, "-c", EXCHANGE, str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield
            assert process.poll() is None, "the race ended early"
        finally:
            process.kill()


def repeat(act: Callable[[], object]) -> int:
    """Repeats the action. Returns how often it succeeded."""
    done = 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        with suppress(LuxxError):
            act()
            done += 1
    return done


def test_swapping_files_for_links_reads_deletes_or_writes_nothing_outside(
    root: Path, workspace_files: WorkspaceFiles, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_bytes(SECRET)
    (outside / "victim").write_bytes(SECRET)
    (root / "d").mkdir()
    (root / "d" / "f").write_bytes(b"own")
    (root / "f").write_bytes(b"own")

    def read(path: str) -> None:
        file = workspace_files.open_download(path)
        try:
            assert file.read_at(0, 100) == b"own"
        finally:
            file.close()

    def place() -> None:
        draft = workspace_files.create_draft()
        try:
            draft.write(b"mine")
            workspace_files.remove(workspace_files.save_draft(draft, "d", "placed").path)
        finally:
            workspace_files.close_draft(draft)

    def look() -> None:
        for entry in workspace_files.list_folder("d", offset=0, limit=10)[0]:
            assert entry.path != "d/victim"

    with swapping_links(root, outside):
        counts = [repeat(act) for act in (lambda: read("f"), lambda: read("d/f"), place, look)]
        repeat(lambda: workspace_files.remove("d/victim"))
    assert all(counts), counts
    assert sorted(os.listdir(outside)) == ["f", "victim"]
    assert (outside / "f").read_bytes() == SECRET


@pytest.mark.parametrize("has_tmpfile", [True, False])
def test_a_draft_is_not_listed_and_vanishes_when_dropped(
    root: Path, workspace_files: WorkspaceFiles, monkeypatch: pytest.MonkeyPatch, has_tmpfile: bool
) -> None:
    """Without O_TMPFILE, as on a network file system, the draft has a name that no list shows."""
    if not has_tmpfile:
        monkeypatch.delattr(os, "O_TMPFILE")
    kept_draft, dropped_draft = workspace_files.create_draft(), workspace_files.create_draft()
    kept_draft.write(b"kept")
    dropped_draft.write(b"dropped")
    assert len(os.listdir(root)) == (0 if has_tmpfile else 2)
    assert workspace_files.list_folder("", offset=0, limit=10) == ([], 0)
    (root / "name").write_bytes(b"was here")
    assert workspace_files.save_draft(kept_draft, ".", "name").path == "name (2)"
    workspace_files.close_draft(kept_draft)
    workspace_files.close_draft(dropped_draft)
    assert sorted(os.listdir(root)) == ["name", "name (2)"]
    assert (root / "name").read_bytes() == b"was here"
    assert (root / "name (2)").read_bytes() == b"kept"
    assert (root / "name (2)").stat().st_nlink == 1


def test_a_thousand_files_of_one_name_are_enough(
    root: Path, workspace_files: WorkspaceFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "MAX_NUMBER", 2)
    (root / "a").touch()
    (root / "a (2)").touch()
    draft = workspace_files.create_draft()
    with pytest.raises(Conflict):
        workspace_files.save_draft(draft, ".", "a")
    workspace_files.close_draft(draft)
    assert sorted(os.listdir(root)) == ["a", "a (2)"]


def test_a_closed_handle_is_never_read_by_its_old_descriptor(
    root: Path, workspace_files: WorkspaceFiles
) -> None:
    (root / "a").write_bytes(b"own")
    file = workspace_files.open_download("a")
    file.close()
    file.close()
    others = [os.open("/dev/zero", os.O_RDONLY) for _ in range(3)]
    with pytest.raises(Conflict):
        file.read_at(0, 10)
    for fd in others:
        os.close(fd)


def used_bytes(root: Path) -> int:
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return measure(fd)
    finally:
        os.close(fd)


def test_all_regular_files_are_counted_and_links_are_not_followed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"x" * 1000)
    (root / "a" / ".git" / "node_modules").mkdir(parents=True)
    (root / "a" / ".git" / "node_modules" / "f").write_bytes(b"x" * 10)
    (root / "g").write_bytes(b"x" * 5)
    (root / "loop").symlink_to(root)
    (root / "out").symlink_to(tmp_path / "outside")
    os.mkfifo(root / "pipe")
    assert used_bytes(root) == 15


def test_a_folder_that_cannot_be_counted_is_not_treated_as_empty(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a" / "b" / "c" / "d").mkdir(parents=True)
    monkeypatch.setattr(measuring, "MAX_DEPTH", 2)
    with pytest.raises(Conflict):
        used_bytes(root)
    monkeypatch.undo()
    monkeypatch.setattr(measuring, "MAX_ENTRIES", 2)
    with pytest.raises(Conflict):
        used_bytes(root)


def test_counting_leaves_no_descriptor_open(root: Path) -> None:
    (root / "a" / "b").mkdir(parents=True)
    before = len(os.listdir("/proc/self/fd"))
    used_bytes(root)
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_workspace_itself_can_be_neither_opened_nor_removed(workspace_files: WorkspaceFiles) -> None:
    for act in (workspace_files.open_download, workspace_files.remove):
        with pytest.raises((NotFound, LuxxError)):
            act(".")
