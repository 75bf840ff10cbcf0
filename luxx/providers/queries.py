"""Database queries on providers: visible rows, the default, allowed hosts, audit entries of changes.

`sharing.py` decides who may change a shared row.
"""

from collections.abc import Callable, Set
from typing import Any

from msgspec import UNSET, UnsetType
from sqlalchemy import ColumnElement, and_, bindparam, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.rights import check_still_admin
from luxx.domain.audit import MAX_NAMES, Action, AuditEntry, Detail, record
from luxx.errors import Conflict, InvalidInput, NotFound
from luxx.infra.clock import utc_now
from luxx.providers.models import AllowedHostRow, ProviderChanges, ProviderRow
from luxx.providers.registry import adapter_for

MAX_ID = 2**31 - 1


_visible_provider = and_(
    ProviderRow.tenant_id == bindparam("b_tenant"),
    or_(ProviderRow.user_id == bindparam("b_user"), ProviderRow.is_shared),
)
_provider_by_id = select(ProviderRow).where(ProviderRow.id == bindparam("b_id"), _visible_provider)
_provider_for_update = _provider_by_id.with_for_update()
_enabled_providers = (
    select(ProviderRow).where(_visible_provider, ProviderRow.enabled).order_by(ProviderRow.id)
)
"""Built once: every message that a user sends runs these statements."""


def visible_to(caller: Caller) -> ColumnElement[bool]:
    return and_(
        ProviderRow.tenant_id == caller.tenant_id,
        or_(ProviderRow.user_id == caller.user_id, ProviderRow.is_shared),
    )


def visible_row(
    session: Session, caller: Caller, provider_id: int, *, is_locked: bool = False
) -> ProviderRow:
    """A row that the caller may see. Raises NotFound.

    `is_locked` locks it for a write: two administrators may change it at the same time.
    """
    row = None
    if 0 < provider_id <= MAX_ID:
        row = session.scalar(
            _provider_for_update if is_locked else _provider_by_id,
            {"b_id": provider_id, **_caller_parameters(caller)},
        )
    if row is None:
        raise NotFound(f"there is no provider {provider_id}", kind="provider_not_found")
    return row


def enabled_rows(session: Session, caller: Caller) -> list[ProviderRow]:
    """The enabled providers that the caller may use, oldest first."""
    return list(session.scalars(_enabled_providers, _caller_parameters(caller)))


def _caller_parameters(caller: Caller) -> dict[str, int]:
    return {"b_tenant": caller.tenant_id, "b_user": caller.user_id}


def has_no_provider(session: Session, caller: Caller) -> bool:
    return (
        session.scalar(select(ProviderRow.id).where(ProviderRow.user_id == caller.user_id).limit(1)) is None
    )


def set_default(session: Session, row: ProviderRow, is_default: bool) -> None:
    """Raises Conflict. Clears other defaults first: the table allows one default per user at any time."""
    try:
        if is_default:
            session.execute(
                update(ProviderRow)
                .where(ProviderRow.user_id == row.user_id, ProviderRow.id != row.id, ProviderRow.is_default)
                .values(is_default=False)
            )
        row.is_default = is_default
        session.flush()
    except IntegrityError as error:
        raise Conflict("another default was set at the same time; try again") from error


def apply_changes(row: ProviderRow, changes: ProviderChanges) -> None:
    for name in ("name", "default_model", "max_tokens", "is_shared", "enabled"):
        value: Any = getattr(changes, name)
        if value is not UNSET:
            setattr(row, name, value.strip() if isinstance(value, str) else value)


def allow_host(session: Session, caller: Caller, host_port: str | None) -> None:
    """Allows the private address of a provider that is being saved, if it is not allowed yet.

    Raises NotAllowed if the caller lost the operator right while the address was resolved.
    """
    if host_port is not None and session.get(AllowedHostRow, host_port) is None:
        check_still_admin(session, caller)
        add_allowed_host(session, caller, host_port)
        record_host_changes(session, caller, added={host_port})


def add_allowed_host(session: Session, caller: Caller, host_port: str) -> None:
    session.add(AllowedHostRow(host_port=host_port, allowed_by=caller.user_id, created_at=utc_now()))


def record_host_changes(
    session: Session, caller: Caller, *, added: Set[str] = frozenset(), removed: Set[str] = frozenset()
) -> None:
    """Adds the audit entry for a change of the allowed hosts."""
    if not added and not removed:
        return
    detail = Detail(added=sorted(added)[:MAX_NAMES], removed=sorted(removed)[:MAX_NAMES])
    record(session, AuditEntry(action=Action.ALLOWED_HOSTS_CHANGE, actor=caller.actor, detail=detail))


def record_provider_change(
    session: Session, caller: Caller, action: Action, row: ProviderRow, changes: ProviderChanges | None = None
) -> None:
    """Adds the audit entry for a provider, with the names of the changed fields but not their values."""
    changed: list[str] | UnsetType = UNSET
    if changes is not None:
        changed = [name for name in changes.__struct_fields__ if getattr(changes, name) is not UNSET]
    record(
        session,
        AuditEntry(
            action=action,
            actor=caller.actor,
            target_type="provider",
            target_id=str(row.id),
            detail=Detail(name=row.name, fields=changed),
        ),
    )


def select_provider_row(
    session: Session, caller: Caller, provider_id: int | None, preferred_id: int | None
) -> ProviderRow:
    """The row of `provider_id` if given, else the preferred one of the usable rows.

    Raises NotFound or InvalidInput, whose message says what to do.
    """
    if provider_id is not None:
        return _enabled_row_by_id(session, caller, provider_id)
    return _preferred_row(session, caller, preferred_id)


def _enabled_row_by_id(session: Session, caller: Caller, provider_id: int) -> ProviderRow:
    row = visible_row(session, caller, provider_id)
    if not row.enabled:
        raise InvalidInput(
            f"provider '{row.name}' is disabled; enable it or choose another",
            kind="provider_disabled",
        )
    adapter_for(row.provider_type)
    return row


def _preferred_row(session: Session, caller: Caller, preferred_id: int | None) -> ProviderRow:
    usable = [row for row in enabled_rows(session, caller) if _has_adapter(row)]
    if not usable:
        raise InvalidInput(
            "connect a model: add a provider with its address and key (POST /providers), "
            "or ask an administrator to share one",
            kind="no_provider",
        )
    preferences: tuple[Callable[[ProviderRow], bool], ...] = (
        lambda row: row.id == preferred_id,
        lambda row: row.user_id == caller.user_id and row.is_default,
        lambda row: row.is_shared and row.is_default,
        lambda row: row.user_id == caller.user_id,
    )
    for is_preferred in preferences:
        preferred = next(filter(is_preferred, usable), None)
        if preferred is not None:
            return preferred
    return usable[0]


def _has_adapter(row: ProviderRow) -> bool:
    try:
        adapter_for(row.provider_type)
    except InvalidInput:
        return False
    return True
