"""Prompt management for users: list, create, change, delete; shared prompts of removed users;
prompts in the export of a user's data.

A user sees their own prompts and those shared in the tenant. Only an administrator shares.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace
from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.rights import is_admin_now
from luxx.domain.backup.user_export import FeatureExport
from luxx.errors import Conflict, InvalidInput, LuxxError, NotAllowed, NotFound
from luxx.features.prompts.models import (
    MAX_PROMPTS,
    MAX_VARIABLES,
    NAME_LENGTH,
    NewPrompt,
    PromptChanges,
    PromptRow,
    PromptView,
    variables_of,
)
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import CASEFOLD_FUNCTION, Store
from luxx.infra.store.tables import Lock, lock_until_commit


@dataclass(frozen=True, slots=True)
class PromptService:
    """One per process."""

    store: Store

    async def list_page(
        self, caller: Caller, *, part: str | None, page: int, page_size: int
    ) -> tuple[list[PromptView], int]:
        """The caller's prompts and those shared in the tenant, newest first, and their number.

        `part`: only those whose name, title or description contains it, whatever the letter case.
        """

        def work(session: Session) -> tuple[list[PromptView], int]:
            where = _visible_to(caller)
            if part:
                where = and_(where, _contains(session.connection().dialect.name, part))
            total = session.scalar(select(func.count()).select_from(PromptRow).where(where)) or 0
            newest = select(PromptRow).where(where).order_by(PromptRow.id.desc())
            rows = session.scalars(newest.limit(page_size).offset((page - 1) * page_size))
            return [_view(row, caller) for row in rows], total

        return await self.store.read(work)

    async def get(self, caller: Caller, prompt_id: str) -> PromptView:
        """Raises NotFound."""
        return await self.store.read(lambda session: _view(_visible(session, caller, prompt_id), caller))

    async def create(self, caller: Caller, new: NewPrompt) -> PromptView:
        """Raises Conflict for a taken name or too many prompts, InvalidInput for too many variables, and
        NotAllowed for a user who may not share."""
        _check_variables(new.content)

        def work(session: Session) -> PromptView:
            _check_sharing(session, caller, new.is_shared)
            names = _locked_names(session, caller.user_id)
            if len(names) >= MAX_PROMPTS:
                raise Conflict(
                    f"you have {MAX_PROMPTS} prompts, which is the limit; delete one that you no longer use",
                    kind="prompts_full",
                )
            _check_name(new.name, names)
            return _view(_add(session, caller, new), caller)

        return await self.store.write(work)

    async def update(self, caller: Caller, prompt_id: str, changes: PromptChanges) -> PromptView:
        """Sets the given fields. Raises what `create` raises, NotFound, and NotAllowed for a prompt of
        somebody else, of which an ADMIN may only end the sharing."""
        if changes.content is not UNSET:
            _check_variables(changes.content)

        def work(session: Session) -> PromptView:
            row = _to_change(session, caller, prompt_id)
            given = {name for name in changes.__struct_fields__ if getattr(changes, name) is not UNSET}
            if row.user_id != caller.user_id and not given <= {"is_shared"}:
                raise NotAllowed(
                    f"the prompt '{row.name}' belongs to another administrator; you may only stop sharing it "
                    "(is_shared) or delete it"
                )
            _check_sharing(session, caller, changes.is_shared)
            if changes.name is not UNSET and changes.name != row.name:
                _check_name(changes.name, _locked_names(session, row.user_id))
            _set_fields(row, changes)
            row.updated_at = utc_now()
            session.flush()
            return _view(row, caller)

        return await self.store.write(work)

    async def delete(self, caller: Caller, prompt_id: str) -> None:
        """Raises NotFound and NotAllowed."""
        await self.store.write(lambda session: session.delete(_to_change(session, caller, prompt_id)))


def transfer_shared_prompts(session: Session, user_id: int, successor_id: int | None) -> None:
    """Transfers a user's shared prompts to a successor. Without one they stay and are no longer shared.

    A name that the successor already has gets a number.
    """
    shared = select(PromptRow).where(PromptRow.user_id == user_id, PromptRow.is_shared).order_by(PromptRow.id)
    rows = session.scalars(shared.with_for_update()).all()
    names = _locked_names(session, successor_id) if successor_id is not None else set[str]()
    for row in rows:
        if successor_id is None:
            row.is_shared = False
            continue
        row.name = _free_name(row.name, names)
        names.add(row.name)
        row.user_id = successor_id
    session.flush()


class ExportedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    prompt: NewPrompt
    created_at: datetime
    updated_at: datetime


def read_prompts(session: Session, caller: Caller, _project_ids: Sequence[str]) -> list[ExportedPrompt]:
    """The user's own prompts, oldest first."""
    own = select(PromptRow).where(PromptRow.user_id == caller.user_id).order_by(PromptRow.id)
    return [
        ExportedPrompt(
            prompt=NewPrompt(
                name=row.name, title=row.title, description=row.description, content=row.content
            ),
            created_at=row.created_at,
            updated_at=row.updated_at,
        )
        for row in session.scalars(own)
    ]


