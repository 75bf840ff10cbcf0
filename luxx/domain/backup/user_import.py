"""A user's file into another server, or another user: all of it or nothing, and what was lost is told.

Nothing that is there is written over: conversations and projects come beside those of the user, a file
whose name is taken gets a number, settings fill what is open.
"""

import contextlib
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import msgspec
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from luxx.domain.accounts.models import User, UserSettings
from luxx.domain.backup.archive import ArchiveReader
from luxx.domain.backup.backup import Home, check_free
from luxx.domain.backup.folders import Entry, Reads, entries
from luxx.domain.backup.manifest import (
    FILES,
    FORMAT,
    MOST_PERSON,
    VERSION,
    Person,
    PersonManifest,
    ToldProject,
)
from luxx.domain.backup.user_export import check_step, found_user
from luxx.domain.conversations.access import forget, hidden_of, reveal
from luxx.domain.conversations.images import MIB, check_room
from luxx.domain.conversations.models import ConversationRow, ProjectRow
from luxx.domain.files.storage import MAX_ENTRIES, Shelf, measure, shown
from luxx.domain.transfer.child import Reader
from luxx.domain.transfer.document import ImportReport, Read, ReadyConversation, ReadyRow, Refused
from luxx.domain.transfer.draft import object_of
from luxx.domain.transfer.reading import Element
from luxx.domain.transfer.service import UNPACKED, write_hidden
from luxx.errors import LuxxError, TooLarge
from luxx.infra.clock import new_id, utc_now
from luxx.infra.config.schema import FilesConfig
from luxx.infra.store.engine import Store
from luxx.tools.compositions.checking import check
from luxx.tools.compositions.rows import MOST_COMPOSITIONS, new_row, read_own, take_turn

CHUNK = 1024 * 1024
TOO_MANY_FILES = "too_many_files"
NUMBERED = 240
"""Bytes of a name that still can get a number."""


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """What came in. `notes` are sentences on what did not, or not as it was."""

    username: str
    report: ImportReport
    projects: int
    files: int
    notes: list[str]


class _PersonReader(Reader):
    """Reads conversations and remembers in which project each belongs; by its id in the file."""

    def __init__(self, rows: IO[bytes], projects: list[ToldProject]) -> None:
        super().__init__(rows)
        self._projects = {key: at for at, each in enumerate(projects) for key in each.conversations}
        self._key: Any = None
        self.places: dict[str, int] = {}
        self.ids: set[str] = set()

    def _take(self, element: Element) -> None:
        self._key = object_of(object_of(element.value).get("conversation")).get("id")
        super()._take(element)

    def _write(self, row: ReadyRow) -> None:
        super()._write(row)
        if isinstance(row, ReadyConversation):
            self.ids.add(row.id)
            if isinstance(self._key, str) and self._key in self._projects:
                self.places[row.id] = self._projects[self._key]


def import_person(
    home: Home, store: Store, path: Path, username: str | None, config: FilesConfig
) -> Imported:
    """Brings a user's file to the user of this name, else of the name in the file.

    Raises LuxxError, with nothing changed.
    """
    check_step(home)
    home.data_dir.mkdir(parents=True, exist_ok=True)
    archive = ArchiveReader(path)
    with contextlib.closing(archive), tempfile.TemporaryFile(dir=home.data_dir) as rows:
        manifest = archive.manifest(PersonManifest, FORMAT, VERSION)
        _check_sizes(home, manifest, config)
        archive.verify(manifest.members)
        try:
            person = msgspec.json.decode(archive.read(manifest.person, MOST_PERSON), type=Person)
        except msgspec.DecodeError as error:
            raise archive.damaged(f"what it says of the user cannot be read ({error})") from error
        for composition in person.compositions:
            # Which tools there are here is seen when it is used.
            check(composition)
        return _Importing(home, store, archive, manifest, person, config).run(username, rows)


