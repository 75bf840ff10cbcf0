"""Keeps stored data from other Unix users: directories that are made, and what an older version left open.

What is made later is private by the umask that `entry.py` sets. A directory of mode 0700 hides all that is
below it, so only the files at the top are looked at one by one.
"""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import structlog

PRIVATE = 0o700
TRAVERSABLE = 0o711
"""Others may reach what they know the name of, if its own mode lets them. Where Luxx runs as root, programs
run as another user, who has to reach the workspaces."""

STATE_FILES = ("secret_key", "server.lock", "last_backup.json")
STATE_DIRECTORIES = ("models", "logs")
_USER_WORKSPACE = re.compile(r"[0-9a-f]{64}")

logger = structlog.get_logger()


class SecuredPaths(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server keeps data. `database`: of SQLite, None for PostgreSQL."""

    data_dir: Path
    database: Path | None
    workspaces: Path


def make_directory(path: Path) -> None:
    """Makes a directory with those above it that are missing, reachable for other users only if we are root.

    Raises OSError.
    """
    if path.is_dir():
        return
    make_directory(path.parent)
    try:
        path.mkdir(mode=PRIVATE)
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        path.chmod(_max_mode())


def secure(paths: SecuredPaths, *, makes_workspaces: bool) -> None:
    """Makes what is missing and takes from others the rights to what is there.

    Where that is not possible it says so in the log and goes on.
    """
    try:
        make_directory(paths.data_dir.parent)
        paths.data_dir.mkdir(mode=PRIVATE, exist_ok=True)
        if makes_workspaces:
            make_directory(paths.workspaces)
    except OSError:
        pass  # Whoever needs the directory says what is wrong with it.
    tightened, open_still = 0, list[str]()
    for path, max_mode in _open_to_others(paths):
        if _tighten(path, max_mode):
            tightened += 1
        else:
            open_still.append(str(path))
    if tightened:
        logger.info("data_permissions_tightened", paths=tightened)
    if open_still:
        logger.warning("data_open_to_other_users", paths=open_still[:10], count=len(open_still))


def open_to_others(paths: SecuredPaths) -> list[Path]:
    """What other users of this machine may read or list now."""
    return [path for path, _ in _open_to_others(paths)]


def set_traversable(directory: Path, *, is_traversable: bool) -> None:
    """Lets others pass through a directory of root's, or not; they may never list it."""
    if os.geteuid() != 0:
        return
    try:
        if not _is_shared_directory(directory):
            directory.chmod(TRAVERSABLE if is_traversable else PRIVATE)
    except OSError as error:
        logger.warning("data_permissions_not_set", path=str(directory), error=error.strerror)


def _max_mode() -> int:
    return TRAVERSABLE if os.geteuid() == 0 else PRIVATE


def _open_to_others(paths: SecuredPaths) -> Iterator[tuple[Path, int]]:
    """Each path that is more open than it may be, with the most that it may be."""
    for path, max_mode in _stored_paths(paths):
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError:
            continue
        if mode & 0o077 & ~max_mode:
            yield path, max_mode


def _stored_paths(paths: SecuredPaths) -> Iterator[tuple[Path, int]]:
    yield paths.data_dir, _max_mode()
    for name in (*STATE_FILES, *STATE_DIRECTORIES):
        yield paths.data_dir / name, PRIVATE
    if paths.database is not None:
        # With what is beside it: the log, locks, copies made before an upgrade.
        for name in _list_names(paths.database.parent):
            if name.startswith(paths.database.name):
                yield paths.database.with_name(name), PRIVATE
    yield paths.workspaces, _max_mode()
    if os.geteuid() == 0:
        # Others may pass through the root there.
        for name in _list_names(paths.workspaces):
            yield paths.workspaces / name, PRIVATE if _USER_WORKSPACE.fullmatch(name) else TRAVERSABLE


def _list_names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _tighten(path: Path, max_mode: int) -> bool:
    """Whether others have no more rights now than `most`."""
    try:
        if _is_shared_directory(path):
            return False
        path.chmod(stat.S_IMODE(path.stat().st_mode) & (0o700 | max_mode))
        return not stat.S_IMODE(path.stat().st_mode) & 0o077 & ~max_mode
    except OSError:
        return False


def _is_shared_directory(path: Path) -> bool:
    """Whether it is a directory that all users of the machine use, such as /tmp."""
    return bool(path.stat().st_mode & stat.S_ISVTX) or path.absolute() == Path("/")
