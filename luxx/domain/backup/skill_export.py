"""The skills of a user's projects in an export of all their data, and their import elsewhere, byte for byte.

Reviews stay behind: an ADMIN of the other server has not read the files.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from sqlalchemy import select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.backup.user_export import FeatureExport, ImportedIds
from luxx.domain.skills.changes import set_document
from luxx.domain.skills.document import FILE, read_document
from luxx.domain.skills.files import digest_of, read_files, store_files
from luxx.domain.skills.models import SkillRow
from luxx.domain.skills.registry import MOST_SKILLS
from luxx.domain.skills.skill import SkillScope
from luxx.domain.skills.upload import MAX_PATH, MIB, check_files
from luxx.errors import LuxxError
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.tables import Lock, lock_until_commit
from luxx.wire.tool import skill_key

MOST_BYTES = 100 * MIB
"""Bytes of all skills in an export; its reader keeps them in memory."""


class ExportedSkill(msgspec.Struct, frozen=True, kw_only=True):
    """A skill of the project at the position `project` in the file. `files` null: they were too large for the
    export. `warning`: as its server had it."""

    project: Annotated[int, Meta(ge=0)]
    name: Annotated[str, Meta(min_length=1, max_length=200)]
    enabled: bool = True
    warning: Annotated[str, Meta(max_length=1_000)] | None = None
    files: dict[Annotated[str, Meta(min_length=1, max_length=MAX_PATH)], bytes] | None


def read_skills(session: Session, caller: Caller, project_ids: Sequence[str]) -> list[ExportedSkill]:
    """The skills of these projects, oldest first."""
    rows = session.scalars(
        select(SkillRow)
        .where(SkillRow.tenant_id == caller.tenant_id, SkillRow.project_id.in_(project_ids))
        .order_by(SkillRow.id)
    )
    left = MOST_BYTES
    exported: list[ExportedSkill] = []
    for row in rows:
        files = read_files(session, row.tenant_id, row.digest)
        size = sum(map(len, files.values()))
        has_room = size <= left
        left -= size if has_room else 0
        exported.append(
            ExportedSkill(
                project=project_ids.index(str(row.project_id)),
                name=row.name,
                enabled=row.enabled,
                warning=row.warning,
                files=files if has_room else None,
            )
        )
    return exported


def add_skills(session: Session, caller: Caller, ids: ImportedIds, value: Any) -> list[str]:
    """Adds the skills to the projects. Returns notes about what was left out. Raises LuxxError for what no
    server has exported."""
    try:
        exported = msgspec.convert(value, list[ExportedSkill])
    except msgspec.ValidationError as error:
        raise LuxxError(f"the skills in it cannot be read ({error})") from error
    lock_until_commit(session.connection(), Lock.TENANT_SKILLS, caller.tenant_id)
    notes: list[str] = []
    used: dict[str, set[str]] = {}
    left = MOST_BYTES
    for one in exported:
        if one.project >= len(ids.projects):
            raise LuxxError("the skills in it cannot be read (one is of a project that the file lacks)")
        if one.files is None:
            notes.append(f"the files of the skill {one.name} were left out: they are too large")
            continue
        left -= sum(map(len, one.files.values()))
        names = used.setdefault(ids.projects[one.project], set())
        if left < 0 or len(names) >= MOST_SKILLS:
            notes.append(f"the skill {one.name} was left out: there are too many, or they are too large")
        else:
            _add(session, caller, ids.projects[one.project], one, one.files, names)
    return notes


def _add(
    session: Session,
    caller: Caller,
    project_id: str,
    one: ExportedSkill,
    files: dict[str, bytes],
    names: set[str],
) -> None:
    try:
        check_files(files)
        document = read_document(files[FILE])
    except (LuxxError, KeyError) as error:
        reason = error.message if isinstance(error, LuxxError) else f"it has no {FILE}"
        raise LuxxError(f"the skill {one.name} in it cannot be read ({reason})") from error
    if skill_key(document.name) in names:
        raise LuxxError(f"the skill {one.name} is in it twice")
    names.add(skill_key(document.name))
    now = utc_now()
    row = SkillRow(
        id=new_id(), tenant_id=caller.tenant_id, project_id=project_id, user_id=caller.user_id,
        scope=SkillScope.PROJECT.value, enabled=one.enabled, origin="uploaded", warning=one.warning,
        digest=digest_of(files), created_at=now, updated_at=now,
    )  # fmt: skip
    set_document(row, document)
    session.add(row)
    session.flush()
    store_files(session.connection(), row.tenant_id, row.digest, files)


SKILL_EXPORT = FeatureExport(name="skills", read=read_skills, add=add_skills)
