"""Imports a user export for a user of this server, completely or not at all, and reports what was lost.

It overwrites nothing: conversations, projects and agents are added, a file whose name is taken gets a number,
and only unset settings are set.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from luxx.domain.accounts.authentication import caller_without_sign_in
from luxx.domain.accounts.models import User, UserSettings
from luxx.domain.accounts.users import view_of
from luxx.domain.agents.user_export import add_agent, shipped_ids
from luxx.domain.backup.archive import ArchiveReader
from luxx.domain.backup.backup import DataPaths, check_disk_space
from luxx.domain.backup.folders import Readable, TarEntry, entries
from luxx.domain.backup.user_export import (
    FILES,
    FORMAT,
    MAX_PROFILE_BYTES,
    VERSION,
    ExportedProject,
    FeatureExport,
    ImportedIds,
    UserManifest,
    UserProfile,
    check_database_revision,
    require_user,
)
from luxx.domain.conversations.access import delete_hidden, hidden_ids, reveal
from luxx.domain.conversations.images import MIB, check_message_quota
from luxx.domain.conversations.models import ConversationRow, ProjectRow
from luxx.domain.files.storage import MAX_ENTRIES, WorkspaceFiles, display_path
from luxx.domain.transfer.child import ImportReader
from luxx.domain.transfer.document import (
    ImportedRows,
    ImportRefused,
    ImportReport,
    ReadyConversation,
    ReadyRow,
)
from luxx.domain.transfer.draft import object_of
from luxx.domain.transfer.reading import ImportElement
from luxx.domain.transfer.service import MAX_UNPACK_RATIO, write_hidden
from luxx.errors import LuxxError, TooLarge
from luxx.infra.clock import new_id, utc_now
from luxx.infra.config.schema import FilesConfig
from luxx.infra.store.engine import Store
from luxx.tools.compositions.checking import check_composition
from luxx.tools.compositions.service import COMPOSITIONS, new_row
from luxx.tools.permissions.service import check_rule

CHUNK = 1024 * 1024
TOO_MANY_FILES = "too_many_files"
MAX_NUMBERED_BYTES = 240
"""Maximum bytes of a file name to which a number can be added."""


class UserImportResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was imported. `notes` are sentences about what was left out or changed, and about
    permission rules that came with agents."""

    username: str
    report: ImportReport
    projects: int
    agents: int
    files: int
    notes: list[str]


class _UserReader(ImportReader):
    """Reads conversations and records the id that each has in the file, None if it has none."""

    def __init__(self, rows: IO[bytes]) -> None:
        super().__init__(rows)
        self._key: Any = None
        self.keys: dict[str, str | None] = {}

    def _read_element(self, element: ImportElement) -> None:
        self._key = object_of(object_of(element.value).get("conversation")).get("id")
        super()._read_element(element)

    def _write(self, row: ReadyRow) -> None:
        super()._write(row)
        if isinstance(row, ReadyConversation):
            self.keys[row.id] = self._key if isinstance(self._key, str) else None


def import_user(
    data_paths: DataPaths,
    store: Store,
    path: Path,
    username: str | None,
    config: FilesConfig,
    features: Sequence[FeatureExport] = (),
) -> UserImportResult:
    """Imports a user export for the user of this name, by default of the name in the file.

    Raises LuxxError, with nothing changed.
    """
    check_database_revision(data_paths)
    data_paths.data_dir.mkdir(parents=True, exist_ok=True)
    archive = ArchiveReader(path)
    with contextlib.closing(archive), tempfile.TemporaryFile(dir=data_paths.data_dir) as rows:
        manifest = archive.manifest(UserManifest, FORMAT, VERSION)
        _check_sizes(data_paths, manifest, config)
        archive.verify(manifest.members)
        try:
            person = msgspec.json.decode(archive.read(manifest.person, MAX_PROFILE_BYTES), type=UserProfile)
        except msgspec.DecodeError as error:
            raise archive.damaged(f"the user's data in it cannot be read ({error})") from error
        for composition in person.compositions:
            # Whether its tools exist on this server is checked on use.
            check_composition(composition)
        for agent in person.agents:
            for rule in agent.document.rules:
                check_rule("$.rules", rule.permission_rule())
        importer = _UserImporter(data_paths, store, archive, manifest, person, config, features)
        return importer.run(username, rows)


def _check_sizes(data_paths: DataPaths, manifest: UserManifest, config: FilesConfig) -> None:
    """A file states its unpacked size; one above the user's limits is not read."""
    if manifest.file_count > MAX_ENTRIES:
        raise TooLarge(
            f"it holds more than {MAX_ENTRIES:,} files, the limit of a workspace", kind=TOO_MANY_FILES
        )
    conversations_mb = max(MAX_UNPACK_RATIO * config.max_upload_mb, 2 * config.quota_mb)
    for member, max_mb, key in (
        (manifest.conversations, conversations_mb, "files.max_upload_mb"),
        (manifest.files, max(config.quota_mb, 1.0), "files.quota_mb"),
    ):
        if member.size > max_mb * MIB:
            raise TooLarge(
                f"{member.name} unpacks to {member.size / MIB:,.0f} MiB; the limit is {max_mb:,.0f} ({key})",
                kind="import_too_large",
            )
    # Three copies: the whole file, its rows, and the rows in the database.
    check_disk_space(data_paths.data_dir, 3 * manifest.conversations.size, "the import")
    check_disk_space(data_paths.root, manifest.files.size, "the import")


