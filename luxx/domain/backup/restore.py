"""A backup back into a server's place: all of it or nothing.

Everything is read and checked first, then made aside, brought to this version, and at the end put in its
place. What is derived is made again: the search index, and provider keys sealed with the secret here.
"""

import contextlib
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
from sqlalchemy import Connection, Engine, bindparam, delete, inspect, select, text, update
from sqlalchemy.exc import SQLAlchemyError

from luxx.domain.accounts.models import User
from luxx.domain.backup.archive import ArchiveReader
from luxx.domain.backup.backup import FORMAT, VERSION, Home, check_free, write_private
from luxx.domain.backup.folders import unpack
from luxx.domain.backup.manifest import Manifest, TablePart
from luxx.domain.backup.rows import SEARCH, Loader, set_sequences, tables_of
from luxx.domain.backup.staging import FOLDER, MOVED, Staged, clear, staged, sweep
from luxx.domain.conversations.search_index import put_back
from luxx.errors import LuxxError, Unavailable
from luxx.infra.data_permissions import make_directory
from luxx.infra.secrets import SHORTEST_SECRET, Vault, is_too_short
from luxx.infra.store.upgrade import bring_up, current_step, known_steps
from luxx.providers.models import ProviderRow, ServerValueRow
from luxx.providers.secret_check import CHECK
from luxx.providers.service import key_identity

MOST_SECRET = 64 * 1024
WORKSPACE = re.compile(r"[0-9a-f]{64}")
"""What the folder of a user is called."""

