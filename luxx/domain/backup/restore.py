"""Restores a backup completely or not at all.

It reads and verifies everything first, builds database and files in a staging area, upgrades them to this
version and then replaces the live ones. It rebuilds derived data: the search index, and provider keys
encrypted with the secret of this server.
"""

import contextlib
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec
from sqlalchemy import Connection, Engine, bindparam, delete, inspect, select, text, update
from sqlalchemy.exc import SQLAlchemyError

from luxx.domain.accounts.models import User
from luxx.domain.backup.archive import ArchiveReader
from luxx.domain.backup.backup import FORMAT, VERSION, DataPaths, Manifest, check_disk_space, write_private
from luxx.domain.backup.folders import unpack
from luxx.domain.backup.rows import SEARCH_TABLE, RowLoader, TablePart, error_line, set_sequences, tables_of
from luxx.domain.backup.staging import (
    REPLACED_FOLDER,
    STAGING_PREFIX,
    StagedDatabase,
    clear_staging,
    remove_leftovers,
    staged_database,
)
from luxx.domain.conversations.search_index import SubjectReaders, reindex_rows
from luxx.errors import LuxxError, Unavailable
from luxx.infra.data_permissions import make_directory
from luxx.infra.secrets import MIN_SECRET_BYTES, Vault, is_too_short
from luxx.infra.store.upgrade import current_step, is_too_old, known_steps, upgrade_database
from luxx.providers.models import ProviderRow, ServerValueRow
from luxx.providers.queries import SECRET_CHECK, key_identity

MAX_SECRET_BYTES = 64 * 1024
WORKSPACE = re.compile(r"[0-9a-f]{64}")
"""The name of a user's folder."""

BATCH_SIZE = 500


class RestoreResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was restored. `notes` are sentences about what differs from the original."""

    manifest: Manifest
    files: int
    notes: list[str]


def restore(
    data_paths: DataPaths,
    path: Path,
    readers: SubjectReaders,
    *,
    remake: Sequence[Callable[[Connection], None]] = (),
    replace: bool = False,
) -> RestoreResult:
    """Restores a backup into an empty server, or with `replace` over any. `readers` read what the search
    finds of rooms and tasks; `remake` fill the tables that are derived from others.

    Raises LuxxError, with nothing changed, for a damaged archive, one of a newer version, a server that is
    not empty, or one that is running.
    """
    archive = ArchiveReader(path)
    with contextlib.closing(archive), contextlib.closing(data_paths):
        manifest = archive.manifest(Manifest, FORMAT, VERSION)
        if is_too_old(manifest.step):
            raise archive.damaged(
                f"its database is at step '{manifest.step}', made by a development version that this version "
                "cannot upgrade"
            )
        if manifest.step not in known_steps():
            raise archive.damaged(
                f"its database is at step '{manifest.step}', which this version does not know: Luxx "
                f"{manifest.luxx} made it; install that version or a newer one"
            )
        _check_disk_space(data_paths, manifest)
        archive.verify(manifest.members)
        secret = archive.read(manifest.secret, MAX_SECRET_BYTES).decode("utf-8", "replace")
        _check_secret(data_paths, secret)
        name = secrets.token_hex(6)
        with staged_database(data_paths, name) as staged_db:
            if not replace:
                _check_empty(data_paths)
            result = _Restorer(data_paths, archive, manifest, staged_db, readers, remake).run(name, secret)
            return msgspec.structs.replace(
                result, notes=[*result.notes, *_earlier_leftovers(data_paths, replace=replace)]
            )


def _earlier_leftovers(data_paths: DataPaths, *, replace: bool) -> list[str]:
    """Folders that failed restores could not move back: deleted with `replace`, else named in notes."""
    left = list(data_paths.root.glob(f"{STAGING_PREFIX}*"))
    if not replace:
        return [f"{each} holds users' files that an earlier, failed restore moved there" for each in left]
    for each in left:
        shutil.rmtree(each, ignore_errors=True)
    return []


def _check_disk_space(data_paths: DataPaths, manifest: Manifest) -> None:
    """A backup states its unpacked size; it is never unpacked past that."""
    rows = sum(part.member.size for part in manifest.tables)
    files = sum(part.member.size for part in manifest.workspaces)
    check_disk_space(data_paths.root, files, "the backup")
    if data_paths.is_sqlite:
        check_disk_space(data_paths.database_file.parent, 3 * rows, "the backup")


def _check_secret(data_paths: DataPaths, secret: str) -> None:
    """Raises LuxxError if the server could not start with the secret."""
    local_secret = data_paths.configured_secret
    if local_secret and is_too_short(local_secret):
        raise LuxxError(
            f"app.secret_key has {len(local_secret.encode())} bytes, but needs {MIN_SECRET_BYTES}"
        )
    if not local_secret and not data_paths.is_sqlite:
        raise LuxxError(
            "app.secret_key is not set; set it to the value that the servers of this database use"
        )
    if not local_secret and not secret:
        raise LuxxError(
            "the backup has no secret key; set app.secret_key, if possible to the value that its server used"
        )
    if not local_secret and is_too_short(secret):
        raise LuxxError(
            f"the backup's secret key has {len(secret.encode())} bytes, but servers need {MIN_SECRET_BYTES}; "
            "set a new app.secret_key: the provider keys are then encrypted with it"
        )


def _check_empty(data_paths: DataPaths) -> None:
    if data_paths.has_database and current_step(data_paths.engine) is not None:
        with data_paths.engine.connect() as connection:
            if connection.scalar(select(User.id).limit(1)) is not None:
                raise LuxxError(
                    "the database is not empty; use an empty one, or --replace to delete its content"
                )
    if any(any(folder.iterdir()) for folder in _folders(data_paths.root)):
        raise LuxxError(
            f"{data_paths.root} holds users' files; use an empty workspace.root, or --replace to delete them"
        )


def _folders(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return [entry for entry in root.iterdir() if WORKSPACE.fullmatch(entry.name) and entry.is_dir()]


@dataclass
class _Restorer:
    data_paths: DataPaths
    archive: ArchiveReader
    manifest: Manifest
    staged_db: StagedDatabase
    readers: SubjectReaders
    remake: Sequence[Callable[[Connection], None]]

    def __post_init__(self) -> None:
        self._notes = list(self.manifest.left_out)

    def run(self, name: str, secret: str) -> RestoreResult:
        make_directory(self.data_paths.root)
        remove_leftovers(self.data_paths.root)
        folder = self.data_paths.root / f"{STAGING_PREFIX}{name}"
        try:
            files = self._unpack(folder)
            self._make_database(self.staged_db.engine, secret)
            with ExitStack() as undo:
                self.staged_db.replace_live(undo, lambda: self._move_into_place(folder, secret, undo))
                undo.pop_all()
        except Exception as error:
            if clear_staging(folder):
                raise
            error_text = error.message if isinstance(error, LuxxError) else error_line(error)
            raise LuxxError(
                f"{error_text}; and not all users' files could be moved back: move the content of "
                f"{folder / REPLACED_FOLDER} to {self.data_paths.root}"
            ) from error
        except BaseException:
            clear_staging(folder)
            raise
        shutil.rmtree(folder, ignore_errors=True)
        return RestoreResult(manifest=self.manifest, files=files, notes=self._notes)

    # Rows

    def _make_database(self, engine: Engine, secret: str) -> None:
        upgrade_database(engine, to=self.manifest.step)
        try:
            self._load(engine)
        except SQLAlchemyError as error:
            raise self.archive.damaged(f"its rows are inconsistent: {error_line(error)}") from error
        upgrade_database(engine)
        with engine.begin() as connection:
            self._rebuild_derived(connection, secret)

    def _load(self, engine: Engine) -> None:
        """Loads all rows unchanged, at the migration step of the backup."""
        with engine.begin() as connection:
            has_deferred = connection.dialect.name == "sqlite"
            if has_deferred:
                connection.execute(text("PRAGMA defer_foreign_keys = ON"))
            keys = [] if has_deferred else _drop_foreign_keys(connection)
            table_names = [name for name, _ in tables_of(connection, is_newest=False)]
            for name in table_names:
                # A migration may have inserted rows that the backup contains too.
                connection.execute(text(f'DELETE FROM "{name}"'))
            loader = RowLoader(connection)
            for part in self.manifest.tables:
                if part.name not in table_names:
                    raise self.archive.damaged(f"step {self.manifest.step} has no table {part.name}")
                if part.name != SEARCH_TABLE:
                    with self.archive.open(part.member) as file:
                        loader.load(part, file)
            set_sequences(connection, table_names, self.manifest.sequences)
            for statement in keys:
                connection.execute(text(statement))
        if loader.replaced:
            self._notes.append(f"{loader.replaced} NUL characters, which PostgreSQL cannot store, became �")

    def _rebuild_derived(self, connection: Connection, secret: str) -> None:
        for part in self.manifest.tables:
            if part.name == SEARCH_TABLE:
                self._index(connection, part)
        for fill in self.remake:
            fill(connection)
        self._release_runs(connection)
        for user_id in connection.scalars(select(User.id)).all():
            workspace_path = str(self.data_paths.workspaces.path_of(user_id))
            connection.execute(update(User).where(User.id == user_id).values(workspace_path=workspace_path))
        self._reseal_keys(connection, secret)

    def _release_runs(self, connection: Connection) -> None:
        """Clears the owners of unfinished runs, so that the next start takes them over, and raises each fence
        above every value that a process may still hold."""
        rows = connection.execute(text("SELECT id, fence FROM runs WHERE finished_at IS NULL")).all()
        fences = {str(row.id): int(row.fence) for row in rows}
        if not self.data_paths.is_sqlite:
            for run_id, fence in _current_fences(self.data_paths.engine, list(fences)):
                fences[run_id] = max(fences[run_id], fence)
        change = text("UPDATE runs SET owner = NULL, fence = :fence WHERE id = :id")
        for run_id, fence in fences.items():
            connection.execute(change, {"id": run_id, "fence": fence + 1 if fence else 0})

    def _index(self, connection: Connection, part: TablePart) -> None:
        # Rows that a migration added for what the version of the backup did not index. They come last.
        connection.execute(text(f"UPDATE {SEARCH_TABLE} SET id = -id"))
        with self.archive.open(part.member) as file:
            for batch in RowLoader(connection).batches(part, file):
                try:
                    reindex_rows(connection, batch, self.readers)
                except OverflowError as error:
                    raise self.archive.damaged(f"its rows of {SEARCH_TABLE} cannot be stored") from error
        last = connection.scalar(text(f"SELECT max(id) FROM {SEARCH_TABLE} WHERE id > 0")) or 0
        added = text(f"UPDATE {SEARCH_TABLE} SET id = :last - id WHERE id < 0")
        connection.execute(added, {"last": last})
        set_sequences(connection, [SEARCH_TABLE], self.manifest.sequences)

    def _reseal_keys(self, connection: Connection, secret: str) -> None:
        """Encrypts the provider keys again if the secret of this server differs from that of the backup."""
        local_secret = self.data_paths.configured_secret
        if not local_secret or local_secret == secret:
            return
        vault = Vault(local_secret, previous=[secret])
        # The next start writes the value for the new secret.
        connection.execute(delete(ServerValueRow).where(ServerValueRow.name == SECRET_CHECK))
        lost = 0
        rows = connection.execute(
            select(ProviderRow.id, ProviderRow.api_key).where(ProviderRow.api_key != "")
        )
        for row in rows.all():
            identity = key_identity(row.id)
            try:
                sealed = vault.seal(vault.open(row.api_key, identity=identity), identity=identity)
            except Unavailable:
                lost += 1
                continue
            connection.execute(update(ProviderRow).where(ProviderRow.id == row.id).values(api_key=sealed))
        if secret:
            self._notes.append(
                "app.secret_key differs from that of the backup: all users have to sign in again"
            )
        if lost:
            self._notes.append(
                f"{lost} provider keys were encrypted with an unknown secret; enter them again"
            )

    # Files

    def _unpack(self, folder: Path) -> int:
        files = 0
        for part in self.manifest.workspaces:
            target = folder / self.data_paths.workspaces.path_of(part.user_id).name
            target.mkdir(mode=0o700, parents=True)
            with self.archive.open(part.member) as file:
                files += unpack(file, target)
        return files

    def _move_into_place(self, folder: Path, secret: str, undo: ExitStack) -> None:
        """Moves workspaces and the secret to their places, and existing workspaces into `folder`.

        All existing ones, because a later user may get the id of a user who is not in the backup.
        """
        replaced_folder = folder / REPLACED_FOLDER
        replaced_folder.mkdir(mode=0o700, parents=True)
        for current_folder in _folders(self.data_paths.root):
            moved = current_folder.rename(replaced_folder / current_folder.name)
            undo.callback(_move_back, moved, current_folder)
        for part in self.manifest.workspaces:
            workspace_path = self.data_paths.workspaces.path_of(part.user_id)
            new = folder / workspace_path.name
            new.rename(workspace_path)
            undo.callback(_move_back, workspace_path, new)
        self._set_secret(secret, undo)

    def _set_secret(self, secret: str, undo: ExitStack) -> None:
        data_paths = self.data_paths
        if data_paths.configured_secret or not data_paths.is_sqlite:
            return
        old = data_paths.secret_file.read_bytes() if data_paths.secret_file.exists() else None
        data_paths.data_dir.mkdir(parents=True, exist_ok=True)
        write_private(data_paths.secret_file, secret.encode())
        if old is None:
            undo.callback(data_paths.secret_file.unlink)
        else:
            undo.callback(write_private, data_paths.secret_file, old)


def _move_back(now: Path, before: Path) -> None:
    """Moves a folder back. If that fails, nothing is lost: it stays where it is, and `run` reports it."""
    with contextlib.suppress(OSError):
        now.rename(before)


def _drop_foreign_keys(connection: Connection) -> list[str]:
    """Drops the foreign keys, because rows are not loaded in their order; returns the statements that restore
    and check them."""
    constraints = connection.execute(
        text(
            "SELECT conname, conrelid::regclass::text AS table_name, pg_get_constraintdef(oid) AS definition "
            "FROM pg_constraint WHERE contype = 'f' AND connamespace = current_schema()::regnamespace"
        )
    ).all()
    for row in constraints:
        connection.execute(text(f'ALTER TABLE {row.table_name} DROP CONSTRAINT "{row.conname}"'))
    return [
        f'ALTER TABLE {row.table_name} ADD CONSTRAINT "{row.conname}" {row.definition}' for row in constraints
    ]


def _current_fences(engine: Engine, run_ids: list[str]) -> Iterator[tuple[str, int]]:
    """The fences of those runs that exist in the database to be replaced, which may have an older schema."""
    query = text("SELECT id, fence FROM runs WHERE id IN :ids").bindparams(bindparam("ids", expanding=True))
    with engine.connect() as connection:
        if not inspect(connection).has_table("runs"):
            return
        for at in range(0, len(run_ids), BATCH_SIZE):
            for row in connection.execute(query, {"ids": run_ids[at : at + BATCH_SIZE]}):
                yield str(row.id), int(row.fence)
