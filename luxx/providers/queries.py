"""What the database is asked about providers: who sees a row, which is the default, which hosts are allowed.

Who may change a shared row is `sharing.py`'s.
"""

from collections.abc import Callable, Set
from typing import Any

from msgspec import UNSET, UnsetType
from sqlalchemy import ColumnElement, and_, bindparam, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.rights import check_still_admin
from luxx.domain.audit.entries import MAX_NAMES, Action, AuditEntry, Detail, record
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
"""Made once: every message that is sent asks them."""


def visible_to(caller: Caller) -> ColumnElement[bool]:
    return and_(
        ProviderRow.tenant_id == caller.tenant_id,
        or_(ProviderRow.user_id == caller.user_id, ProviderRow.is_shared),
    )


def visible_row(
    session: Session, caller: Caller, provider_id: int, *, is_locked: bool = False
) -> ProviderRow:
    """Locked for a write: two administrators may change it at once. Raises NotFound."""
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
    """Those that the caller may use and that are switched on, oldest first."""
    return list(session.scalars(_enabled_providers, _caller_parameters(caller)))


def _caller_parameters(caller: Caller) -> dict[str, int]:
    return {"b_tenant": caller.tenant_id, "b_user": caller.user_id}


def has_no_provider(session: Session, caller: Caller) -> bool:
    return (
        session.scalar(select(ProviderRow.id).where(ProviderRow.user_id == caller.user_id).limit(1)) is None
    )


def set_default(session: Session, row: ProviderRow, is_default: bool) -> None:
    """The others first: the database holds at most one default per user at every moment."""
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
        raise Conflict("another default was set at the same moment; try again") from error


def apply_changes(row: ProviderRow, changes: ProviderChanges) -> None:
    changed: dict[str, Any] = {
        name: getattr(changes, name)
        for name in ("name", "default_model", "max_tokens", "is_shared", "enabled")
        if getattr(changes, name) is not UNSET
    }
    for name, value in changed.items():
        setattr(row, name, value.strip() if isinstance(value, str) else value)


def allow_host(session: Session, caller: Caller, host_port: str | None) -> None:
    """Allows the private address that a provider was just given, if it was not allowed before.

    Raises NotAllowed if the operator lost that right while the address was looked up.
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
    """The entry in the audit log for a change of the allowed hosts."""
    if not added and not removed:
        return
    detail = Detail(added=sorted(added)[:MAX_NAMES], removed=sorted(removed)[:MAX_NAMES])
    record(session, AuditEntry(action=Action.ALLOWED_HOSTS_CHANGE, actor=caller.actor, detail=detail))


def record_provider_change(
    session: Session, caller: Caller, action: Action, row: ProviderRow, changes: ProviderChanges | None = None
) -> None:
    """The entry in the audit log for a provider: which fields were given, not what they say."""
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
    """The row of `provider_id` where it is named, else the best of those that are usable.

    Raises NotFound or InvalidInput with what to do about it.
    """
    if provider_id is not None:
        return _enabled_row_by_id(session, caller, provider_id)
    return _preferred_row(session, caller, preferred_id)


def _enabled_row_by_id(session: Session, caller: Caller, provider_id: int) -> ProviderRow:
    row = visible_row(session, caller, provider_id)
    if not row.enabled:
        raise InvalidInput(
            f"provider '{row.name}' is switched off; enable it or choose another",
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
