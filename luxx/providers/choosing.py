"""Which provider a request gets: a named one, or the default; what is kept of a choice that is gone; and
which have failed a moment ago.

A default that somebody chose is never replaced by another provider: where it was deleted, disabled or is no
longer shared, the request is refused until somebody chooses another.
"""

from collections.abc import Collection
from datetime import timedelta
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace
from sqlalchemy import Connection, bindparam, delete, func, literal, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import Tenant, User, UserSettings
from luxx.domain.accounts.user_data import SettingsView
from luxx.errors import Conflict, InvalidInput
from luxx.infra.clock import utc_now
from luxx.infra.store.tables import (
    Uses,
    UtcDateTime,
    forget_name,
    keep_name,
    read_once,
    table_of,
    uses_of,
)
from luxx.providers.models import ProviderChanges, ProviderFailureRow, ProviderRow
from luxx.providers.queries import (
    PROVIDERS,
    before_unsharing,
    visible_row,
    visible_rows,
)
from luxx.providers.registry import INTERNAL_TYPES, ProviderType, adapter_for, default_base_url
from luxx.wire.model_settings import MAX_ID

FAILED_SECONDS = 60.0
"""How long a provider is not asked again for a model after it failed for good, where another can answer."""

KEYLESS_TYPES = INTERNAL_TYPES | {ProviderType.OLLAMA}

_failures = table_of(ProviderFailureRow)
_defaults_of_tenant = select(Tenant.default_provider_id, Tenant.lost_default_provider).where(
    Tenant.id == bindparam("b_tenant")
)


def select_provider_row(
    session: Session, caller: Caller, provider_id: int | None, default: SettingsView | None
) -> ProviderRow:
    """The row of `provider_id` if given, else the default one, by the settings of the user if given.

    Raises NotFound, InvalidInput or Conflict, whose message says what to do.
    """
    if provider_id is None:
        key = ("default provider", caller.user_id, default is None)
        row = read_once(session, key, lambda: _default_row(session, caller, default))
        return read_once(session, ("provider", caller.user_id, row.id), lambda: row)
    row = read_once(
        session,
        ("provider", caller.user_id, provider_id),
        lambda: visible_row(session, caller, provider_id),
    )
    return _checked(row, "provider")


def _checked(row: ProviderRow, what: str) -> ProviderRow:
    """The row. Raises InvalidInput if it is disabled, of an unknown type or known to lack its key."""
    if not row.enabled:
        raise InvalidInput(
            f"{what} '{row.name}' is disabled; enable it or choose another",
            kind="provider_disabled",
            field="$.provider_id",
        )
    adapter_for(row.provider_type)
    if _lacks_key(row):
        raise InvalidInput(
            f"{what} '{row.name}' has no key, and its vendor demands one; add the key (api_key) or choose "
            "another",
            kind="provider_incomplete",
            field="$.provider_id",
        )
    return row


def _default_row(session: Session, caller: Caller, default: SettingsView | None) -> ProviderRow:
    """The chosen default of the user, else of the tenant. Only where nobody chose one is it any other row: a
    default that is gone or disabled is not replaced.
    """
    rows = [row for row in visible_rows(session, caller) if row.provider_type != ProviderType.DEMO]
    usable = [row for row in rows if row.enabled and _has_adapter(row)]
    if not usable:
        raise InvalidInput(
            "connect a model: add a provider with its address and key (POST /providers), "
            "or ask an administrator to share one",
            kind="no_provider",
        )
    own = [row for row in rows if row.user_id == caller.user_id]
    if default is not None and default.default_provider_id is not None:
        chosen = next((row for row in rows if row.id == default.default_provider_id), None)
        if chosen is None:
            raise _lost_default(default.lost_default_provider, "your default provider")
        return _checked(chosen, "your default provider")
    if default is not None and default.lost_default_provider is not None:
        raise _lost_default(default.lost_default_provider, "your default provider")
    for row in own:
        if row.is_default:
            return _checked(row, "your default provider")
    default_id, lost = session.execute(_defaults_of_tenant, {"b_tenant": caller.tenant_id}).one()
    if default_id is not None or lost is not None:
        shared = next((row for row in rows if row.id == default_id and row.is_shared), None)
        if shared is None:
            raise _lost_default(lost, "the default provider of your tenant,")
        return _checked(shared, "the default provider of your tenant,")
    # Nobody chose one: the caller's own before shared ones, oldest first, those without their key last.
    first = min(usable, key=lambda row: (_lacks_key(row), row.user_id != caller.user_id))
    return _checked(first, "provider")


