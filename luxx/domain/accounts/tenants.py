"""Tenants: isolated groups of users. Operators create them; their ADMINs configure them."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import msgspec
from msgspec import UNSET, UnsetType
from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import Tenant, User
from luxx.domain.accounts.user_data import check_titles
from luxx.domain.audit import Action, AuditEntry, Detail, record
from luxx.errors import Conflict, InvalidInput, NotAllowed, NotFound
from luxx.infra.clock import utc_now
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import read_page
from luxx.wire.model_settings import Extraction
from luxx.wire.tool import CommandPermission

LARGEST_ID = 2**31 - 1

CheckTenantAgent = Callable[[Session, int | None, int], None]
"""Raises NotFound or InvalidInput unless every user of this tenant may use the agent of this id. A tenant
that does not exist yet is None."""

CheckTenantProvider = Callable[[Session, int, int, str], None]
"""Raises NotFound or InvalidInput, for the field of this JSON path, unless the provider of this id can be a
default of this tenant."""


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant as the API shows it. `allow_registration` can be true for the default tenant only.
    `allow_own_providers`: users below ADMIN may connect their own models. `lost_default_agent`,
    `lost_default_provider` and `lost_title_provider` are the names of what was chosen and is gone; others
    must be chosen."""

    id: int
    name: str
    is_default: bool
    default_agent_id: int | None
    default_provider_id: int | None
    lost_default_agent: str | None
    lost_default_provider: str | None
    allow_registration: bool
    allow_own_providers: bool
    extraction: Extraction | None
    learn_patterns: bool
    title_provider_id: int | None
    lost_title_provider: str | None
    title_model: str | None
    public_links: bool
    created_at: datetime


class TenantChange(msgspec.Struct, frozen=True, kw_only=True):
    """The fields to set; UNSET leaves a field unchanged. The API checks the lengths."""

    name: str | UnsetType = UNSET
    default_agent_id: int | UnsetType | None = UNSET
    default_provider_id: int | UnsetType | None = UNSET
    allow_registration: bool | UnsetType = UNSET
    allow_own_providers: bool | UnsetType = UNSET
    extraction: Extraction | UnsetType | None = UNSET
    learn_patterns: bool | UnsetType = UNSET
    title_provider_id: int | UnsetType | None = UNSET
    title_model: str | UnsetType | None = UNSET
    public_links: bool | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class TenantService:
    """One per process."""

    store: Store
    check_agent: CheckTenantAgent
    check_provider: CheckTenantProvider
    clock: Callable[[], datetime] = utc_now

    async def own(self, caller: Caller) -> TenantView:
        """The caller's tenant."""
        return await self.store.read(lambda session: _view(find_tenant(session, caller.tenant_id)))

    async def update_own(self, caller: Caller, change: TenantChange) -> TenantView:
        """Sets the given fields; for an ADMIN of the tenant."""
        caller.require(CommandPermission.ADMIN)
        return await self._update(caller, caller.tenant_id, change)

    async def list_page(self, caller: Caller, *, page: int, page_size: int) -> tuple[list[TenantView], int]:
        """All tenants, newest first, and their number. Operators only, like all methods below."""
        caller.require_operator()

        def work(session: Session) -> tuple[list[TenantView], int]:
            newest = select(Tenant).order_by(Tenant.id.desc())
            rows, total = read_page(session, newest, page=page, page_size=page_size)
            return [_view(row) for row in rows], total

        return await self.store.read(work)

    async def get(self, caller: Caller, tenant_id: int) -> TenantView:
        caller.require_operator()
        return await self.store.read(lambda session: _view(find_tenant(session, tenant_id)))

    async def create(self, caller: Caller, new: TenantChange) -> TenantView:
        """Creates a tenant without users. Raises InvalidInput, or Conflict for a taken name."""
        caller.require_operator()
        now = self.clock()

        def work(session: Session) -> TenantView:
            self._check_default_agent(session, None, new)
            row = Tenant(name="", is_default=False, created_at=now)
            _change(row, new)
            session.add(row)
            _flush(session)
            _record(session, caller, Action.TENANT_CREATE, row)
            return _view(row)

        return await self.store.write(work)

    async def update(self, caller: Caller, tenant_id: int, change: TenantChange) -> TenantView:
        caller.require_operator()
        return await self._update(caller, tenant_id, change)

    async def delete(self, caller: Caller, tenant_id: int) -> None:
        """Deletes a tenant without users. Raises Conflict if it has users or is the default tenant."""
        caller.require_operator()

        def work(session: Session) -> None:
            row = find_tenant(session, tenant_id, lock=True)
            if row.is_default:
                raise Conflict("the default tenant cannot be deleted", kind="default_tenant")
            count = session.scalar(select(func.count()).where(User.tenant_id == row.id)) or 0
            if count:
                raise Conflict(
                    f"this tenant still has {count} user{'s' if count > 1 else ''}; "
                    "move or delete them first",
                    kind="tenant_not_empty",
                )
            _record(session, caller, Action.TENANT_DELETE, row)
            session.delete(row)

        await self.store.write(work)

    async def _update(self, caller: Caller, tenant_id: int, change: TenantChange) -> TenantView:
        def work(session: Session) -> TenantView:
            row = find_tenant(session, tenant_id)
            self._check_default_agent(session, tenant_id, change)
            if isinstance(change.default_provider_id, int):
                self.check_provider(session, tenant_id, change.default_provider_id, "$.default_provider_id")
            if isinstance(change.title_provider_id, int):
                self.check_provider(session, tenant_id, change.title_provider_id, "$.title_provider_id")
            session.refresh(row, with_for_update=True)
            fields = _change(row, change)
            _flush(session)
            if fields:
                _record(session, caller, Action.TENANT_CHANGE, row, fields)
            return _view(row)

        return await self.store.write(work)

    def _check_default_agent(self, session: Session, tenant_id: int | None, change: TenantChange) -> None:
        if isinstance(change.default_agent_id, int):
            self.check_agent(session, tenant_id, change.default_agent_id)


