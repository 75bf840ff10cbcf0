"""One server per data directory: a lock that the system frees however the process ends."""

import fcntl
import os
from pathlib import Path

from luxx.errors import ConfigError


class DataDirLock:
    """Held from `take` until `release` or the end of the process."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / "server.lock"
        self._descriptor: int | None = None

    def take(self) -> None:
        """Raises ConfigError if another server holds it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise ConfigError(
                f"another Luxx server is using {self._path.parent}; stop it, give this one another "
                "--data-dir, or use PostgreSQL to run several"
            ) from error
        self._descriptor = descriptor

    def release(self) -> None:
        """Frees the lock; harmless if it is not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
