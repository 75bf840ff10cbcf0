"""Backup of a whole server while it runs: a snapshot of the database, the secret, all users' files.

Increase `VERSION` when current readers could misread the new format. `restore.py` restores a backup.
"""

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from sqlalchemy import URL, Connection, Engine, select, text

from luxx import __version__
from luxx.domain.accounts.models import User
from luxx.domain.accounts.user_data import Workspaces
from luxx.domain.backup.archive import ArchiveMember, ArchiveWriter, Size, new_file
from luxx.domain.backup.folders import pack
from luxx.domain.backup.rows import Identifier, TablePart, sequences_of, tables_of, write_rows
from luxx.errors import LuxxError
from luxx.infra.clock import utc_now
from luxx.infra.config.schema import Config
from luxx.infra.secrets import SECRET_FILE, Vault
from luxx.infra.store.engine import open_engine, reading, resolve_url
from luxx.infra.store.upgrade import known_steps, unknown_step_error
from luxx.providers.models import ProviderRow


class WorkspacePart(msgspec.Struct, frozen=True, kw_only=True):
    """A user's files as a tar file."""

    user_id: int
    files: Size
    member: ArchiveMember


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest of a backup. `step` is the database's migration step; `sequences` the last id of each
    table that never reuses one. `left_out`: sentences about files and keys that are missing or changed."""

    format: Literal["luxx.backup"]
    version: Annotated[int, Meta(ge=1)]
    luxx: str
    step: Annotated[str, Meta(max_length=32)]
    database: str
    made_at: datetime
    tables: list[TablePart]
    sequences: dict[Identifier, Size]
    workspaces: list[WorkspacePart]
    secret: ArchiveMember
    left_out: list[str]

    @property
    def members(self) -> list[ArchiveMember]:
        parts = [*self.tables, *self.workspaces]
        return [self.secret, *(part.member for part in parts)]


LAST_BACKUP = "last_backup.json"
DISK_RESERVE = 64 * 1024 * 1024
"""Bytes of a disk that stay free."""


class LastBackup(msgspec.Struct, frozen=True, kw_only=True):
    """The newest backup of a data directory, as recorded in it."""

    at: datetime
    file: str
    size: int


class DataPaths:
    """One server's database, data directory, workspaces and secret. Call `close` when done."""

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
        """The SQLite file."""
        return Path(str(self.url.database))

    @property
    def has_database(self) -> bool:
        """Whether a database can exist; the check creates none."""
        return not self.is_sqlite or self.database_file.exists()

    @property
    def engine(self) -> Engine:
        """Opened on first use, which creates the file on SQLite."""
        if self._engine is None:
            self._engine = open_engine(self.url)
        return self._engine

    @property
    def secret_file(self) -> Path:
        return self.data_dir / SECRET_FILE

    def secret(self) -> str:
        """The secret in use; empty if there is none yet."""
        if self.configured_secret or not self.is_sqlite:
            return self.configured_secret
        try:
            return self.secret_file.read_text("utf-8").strip()
        except FileNotFoundError:
            return ""

    @contextmanager
    def snapshot(self) -> Generator[Connection]:
        """A consistent snapshot of the whole database, unaffected by later writes."""
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


def check_disk_space(path_needed: Path, size: int, what: str) -> None:
    """Raises LuxxError if the disk of a directory, which may not exist yet, has too little space for `size`
    bytes."""
    existing = next(
        each for each in (path_needed.absolute(), *path_needed.absolute().parents) if each.exists()
    )
    free = shutil.disk_usage(existing).free
    if size + DISK_RESERVE > free:
        raise LuxxError(
            f"{what} needs {size / 2**20:,.0f} MiB at {existing}, where {free / 2**20:,.0f} MiB are free"
        )


def last_backup(data_dir: Path) -> LastBackup | None:
    """The newest backup of this data directory; None if there was none."""
    try:
        return msgspec.json.decode((data_dir / LAST_BACKUP).read_bytes(), type=LastBackup)
    except (OSError, msgspec.DecodeError):
        return None


def write_private(path: Path, data: bytes) -> None:
    """Replaces a small file atomically, with mode 0600. Raises LuxxError."""
    with new_file(path, may_replace=True) as file:
        file.write(data)


