"""Locks on files, which are freed when a process ends: only one server uses a data directory."""

import fcntl
import os
from pathlib import Path

from luxx.errors import ConfigError

NAME = "server.lock"
"""The lock file in a data directory."""


class DataDirLock:
    """Held from `take` until `release` or the end of the process.

    `database` is the SQLite file. If it is outside the data directory, another server may use it by mistake.
    A shared lock on its directory excludes the server whose data directory that is; an exclusive lock on the
    file excludes other servers that share it from outside.
    """

    def __init__(self, data_dir: Path, database: Path | None = None) -> None:
        self._locks = [(data_dir / NAME, data_dir, fcntl.LOCK_EX)]
        if database is not None and database.parent.resolve() != data_dir.resolve():
            self._locks += [
                (database.parent / NAME, database.parent, fcntl.LOCK_SH),
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
