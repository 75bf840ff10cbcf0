"""What a supervisor prepares for a jail on disk: whose the workspace is, and a place for temporary files.

Part of the supervisor: only the standard library, and of it only what loads fast.
"""

import os
from typing import Any

SCRATCH = "/tmp"


def hand_over(spec: dict[str, Any]) -> None:
    """Give what the server wrote into the workspace to whom the jail runs as; what is theirs stays theirs."""
    uid: int | None = spec["uid"]
    workspace: str | None = spec["workspace"]
    if workspace is None:
        return
    os.chmod(workspace, 0o700)
    if uid is None:
        return
    own = os.geteuid()
    if os.stat(workspace).st_uid == own:
        os.chown(workspace, uid, uid)
    for _, folders, files, here in os.fwalk(workspace):
        for name in folders + files:
            try:
                found = os.stat(name, dir_fd=here, follow_symlinks=False)
                is_alone = found.st_nlink == 1 or name in folders
                if found.st_uid == own and is_alone:
                    os.chown(name, uid, uid, dir_fd=here, follow_symlinks=False)
            except FileNotFoundError:
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
    if scratch is None:
        return
    for _, folders, files, here in os.fwalk(scratch, topdown=False):
        for name in files:
            os.unlink(name, dir_fd=here)
        for name in folders:
            try:
                os.rmdir(name, dir_fd=here)
            except NotADirectoryError:
                os.unlink(name, dir_fd=here)
    os.rmdir(scratch)
