"""Where a server keeps its state, found from its configuration without starting anything."""

import os
import secrets
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import msgspec
from sqlalchemy import URL, Connection, Engine

from luxx.accounts.workspaces import Workspaces
from luxx.config import Config
from luxx.errors import LuxxError
from luxx.keeping.archive import sync_folder
from luxx.store.engine import open_engine, reading, resolve_url
from luxx.vault import SECRET_FILE

LAST_BACKUP = "last_backup.json"
SLACK = 64 * 1024 * 1024
"""Bytes of a disk that stay free."""


class LastBackup(msgspec.Struct, frozen=True, kw_only=True):
    """What the data directory remembers of the newest backup that was made from it."""

    at: datetime
    file: str
    size: int


class Home:
    """One server's database, data directory, workspaces and secret. `close` when done."""

    def __init__(self, config: Config) -> None:
        self.data_dir = Path(config.data_dir)
        self.root = Path(config.workspace.root)
        self.workspaces = Workspaces(config.workspace.root, auto_create=config.workspace.auto_create)
        self.configured_secret = config.app.secret_key
        self.url: URL = resolve_url(config.database.url, self.data_dir)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._engine: Engine | None = None

    @property
    def database_file(self) -> Path:
        """Of SQLite."""
        return Path(str(self.url.database))

    @property
    def has_database(self) -> bool:
        """Whether there can be one: looking makes none."""
        return not self.is_sqlite or self.database_file.exists()

    @property
    def engine(self) -> Engine:
        """Opened when it is first asked for; on SQLite that makes the file."""
        if self._engine is None:
            self._engine = open_engine(self.url)
        return self._engine

    @property
    def secret_file(self) -> Path:
        return self.data_dir / SECRET_FILE

    def secret(self) -> str:
        """The secret that is in force; empty where there is none yet."""
        if self.configured_secret or not self.is_sqlite:
            return self.configured_secret
        try:
            return self.secret_file.read_text("utf-8").strip()
        except FileNotFoundError:
            return ""

    @contextmanager
    def snapshot(self) -> Generator[Connection]:
        """One state of the whole database, whatever is written meanwhile."""
        engine = reading(self.engine)
        try:
            with engine.connect() as connection, connection.begin():
                yield connection
        finally:
            if self.is_sqlite:
                engine.dispose()

    def close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    def remember_backup(self, last: LastBackup) -> None:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        write_private(self.data_dir / LAST_BACKUP, msgspec.json.encode(last))


def check_free(place: Path, size: int, what: str) -> None:
    """Raises LuxxError where a directory, there or not yet, has no room for so many bytes."""
    there = next(each for each in (place.absolute(), *place.absolute().parents) if each.exists())
    free = shutil.disk_usage(there).free
    if size + SLACK > free:
        raise LuxxError(
            f"{what} needs {size / 2**20:,.0f} MiB at {there}, where {free / 2**20:,.0f} MiB are free"
        )


def last_backup(data_dir: Path) -> LastBackup | None:
    """The newest backup that was made from this data directory; None where there was none."""
    try:
        return msgspec.json.decode((data_dir / LAST_BACKUP).read_bytes(), type=LastBackup)
    except (OSError, msgspec.DecodeError):
        return None


def write_private(path: Path, data: bytes) -> None:
    """Puts a small file in place of what was there, whole, for its owner alone."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
        sync_folder(path.parent)
    finally:
        draft.unlink(missing_ok=True)
