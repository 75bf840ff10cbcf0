"""Exports one user's data as one file: settings, projects, agents, conversations, usage, workspace files.

Increase `VERSION` when current readers could misread the new format.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta
from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from luxx import __version__
from luxx.domain.accounts.authentication import caller_without_sign_in
from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import User, UserSettings
from luxx.domain.accounts.users import find_by_name
from luxx.domain.agents.document import AgentDocument
from luxx.domain.agents.user_export import own_agents, shipped_ids
from luxx.domain.backup.archive import ArchiveMember, ArchiveWriter, Size, new_file
from luxx.domain.backup.backup import DataPaths
from luxx.domain.backup.folders import pack
from luxx.domain.conversations.models import ConversationRow, ProjectRow
from luxx.domain.owned import Shared
from luxx.domain.transfer.export import write_json
from luxx.domain.usage.ledger import UsageRow
from luxx.errors import InvalidInput, LuxxError, NotFound
from luxx.infra.clock import utc_now
from luxx.infra.store.tables import first_given
from luxx.infra.store.upgrade import current_step, newest_step
from luxx.tools.compositions.service import MAX_COMPOSITIONS, composition_of, read_own
from luxx.wire.model_settings import (
    Extraction,
    MemoryMode,
    ModelSettings,
    PlanningMode,
    RoutingMode,
    TitleMode,
)
from luxx.wire.tool import Composition


class UserManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest of a user export."""

    format: Literal["luxx.user"]
    version: Annotated[int, Meta(ge=1)]
    luxx: str
    made_at: datetime
    person: ArchiveMember
    conversations: ArchiveMember
    usage: ArchiveMember
    files: ArchiveMember
    file_count: Size
    left_out: list[str]

    @property
    def members(self) -> list[ArchiveMember]:
        return [self.person, self.conversations, self.usage, self.files]


FORMAT = "luxx.user"
VERSION = 1
PROFILE_FILE = "person.json"
CONVERSATIONS = "conversations.json"
"""The name under which an import looks for conversations in any ZIP file."""

USAGE = "usage.jsonl"
FILES = "files.tar"
MAX_PROFILE_BYTES = 512 * 1024 * 1024


class ExportedSettings(ModelSettings, frozen=True, kw_only=True):
    """A user's defaults, without the provider, which belongs to its server."""

    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    system_prompt: Annotated[str, Meta(max_length=100_000)] | None = None
    planning: PlanningMode | None = None
    routing: RoutingMode | None = None
    memory: MemoryMode | None = None
    extraction: Extraction | None = None
    titles: TitleMode | None = None
    follow_ups: bool = False


class ExportedProject(msgspec.Struct, frozen=True, kw_only=True):
    """`conversations` are their ids in this file."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    description: Annotated[str, Meta(max_length=10_000)] = ""
    memory: MemoryMode | None = None
    conversations: list[str] = []
    created_at: datetime
    updated_at: datetime


class ExportedAgent(msgspec.Struct, frozen=True, kw_only=True):
    """`conversations` are the ids in this file of those that use the agent. `project`: the position of its
    project in the file."""

    document: AgentDocument
    conversations: list[str] = []
    project: int | None = None


class ImportedIds(msgspec.Struct, frozen=True, kw_only=True):
    """What an import has added: `projects`, in the order in which the file has them, and `conversations` by
    their ids in the file."""

    projects: Sequence[str]
    conversations: Mapping[str, str]


class FeatureExport(msgspec.Struct, frozen=True, kw_only=True):
    """The data of a feature in an export of one user's data, under `name`.

    `read` gets the ids of the user's projects, in the order in which the file has them, and returns a value
    that JSON can hold. `add` stores such a value for the user of the other server and returns notes about
    what was left out; it raises LuxxError for a value that is not valid.
    """

    name: str
    read: Callable[[Session, Caller, Sequence[str]], Any]
    add: Callable[[Session, Caller, ImportedIds, Any], list[str]]


class UserProfile(msgspec.Struct, frozen=True, kw_only=True):
    """`shipped_agents`: the ids of the conversations that use an agent of Luxx, by its name there.

    `features`: the values of `FeatureExport`, by their names.
    """

    username: str
    email: str | None
    permission_level: int
    created_at: datetime
    settings: ExportedSettings = ExportedSettings()
    projects: list[ExportedProject] = []
    compositions: Annotated[list[Composition], Meta(max_length=MAX_COMPOSITIONS)] = []
    agents: list[ExportedAgent] = []
    shipped_agents: dict[str, list[str]] = {}
    features: dict[str, Any] = {}


class ExportedUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One completion, for the user's information; it is not imported, because its cost belongs to the other
    server."""

    at: datetime
    model: str
    conversation: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    cost: float | None
    is_estimated: bool


