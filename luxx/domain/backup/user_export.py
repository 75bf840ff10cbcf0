"""One user's whole data as one file: settings, projects, conversations, usage and files of the workspace."""

from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from luxx import __version__
from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import User, UserSettings
from luxx.domain.accounts.users import find_by_name
from luxx.domain.backup.archive import ArchiveWriter, new_file
from luxx.domain.backup.backup import Home
from luxx.domain.backup.folders import Packed, pack
from luxx.domain.backup.manifest import (
    CONVERSATIONS,
    FILES,
    FORMAT,
    PERSON,
    USAGE,
    VERSION,
    Member,
    Person,
    PersonManifest,
    ToldProject,
    ToldSettings,
    ToldUsage,
)
from luxx.domain.conversations.models import ConversationRow, ProjectRow
from luxx.domain.transfer.export import write_json
from luxx.domain.usage.ledger import UsageRow
from luxx.errors import LuxxError, NotFound
from luxx.infra.clock import utc_now
from luxx.infra.store.upgrade import current_step, newest_step
from luxx.tools.compositions.rows import composition_of, read_own
from luxx.wire.tool import CommandPermission

_encode = msgspec.json.Encoder().encode
ROWS_AT_ONCE = 500


def export_person(home: Home, username: str, path: Path) -> PersonManifest:
    """Writes a user's file, of one state of the database. Raises LuxxError, with no file made."""
    check_step(home)
    with new_file(path) as file, ArchiveWriter(file) as archive:
        with home.snapshot() as connection, Session(connection) as session:
            user = found_user(session, username)
            person = archive.put(PERSON, msgspec.json.format(_encode(_person(session, user))))
            conversations = _write_conversations(session, user, archive)
            usage = _write_usage(session, user, archive)
            folder = home.workspaces.path_of(user.id)
        packed, files = _write_files(archive, folder, path.parent)
        manifest = PersonManifest(
            format=FORMAT,
            version=VERSION,
            luxx=__version__,
            made_at=utc_now(),
            person=person,
            conversations=conversations,
            usage=usage,
            files=files,
            file_count=packed.files,
            left_out=packed.left_out,
        )
        archive.finish(manifest)
    return manifest


def check_step(home: Home) -> None:
    """Raises LuxxError for a database that is not this version's."""
    if not home.has_database or current_step(home.engine) != newest_step():
        raise LuxxError("the database is not at this version's step; run `luxx migrate` first")


def found_user(session: Session, username: str) -> User:
    """Raises NotFound."""
    user = find_by_name(session, username)
    if user is None:
        raise NotFound(f"there is no user '{username}'; add one with `luxx user add`", kind="user_not_found")
    return user


def caller_of(user: User) -> Caller:
    """The user as services know them, for what the operator does in their name."""
    return Caller(
        user_id=user.id,
        tenant_id=user.tenant_id,
        username=user.username,
        permission_level=CommandPermission(user.permission_level),
        sign_in_id="",
    )


def _person(session: Session, user: User) -> Person:
    row = session.scalar(select(UserSettings).where(UserSettings.user_id == user.id))
    settings = {name: getattr(row, name) for name in ToldSettings.__struct_fields__} if row else {}
    members: dict[str, list[str]] = {}
    mine = (ConversationRow.user_id == user.id, ConversationRow.import_id.is_(None))
    placed = select(ConversationRow.id, ConversationRow.project_id).where(
        *mine, ConversationRow.project_id.is_not(None)
    )
    for conversation_id, project_id in session.execute(placed):
        members.setdefault(str(project_id), []).append(conversation_id)
    projects = session.scalars(
        select(ProjectRow).where(ProjectRow.user_id == user.id).order_by(ProjectRow.id)
    )
    return Person(
        username=user.username,
        email=user.email,
        permission_level=user.permission_level,
        created_at=user.created_at,
        settings=ToldSettings(**settings),
        projects=[
            ToldProject(
                name=each.name,
                description=each.description,
                conversations=members.get(each.id, []),
                created_at=each.created_at,
                updated_at=each.updated_at,
            )
            for each in projects
        ],
        compositions=[composition_of(each) for each in read_own(session.connection(), user.id)],
    )


def _write_conversations(session: Session, user: User, archive: ArchiveWriter) -> Member:
    """A list of the documents that `GET /conversations/{id}/export` gives, oldest first."""
    caller = caller_of(user)
    with archive.open(CONVERSATIONS) as out:
        out.write(b"[")
        for place, id_ in enumerate(_conversations(session, user.id)):
            out.write(b",\n" if place else b"\n")
            write_json(session, caller, id_, cast("IO[bytes]", out))
            session.expunge_all()
        out.write(b"\n]\n")
    return out.member(CONVERSATIONS)


def _conversations(session: Session, user_id: int) -> Iterator[str]:
    mine = select(ConversationRow.id).where(
        ConversationRow.user_id == user_id, ConversationRow.import_id.is_(None)
    )
    last = ""
    while ids := session.scalars(
        mine.where(ConversationRow.id > last).order_by(ConversationRow.id).limit(ROWS_AT_ONCE)
    ).all():
        yield from ids
        last = ids[-1]


def _write_usage(session: Session, user: User, archive: ArchiveWriter) -> Member:
    rows = select(UsageRow).where(UsageRow.user_id == user.id).order_by(UsageRow.id)
    same = [name for name in ToldUsage.__struct_fields__ if name not in ("at", "conversation")]
    with archive.open(USAGE) as out:
        for row in session.scalars(rows.execution_options(yield_per=ROWS_AT_ONCE)):
            told = {name: getattr(row, name) for name in same}
            out.write(_encode(ToldUsage(at=row.created_at, conversation=row.subject_id, **told)) + b"\n")
    return out.member(USAGE)


def _write_files(archive: ArchiveWriter, folder: Path, spool: Path) -> tuple[Packed, Member]:
    with archive.open(FILES) as out:
        packed = pack(folder, out, spool)
    return packed, out.member(FILES)
