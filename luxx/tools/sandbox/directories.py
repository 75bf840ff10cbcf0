"""A supervisor's directories: the owner of the workspace, a scratch directory, and how much both grow.

Part of the supervisor: imports only fast modules of the standard library.
"""

from __future__ import annotations

import fcntl
import os
import select
import stat

from luxx.infra.removal import remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes as long to load as all the rest
    from collections.abc import Iterator
    from typing import Any

SCRATCH_PREFIX = "luxx-sandbox-"
MAX_DEPTH = 64
"""The depth limit of the file tools."""

ENTRIES_AT_ONCE = 500
PAUSED_UPDATES = 20
"""After a full count, this many updates do not count."""
MIN_ENTRY_BYTES = 4096
"""The minimum that each entry counts: names and links take disk space, too, which `st_blocks` omits."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class ControlClosed(OSError):
    """The server has closed the control socket, so the sandbox is not needed any more."""


def give_workspace_to_user(spec: dict[str, Any], control: int) -> None:
    """Change the owner of files that the server wrote into the workspace to the sandbox user.

    Files of other owners keep theirs. Raises OSError; ControlClosed once the server has closed `control`.
    """
    uid: int | None = spec["uid"]
    workspace: str | None = spec["workspace"]
    if workspace is None:
        return
    mode = stat.S_IMODE(os.stat(workspace).st_mode)
    if mode & 0o700 != 0o700:
        os.chmod(workspace, mode | 0o700)
    if uid is None:
        return
    fd = os.open(workspace, _DIRECTORY)
    try:
        if os.fstat(fd).st_uid == os.geteuid():
            os.fchown(fd, uid, uid)
        poller = select.poll()
        poller.register(control, select.POLLRDHUP)
        _give_to_user(fd, uid, MAX_DEPTH, poller)
    finally:
        os.close(fd)


def _give_to_user(fd: int, uid: int, depth: int, control_poll: select.poll) -> None:
    own = os.geteuid()
    if control_poll.poll(0):
        raise ControlClosed
    with os.scandir(fd) as entries:
        names = [entry.name for entry in entries]
    for name in names:
        try:
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            is_directory = stat.S_ISDIR(status.st_mode)
            if status.st_uid == own and (is_directory or status.st_nlink == 1):
                os.chown(name, uid, uid, dir_fd=fd, follow_symlinks=False)
            if is_directory and depth:
                child_fd = os.open(name, _DIRECTORY, dir_fd=fd)
                try:
                    _give_to_user(child_fd, uid, depth - 1, control_poll)
                finally:
                    os.close(child_fd)
        except ControlClosed:
            raise
        except OSError:
            # A program deleted or replaced it meanwhile.
            continue


def new_scratch() -> str:
    """The path of the directory for temporary files, for a backend without a private /tmp.

    In `TMPDIR`, which the server sets for each supervisor.
    """
    return f"{os.environ.get('TMPDIR', '/tmp')}/{SCRATCH_PREFIX}{os.getpid()}-{os.urandom(8).hex()}"


def make_scratch(spec: dict[str, Any], path: str) -> str | None:
    """Create the directory if the spec wants it. A lock marks it as used until this process ends."""
    if not spec["scratch"]:
        return None
    made = f"{path}.new"
    os.mkdir(made, 0o700)
    fcntl.flock(os.open(made, _DIRECTORY), fcntl.LOCK_EX)
    if spec["uid"] is not None:
        os.chown(made, spec["uid"], spec["uid"])
    os.rename(made, path)
    return path


def remove_scratch(scratch: str | None) -> None:
    if scratch is not None:
        remove_tree(scratch)


def remove_leftovers(parent: str, owners: set[int]) -> None:
    """Delete scratch directories of killed supervisors in `parent` that belong to one of `owners` and are not
    locked."""
    for name in os.listdir(parent):
        if not name.startswith(SCRATCH_PREFIX) or name.endswith(".new"):
            continue
        try:
            fd = os.open(f"{parent}/{name}", _DIRECTORY)
        except OSError:
            continue
        try:
            if os.fstat(fd).st_uid in owners:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(f"{parent}/{name}")
        except OSError:
            # Another process has locked it.
            continue
        finally:
            os.close(fd)


class DiskUsage:
    """`grown`: by how many bytes the directories `paths` have grown since the first full count."""

    def __init__(self, paths: list[str]) -> None:
        self.grown = 0
        self._paths = paths
        self._first: int | None = None
        self._sum = 0
        self._counting: Iterator[int] | None = None
        self._pause = 0

    def update(self) -> None:
        """Continue the count by up to ENTRIES_AT_ONCE entries."""
        if self._pause:
            self._pause -= 1
            return
        if self._counting is None:
            self._sum = 0
            self._counting = (size for path in self._paths for size in _sizes(path))
        for _ in range(ENTRIES_AT_ONCE):
            size = next(self._counting, None)
            if size is None:
                self._finish_count()
                return
            self._sum += size
            if self._first is not None:
                self.grown = max(self.grown, self._sum - self._first)

    def _finish_count(self) -> None:
        self._counting = None
        self._pause = PAUSED_UPDATES
        if self._first is None:
            self._first = self._sum
        self.grown = self._sum - self._first


def _sizes(path: str) -> Iterator[int]:
    try:
        fd = os.open(path, _DIRECTORY)
    except OSError:
        return
    yield from _below(fd, MAX_DEPTH)


def _below(fd: int, depth: int) -> Iterator[int]:
    try:
        with os.scandir(fd) as entries:
            for entry in entries:
                try:
                    status = os.stat(entry.name, dir_fd=fd, follow_symlinks=False)
                    is_directory = stat.S_ISDIR(status.st_mode)
                    below = os.open(entry.name, _DIRECTORY, dir_fd=fd) if is_directory and depth else None
                except OSError:
                    continue
                yield max(status.st_blocks * 512, MIN_ENTRY_BYTES)
                if below is not None:
                    yield from _below(below, depth - 1)
    except OSError:
        return
    finally:
        os.close(fd)