def add_prompts(session: Session, caller: Caller, _project_ids: Sequence[str], value: Any) -> list[str]:
    """Adds prompts, which are not shared. Returns notes about those that were left out.

    Raises LuxxError for what no server has exported.
    """
    try:
        exported = msgspec.convert(value, list[ExportedPrompt])
        for one in exported:
            _check_variables(one.prompt.content)
    except (msgspec.ValidationError, InvalidInput) as error:
        raise LuxxError(f"the prompts in it cannot be read ({error})") from error
    names = _locked_names(session, caller.user_id)
    notes: list[str] = []
    for one in exported:
        if one.prompt.name in names or len(names) >= MAX_PROMPTS:
            notes.append(
                f"the prompt {one.prompt.name} was left out: the name is taken, or there are too many"
            )
            continue
        names.add(one.prompt.name)
        row = _add(session, caller, replace(one.prompt, is_shared=False))
        row.created_at, row.updated_at = one.created_at, one.updated_at
    session.flush()
    return notes


PROMPT_EXPORT = FeatureExport(name="prompts", read=read_prompts, add=add_prompts)


def _visible_to(caller: Caller) -> ColumnElement[bool]:
    is_usable = or_(PromptRow.user_id == caller.user_id, PromptRow.is_shared)
    return and_(PromptRow.tenant_id == caller.tenant_id, is_usable)


def _contains(dialect: str, part: str) -> ColumnElement[bool]:
    def has(column: Any) -> ColumnElement[bool]:
        text = cast("ColumnElement[str]", column)
        if dialect == "postgresql":
            return text.icontains(part, autoescape=True)
        return func.instr(getattr(func, CASEFOLD_FUNCTION)(text), part.casefold()) > 0

    return or_(has(PromptRow.name), has(PromptRow.title), has(PromptRow.description))


def _visible(session: Session, caller: Caller, prompt_id: str) -> PromptRow:
    row = session.scalar(select(PromptRow).where(PromptRow.id == prompt_id, _visible_to(caller)))
    if row is None:
        raise NotFound("no prompt with this id", kind="prompt_not_found")
    return row


def _to_change(session: Session, caller: Caller, prompt_id: str) -> PromptRow:
    row = _visible(session, caller, prompt_id)
    if row.is_shared and not is_admin_now(session, caller):
        raise NotAllowed(f"the prompt '{row.name}' is shared with the tenant; only administrators change it")
    return row


def _check_sharing(session: Session, caller: Caller, is_shared: bool | UnsetType) -> None:
    if is_shared is True and not is_admin_now(session, caller):
        raise NotAllowed("only an administrator may share a prompt with the tenant")


def _check_variables(content: str) -> None:
    if len(variables_of(content)) > MAX_VARIABLES:
        raise InvalidInput(f"may have at most {MAX_VARIABLES} different variables", field="$.content")


def _locked_names(session: Session, user_id: int) -> set[str]:
    """The names of a user's prompts; no other transaction changes them until this one ends."""
    lock_until_commit(session.connection(), Lock.USER_PROMPTS, user_id)
    return set(session.scalars(select(PromptRow.name).where(PromptRow.user_id == user_id)))


def _check_name(name: str, names: set[str]) -> None:
    if name in names:
        raise Conflict(
            f"you already have a prompt named '{name}'; choose another name", kind="prompt_name_taken"
        )


def _free_name(name: str, names: set[str]) -> str:
    free, number = name, 2
    while free in names:
        end = f"-{number}"
        free, number = name[: NAME_LENGTH - len(end)] + end, number + 1
    return free


def _add(session: Session, caller: Caller, new: NewPrompt) -> PromptRow:
    now = utc_now()
    row = PromptRow(
        id=new_id(), user_id=caller.user_id, tenant_id=caller.tenant_id, created_at=now, updated_at=now
    )
    _set_fields(row, new)
    session.add(row)
    session.flush()
    return row


def _set_fields(row: PromptRow, values: NewPrompt | PromptChanges) -> None:
    for name in values.__struct_fields__:
        value: Any = getattr(values, name)
        if value is not UNSET:
            setattr(row, name, value.strip() if name == "title" else value)


def _view(row: PromptRow, caller: Caller) -> PromptView:
    return PromptView(
        id=row.id,
        user_id=row.user_id,
        name=row.name,
        title=row.title,
        description=row.description,
        content=row.content,
        variables=variables_of(row.content),
        is_shared=row.is_shared,
        is_own=row.user_id == caller.user_id,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