_encode = msgspec.json.Encoder().encode
ROWS_AT_ONCE = 500


def export_user(
    data_paths: DataPaths, username: str, path: Path, features: Sequence[FeatureExport] = ()
) -> UserManifest:
    """Writes a user's export from a database snapshot. Raises LuxxError and leaves no file on failure."""
    check_database_revision(data_paths)
    with new_file(path) as file, ArchiveWriter(file) as archive:
        with data_paths.snapshot() as connection, Session(connection) as session:
            user = require_user(session, username)
            person = archive.put(
                PROFILE_FILE, msgspec.json.format(_encode(_user_profile(session, user, features)))
            )
            conversations = _write_conversations(session, user, archive)
            usage = _write_usage(session, user, archive)
            folder = data_paths.workspaces.path_of(user.id)
        with archive.open(FILES) as out:
            packed = pack(folder, out, path.parent)
        manifest = UserManifest(
            format=FORMAT,
            version=VERSION,
            luxx=__version__,
            made_at=utc_now(),
            person=person,
            conversations=conversations,
            usage=usage,
            files=out.member(FILES),
            file_count=packed.files,
            left_out=packed.left_out,
        )
        archive.finish(manifest)
    return manifest


def check_database_revision(data_paths: DataPaths) -> None:
    """Raises LuxxError if the database is not at this version's migration step."""
    if not data_paths.has_database:
        raise LuxxError(
            f"there is no Luxx database at {data_paths.url.database}; give the data directory of the server "
            "with --data-dir"
        )
    if current_step(data_paths.engine) != newest_step():
        raise LuxxError("the database does not have this version's schema; run `luxx migrate` first")


def require_user(session: Session, username: str) -> User:
    """The user with this name. Raises NotFound."""
    user = find_by_name(session, username)
    if user is None:
        raise NotFound(f"there is no user '{username}'; add one with `luxx user add`", kind="user_not_found")
    return user


def _user_profile(session: Session, user: User, features: Sequence[FeatureExport]) -> UserProfile:
    row = session.scalar(select(UserSettings).where(UserSettings.user_id == user.id))
    settings = {name: getattr(row, name) for name in ExportedSettings.__struct_fields__} if row else {}
    members = _conversations_by(session, user, ConversationRow.project_id)
    users = _conversations_by(session, user, ConversationRow.agent_id)
    projects = session.scalars(
        select(ProjectRow).where(ProjectRow.user_id == user.id).order_by(ProjectRow.id)
    ).all()
    project_ids = [project.id for project in projects]
    caller = caller_without_sign_in(user)
    copied = [name for name in ExportedProject.__struct_fields__ if name != "conversations"]
    return UserProfile(
        username=user.username,
        email=user.email,
        permission_level=user.permission_level,
        created_at=user.created_at,
        settings=ExportedSettings(**settings),
        projects=[
            ExportedProject(
                conversations=members.get(project.id, []), **{name: getattr(project, name) for name in copied}
            )
            for project in projects
        ],
        compositions=[composition_of(row) for row in read_own(session.connection(), user.id)],
        agents=[
            ExportedAgent(
                document=document,
                conversations=users.get(agent_id, []),
                project=project_ids.index(project_id) if project_id in project_ids else None,
            )
            for agent_id, project_id, document in own_agents(session, caller)
        ],
        shipped_agents={
            name: users[agent_id] for name, agent_id in shipped_ids(session).items() if agent_id in users
        },
        features={feature.name: feature.read(session, caller, project_ids) for feature in features},
    )


