"""Which provider a request gets: a named one, or the default; and what is kept of a choice that is gone.

A default that somebody chose is never replaced by another provider: where it was deleted, disabled or is no
longer shared, the request is refused until somebody chooses another.
"""

from typing import Any

from msgspec import UNSET
from msgspec.structs import replace
from sqlalchemy import func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import Tenant, User, UserSettings
from luxx.domain.accounts.user_data import SettingsView
from luxx.domain.audit import Action, Actor, record
from luxx.errors import Conflict, InvalidInput
from luxx.infra.store.lost_names import Uses, forget_name, keep_name, uses_of
from luxx.infra.store.tables import read_once
from luxx.providers.models import ProviderChanges, ProviderRow
from luxx.providers.queries import provider_entry, row_to_delete, visible_row, visible_rows
from luxx.providers.registry import INTERNAL_TYPES, ProviderType, adapter_for, default_base_url


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
    """The row. Raises InvalidInput if it is disabled or of an unknown type."""
    if not row.enabled:
        raise InvalidInput(
            f"{what} '{row.name}' is disabled; enable it or choose another",
            kind="provider_disabled",
            field="$.provider_id",
        )
    adapter_for(row.provider_type)
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
    shared = sorted(
        (row for row in rows if row.is_shared and row.is_default), key=lambda row: not row.enabled
    )
    if shared:
        return _checked(shared[0], "the default provider of your tenant,")
    lost = session.scalar(select(Tenant.lost_default_provider).where(Tenant.id == caller.tenant_id))
    if lost is not None:
        raise _lost_default(lost, "the default provider of your tenant,")
    return next((row for row in usable if row.user_id == caller.user_id), usable[0])


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


def set_default(session: Session, row: ProviderRow, is_default: bool) -> None:
    """Raises Conflict. Clears other defaults first: the table allows one default per user at any time."""
    if is_default and row.provider_type == ProviderType.DEMO:
        problem = "the demo cannot be the default: its answers are scripted; connect a model"
        raise InvalidInput(problem, field="$.is_default")
    if is_default:
        check_complete(row, "$.is_default")
    try:
        if is_default:
            session.execute(
                update(ProviderRow)
                .where(ProviderRow.user_id == row.user_id, ProviderRow.id != row.id, ProviderRow.is_default)
                .values(is_default=False)
            )
        row.is_default = is_default
        if is_default:
            _end_lost_default(session, row)
        session.flush()
    except IntegrityError as error:
        raise Conflict("another default was set at the same time; try again") from error


def check_complete(row: ProviderRow, field: str) -> None:
    """Raises InvalidInput for `field` if the provider is only half connected, so that it cannot be a
    default.
    """
    missing = missing_of(row)
    if missing:
        problem = f"provider '{row.name}' cannot be a default yet: it has no {missing}; add it first"
        raise InvalidInput(problem, kind="provider_incomplete", field=field)


def missing_of(row: ProviderRow) -> str:
    """What the provider lacks to answer a message; empty if nothing is known to be missing."""
    if row.provider_type in INTERNAL_TYPES:
        return ""
    vendor = default_base_url(row.provider_type)
    if vendor and row.provider_type != ProviderType.OLLAMA and row.base_url == vendor and not row.api_key:
        return "key (api_key)"
    return "" if row.default_model else "model (default_model)"


def _end_lost_default(session: Session, row: ProviderRow) -> None:
    """A new default takes the place of one that is gone: for its user and, if it is shared, for the
    tenant.
    """
    users = update(UserSettings).where(UserSettings.user_id == row.user_id)
    session.execute(users.values(lost_default_provider=None))
    if row.is_shared:
        tenants = update(Tenant).where(Tenant.id == row.tenant_id)
        session.execute(tenants.values(lost_default_provider=None))


def _keep_default(session: Session, row: ProviderRow, *, is_deleted: bool) -> None:
    """Keeps the name of a default that users lose: its own user if it is deleted, the tenant if it was
    shared.
    """
    if not row.is_default:
        return
    if is_deleted:
        users = update(UserSettings).where(UserSettings.user_id == row.user_id)
        session.execute(users.values(lost_default_provider=row.name))
    if row.is_shared:
        tenants = update(Tenant).where(Tenant.id == row.tenant_id)
        session.execute(tenants.values(lost_default_provider=row.name))


