"""The skills of tenants and projects as people manage them, and what a tenant changes of the system's.

ADMINs change those of their tenant, the owner of a project those of the project. A skill of which no ADMIN
has reviewed the present files is for its owner's runs only.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.audit import Action
from luxx.domain.conversations.service import own_project
from luxx.domain.routing.uses import forget_uses
from luxx.domain.skills.changes import (
    NewSkill,
    SkillChanges,
    content_of,
    front_changes,
    record_change,
    record_config,
    set_document,
)
from luxx.domain.skills.differences import Against, SkillDifferences, differences
from luxx.domain.skills.document import FILE, SkillDocument, read_document, warning_of, with_values
from luxx.domain.skills.files import check_quota, digest_of, note_unused, read_files, store_files
from luxx.domain.skills.layers import ConfigAction, SkillConfig, SkillLayers, config_of
from luxx.domain.skills.models import SkillRow, TenantSkillConfigRow
from luxx.domain.skills.registry import MOST_SKILLS
from luxx.domain.skills.skill import SYSTEM_ID, Skill, SkillScope
from luxx.domain.skills.upload import GivenFiles, zip_of
from luxx.domain.skills.views import SkillView, Viewer
from luxx.errors import Conflict, InvalidInput, NotAllowed, NotFound
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import Lock, lock_until_commit
from luxx.tools.sources import ToolSources
from luxx.wire.tool import skill_key

T = TypeVar("T")


class SkillService:
    """One per process. `quota_mb` bounds the skills of all projects of a user."""

    def __init__(self, store: Store, layers: SkillLayers, tools: ToolSources, quota_mb: float) -> None:
        self._store = store
        self._quota_mb = quota_mb
        self._layers = layers
        self._tools = tools

    async def list_page(
        self, caller: Caller, scope: SkillScope | None, project_id: str | None, *, page: int, page_size: int
    ) -> tuple[list[SkillView], int]:
        """The skills of a layer, or of all (None), also hidden and unusable ones, by layer and name.

        Without a project, those of all projects of the caller if the layer is that of projects.
        """

        def work(session: Session) -> tuple[list[SkillView], int]:
            viewer = self._viewer(session, caller, project_id)
            found = viewer.listed(scope)
            first = (page - 1) * page_size
            return [viewer.view_of(skill) for skill in found[first : first + page_size]], len(found)

        return await self._store.read(work)

    async def get(self, caller: Caller, skill_id: str) -> SkillView:
        """One skill that the caller may see. Raises NotFound."""

        def work(session: Session) -> SkillView:
            skill = self._visible(session, caller, skill_id)
            return self._viewer(session, caller, skill.project_id).view_of(skill)

        return await self._store.read(work)

    async def content(self, caller: Caller, skill_id: str) -> bytes:
        """The SKILL.md of a skill. Raises NotFound."""
        return (await self._files(caller, skill_id))[1][FILE]

    async def export(self, caller: Caller, skill_id: str) -> tuple[str, bytes]:
        """The name of a skill, and a ZIP file with its files. Raises NotFound."""
        skill, files = await self._files(caller, skill_id)
        return skill.name, await self._in_thread(zip_of, skill.name, files)

    async def differences(self, caller: Caller, skill_id: str, against: Against) -> SkillDifferences:
        """What differs from the files that were reviewed, or from the skill that this one hides; where there
        are none, all is new. Raises NotFound.
        """

        def work(session: Session) -> tuple[Mapping[str, bytes], Mapping[str, bytes]]:
            skill = self._visible(session, caller, skill_id)
            before: Mapping[str, bytes] = {}
            if against == Against.REVIEWED and skill.scope != SkillScope.SYSTEM:
                reviewed = session.get_one(SkillRow, skill_id).reviewed_digest
                before = read_files(session, caller.tenant_id, reviewed) if reviewed else {}
            elif against == Against.HIDDEN:
                hidden = self._viewer(session, caller, skill.project_id).hidden_by(skill)
                before = {} if hidden is None else self._files_of(session, caller, hidden)
            return before, self._files_of(session, caller, skill)

        return await asyncio.to_thread(differences, *await self._store.read(work))

    async def create(self, caller: Caller, new: NewSkill) -> SkillView:
        """A new skill of a tenant or project. Raises InvalidInput, NotAllowed, NotFound or Conflict."""
        given = GivenFiles(files={FILE: content_of(new)})
        return await self._add(caller, new.scope, new.project_id, given, "written", new.name)

    async def upload(
        self, caller: Caller, scope: SkillScope, project_id: str | None, given: GivenFiles
    ) -> SkillView:
        """A new skill of these files. Raises what `create` raises."""
        return await self._add(caller, scope, project_id, given, "uploaded", None)

    async def _add(
        self,
        caller: Caller,
        scope: SkillScope,
        project_id: str | None,
        given: GivenFiles,
        origin: str,
        name: str | None,
    ) -> SkillView:
        document = await self._in_thread(read_document, given.files[FILE])
        if name is not None and skill_key(name) != skill_key(document.name):
            raise InvalidInput(f"the name in the front matter of content is {document.name}", field="$.name")

        def work(session: Session) -> str:
            self._check_place(session, caller, scope, project_id)
            self._lock_names(session, caller, project_id, document.name, is_new=True)
            now = utc_now()
            row = SkillRow(
                id=new_id(), tenant_id=caller.tenant_id, project_id=project_id, user_id=caller.user_id,
                scope=scope.value, enabled=True, origin=origin, created_at=now, updated_at=now,
            )  # fmt: skip
            session.add(row)
            self._set_files(session, row, document, given)
            record_change(session, caller, Action.SKILL_CREATE, row)
            return row.id

        return await self._changed(caller, await self._store.write(work))

    async def update(self, caller: Caller, skill_id: str, changes: SkillChanges) -> SkillView:
        """Changes a skill. All but `enabled` is written into its SKILL.md. Raises what `create` raises."""
        fields = front_changes(changes)

        def work(session: Session) -> str:
            row = self._editable(session, caller, skill_id)
            if changes.enabled is not msgspec.UNSET:
                row.enabled = changes.enabled
            if fields:
                files = read_files(session, row.tenant_id, row.digest)
                self._replace_text(session, caller, row, files, with_values(files[FILE], fields))
            row.updated_at = utc_now()
            record_change(session, caller, Action.SKILL_CHANGE, row)
            return row.id

        return await self._changed(caller, await self._store.write(work))

    async def set_content(self, caller: Caller, skill_id: str, content: bytes) -> SkillView:
        """Replaces the SKILL.md; its other files stay. Raises what `create` raises."""

        def work(session: Session) -> str:
            row = self._editable(session, caller, skill_id)
            files = read_files(session, row.tenant_id, row.digest)
            self._replace_text(session, caller, row, files, content)
            row.updated_at = utc_now()
            record_change(session, caller, Action.SKILL_CHANGE, row)
            return row.id

        return await self._changed(caller, await self._store.write(work))

    async def delete(self, caller: Caller, skill_id: str) -> None:
        """Deletes a skill; runs that began with it keep it. Raises NotFound or NotAllowed."""

        def work(session: Session) -> None:
            row = self._editable(session, caller, skill_id)
            record_change(session, caller, Action.SKILL_DELETE, row)
            session.delete(row)
            session.flush()
            note_unused(session.connection(), caller.tenant_id)
            forget_uses(session.connection(), caller.tenant_id, "skill", skill_key(row.name))

        await self._store.write(work)
        self._layers.has_changed()

    async def review(self, caller: Caller, skill_id: str, digest: str | None) -> SkillView:
        """Notes that the caller, an ADMIN, has read the present files of a skill.

        With a `digest` only if they have it. Raises NotFound, NotAllowed or Conflict.
        """

        def work(session: Session) -> str:
            skill = self._visible(session, caller, skill_id)
            _require_admin(caller)
            if skill.scope == SkillScope.SYSTEM:
                raise InvalidInput("the skills of the system count as reviewed")
            row = session.get_one(SkillRow, skill_id, with_for_update=True, populate_existing=True)
            if digest is not None and digest != row.digest:
                raise Conflict("the skill has changed; read it again, then review it", kind="skill_changed")
            row.reviewed_digest, row.reviewed_by, row.reviewed_at = row.digest, caller.user_id, utc_now()
            record_change(session, caller, Action.SKILL_REVIEW, row)
            return row.id

        return await self._changed(caller, await self._store.write(work))

    async def configs(self, caller: Caller) -> list[SkillConfig]:
        """What the caller's tenant has changed of the system's skills, by name."""

        def work(session: Session) -> list[SkillConfig]:
            rows = session.scalars(
                select(TenantSkillConfigRow)
                .where(TenantSkillConfigRow.tenant_id == caller.tenant_id)
                .order_by(TenantSkillConfigRow.system_skill_name)
            )
            return [config_of(row) for row in rows]

        return await self._store.read(work)

    async def configure(
        self, caller: Caller, name: str, action: ConfigAction | None, override_id: str | None = None
    ) -> list[SkillConfig]:
        """Disables or replaces a skill of the system for the tenant, or ends that (None).

        Raises NotAllowed, NotFound for an unknown skill, or InvalidInput for one that cannot replace it.
        """
        _require_admin(caller)
        key = skill_key(name)

        def work(session: Session) -> None:
            skill = self._layers.folders.skills.get(name)
            row = session.get(TenantSkillConfigRow, (caller.tenant_id, key))
            if skill is None and (row is None or action is not None):
                raise NotFound(
                    f"the system has no skill named {name[:64]!r}; GET /skills/system lists them",
                    kind="skill_not_found",
                )
            if override_id is not None:
                self._check_override(session, caller, override_id)
            if row is not None:
                session.delete(row)
                session.flush()
            if action is not None and skill is not None:
                values = {"action": action.value, "override_skill_id": override_id, "created_at": utc_now()}
                session.add(
                    TenantSkillConfigRow(
                        tenant_id=caller.tenant_id,
                        system_skill_key=key,
                        system_skill_name=skill.name,
                        **values,
                    )
                )
            record_config(session, caller, name, action)

        await self._store.write(work)
        self._layers.has_changed()
        return await self.configs(caller)

    def _check_override(self, session: Session, caller: Caller, override_id: str) -> None:
        row = session.get(SkillRow, override_id)
        is_known = row is not None and row.tenant_id == caller.tenant_id
        if row is None or not is_known or row.scope != SkillScope.TENANT:
            raise InvalidInput(
                "only a skill of your tenant can replace one of the system; there is none with this id",
                field="$.override_skill_id",
            )

    async def _changed(self, caller: Caller, skill_id: str) -> SkillView:
        self._layers.has_changed()
        return await self.get(caller, skill_id)

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        return await self._store.read(lambda session: work(*arguments))

    async def _files(self, caller: Caller, skill_id: str) -> tuple[Skill, dict[str, bytes]]:
        def work(session: Session) -> tuple[Skill, dict[str, bytes]]:
            skill = self._visible(session, caller, skill_id)
            return skill, self._files_of(session, caller, skill)

        return await self._store.read(work)

    def _files_of(self, session: Session, caller: Caller, skill: Skill) -> dict[str, bytes]:
        if skill.scope == SkillScope.SYSTEM:
            return self._layers.copies.files_of(skill)
        return read_files(session, caller.tenant_id, skill.digest)

    def _viewer(self, session: Session, caller: Caller, project_id: str | None) -> Viewer:
        if project_id is not None:
            own_project(session, caller, project_id)
        names = [tool.name for tool in self._tools.for_caller(session, caller).list_all()]
        return Viewer(self._layers, session, caller, project_id, names)

    def _visible(self, session: Session, caller: Caller, skill_id: str) -> Skill:
        """A skill of the system, of the caller's tenant, or of one of the caller's projects."""
        if skill_id.startswith(SYSTEM_ID):
            skill = self._layers.folders.skills.get(skill_id.removeprefix(SYSTEM_ID))
            if skill is None:
                raise _not_found()
            return skill
        row = session.get(SkillRow, skill_id)
        if row is None or row.tenant_id != caller.tenant_id:
            raise _not_found()
        if row.project_id is not None:
            try:
                own_project(session, caller, row.project_id)
            except NotFound as error:
                raise _not_found() from error
        return self._layers.skill_of(row)

    def _editable(self, session: Session, caller: Caller, skill_id: str) -> SkillRow:
        """The locked row of a skill that the caller may change. Raises NotFound or NotAllowed."""
        skill = self._visible(session, caller, skill_id)
        if skill.scope == SkillScope.SYSTEM:
            raise NotAllowed(
                "skills of the system are folders of the server, which only its operator changes; a tenant "
                "can disable or override them"
            )
        if skill.scope == SkillScope.TENANT:
            _require_admin(caller)
        lock_until_commit(session.connection(), Lock.TENANT_SKILLS, caller.tenant_id)
        row = session.get(SkillRow, skill_id, populate_existing=True)
        if row is None:
            raise _not_found()
        return row

    def _check_place(
        self, session: Session, caller: Caller, scope: SkillScope, project_id: str | None
    ) -> None:
        if scope == SkillScope.SYSTEM:
            raise InvalidInput("scope must be tenant or project", field="$.scope")
        if scope == SkillScope.TENANT:
            _require_admin(caller)
            if project_id is not None:
                raise InvalidInput("a skill of the tenant has no project", field="$.project_id")
            return
        if project_id is None:
            raise InvalidInput("a skill of a project needs its project_id", field="$.project_id")
        own_project(session, caller, project_id)

    def _lock_names(
        self, session: Session, caller: Caller, project_id: str | None, name: str, *, is_new: bool
    ) -> None:
        """Raises Conflict if the layer has a skill of this name, or as many as possible."""
        lock_until_commit(session.connection(), Lock.TENANT_SKILLS, caller.tenant_id)
        in_layer = (SkillRow.tenant_id == caller.tenant_id, SkillRow.project_id == project_id)
        if is_new and (session.scalar(select(func.count()).where(*in_layer)) or 0) >= MOST_SKILLS:
            raise Conflict(f"there are {MOST_SKILLS} skills, which is the limit", kind="skills_full")
        names = session.scalars(select(SkillRow.name).where(*in_layer))
        if skill_key(name) in map(skill_key, names):
            raise Conflict(f"there is already a skill named {name} in this layer", kind="skill_name_taken")

    def _replace_text(
        self, session: Session, caller: Caller, row: SkillRow, files: Mapping[str, bytes], content: bytes
    ) -> None:
        document = read_document(content)
        if skill_key(document.name) != skill_key(row.name):
            self._lock_names(session, caller, row.project_id, document.name, is_new=False)
        self._set_files(session, row, document, GivenFiles(files={**files, FILE: content}))
        note_unused(session.connection(), row.tenant_id)

    def _set_files(self, session: Session, row: SkillRow, document: SkillDocument, given: GivenFiles) -> None:
        set_document(row, document)
        row.digest = digest_of(given.files)
        row.warning = warning_of(document, given.folder)
        session.flush()
        store_files(session.connection(), row.tenant_id, row.digest, given.files)
        if row.project_id is not None and row.user_id is not None:
            check_quota(session.connection(), row.user_id, self._quota_mb)


def _require_admin(caller: Caller) -> None:
    if not caller.is_admin:
        raise NotAllowed("only an ADMIN may do this; skills of a project are for the project's owner")


def _not_found() -> NotFound:
    return NotFound("no skill with this id", kind="skill_not_found")
