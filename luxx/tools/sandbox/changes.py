"""Which files of a workspace a program created, changed or deleted, from a snapshot before and one after."""

import os
from pathlib import Path

import msgspec

from luxx.tools.files.walk import walk
from luxx.tools.files.workspace import Workspace

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
        for count, one in enumerate(walk(fd)):
            if count >= MOST_ENTRIES:
                return None
            if one.kind != "file":
                continue
            try:
                status = os.stat(one.name, dir_fd=one.directory_fd, follow_symlinks=False)
            except OSError:
                continue
            snapshot[one.path] = (status.st_ino, status.st_size, status.st_mtime_ns)
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
    created, modified, deleted = ([_shown(name) for name in one[:MOST_NAMES]] for one in lists)
    is_complete = all(len(one) <= MOST_NAMES for one in lists)
    return FileChanges(created=created, modified=modified, deleted=deleted, is_complete=is_complete)


def _shown(name: str) -> str:
    """The name as valid UTF-8, for JSON."""
    return os.fsencode(name).decode("utf-8", "replace")
