"""The files of skills: their digest, their rows, and the copies in the data directory that programs read.

A copy is named by its digest and made once. That of a directory's skill is its SKILL.md alone, so that a run
which began with it still has the text after the folder has changed.
"""

import asyncio
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from itertools import islice
from pathlib import Path
from uuid import uuid4

import msgspec
from sqlalchemy import Connection, delete, exists, func, insert, or_, select, update
from sqlalchemy.orm import Session

from luxx.domain.conversations.models import ProjectRow
from luxx.domain.skills.document import FILE, read_document
from luxx.domain.skills.models import SkillFileRow, SkillRow
from luxx.domain.skills.skill import Skill, SkillPin, SkillScope, SkillSet
from luxx.domain.skills.upload import MAX_BYTES, MAX_FILES, MIB, check_sizes, with_usual_name
from luxx.errors import InvalidInput, NotFound, TooLarge, ToolFailed
from luxx.infra.clock import utc_now
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.tools.files.walk import walk
from luxx.tools.files.workspace import Workspace

FOLDER = "skill-copies"
"""In the data directory."""

_SYSTEM = "system"
KEPT_DAYS = 7
"""How long the files of a changed or deleted skill stay for the runs that began with them."""

MOST_UNUSED = 100 * MIB
"""Bytes of these files in a tenant. Otherwise changes in a row would fill the database."""

_files, _skills, _projects = table_of(SkillFileRow), table_of(SkillRow), table_of(ProjectRow)
_is_unused = ~exists().where(
    _skills.c.tenant_id == _files.c.tenant_id,
    # What an ADMIN reviewed last is what the next review compares with.
    or_(_skills.c.digest == _files.c.digest, _skills.c.reviewed_digest == _files.c.digest),
)


def digest_of(files: Mapping[str, bytes]) -> str:
    """The digest over the names and contents of all files."""
    whole = sha256()
    for path in sorted(files):
        whole.update(f"{len(path.encode())}:{path}:{len(files[path])}:".encode())
        whole.update(files[path])
    return whole.hexdigest()


def store_files(connection: Connection, tenant_id: int, digest: str, files: Mapping[str, bytes]) -> None:
    """Stores the files of a skill, unless the tenant has them already."""
    same = (_files.c.tenant_id == tenant_id, _files.c.digest == digest)
    if connection.execute(update(_files).where(*same).values(unused_since=None)).rowcount:
        return
    rows = [
        {"tenant_id": tenant_id, "digest": digest, "path": path, "content": content}
        for path, content in files.items()
    ]
    connection.execute(insert(_files), rows)


def check_quota(connection: Connection, owner_id: int, quota_mb: float) -> None:
    """Raises TooLarge if the skills of this user's projects have more. Call it after a change."""
    digests = (
        select(_skills.c.tenant_id, _skills.c.digest)
        .distinct()
        .join(_projects, _projects.c.id == _skills.c.project_id)
        .where(_projects.c.user_id == owner_id)
        .subquery()
    )
    is_same = (_files.c.tenant_id == digests.c.tenant_id) & (_files.c.digest == digests.c.digest)
    size = select(func.sum(func.length(_files.c.content))).join_from(_files, digests, is_same)
    if int(connection.scalar(size) or 0) > quota_mb * MIB:
        raise TooLarge(
            f"the skills of your projects would have more than {quota_mb:g} MiB together (files.quota_mb); "
            "delete skills that are no longer needed",
            kind="quota_exceeded",
        )


def note_unused(connection: Connection, tenant_id: int) -> None:
    """Notes which files of the tenant no skill has any more, and deletes the oldest of more than MOST_UNUSED.
    Call it after a change or a deletion."""
    of_tenant = (_files.c.tenant_id == tenant_id, _files.c.unused_since.is_(None))
    connection.execute(update(_files).where(*of_tenant, _is_unused).values(unused_since=utc_now()))
    newest_first = (
        select(_files.c.digest, func.sum(func.length(_files.c.content)).label("size"))
        .where(_files.c.tenant_id == tenant_id, _files.c.unused_since.is_not(None))
        .group_by(_files.c.digest)
        .order_by(func.min(_files.c.unused_since).desc())
    )
    total = 0
    for row in connection.execute(newest_first).all():
        total += int(row.size)
        if total > MOST_UNUSED:
            same = (_files.c.tenant_id == tenant_id, _files.c.digest == row.digest)
            connection.execute(delete(_files).where(*same, _is_unused))


def read_files(session: Session, tenant_id: int, digest: str) -> dict[str, bytes]:
    """The stored files with this digest, by path; empty if there are none."""
    rows = session.execute(
        select(_files.c.path, _files.c.content)
        .where(_files.c.tenant_id == tenant_id, _files.c.digest == digest)
        .order_by(_files.c.path)
    )
    return {row.path: row.content for row in rows}


def file_paths(session: Session, tenant_id: int, digest: str) -> list[str]:
    """The names of the stored files with this digest."""
    same = (_files.c.tenant_id == tenant_id, _files.c.digest == digest)
    return list(session.scalars(select(_files.c.path).where(*same).order_by(_files.c.path)))


def read_text(session: Session, tenant_id: int, digest: str) -> bytes | None:
    """The stored SKILL.md of the files with this digest."""
    same = (_files.c.tenant_id == tenant_id, _files.c.digest == digest, _files.c.path == FILE)
    return session.scalar(select(_files.c.content).where(*same))