def allows_registration(session: Session) -> bool:
    """Whether the default tenant allows registration; true before that tenant exists."""
    stored = session.scalar(select(Tenant.allow_registration).where(Tenant.is_default))
    return True if stored is None else stored


def check_may_connect_provider(session: Session, caller: Caller) -> None:
    """Raises NotAllowed if only the tenant's administrators may connect models."""
    if caller.is_admin:
        return
    if not session.scalar(select(Tenant.allow_own_providers).where(Tenant.id == caller.tenant_id)):
        raise NotAllowed(
            "in this tenant only administrators connect models; ask one to share it with you",
            kind="own_providers_closed",
        )


def tenant_ids_by_name(session: Session) -> dict[str, int]:
    """The ids of all tenants by name."""
    return {row.name: row.id for row in session.scalars(select(Tenant))}


def tenant_id_of(session: Session, name: str) -> int:
    """The id of the tenant with this name. Raises NotFound."""
    stored = session.scalar(select(Tenant.id).where(Tenant.name == name))
    if stored is None:
        raise NotFound(f"there is no tenant '{name}'", kind="tenant_not_found")
    return stored


def find_tenant(session: Session, tenant_id: int, *, lock: bool | dict[str, bool] = False) -> Tenant:
    """The tenant; `lock` is SQLAlchemy's `with_for_update`. Raises NotFound."""
    row = session.get(Tenant, tenant_id, with_for_update=lock) if 0 < tenant_id <= LARGEST_ID else None
    if row is None:
        raise tenant_not_found(tenant_id)
    return row


def tenant_not_found(tenant_id: int) -> NotFound:
    """The error for a tenant that does not exist or that the caller does not administer."""
    return NotFound(f"there is no tenant {tenant_id}", kind="tenant_not_found")


def _change(row: Tenant, change: TenantChange) -> list[str]:
    """Sets the given fields and returns the names of those that changed."""
    if change.allow_registration is True and not row.is_default:
        problem = "people register into the default tenant only; add users to this one yourself"
        raise InvalidInput(problem, field="$.allow_registration")
    title_provider_before = row.title_provider_id
    fields: list[str] = []
    for name in change.__struct_fields__:
        value = getattr(change, name)
        if value is UNSET:
            continue
        value = value.strip() if isinstance(value, str) else value
        if name == "default_agent_id":
            row.lost_default_agent = None
        elif name == "default_provider_id":
            row.lost_default_provider = None
        elif name == "title_provider_id":
            row.lost_title_provider = None
        if getattr(row, name) != value:
            setattr(row, name, value)
            fields.append(name)
    check_titles(row, title_provider_before, change.title_model)
    return fields


def _flush(session: Session) -> None:
    try:
        session.flush()
    except IntegrityError as error:
        raise Conflict("another tenant has this name; choose another", kind="tenant_name_taken") from error


def _record(
    session: Session, caller: Caller, action: Action, row: Tenant, fields: list[str] | UnsetType = UNSET
) -> None:
    record(
        session,
        AuditEntry(
            action=action,
            actor=caller.actor,
            target_type="tenant",
            target_id=str(row.id),
            tenant_id=row.id,
            detail=Detail(name=row.name, fields=fields),
        ),
    )


def _view(row: Tenant) -> TenantView:
    return msgspec.convert(row, TenantView, from_attributes=True)