def delete_provider(session: Session, row: ProviderRow) -> Uses:
    """Deletes a provider. What has chosen it keeps its name and stops; returns how much that is."""
    uses = _uses_of(session, row)
    keep_name(session.connection(), ProviderRow, row.id, row.name)
    _keep_default(session, row, is_deleted=True)
    session.delete(row)
    return uses


def uses_of_provider(session: Session, caller: Caller, provider_id: int) -> Uses:
    """What has chosen a provider that the caller may delete. Raises NotFound or NotAllowed."""
    return _uses_of(session, row_to_delete(session, caller, provider_id, is_locked=False))


def _uses_of(session: Session, row: ProviderRow) -> Uses:
    uses = uses_of(session.connection(), ProviderRow, row.id)
    if not row.is_default:
        return uses
    return replace(uses, defaults=uses.defaults + _count_users_of_default(session, row))


def _count_users_of_default(session: Session, row: ProviderRow) -> int:
    """The users whose default this is because it is marked as one: its own and, if it is shared, those of the
    tenant who have no other.
    """
    is_user = User.id == row.user_id
    if row.is_shared:
        own = select(ProviderRow.user_id).where(ProviderRow.is_default)
        is_user |= (User.tenant_id == row.tenant_id) & User.id.not_in(own)
    has_chosen = (UserSettings.user_id == User.id) & (
        UserSettings.default_provider_id.is_not(None) | UserSettings.lost_default_provider.is_not(None)
    )
    chosen = select(UserSettings.user_id).where(has_chosen)
    users = select(func.count()).select_from(User).where(User.is_active, is_user, ~chosen.exists())
    return session.scalar(users) or 0


def _before_unsharing(session: Session, row: ProviderRow) -> None:
    """Keeps the name of a shared provider in what others have chosen it for."""
    keep_name(session.connection(), ProviderRow, row.id, row.name, owner_id=row.user_id)
    _keep_default(session, row, is_deleted=False)


def lost_provider_error(name: str | None, chosen_by: str) -> Conflict:
    """The error for a provider that somebody chose for something and that they cannot use any more."""
    named = f"the provider '{name}'" if name else "the provider"
    return Conflict(
        f"{named} of {chosen_by} was deleted or is no longer shared with you; choose another provider for "
        "it, or for the request (provider_id), or go back to the default one (null)",
        kind="provider_not_found",
        detail={"lost": {"provider": name}} if name else None,
    )


def apply_changes(session: Session, row: ProviderRow, changes: ProviderChanges) -> None:
    if row.is_shared and changes.is_shared is False:
        _before_unsharing(session, row)
    elif changes.is_shared is True and not row.is_shared:
        forget_name(session.connection(), ProviderRow, row.id)
    for name in ("name", "default_model", "max_tokens", "is_shared", "enabled"):
        value: Any = getattr(changes, name)
        if value is not UNSET:
            setattr(row, name, value.strip() if isinstance(value, str) else value)
    if changes.is_shared is True and row.is_default:
        _end_lost_default(session, row)


def transfer_shared_providers(session: Session, user_id: int, successor_id: int | None, actor: Actor) -> None:
    """Transfers a user's shared providers to a successor, who keeps an existing default.

    Without a successor they stay with the user and are no longer shared.
    """
    has_default = successor_id is not None and session.scalar(
        select(ProviderRow.id).where(ProviderRow.user_id == successor_id, ProviderRow.is_default)
    )
    shared = select(ProviderRow).where(ProviderRow.user_id == user_id, ProviderRow.is_shared)
    for row in session.scalars(shared.order_by(ProviderRow.id).with_for_update()).all():
        if successor_id is None:
            _before_unsharing(session, row)
            row.is_shared = False
        else:
            row.is_default = row.is_default and not has_default
            row.user_id = successor_id
        field = "is_shared" if successor_id is None else "user_id"
        record(session, provider_entry(Action.PROVIDER_CHANGE, actor, row, [field]))
    session.flush()
