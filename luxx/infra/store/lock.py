"""One server per data directory and SQLite file: locks that the system frees however the process ends."""

import fcntl
import os
from pathlib import Path

from luxx.errors import ConfigError

NAME = "server.lock"
"""Of the file in a data directory."""


class DataDirLock:
    """Held from `take` until `release` or the end of the process.

    `database`: a SQLite file, which may be elsewhere, and then is another data directory's too by mistake.
    There it may be that of the server whose data directory it is, which nobody may be then; or that of
    several like this one, of which one may have it.
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
        """Raises ConfigError if another server holds one of them."""
        for path, what, how in self._locks:
            try:
                self._descriptors.append(_lock_file(path, how))
            except BlockingIOError as error:
                self.release()
                raise ConfigError(
                    f"another Luxx server is using {what}; stop it, give this one another --data-dir and "
                    "database, or use PostgreSQL to run several"
                ) from error

    def release(self) -> None:
        """Frees the locks; harmless if they are not held."""
        while self._descriptors:
            os.close(self._descriptors.pop())


def _lock_file(path: Path, how: int) -> int:
    """The descriptor that holds the lock. Raises BlockingIOError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    return descriptor
