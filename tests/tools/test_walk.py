"""A walk through a tree uses one more descriptor at any depth, and does not follow moved directories."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from luxx.tools.files.walk import SKIPPED_DIRECTORIES, WalkEntry, walk
from luxx.tools.files.workspace import MAX_DEPTH, Workspace


@pytest.fixture
def top(workspace: Path) -> Iterator[int]:
    with Workspace(workspace).open_directory(".") as fd:
        yield fd


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_deep_tree_takes_no_more_descriptors_than_a_flat_one(top: int, workspace: Path) -> None:
    here = workspace
    for _ in range(MAX_DEPTH - 1):
        (here / "a").write_text("")
        (here / "z").write_text("")
        here = here / "d"
        here.mkdir()
    before = open_descriptors()
    counts = [(entry.path, open_descriptors() - before) for entry in walk(top)]
    assert len(counts) == 3 * (MAX_DEPTH - 1)
    assert max(count for _, count in counts) == 1
    assert [path for path, _ in counts[-2:]] == ["d/z", "z"]
    assert open_descriptors() == before


def test_a_walk_gives_all_entries_in_order(top: int, workspace: Path) -> None:
    for path in ("b/y/2", "b/y/1", "b/x", "c/e/1", "c/d", ".git/1", "a"):
        (workspace / path).parent.mkdir(parents=True, exist_ok=True)
        (workspace / path).write_text(path)
    (workspace / "b" / "empty").mkdir()
    (workspace / "c" / "out").symlink_to(workspace.parent)
    entries = [(entry.path, entry.kind, entry.size) for entry in walk(top, "p/")]
    expected = [
        (f"p/{path.relative_to(workspace)}", path)
        for path in sorted(workspace.rglob("*"), key=lambda path: path.parts)
        if not SKIPPED_DIRECTORIES & set(path.relative_to(workspace).parts[:-1])
        and not path.parent.is_symlink()
    ]
    assert [path for path, _, _ in entries] == [path for path, _ in expected]
    for (_, kind, size), (_, path) in zip(entries, expected, strict=True):
        assert kind == ("link" if path.is_symlink() else "directory" if path.is_dir() else "file")
        assert size == path.lstat().st_size
    assert [entry.path for entry in walk(top, recursive=False)] == [".git", "a", "b", "c"]


@pytest.mark.parametrize("moved", ["b/c", "b"])
def test_a_directory_moved_during_the_walk_is_not_followed(moved: str, top: int, workspace: Path) -> None:
    (workspace / "b" / "c").mkdir(parents=True)
    for path in ("b/c/1", "b/c/2", "b/z", "d/e/3", "z"):
        (workspace / path).parent.mkdir(parents=True, exist_ok=True)
        (workspace / path).write_text(path)
    outside = workspace.parent / "outside"
    outside.mkdir()
    (outside / "z").write_text("somebody else's")
    before = open_descriptors()
    entries: list[WalkEntry] = []
    for entry in walk(top):
        entries.append(entry)
        if entry.path == "b/c/1":
            (workspace / moved).rename(outside / "there")
    paths = [entry.path for entry in entries]
    assert paths == [
        "b",
        "b/c",
        "b/c/1",
        "b/c/2",
        *(["b/z"] if moved == "b" else []),
        "d",
        "d/e",
        "d/e/3",
        "z",
    ]
    assert next(entry for entry in entries if entry.path == "z").size == 1
    assert open_descriptors() == before


def test_an_abandoned_walk_leaves_no_descriptor_open(top: int, workspace: Path) -> None:
    (workspace / "a" / "b").mkdir(parents=True)
    (workspace / "a" / "b" / "c").write_text("")
    before = open_descriptors()
    going = walk(top)
    assert [next(going).path for _ in range(3)] == ["a", "a/b", "a/b/c"]
    going.close()
    assert open_descriptors() == before