def _lost_default(name: str | None, what: str) -> Conflict:
    named = f"{what} '{name}'" if name else what
    return Conflict(
        f"{named} was deleted or is no longer shared with you; choose another default in your settings "
        "(default_provider_id), or a provider for this (provider_id)",
        kind="provider_not_found",
        detail={"lost": {"provider": name}} if name else None,
    )


def _has_adapter(row: ProviderRow) -> bool:
    try:
        adapter_for(row.provider_type)
    except InvalidInput:
        return False
    return True


def note_failure(connection: Connection, provider_id: int, model: str) -> None:
    """Remembers that calls of this model have failed for good; forgets failures that no longer count."""
    now = utc_now()
    begin = now - timedelta(seconds=FAILED_SECONDS)
    past = delete(_failures).where(_failures.c.provider_id == provider_id, _failures.c.failed_at < begin)
    connection.execute(past)
    known = select(literal(provider_id), literal(model), literal(now, UtcDateTime())).where(
        select(ProviderRow.id).where(ProviderRow.id == provider_id).exists()
    )
    insert = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(_failures)
    statement = insert.from_select(["provider_id", "model", "failed_at"], known).on_conflict_do_update(
        index_elements=["provider_id", "model"], set_={"failed_at": now}
    )
    connection.execute(statement)


def failed_models(session: Session, provider_ids: Collection[int]) -> set[tuple[int, str]]:
    """The providers among these, each with a model, that failed less than FAILED_SECONDS ago."""
    now, seconds = utc_now(), timedelta(seconds=FAILED_SECONDS)
    # A time in the future is that of a server whose clock is wrong.
    failed = select(_failures.c.provider_id, _failures.c.model).where(
        _failures.c.provider_id.in_(provider_ids),
        _failures.c.failed_at.between(now - seconds, now + seconds),
    )
    return {(provider_id, model) for provider_id, model in session.execute(failed)}


def set_default(session: Session, row: ProviderRow, is_default: bool) -> None:
    """Raises Conflict. Clears other defaults first: the table allows one default per user at any time."""
    if is_default:
        check_complete(row, "$.is_default")
    elif row.is_default and row.is_shared:
        tenants = update(Tenant).where(Tenant.default_provider_id == row.id)
        session.execute(tenants.values(default_provider_id=None))
    try:
        if is_default:
            _become_default_of_tenant(session, row)
            session.execute(
                update(ProviderRow)
                .where(ProviderRow.user_id == row.user_id, ProviderRow.id != row.id, ProviderRow.is_default)
                .values(is_default=False)
            )
            users = update(UserSettings).where(UserSettings.user_id == row.user_id)
            session.execute(users.values(lost_default_provider=None))
        row.is_default = is_default
        session.flush()
    except IntegrityError as error:
        raise Conflict("another default was set at the same time; try again") from error


def check_complete(row: ProviderRow, field: str) -> None:
    """Raises InvalidInput for `field` if the provider cannot be a default: the demo, or one that is only half
    connected.
    """
    if row.provider_type == ProviderType.DEMO:
        problem = "the demo cannot be the default: its answers are scripted; connect a model"
        raise InvalidInput(problem, field=field)
    missing = missing_of(row)
    if missing:
        problem = f"provider '{row.name}' cannot be a default yet: it has no {missing}; add it first"
        raise InvalidInput(problem, kind="provider_incomplete", field=field)


def missing_of(row: ProviderRow) -> str:
    """What the provider lacks to answer a message; empty if nothing is known to be missing."""
    if row.provider_type in INTERNAL_TYPES:
        return ""
    if _lacks_key(row):
        return "key (api_key)"
    return "" if row.default_model else "model (default_model)"


def _lacks_key(row: ProviderRow) -> bool:
    """Whether the provider has no key at a vendor's own address, which answers nobody without one."""
    if row.api_key or row.provider_type in KEYLESS_TYPES:
        return False
    vendor = default_base_url(row.provider_type)
    return bool(vendor) and row.base_url == vendor


def _become_default_of_tenant(session: Session, row: ProviderRow) -> None:
    """A shared default of its user becomes that of the tenant, if the tenant has none or lost it, or if it is
    the former default of the same user.
    """
    if not row.is_shared:
        return
    former = select(ProviderRow.id).where(ProviderRow.user_id == row.user_id, ProviderRow.is_default)
    is_free = or_(
        Tenant.default_provider_id.is_(None),
        Tenant.lost_default_provider.is_not(None),
        Tenant.default_provider_id.in_(former),
    )
    tenants = update(Tenant).where(Tenant.id == row.tenant_id, is_free)
    session.execute(tenants.values(default_provider_id=row.id, lost_default_provider=None))