def delete_unused_files(connection: Connection, now: datetime) -> None:
    """Deletes the files that no skill has had for some days."""
    old = _files.c.unused_since < now - timedelta(days=KEPT_DAYS)
    connection.execute(delete(_files).where(old, _is_unused))


_stored = select(_files.c.tenant_id, _files.c.digest).distinct()


def _remove_all(folders: Sequence[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


class SkillCopies:
    """The copies of one data directory. Two servers may use it at once."""

    def __init__(self, data_dir: Path) -> None:
        self._root = data_dir.absolute() / FOLDER

    def folder(self, tenant_id: int | None, digest: str) -> Path:
        """Where the copy is, or will be."""
        return self._root / (_SYSTEM if tenant_id is None else str(tenant_id)) / digest

    def keep_text(self, digest: str, content: bytes) -> None:
        """Keeps the SKILL.md of a directory's skill. Without a writable disk a run may lose it."""
        try:
            self._write(self.folder(None, digest), {FILE: content})
        except OSError:
            return

    async def remove_unused(self, store: Store) -> None:
        """Removes the copies whose files are not stored any more."""
        copies = await asyncio.to_thread(self._copies_of_tenants)
        if not copies:
            return
        rows = await store.read(lambda session: session.execute(_stored).all())
        stored = {(str(row.tenant_id), row.digest) for row in rows}
        unused = [folder for key, folder in copies.items() if key not in stored]
        await asyncio.to_thread(_remove_all, unused)

    def _copies_of_tenants(self) -> dict[tuple[str, str], Path]:
        folders = [folder for folder in self._root.glob("*/*") if folder.parent.name != _SYSTEM]
        return {(folder.parent.name, folder.name): folder for folder in folders if "." not in folder.name}

    def text_of(self, digest: str) -> bytes | None:
        """The kept SKILL.md of a directory's skill."""
        try:
            return (self.folder(None, digest) / FILE).read_bytes()
        except OSError:
            return None

    def files_of(self, skill: Skill) -> dict[str, bytes]:
        """The files in the folder of a directory's skill: as many and as large as a skill may have.

        Raises TooLarge or NotFound.
        """
        folder = Workspace(skill.folder)
        try:
            with folder.open_directory(".") as fd:
                found = islice((one for one in walk(fd) if one.kind == "file"), MAX_FILES + 1)
                paths = [one.path for one in found]
            files = {path: folder.read(path, MAX_BYTES) for path in paths[: MAX_FILES + 1]}
        except ToolFailed as error:
            raise NotFound(f"the files of this skill cannot be read: {error.message}") from error
        check_sizes({path: len(content) for path, content in files.items()})
        files = with_usual_name(files, "")
        if FILE not in files:
            raise NotFound(f"the files of this skill cannot be read: there is no {FILE}")
        return files

    async def make(self, store: Store, skills: Iterable[Skill]) -> None:
        """Makes the copies of these skills that are missing. The files of a skill may be gone."""
        missing = await asyncio.to_thread(self._missing, list(skills))
        for skill in missing:
            tenant_id, digest = skill.tenant_id or 0, skill.digest
            files = await store.read(lambda session, t=tenant_id, d=digest: read_files(session, t, d))
            if files:
                await asyncio.to_thread(self._write, skill.folder, files)

    def _missing(self, skills: Sequence[Skill]) -> list[Skill]:
        return [skill for skill in skills if skill.scope != SkillScope.SYSTEM and not skill.folder.is_dir()]

    def _write(self, folder: Path, files: Mapping[str, bytes]) -> None:
        """Writes the whole folder or nothing; programs of the sandbox may read it."""
        if folder.is_dir():
            return
        draft = folder.with_name(f"{folder.name}.{uuid4().hex}")
        try:
            for path, content in files.items():
                file = draft / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
                file.chmod(0o644)
            for directory in (draft, *(path for path in draft.rglob("*") if path.is_dir())):
                directory.chmod(0o755)
            os.rename(draft, folder)
        except OSError:
            if not folder.is_dir():
                raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def restored(self, session: Session, tenant_id: int, now: SkillSet, pins: Iterable[SkillPin]) -> SkillSet:
        """The skills as a run began with them. One whose text is gone is as it is now, or missing."""
        found = (self._restored(session, tenant_id, now, pin) for pin in pins)
        return SkillSet([skill for skill in found if skill is not None])

    def _restored(self, session: Session, tenant_id: int, now: SkillSet, pin: SkillPin) -> Skill | None:
        current = now.get(pin.name)
        if current is not None and (current.digest, current.scope) == (pin.digest, pin.scope):
            return current
        is_system = pin.scope == SkillScope.SYSTEM
        content = self.text_of(pin.digest) if is_system else read_text(session, tenant_id, pin.digest)
        try:
            document = None if content is None else read_document(content)
        except InvalidInput:
            document = None
        if document is None:
            return current
        folder = self.folder(None if is_system else tenant_id, pin.digest)
        is_same = is_system and current is not None and current.scope == SkillScope.SYSTEM
        kept = Skill(
            **msgspec.structs.asdict(document),
            id=f"{pin.digest}:{pin.name}",
            scope=pin.scope,
            digest=pin.digest,
            folder=current.folder if is_same and current is not None else folder,
            tenant_id=None if is_system else tenant_id,
            is_reviewed=pin.is_reviewed,
        )
        return kept if is_system else msgspec.structs.replace(kept, instructions="")