def _check_sizes(home: Home, manifest: PersonManifest, config: FilesConfig) -> None:
    """A file says how much it unpacks to; more than a user can have is not even read."""
    if manifest.file_count > MAX_ENTRIES:
        raise TooLarge(
            f"it holds more than {MAX_ENTRIES:,} files, which no workspace may", kind=TOO_MANY_FILES
        )
    talk = max(UNPACKED * config.max_upload_mb, 2 * config.quota_mb)
    for member, most, key in (
        (manifest.conversations, talk, "files.max_upload_mb"),
        (manifest.files, max(config.quota_mb, 1.0), "files.quota_mb"),
    ):
        if member.size > most * MIB:
            raise TooLarge(
                f"{member.name} unpacks to {member.size / MIB:,.0f} MiB; {most:,.0f} are taken in ({key})",
                kind="import_too_large",
            )
    # Whole, as rows, and in a database that is there.
    check_free(home.data_dir, 3 * manifest.conversations.size, "the import")
    check_free(home.root, manifest.files.size, "the import")


class _Importing:
    def __init__(
        self,
        home: Home,
        store: Store,
        archive: ArchiveReader,
        manifest: PersonManifest,
        person: Person,
        config: FilesConfig,
    ) -> None:
        self._home = home
        self._store = store
        self._archive = archive
        self._manifest = manifest
        self._person = person
        self._config = config
        self._notes = list(manifest.left_out)
        self._folders: set[Path] = set()

    def run(self, username: str | None, rows: IO[bytes]) -> Imported:
        name = username or self._person.username
        user_id, name = self._store.read_now(lambda session: _who(found_user(session, name)))
        read, reader = self._read(rows)
        quota = self._config.quota_mb
        self._store.read_now(
            lambda session: check_room(session, user_id, read.size, quota, what="this import")
        )
        rows.seek(0)
        import_id = new_id()
        with ExitStack() as undo:
            undo.callback(self._forget, user_id, import_id)
            write_hidden(self._store, user_id, import_id, rows)
            files = self._place_files(user_id, undo)
            self._store.write_now(lambda session: self._finish(session, user_id, import_id, reader))
            undo.pop_all()
        return Imported(
            username=name,
            report=read.report,
            projects=len(self._person.projects),
            files=files,
            notes=self._notes,
        )

    def _read(self, rows: IO[bytes]) -> tuple[Read, _PersonReader]:
        reader = _PersonReader(rows, self._person.projects)
        member = self._manifest.conversations
        with self._archive.open(member) as file, tempfile.TemporaryFile(dir=self._home.data_dir) as whole:
            while data := file.read(CHUNK):
                whole.write(data)
            whole.seek(0)
            outcome = reader.read(whole, member.size)
        if isinstance(outcome, Refused):
            raise self._archive.damaged(outcome.reason)
        return outcome, reader

    def _forget(self, user_id: int, import_id: str) -> None:
        """Whatever fails here too, the next start deletes."""
        with contextlib.suppress(Exception):
            hidden = self._store.read_now(lambda session: hidden_of(session, user_id, import_id))
            forget(self._store, lambda _session, _id: False, hidden)

    # Files

    def _place_files(self, user_id: int, undo: ExitStack) -> int:
        workspaces = self._home.workspaces
        if self._manifest.file_count:
            shelf = Shelf(workspaces.prepare(user_id))
            self._check_quota(shelf)
        else:
            shelf = Shelf(root := workspaces.prepare_if_wanted(user_id))
            if not root.is_dir():
                return 0
        files = renamed = 0
        self._folders = {Path(".")}
        with self._archive.open(self._manifest.files) as file:
            for place, entry in enumerate(entries(file)):
                if place >= MAX_ENTRIES:
                    raise TooLarge(f"{FILES} holds more than {MAX_ENTRIES:,} files", kind=TOO_MANY_FILES)
                if entry.data is None:
                    self._make_folder(shelf, entry.path, undo)
                    continue
                self._note_folders(shelf, entry.path.parent, undo)
                placed = _placed(shelf, entry, entry.data)
                undo.callback(_remove, shelf, placed)
                files += 1
                renamed += placed != str(entry.path)
        if renamed:
            self._notes.append(f"{renamed} files have another name here, because theirs was taken")
        # With those that were there they may be more than can be counted: then none could be added any more.
        if files or len(self._folders) > 1:
            self._held(shelf)
        return files

    def _make_folder(self, shelf: Shelf, path: Path, undo: ExitStack) -> None:
        there = shelf.look(str(path))
        if there is not None and not there.is_folder:
            self._notes.append(f"the folder {shown(str(path))} was not made: a file here has its name")
            return
        self._note_folders(shelf, path, undo)
        shelf.make_folder(str(path))

    def _note_folders(self, shelf: Shelf, path: Path, undo: ExitStack) -> None:
        """A folder that is going to be made, and those above it."""
        for folder in (*reversed(path.parents), path):
            if folder not in self._folders:
                self._folders.add(folder)
                if shelf.look(str(folder)) is None:
                    undo.callback(_remove, shelf, str(folder))

    def _held(self, shelf: Shelf) -> int:
        with shelf.open_root() as root:
            return measure(root)

    def _check_quota(self, shelf: Shelf) -> None:
        held = self._held(shelf)
        if held + self._manifest.files.size > self._config.quota_mb * MIB:
            raise TooLarge(
                f"with these files the workspace would hold more than {self._config.quota_mb:g} MiB, which "
                "is what this server gives a user (files.quota_mb)",
                kind="quota_exceeded",
            )

    # The last transaction

    def _finish(self, session: Session, user_id: int, import_id: str, reader: _PersonReader) -> None:
        mine = (ConversationRow.user_id == user_id, ConversationRow.import_id == import_id)
        there = session.scalar(select(func.count()).select_from(ConversationRow).where(*mine))
        if there != len(reader.ids):
            # A server that started meanwhile took them for what a crash had left behind.
            raise LuxxError("a server was started during the import; try again")
        made = [self._add_project(session, user_id, told) for told in self._person.projects]
        session.flush()
        for conversation_id, place in reader.places.items():
            which = update(ConversationRow).where(*mine, ConversationRow.id == conversation_id)
            session.execute(which.values(project_id=made[place]))
        self._fill_settings(session, user_id)
        self._add_compositions(session, user_id)
        reveal(session, user_id, import_id)

    def _add_project(self, session: Session, user_id: int, told: ToldProject) -> str:
        row = ProjectRow(
            id=new_id(),
            user_id=user_id,
            name=told.name,
            description=told.description,
            created_at=told.created_at,
            updated_at=told.updated_at,
        )
        session.add(row)
        return row.id

    def _add_compositions(self, session: Session, user_id: int) -> None:
        take_turn(session.connection(), user_id)
        names = {each.name for each in read_own(session.connection(), user_id)}
        tenant_id = session.scalars(select(User.tenant_id).where(User.id == user_id)).one()
        for composition in self._person.compositions:
            if composition.name not in names and len(names) < MOST_COMPOSITIONS:
                names.add(composition.name)
                session.add(new_row(tenant_id, user_id, composition, utc_now()))
            else:
                because = "the name is taken, or there are too many"
                self._notes.append(f"the composition {composition.name} was left out: {because}")

    def _fill_settings(self, session: Session, user_id: int) -> None:
        row = session.scalar(select(UserSettings).where(UserSettings.user_id == user_id))
        if row is None:
            return
        kept = 0
        for name, value in msgspec.structs.asdict(self._person.settings).items():
            if value is None or getattr(row, name) == value:
                continue
            if getattr(row, name) is None:
                setattr(row, name, value)
                row.updated_at = utc_now()
            else:
                kept += 1
        if kept:
            self._notes.append(f"{kept} settings were kept as they are here")


def _who(user: Any) -> tuple[int, str]:
    return user.id, user.username


def _placed(shelf: Shelf, entry: Entry, data: Reads) -> str:
    """The path that a file got; never that of another one."""
    draft = shelf.draft()
    try:
        while piece := data.read(CHUNK):
            draft.write(piece)
        with draft.using() as fd:
            os.fchmod(fd, entry.mode)
            os.utime(fd, ns=(entry.modified_ns, entry.modified_ns))
        folder, name = str(entry.path.parent), entry.path.name
        if len(os.fsencode(name)) > NUMBERED and shelf.look(str(entry.path)) is not None:
            # No number fits behind it.
            name = os.fsencode(name)[:NUMBERED].decode("utf-8", "ignore")
        return shelf.place(draft, folder, name).path
    finally:
        shelf.close(draft)


def _remove(shelf: Shelf, path: str) -> None:
    with contextlib.suppress(LuxxError):
        shelf.remove(path)