FORMAT = "luxx.backup"
VERSION = 1
SECRET_MEMBER = "secret_key"
SECRET_HINT = "set it to the value that the servers use, or the backup cannot decrypt the provider keys"


class _TableContents(msgspec.Struct, frozen=True, kw_only=True):
    step: str
    tables: list[TablePart]
    sequences: dict[str, int]
    users: list[int]


def create_backup(data_paths: DataPaths, path: Path) -> Manifest:
    """Writes all that a server stores to a new file. Raises LuxxError and leaves no file on failure.

    Files are packed after the rows, so a file that a row names is in the backup or was deleted meanwhile.
    """
    if not data_paths.has_database:
        raise LuxxError(f"there is no database at {data_paths.url.database} to back up")
    key = data_paths.secret()
    if not key:
        raise LuxxError(f"app.secret_key is not set; {SECRET_HINT}")
    with new_file(path) as file, ArchiveWriter(file) as archive:
        with data_paths.snapshot() as connection:
            rows = _write_tables(connection, archive)
            key_notes = _undecryptable_key_notes(connection, key)
        secret = archive.put(SECRET_MEMBER, key.encode())
        workspaces, left_out = _write_workspaces(data_paths, rows.users, archive, path.parent)
        manifest = Manifest(
            format=FORMAT,
            version=VERSION,
            luxx=__version__,
            step=rows.step,
            database=data_paths.url.get_backend_name(),
            made_at=utc_now(),
            tables=rows.tables,
            sequences=rows.sequences,
            workspaces=workspaces,
            secret=secret,
            left_out=[*key_notes, *left_out],
        )
        archive.finish(manifest)
    last = LastBackup(at=manifest.made_at, file=str(path.absolute()), size=path.stat().st_size)
    data_paths.remember_backup(last)
    return manifest


def _write_tables(connection: Connection, archive: ArchiveWriter) -> _TableContents:
    if not connection.dialect.has_table(connection, "alembic_version"):
        raise LuxxError("the database is empty; there is nothing to back up")
    step = str(connection.scalar(text("SELECT version_num FROM alembic_version")))
    steps = known_steps()
    if step not in steps:
        raise unknown_step_error(step)
    parts: list[TablePart] = []
    for name, columns in tables_of(connection, is_newest=step == steps[-1]):
        member = f"tables/{name}.jsonl"
        with archive.open(member) as out:
            count = write_rows(connection, name, columns, out.write)
        parts.append(TablePart(name=name, columns=columns, rows=count, member=out.member(member)))
    names = [part.name for part in parts]
    users = list(connection.scalars(select(User.id).order_by(User.id)))
    return _TableContents(step=step, tables=parts, sequences=sequences_of(connection, names), users=users)


def _undecryptable_key_notes(connection: Connection, key: str) -> list[str]:
    """Notes on provider keys that this secret does not decrypt. Raises LuxxError if it decrypts none."""
    sealed = connection.scalars(select(ProviderRow.api_key).where(ProviderRow.api_key != "")).all()
    vault = Vault(key)
    undecryptable = sum(vault.needs_resealing(value) for value in sealed)
    if not undecryptable:
        return []
    if undecryptable == len(sealed):
        raise LuxxError(f"the provider keys are encrypted with a different app.secret_key; {SECRET_HINT}")
    return [f"{undecryptable} provider keys are encrypted with another secret, which is not in the backup"]


def _write_workspaces(
    data_paths: DataPaths, users: list[int], archive: ArchiveWriter, spool: Path
) -> tuple[list[WorkspacePart], list[str]]:
    parts: list[WorkspacePart] = []
    left_out: list[str] = []
    for user_id in users:
        folder = data_paths.workspaces.path_of(user_id)
        if not folder.exists():
            continue
        name = f"workspaces/{user_id}.tar"
        with archive.open(name) as out:
            packed = pack(folder, out, spool)
        parts.append(WorkspacePart(user_id=user_id, files=packed.files, member=out.member(name)))
        left_out += [f"{name}: {entry}" for entry in packed.left_out]
    return parts, left_out