def check_tenant_default(session: Session, tenant_id: int, provider_id: int, field: str) -> None:
    """Raises NotFound or InvalidInput unless everybody in the tenant may use the provider.

    Locks it, so that it is not deleted before the write ends.
    """
    known = 0 < provider_id <= MAX_ID
    row = session.get(ProviderRow, provider_id, with_for_update={"read": True}) if known else None
    if row is None or row.tenant_id != tenant_id:
        raise PROVIDERS.not_found(provider_id)
    if not row.is_shared:
        problem = f"the provider '{row.name}' is not shared with the tenant; share it first (is_shared)"
        raise InvalidInput(problem, kind="provider_not_shared", field=field)
    check_complete(row, field)


def delete_provider(session: Session, row: ProviderRow) -> Uses:
    """Deletes a provider. What has chosen it keeps its name and stops; returns how much that is."""
    uses = _uses_of(session, row)
    keep_name(session.connection(), ProviderRow, row.id, row.name)
    if row.is_default:
        users = update(UserSettings).where(UserSettings.user_id == row.user_id)
        session.execute(users.values(lost_default_provider=row.name))
    tenants = update(Tenant).where(Tenant.default_provider_id == row.id)
    session.execute(tenants.values(default_provider_id=None, lost_default_provider=row.name))
    for named in (Tenant, UserSettings):
        of_titles = update(named).where(named.title_provider_id == row.id)
        lost = {"title_provider_id": None, "title_model": None, "lost_title_provider": row.name}
        session.execute(of_titles.values(lost))
    session.delete(row)
    return uses


def uses_of_provider(session: Session, caller: Caller, provider_id: int) -> Uses:
    """What has chosen a provider that the caller may delete. Raises NotFound or NotAllowed."""
    return _uses_of(session, PROVIDERS.to_change(session, caller, provider_id, None, is_locked=False))


def _uses_of(session: Session, row: ProviderRow) -> Uses:
    uses = uses_of(session.connection(), ProviderRow, row.id)
    of_tenant = select(Tenant.id).where(Tenant.default_provider_id == row.id)
    is_of_tenant = row.is_shared and session.scalar(of_tenant) == row.tenant_id
    if not row.is_default and not is_of_tenant:
        return uses
    counted = _count_users_of_default(session, row, is_of_tenant=is_of_tenant)
    return replace(uses, defaults=uses.defaults + counted)


def _count_users_of_default(session: Session, row: ProviderRow, *, is_of_tenant: bool) -> int:
    """The users whose default this is without their settings: its own user, if it is marked as their default,
    and, if it is the tenant's, those of the tenant who have no other.
    """
    is_user = (User.id == row.user_id) & row.is_default
    if is_of_tenant:
        own = select(ProviderRow.user_id).where(ProviderRow.is_default)
        is_user |= (User.tenant_id == row.tenant_id) & User.id.not_in(own)
    has_chosen = (UserSettings.user_id == User.id) & (
        UserSettings.default_provider_id.is_not(None) | UserSettings.lost_default_provider.is_not(None)
    )
    chosen = select(UserSettings.user_id).where(has_chosen)
    users = select(func.count()).select_from(User).where(User.is_active, is_user, ~chosen.exists())
    return session.scalar(users) or 0


def apply_changes(session: Session, row: ProviderRow, changes: ProviderChanges) -> None:
    if row.is_shared and changes.is_shared is False:
        before_unsharing(session, row)
    elif changes.is_shared is True and not row.is_shared:
        forget_name(session.connection(), ProviderRow, row.id)
        tenants = update(Tenant).where(Tenant.default_provider_id == row.id, Tenant.id == row.tenant_id)
        session.execute(tenants.values(lost_default_provider=None))
        for named in (Tenant, UserSettings):
            of_titles = update(named).where(named.title_provider_id == row.id)
            session.execute(of_titles.values(lost_title_provider=None))
    for name in ("name", "default_model", "max_tokens", "is_shared", "enabled"):
        value: Any = getattr(changes, name)
        if value is not UNSET:
            setattr(row, name, value.strip() if isinstance(value, str) else value)
    if changes.is_shared is True and row.is_default:
        _become_default_of_tenant(session, row)
