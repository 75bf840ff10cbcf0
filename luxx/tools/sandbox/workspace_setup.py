"""What a supervisor prepares on disk: the owner of the workspace, and a scratch directory.

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
    from typing import Any

SCRATCH = "/tmp"
SCRATCH_PREFIX = "luxx-sandbox-"
MAX_DEPTH = 64
"""The depth limit of the file tools."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


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
    """The path of the directory for temporary files, for a backend without a private /tmp."""
    return f"{SCRATCH}/{SCRATCH_PREFIX}{os.getpid()}-{os.urandom(8).hex()}"


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


def remove_leftovers(owners: set[int]) -> None:
    """Delete scratch directories of killed supervisors that belong to one of `owners` and are not locked."""
    for name in os.listdir(SCRATCH):
        if not name.startswith(SCRATCH_PREFIX) or name.endswith(".new"):
            continue
        try:
            fd = os.open(f"{SCRATCH}/{name}", _DIRECTORY)
        except OSError:
            continue
        try:
            if os.fstat(fd).st_uid in owners:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(f"{SCRATCH}/{name}")
        except OSError:
            # Another process has locked it.
            continue
        finally:
            os.close(fd)
