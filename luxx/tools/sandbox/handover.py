"""What a supervisor prepares for a jail on disk: whose the workspace is, and a place for temporary files.

Part of the supervisor: only the standard library, and of it only what loads fast.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes as long to load as all the rest
    from typing import Any

SCRATCH = "/tmp"
MAX_DEPTH = 64
"""As deep as the file tools go."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def hand_over(spec: dict[str, Any]) -> None:
    """Give what the server wrote into the workspace to whom the jail runs as; what is theirs stays theirs."""
    uid: int | None = spec["uid"]
    workspace: str | None = spec["workspace"]
    if workspace is None:
        return
    os.chmod(workspace, stat.S_IMODE(os.stat(workspace).st_mode) | 0o700)
    if uid is None:
        return
    fd = os.open(workspace, _DIRECTORY)
    try:
        if os.fstat(fd).st_uid == os.geteuid():
            os.fchown(fd, uid, uid)
        _hand_over_within(fd, uid, MAX_DEPTH)
    finally:
        os.close(fd)


def _hand_over_within(fd: int, uid: int, depth: int) -> None:
    own = os.geteuid()
    with os.scandir(fd) as entries:
        names = [entry.name for entry in entries]
    for name in names:
        try:
            found = os.stat(name, dir_fd=fd, follow_symlinks=False)
            is_directory = stat.S_ISDIR(found.st_mode)
            if found.st_uid == own and (is_directory or found.st_nlink == 1):
                os.chown(name, uid, uid, dir_fd=fd, follow_symlinks=False)
            if is_directory and depth:
                below = os.open(name, _DIRECTORY, dir_fd=fd)
                try:
                    _hand_over_within(below, uid, depth - 1)
                finally:
                    os.close(below)
        except OSError:
            # Gone meanwhile, or made something else; the jail then does without it.
            continue


def make_scratch(spec: dict[str, Any]) -> str | None:
    """A directory for temporary files, where no mount gives one."""
    if not spec["scratch"]:
        return None
    path = f"{SCRATCH}/luxx-{os.getpid()}-{os.urandom(8).hex()}"
    os.mkdir(path, 0o700)
    if spec["uid"] is not None:
        os.chown(path, spec["uid"], spec["uid"])
    return path


def remove(scratch: str | None) -> None:
    """Delete it, however deep it is: what lies within is brought up, and never gone down to."""
    if scratch is None:
        return
    count = 0
    fd = os.open(scratch, _DIRECTORY)
    while names := os.listdir(fd):
        for name in names:
            if not stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=fd)
                continue
            os.chmod(name, 0o700, dir_fd=fd)
            inner = os.open(name, _DIRECTORY, dir_fd=fd)
            for one in os.listdir(inner):
                count += 1
                os.rename(one, f".{count}", src_dir_fd=inner, dst_dir_fd=fd)
            os.close(inner)
            os.rmdir(name, dir_fd=fd)
    os.close(fd)
    os.rmdir(scratch)