def _is_exported(user_id: int) -> tuple[ColumnElement[bool], ...]:
    """The user's conversations without hidden ones and temporary chats."""
    return (
        ConversationRow.user_id == user_id,
        ConversationRow.import_id.is_(None),
        ConversationRow.temporary_minutes.is_(None),
    )


def _conversations_by(
    session: Session, user: User, column: InstrumentedAttribute[Any]
) -> dict[Any, list[str]]:
    """The ids of the user's conversations by their values in this column, those with null left out."""
    conversations: dict[Any, list[str]] = {}
    is_own = _is_exported(user.id)
    query = (
        select(ConversationRow.id, column).where(*is_own, column.is_not(None)).order_by(ConversationRow.id)
    )
    for conversation_id, value in session.execute(query):
        conversations.setdefault(value, []).append(conversation_id)
    return conversations


def _write_conversations(session: Session, user: User, archive: ArchiveWriter) -> ArchiveMember:
    """Writes a list of the documents of `GET /conversations/{id}/export`, oldest first."""
    caller = caller_without_sign_in(user)
    with archive.open(CONVERSATIONS) as out:
        out.write(b"[")
        for position, id_ in enumerate(_conversations(session, user.id)):
            out.write(b",\n" if position else b"\n")
            write_json(session, caller, id_, cast("IO[bytes]", out))
            session.expunge_all()
        out.write(b"\n]\n")
    return out.member(CONVERSATIONS)


def _conversations(session: Session, user_id: int) -> Iterator[str]:
    is_own = select(ConversationRow.id).where(*_is_exported(user_id))
    last = ""
    while ids := session.scalars(
        is_own.where(ConversationRow.id > last).order_by(ConversationRow.id).limit(ROWS_AT_ONCE)
    ).all():
        yield from ids
        last = ids[-1]


def _write_usage(session: Session, user: User, archive: ArchiveWriter) -> ArchiveMember:
    rows = select(UsageRow).where(UsageRow.user_id == user.id).order_by(UsageRow.id)
    copied_fields = [name for name in ExportedUsage.__struct_fields__ if name not in ("at", "conversation")]
    with archive.open(USAGE) as out:
        for row in session.scalars(rows.execution_options(yield_per=ROWS_AT_ONCE)):
            fields = {name: getattr(row, name) for name in copied_fields}
            usage = ExportedUsage(at=row.created_at, conversation=row.subject_id, **fields)
            out.write(_encode(usage) + b"\n")
    return out.member(USAGE)


def export_of(shared: Shared[Any]) -> FeatureExport:
    """The rows that a user owns in an export, oldest first; an import adds them and does not share them."""
    new, word = shared.new, shared.word
    assert new is not None
    names = [name for name in new.__struct_fields__ if name != "is_shared"]
    times = [("created_at", datetime), ("updated_at", datetime)]
    exported_type: Any = msgspec.defstruct("Exported", [(word, new), *times], frozen=True, kw_only=True)

    def read(session: Session, caller: Caller, _project_ids: Sequence[str]) -> list[Any]:
        own = select(shared.row).where(shared.row.user_id == caller.user_id).order_by(shared.row.id)
        return [
            exported_type(
                **{word: new(**first_given(row, names=names))},
                **first_given(row, names=("created_at", "updated_at")),
            )
            for row in session.scalars(own)
        ]

    def add(session: Session, caller: Caller, _ids: ImportedIds, value: Any) -> list[str]:
        try:
            exported = msgspec.convert(value, list[exported_type])
            for one in exported:
                shared.check(getattr(one, word))
        except (msgspec.ValidationError, InvalidInput) as error:
            raise LuxxError(f"the {shared.noun}s in it cannot be read ({error})") from error
        taken = shared.lock_names(session, caller.user_id)
        notes: list[str] = []
        for one in exported:
            given = getattr(one, word)
            if shared.is_importable(given.name, taken, notes):
                taken.add(given.name)
                times = first_given(one, names=("created_at", "updated_at"))
                shared.add(session, caller, given, is_shared=False, **times)
        return notes

    return FeatureExport(name=f"{shared.noun}s", read=read, add=add)
