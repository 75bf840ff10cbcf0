"""Protects stored data: from other Unix users by the modes of directories and files, and from other servers
by locks, which are freed when a process ends.

The umask that `app/entry.py` sets makes later files private. A directory of mode 0700 hides its content, so
only the files at the top level are checked one by one.
"""

import fcntl
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import structlog

from luxx.errors import ConfigError

PRIVATE = 0o700
TRAVERSABLE = 0o711
"""Other users may not list the directory, but may open entries by name. If Luxx runs as root, programs run as
another user, who needs access to the workspaces."""

STATE_FILES = ("secret_key", "server.lock", "last_backup.json")
STATE_DIRECTORIES = ("models", "logs")
_USER_WORKSPACE = re.compile(r"[0-9a-f]{64}")

logger = structlog.get_logger()


class SecuredPaths(msgspec.Struct, frozen=True, kw_only=True):
    """The paths of a server's data. `database`: the SQLite file, None for PostgreSQL."""

    data_dir: Path
    database: Path | None
    workspaces: Path


def make_directory(path: Path) -> None:
    """Creates a directory and its missing parents, traversable for other users only if Luxx runs as root.

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


def restrict_permissions(paths: SecuredPaths, *, makes_workspaces: bool) -> None:
    """Creates missing directories and removes the rights of other users. Logs a warning where that fails."""
    try:
        make_directory(paths.data_dir.parent)
        paths.data_dir.mkdir(mode=PRIVATE, exist_ok=True)
        if makes_workspaces:
            make_directory(paths.workspaces)
    except OSError:
        pass  # The code that uses the directory reports the error.
    tightened, still_open = 0, list[str]()
    for path, max_mode in _modes_of_open_paths(paths):
        if _tighten(path, max_mode):
            tightened += 1
        else:
            still_open.append(str(path))
    if tightened:
        logger.info("data_permissions_tightened", paths=tightened)
    if still_open:
        logger.warning("data_open_to_other_users", paths=still_open[:10], count=len(still_open))


def paths_open_to_others(paths: SecuredPaths) -> list[Path]:
    """The paths that other users of this machine may read or list."""
    return [path for path, _ in _modes_of_open_paths(paths)]


def set_traversable(directory: Path, *, is_traversable: bool) -> None:
    """Sets whether other users may traverse a directory of root. They may never list it."""
    if os.geteuid() != 0:
        return
    try:
        if not _is_shared_directory(directory):
            directory.chmod(TRAVERSABLE if is_traversable else PRIVATE)
    except OSError as error:
        logger.warning("data_permissions_not_set", path=str(directory), error=error.strerror)


def _max_mode() -> int:
    return TRAVERSABLE if os.geteuid() == 0 else PRIVATE


def _modes_of_open_paths(paths: SecuredPaths) -> Iterator[tuple[Path, int]]:
    """Each path whose mode is too open, with the widest mode it may have."""
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
        # Includes the write-ahead log, locks, and copies made before an upgrade.
        for name in _list_names(paths.database.parent):
            if name.startswith(paths.database.name):
                yield paths.database.with_name(name), PRIVATE
    yield paths.workspaces, _max_mode()
    if os.geteuid() == 0:
        # The root of the workspaces is traversable for other users.
        for name in _list_names(paths.workspaces):
            yield paths.workspaces / name, PRIVATE if _USER_WORKSPACE.fullmatch(name) else TRAVERSABLE


def _list_names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _tighten(path: Path, max_mode: int) -> bool:
    """Removes the rights of other users beyond `max_mode`; False if that fails."""
    try:
        if _is_shared_directory(path):
            return False
        path.chmod(stat.S_IMODE(path.stat().st_mode) & (0o700 | max_mode))
        return not stat.S_IMODE(path.stat().st_mode) & 0o077 & ~max_mode
    except OSError:
        return False


def _is_shared_directory(path: Path) -> bool:
    """Whether all users of the machine share the directory, such as /tmp."""
    return bool(path.stat().st_mode & stat.S_ISVTX) or path.absolute() == Path("/")


LOCK_FILE = "server.lock"
"""The lock file in a data directory."""


class DataDirLock:
    """Held from `take` until `release` or the end of the process.

    `database` is the SQLite file. If it is outside the data directory, another server may use it by mistake.
    A shared lock on its directory excludes the server whose data directory that is; an exclusive lock on the
    file excludes other servers that share it from outside.
    """

    def __init__(self, data_dir: Path, database: Path | None = None) -> None:
        self._locks = [(data_dir / LOCK_FILE, data_dir, fcntl.LOCK_EX)]
        if database is not None and database.parent.resolve() != data_dir.resolve():
            self._locks += [
                (database.parent / LOCK_FILE, database.parent, fcntl.LOCK_SH),
                (database.with_name(f"{database.name}.lock"), database, fcntl.LOCK_EX),
            ]
        self._descriptors: list[int] = []

    def take(self) -> None:
        """Takes all locks. Raises ConfigError if another server holds one of them."""
        for path, used_path, mode in self._locks:
            try:
                self._descriptors.append(_lock_file(path, mode))
            except BlockingIOError as error:
                self.release()
                raise ConfigError(
                    f"another Luxx server is using {used_path}; stop it, give this one another "
                    "--data-dir and database, or use PostgreSQL to run several"
                ) from error

    def release(self) -> None:
        """Frees the locks; does nothing if none is held."""
        while self._descriptors:
            os.close(self._descriptors.pop())


def _lock_file(path: Path, mode: int) -> int:
    """Locks the file and returns its descriptor. Raises BlockingIOError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    return descriptor