AT_ONCE = 500


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What came back. `notes` are sentences on what is not as it was."""

    manifest: Manifest
    files: int
    notes: list[str]


def restore(home: Home, path: Path, *, replace: bool = False) -> Restored:
    """Brings a backup into an empty server's place, or with `replace` into any.

    Raises LuxxError, with nothing changed, for an archive that is not whole, one of a newer version, a place
    that is taken, or one that is in use.
    """
    archive = ArchiveReader(path)
    with contextlib.closing(archive), contextlib.closing(home):
        manifest = archive.manifest(Manifest, FORMAT, VERSION)
        if manifest.step not in known_steps():
            raise archive.damaged(
                f"its database is at step '{manifest.step}', which this version does not know: Luxx "
                f"{manifest.luxx} made it; install that version or a newer one"
            )
        _check_room(home, manifest)
        archive.verify(manifest.members)
        secret = archive.read(manifest.secret, MOST_SECRET).decode("utf-8", "replace")
        _check_secret(home, secret)
        name = secrets.token_hex(6)
        with staged(home, name) as aside:
            if not replace:
                _check_empty(home)
            done = _Restoring(home, archive, manifest, aside).run(name, secret)
            return msgspec.structs.replace(done, notes=[*done.notes, *_left_before(home, replace=replace)])


def _left_before(home: Home, *, replace: bool) -> list[str]:
    """What restores that failed could not put back goes only with all that was there."""
    left = list(home.root.glob(f"{FOLDER}*"))
    if not replace:
        return [f"{each} holds files of users that an earlier restore had moved away" for each in left]
    for each in left:
        shutil.rmtree(each, ignore_errors=True)
    return []


def _check_room(home: Home, manifest: Manifest) -> None:
    """A backup says how much it unpacks to; it is never unpacked past that."""
    rows = sum(part.member.size for part in manifest.tables)
    files = sum(part.member.size for part in manifest.workspaces)
    check_free(home.root, files, "the backup")
    if home.is_sqlite:
        check_free(home.database_file.parent, 3 * rows, "the backup")


def _check_secret(home: Home, secret: str) -> None:
    """No server would start without one."""
    here = home.configured_secret
    if here and is_too_short(here):
        raise LuxxError(f"app.secret_key has {len(here.encode())} bytes and needs {SHORTEST_SECRET}")
    if not here and not home.is_sqlite:
        raise LuxxError("app.secret_key is not set here; set it as the servers of this database have it")
    if not here and not secret:
        raise LuxxError(
            "the backup has no secret key; set app.secret_key, to the one that its server had if you know it"
        )
    if not here and is_too_short(secret):
        raise LuxxError(
            f"the backup's secret key has {len(secret.encode())} bytes and servers need {SHORTEST_SECRET}; "
            "set a new app.secret_key, and provider keys are sealed with it"
        )


def _check_empty(home: Home) -> None:
    if home.has_database and current_step(home.engine) is not None:
        with home.engine.connect() as connection:
            if connection.scalar(select(User.id).limit(1)) is not None:
                raise LuxxError(
                    "the database is not empty; give an empty one, or --replace to delete what is there"
                )
    if any(any(folder.iterdir()) for folder in _folders(home.root)):
        raise LuxxError(
            f"{home.root} holds users' files; give an empty workspace.root, or --replace to delete them"
        )


def _folders(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return [each for each in root.iterdir() if WORKSPACE.fullmatch(each.name) and each.is_dir()]


class _Restoring:
    def __init__(self, home: Home, archive: ArchiveReader, manifest: Manifest, aside: Staged) -> None:
        self._home = home
        self._archive = archive
        self._manifest = manifest
        self._aside = aside
        self._notes: list[str] = list(manifest.left_out)

    def run(self, name: str, secret: str) -> Restored:
        make_directory(self._home.root)
        sweep(self._home.root)
        folder = self._home.root / f"{FOLDER}{name}"
        try:
            files = self._unpack(folder)
            self._make_database(self._aside.engine, secret)
            with ExitStack() as undo:
                self._aside.take_place(undo, lambda: self._move_in(folder, secret, undo))
                undo.pop_all()
        except Exception as error:
            if clear(folder):
                raise
            said = error.message if isinstance(error, LuxxError) else " ".join(str(error).split())[:500]
            raise LuxxError(
                f"{said}; and not all files of users could be put back: move what is in {folder / MOVED} "
                f"to {self._home.root}"
            ) from error
        except BaseException:
            clear(folder)
            raise
        shutil.rmtree(folder, ignore_errors=True)
        return Restored(manifest=self._manifest, files=files, notes=self._notes)

    # Rows

    def _make_database(self, engine: Engine, secret: str) -> None:
        bring_up(engine, to=self._manifest.step)
        try:
            self._load(engine)
        except SQLAlchemyError as error:
            said = " ".join(str(getattr(error, "orig", None) or error).split())
            raise self._archive.damaged(f"its rows do not belong together: {said[:500]}") from error
        bring_up(engine)
        with engine.begin() as connection:
            self._make_again(connection, secret)

    def _load(self, engine: Engine) -> None:
        """All rows as they were, in the step that they were in."""
        with engine.begin() as connection:
            has_deferred = connection.dialect.name == "sqlite"
            if has_deferred:
                connection.execute(text("PRAGMA defer_foreign_keys = ON"))
            keys = [] if has_deferred else _drop_foreign_keys(connection)
            there = [name for name, _ in tables_of(connection, is_newest=False)]
            for name in there:
                # A step may have put something in that the backup has too.
                connection.execute(text(f'DELETE FROM "{name}"'))
            loader = Loader(connection)
            for part in self._manifest.tables:
                if part.name not in there:
                    raise self._archive.damaged(f"step {self._manifest.step} has no table {part.name}")
                if part.name != SEARCH:
                    with self._archive.open(part.member) as file:
                        loader.load(part, file)
            set_sequences(connection, there, self._manifest.sequences)
            for statement in keys:
                connection.execute(text(statement))
        if loader.replaced:
            self._notes.append(f"{loader.replaced} NUL characters, which PostgreSQL does not hold, became �")

    def _make_again(self, connection: Connection, secret: str) -> None:
        for part in self._manifest.tables:
            if part.name == SEARCH:
                self._index(connection, part)
        self._release_runs(connection)
        for user_id in connection.scalars(select(User.id)).all():
            place = str(self._home.workspaces.path_of(user_id))
            connection.execute(update(User).where(User.id == user_id).values(workspace_path=place))
        self._seal(connection, secret)

    def _release_runs(self, connection: Connection) -> None:
        """What drove a run when the backup was made or since does not drive it here: the next start takes it
        up, past every fence that a process may still hold."""
        rows = connection.execute(text("SELECT id, fence FROM runs WHERE finished_at IS NULL")).all()
        fences = {str(row.id): int(row.fence) for row in rows}
        if not self._home.is_sqlite:
            for run_id, fence in _fences_now(self._home.engine, list(fences)):
                fences[run_id] = max(fences[run_id], fence)
        change = text("UPDATE runs SET owner = NULL, fence = :fence WHERE id = :id")
        for run_id, fence in fences.items():
            connection.execute(change, {"id": run_id, "fence": fence + 1 if fence else 0})

    def _index(self, connection: Connection, part: TablePart) -> None:
        connection.execute(text(f"DELETE FROM {SEARCH}"))
        with self._archive.open(part.member) as file:
            for batch in Loader(connection).batches(part, file):
                try:
                    put_back(connection, batch)
                except OverflowError as error:
                    raise self._archive.damaged(f"what it says of {SEARCH} cannot be stored") from error
        set_sequences(connection, [SEARCH], self._manifest.sequences)

    def _seal(self, connection: Connection, secret: str) -> None:
        """Provider keys, where the secret here is another one than that of the backup."""
        here = self._home.configured_secret
        if not here or here == secret:
            return
        vault = Vault(here, previous=[secret])
        # The next start makes one for the secret here.
        connection.execute(delete(ServerValueRow).where(ServerValueRow.name == CHECK))
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
            change = update(ProviderRow).where(ProviderRow.id == row.id).values(api_key=sealed)
            connection.execute(change)
        if secret:
            self._notes.append("app.secret_key is another one here: everybody has to sign in again")
        if lost:
            self._notes.append(f"{lost} provider keys were sealed with yet another secret; enter them anew")

    # Files

    def _unpack(self, folder: Path) -> int:
        files = 0
        for part in self._manifest.workspaces:
            target = folder / self._home.workspaces.path_of(part.user_id).name
            target.mkdir(mode=0o700, parents=True)
            with self._archive.open(part.member) as file:
                files += unpack(file, target)
        return files

    def _move_in(self, folder: Path, secret: str, undo: ExitStack) -> None:
        """Workspaces and the secret in their places; workspaces that were there go away with `folder`.

        All of them: somebody new may get the id of somebody who is in no backup.
        """
        aside = folder / MOVED
        aside.mkdir(mode=0o700, parents=True)
        for there in _folders(self._home.root):
            gone = there.rename(aside / there.name)
            undo.callback(_put_back, gone, there)
        for part in self._manifest.workspaces:
            place = self._home.workspaces.path_of(part.user_id)
            new = folder / place.name
            new.rename(place)
            undo.callback(_put_back, place, new)
        self._set_secret(secret, undo)

    def _set_secret(self, secret: str, undo: ExitStack) -> None:
        home = self._home
        if home.configured_secret or not home.is_sqlite:
            return
        old = home.secret_file.read_bytes() if home.secret_file.exists() else None
        home.data_dir.mkdir(parents=True, exist_ok=True)
        write_private(home.secret_file, secret.encode())
        if old is None:
            undo.callback(home.secret_file.unlink)
        else:
            undo.callback(write_private, home.secret_file, old)


def _put_back(now: Path, before: Path) -> None:
    """Nothing is lost where it cannot be: it stays where it is, and `run` tells of it."""
    with contextlib.suppress(OSError):
        now.rename(before)


def _drop_foreign_keys(connection: Connection) -> list[str]:
    """Rows come in no order that foreign keys could follow; gives what puts the keys back, and checks."""
    found = connection.execute(
        text(
            "SELECT conname, conrelid::regclass::text AS table_name, pg_get_constraintdef(oid) AS definition "
            "FROM pg_constraint WHERE contype = 'f' AND connamespace = current_schema()::regnamespace"
        )
    ).all()
    for row in found:
        connection.execute(text(f'ALTER TABLE {row.table_name} DROP CONSTRAINT "{row.conname}"'))
    return [f'ALTER TABLE {row.table_name} ADD CONSTRAINT "{row.conname}" {row.definition}' for row in found]


def _fences_now(engine: Engine, run_ids: list[str]) -> Iterator[tuple[str, int]]:
    """Of those of the runs that are in the database that is to be replaced."""
    of_these = text("SELECT id, fence FROM runs WHERE id IN :ids").bindparams(
        bindparam("ids", expanding=True)
    )
    with engine.connect() as connection:
        if not inspect(connection).has_table("runs"):
            return
        for at in range(0, len(run_ids), AT_ONCE):
            for row in connection.execute(of_these, {"ids": run_ids[at : at + AT_ONCE]}):
                yield str(row.id), int(row.fence)
