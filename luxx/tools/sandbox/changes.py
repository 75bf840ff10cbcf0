"""Which files of a workspace a program made, changed or deleted: a look before and a look after."""

import os
from pathlib import Path

import msgspec

from luxx.tools.files.walk import walk
from luxx.tools.files.workspace import Workspace

MOST_ENTRIES = 10_000
"""Looked at, files and all else; where there are more, nothing is said of changes."""
MOST_NAMES = 100

FileSnapshot = dict[str, tuple[int, int, int]]
"""By path: the file's number, size, and time of change in nanoseconds."""


class FileChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Paths in the workspace, at most a hundred of each; `is_complete` tells whether these are all."""

    created: list[str]
    modified: list[str]
    deleted: list[str]
    is_complete: bool = True


def snapshot_files(workspace: Path) -> FileSnapshot | None:
    """The files that are there; None where there is too much."""
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
    """What is different; nothing, and said to be incomplete, where there was too much to look at."""
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
    """A name that is not UTF-8, in a form JSON can carry."""
    return os.fsencode(name).decode("utf-8", "replace")
