"""Locks between processes: PostgreSQL's advisory locks, and file locks that are freed when a process ends."""

import fcntl
import os
from enum import IntEnum
from pathlib import Path

from sqlalchemy import Connection, text

from luxx.errors import ConfigError


class Lock(IntEnum):
    """The numbers of all advisory locks of PostgreSQL. Some exist once for each tenant or user."""

    MIGRATION = 7_402_117
    """Of several starting processes, one migrates. A restore that replaces the tables takes it too."""

    ADMISSION = 7_402_118
    """Counting slots before a run takes one."""

    USER_RESERVES = 7_402_119
    """Adding a reserve to what a user has spent and reserved."""

    RESTORE = 7_402_120
    """One restore at a time."""

    SHIPPED_AGENTS = 7_402_121
    """Of several starting processes, one stores the agents that ship with Luxx."""

    SECRET_CHECK = 7_402_122
    """Of several starting processes, one stores the value that checks the secret key."""

    DEMO_PROVIDER = 7_402_123
    """Of several starting processes, one stores the demo provider."""

    TENANT_RULES = 7_402_133
    """Changing permission rules. A transaction takes it before any other lock."""

    USER_COMPOSITIONS = 7_402_134
    """Changing compositions, whose names and number are checked before the write."""

    USER_PROMPTS = 7_402_135
    """Adding and renaming prompts, whose names and number are checked before the write."""


_lock = text("SELECT pg_advisory_xact_lock(:lock)")
_lock_of_owner = text("SELECT pg_advisory_xact_lock(:lock, :owner_id)")


def lock_until_commit(connection: Connection, lock: Lock, owner_id: int | None = None) -> None:
    """Waits for the lock and holds it until the transaction ends. On SQLite one thread makes all writes, so
    there it does nothing.

    `owner_id`: the tenant or user of the lock, if there is one for each.
    """
    if connection.dialect.name != "postgresql":
        return
    if owner_id is None:
        connection.execute(_lock, {"lock": lock.value})
    else:
        connection.execute(_lock_of_owner, {"lock": lock.value, "owner_id": owner_id})


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
