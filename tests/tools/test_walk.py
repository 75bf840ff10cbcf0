"""A walk through a tree takes one descriptor more, however deep it is, and goes nowhere it was not led."""

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
    seen = [(found.path, open_descriptors() - before) for found in walk(top)]
    assert len(seen) == 3 * (MAX_DEPTH - 1)
    assert max(count for _, count in seen) == 1
    assert [path for path, _ in seen[-2:]] == ["d/z", "z"]
    assert open_descriptors() == before


def test_a_walk_gives_what_lies_there_in_its_order(top: int, workspace: Path) -> None:
    for path in ("b/y/2", "b/y/1", "b/x", "c/e/1", "c/d", ".git/1", "a"):
        (workspace / path).parent.mkdir(parents=True, exist_ok=True)
        (workspace / path).write_text(path)
    (workspace / "b" / "empty").mkdir()
    (workspace / "c" / "out").symlink_to(workspace.parent)
    found = [(one.path, one.kind, one.size) for one in walk(top, "p/")]
    expected = [
        (f"p/{path.relative_to(workspace)}", path)
        for path in sorted(workspace.rglob("*"), key=lambda path: path.parts)
        if not SKIPPED_DIRECTORIES & set(path.relative_to(workspace).parts[:-1])
        and not path.parent.is_symlink()
    ]
    assert [path for path, _, _ in found] == [path for path, _ in expected]
    for (_, kind, size), (_, path) in zip(found, expected, strict=True):
        assert kind == ("link" if path.is_symlink() else "directory" if path.is_dir() else "file")
        assert size == path.lstat().st_size
    assert [one.path for one in walk(top, recursive=False)] == [".git", "a", "b", "c"]


@pytest.mark.parametrize("moved", ["b/c", "b"])
def test_what_is_moved_away_meanwhile_leads_nowhere_else(moved: str, top: int, workspace: Path) -> None:
    (workspace / "b" / "c").mkdir(parents=True)
    for path in ("b/c/1", "b/c/2", "b/z", "d/e/3", "z"):
        (workspace / path).parent.mkdir(parents=True, exist_ok=True)
        (workspace / path).write_text(path)
    outside = workspace.parent / "outside"
    outside.mkdir()
    (outside / "z").write_text("somebody else's")
    before = open_descriptors()
    seen: list[WalkEntry] = []
    for found in walk(top):
        seen.append(found)
        if found.path == "b/c/1":
            (workspace / moved).rename(outside / "there")
    paths = [found.path for found in seen]
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
    assert next(found for found in seen if found.path == "z").size == 1
    assert open_descriptors() == before


def test_an_abandoned_walk_leaves_no_descriptor_open(top: int, workspace: Path) -> None:
    (workspace / "a" / "b").mkdir(parents=True)
    (workspace / "a" / "b" / "c").write_text("")
    before = open_descriptors()
    going = walk(top)
    assert [next(going).path for _ in range(3)] == ["a", "a/b", "a/b/c"]
    going.close()
    assert open_descriptors() == before