@dataclass
class _UserImporter:
    data_paths: DataPaths
    store: Store
    archive: ArchiveReader
    manifest: UserManifest
    profile: UserProfile
    config: FilesConfig
    features: Sequence[FeatureExport]

    def __post_init__(self) -> None:
        self._notes = list(self.manifest.left_out)
        self._folders: set[Path] = set()

    def run(self, username: str | None, rows: IO[bytes]) -> UserImportResult:
        name = username or self.profile.username
        user = self.store.read_now(lambda session: view_of(require_user(session, name)))
        user_id = user.id
        read, reader = self._read(rows)
        quota = self.config.quota_mb
        self.store.read_now(
            lambda session: check_message_quota(session, user_id, read.size, quota, what="this import")
        )
        rows.seek(0)
        import_id = new_id()
        with ExitStack() as undo:
            undo.callback(self._delete_imported, user_id, import_id)
            write_hidden(self.store, user_id, import_id, rows)
            files = self._place_files(user_id, undo)
            self.store.write_now(lambda session: self._finish(session, user_id, import_id, reader))
            undo.pop_all()
        return UserImportResult(
            username=user.username,
            report=read.report,
            projects=len(self.profile.projects),
            agents=len(self.profile.agents),
            files=files,
            notes=self._notes,
        )

    def _read(self, rows: IO[bytes]) -> tuple[ImportedRows, _UserReader]:
        reader = _UserReader(rows)
        member = self.manifest.conversations
        with self.archive.open(member) as file, tempfile.TemporaryFile(dir=self.data_paths.data_dir) as whole:
            while data := file.read(CHUNK):
                whole.write(data)
            whole.seek(0)
            outcome = reader.read(whole, member.size)
        if isinstance(outcome, ImportRefused):
            raise self.archive.damaged(outcome.reason)
        return outcome, reader

    def _delete_imported(self, user_id: int, import_id: str) -> None:
        """Deletes the hidden conversations; if this fails too, the next start does it."""
        with contextlib.suppress(Exception):
            hidden = self.store.read_now(lambda session: hidden_ids(session, user_id, import_id))
            delete_hidden(self.store, lambda _session, _id: False, hidden)

    # Files

    def _place_files(self, user_id: int, undo: ExitStack) -> int:
        workspaces = self.data_paths.workspaces
        if self.manifest.file_count:
            workspace_files = WorkspaceFiles(workspaces.prepare(user_id))
            self._check_quota(workspace_files)
        else:
            workspace_files = WorkspaceFiles(root := workspaces.prepare_if_enabled(user_id))
            if not root.is_dir():
                return 0
        files = renamed = 0
        self._folders = {Path(".")}
        with self.archive.open(self.manifest.files) as file:
            for position, entry in enumerate(entries(file)):
                if position >= MAX_ENTRIES:
                    raise TooLarge(f"{FILES} holds more than {MAX_ENTRIES:,} files", kind=TOO_MANY_FILES)
                if entry.data is None:
                    self._make_folder(workspace_files, entry.path, undo)
                    continue
                self._track_folders(workspace_files, entry.path.parent, undo)
                final_path = _place_file(workspace_files, entry, entry.data)
                undo.callback(_remove, workspace_files, final_path)
                files += 1
                renamed += final_path != str(entry.path)
        if renamed:
            self._notes.append(f"{renamed} files got another name, because theirs was taken")
        # Fails if old and new files together are too many to count: the user could add none any more.
        if files or len(self._folders) > 1:
            workspace_files.used_bytes()
        return files

    def _make_folder(self, workspace_files: WorkspaceFiles, path: Path, undo: ExitStack) -> None:
        existing = workspace_files.find_entry(str(path))
        if existing is not None and not existing.is_folder:
            self._notes.append(
                f"the folder {display_path(str(path))} was not created: a file with its name exists"
            )
            return
        self._track_folders(workspace_files, path, undo)
        workspace_files.make_folder(str(path))

    def _track_folders(self, workspace_files: WorkspaceFiles, path: Path, undo: ExitStack) -> None:
        """Registers a folder that is about to be created, and its parents, for the undo."""
        for folder in (*reversed(path.parents), path):
            if folder not in self._folders:
                self._folders.add(folder)
                if workspace_files.find_entry(str(folder)) is None:
                    undo.callback(_remove, workspace_files, str(folder))

    def _check_quota(self, workspace_files: WorkspaceFiles) -> None:
        if workspace_files.used_bytes() + self.manifest.files.size > self.config.quota_mb * MIB:
            raise TooLarge(
                f"with these files the workspace would hold more than {self.config.quota_mb:g} MiB, the "
                "limit of this server for each user (files.quota_mb)",
                kind="quota_exceeded",
            )

    # The last transaction

    def _finish(self, session: Session, user_id: int, import_id: str, reader: _UserReader) -> None:
        is_own = (ConversationRow.user_id == user_id, ConversationRow.import_id == import_id)
        row_count = session.scalar(select(func.count()).select_from(ConversationRow).where(*is_own))
        if row_count != len(reader.keys):
            # A server that started meanwhile deleted them as leftovers of a crash.
            raise LuxxError("a server was started during the import; try again")
        links: dict[str, dict[str, object]] = {}
        project_ids: list[str] = []
        for project in self.profile.projects:
            project_id = self._add_project(session, user_id, project)
            project_ids.append(project_id)
            for key in project.conversations:
                links.setdefault(key, {})["project_id"] = project_id
        session.flush()
        for agent_id, keys in self._agents(session, user_id, project_ids):
            for key in keys:
                links.setdefault(key, {})["agent_id"] = agent_id
        session.flush()
        for conversation_id, key in reader.keys.items():
            if key in links:
                statement = update(ConversationRow).where(*is_own, ConversationRow.id == conversation_id)
                session.execute(statement.values(links[key]))
        self._fill_settings(session, user_id)
        self._add_compositions(session, user_id)
        conversations = {key: id_ for id_, key in reader.keys.items() if key is not None}
        ids = ImportedIds(projects=project_ids, conversations=conversations)
        self._add_features(session, user_id, ids)
        reveal(session, user_id, import_id)

    def _add_features(self, session: Session, user_id: int, ids: ImportedIds) -> None:
        caller = caller_without_sign_in(session.get_one(User, user_id))
        known = {feature.name: feature for feature in self.features}
        for name, value in self.profile.features.items():
            feature = known.get(name)
            if feature is None:
                self._notes.append(f"{name[:100]!r} was left out: this version does not know it")
            else:
                self._notes += feature.add(session, caller, ids, value)

    def _add_project(self, session: Session, user_id: int, project: ExportedProject) -> str:
        fields = msgspec.structs.asdict(project)
        del fields["conversations"]
        row = ProjectRow(id=new_id(), user_id=user_id, **fields)
        session.add(row)
        return row.id

    def _agents(
        self, session: Session, user_id: int, project_ids: list[str]
    ) -> Iterator[tuple[int, list[str]]]:
        """Adds the agents. The id of each and the conversations that use it, those of Luxx included."""
        caller = caller_without_sign_in(session.get_one(User, user_id))
        for agent in self.profile.agents:
            has_project = agent.project is not None and 0 <= agent.project < len(project_ids)
            project_id = project_ids[agent.project or 0] if has_project else None
            agent_id, notes = add_agent(session, caller, agent.document, project_id)
            self._notes += notes
            yield agent_id, agent.conversations
        shipped = shipped_ids(session)
        for name, conversations in self.profile.shipped_agents.items():
            if name in shipped:
                yield shipped[name], conversations

    def _add_compositions(self, session: Session, user_id: int) -> None:
        names = COMPOSITIONS.lock_names(session, user_id)
        tenant_id = session.scalars(select(User.tenant_id).where(User.id == user_id)).one()
        for composition in self.profile.compositions:
            if COMPOSITIONS.is_importable(composition.name, names, self._notes):
                names.add(composition.name)
                session.add(new_row(tenant_id, user_id, composition, utc_now()))

    def _fill_settings(self, session: Session, user_id: int) -> None:
        row = session.scalar(select(UserSettings).where(UserSettings.user_id == user_id))
        if row is None:
            return
        unchanged = 0
        for name, value in msgspec.structs.asdict(self.profile.settings).items():
            if value is None or getattr(row, name) == value:
                continue
            if getattr(row, name) is None:
                setattr(row, name, value)
                row.updated_at = utc_now()
            else:
                unchanged += 1
        if unchanged:
            self._notes.append(f"{unchanged} settings kept their present value")


def _place_file(workspace_files: WorkspaceFiles, entry: TarEntry, data: Readable) -> str:
    """Stores a file and returns its path; never overwrites another file."""
    draft = workspace_files.create_draft()
    try:
        while piece := data.read(CHUNK):
            draft.write(piece)
        with draft.using() as fd:
            os.fchmod(fd, entry.mode)
            os.utime(fd, ns=(entry.modified_ns, entry.modified_ns))
        folder, name = str(entry.path.parent), entry.path.name
        if (
            len(os.fsencode(name)) > MAX_NUMBERED_BYTES
            and workspace_files.find_entry(str(entry.path)) is not None
        ):
            # A number would make the name too long.
            name = os.fsencode(name)[:MAX_NUMBERED_BYTES].decode("utf-8", "ignore")
        return workspace_files.save_draft(draft, folder, name).path
    finally:
        workspace_files.close_draft(draft)


def _remove(workspace_files: WorkspaceFiles, path: str) -> None:
    with contextlib.suppress(LuxxError):
        workspace_files.remove(path)
