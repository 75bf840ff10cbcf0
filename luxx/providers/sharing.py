"""Permissions for shared providers, and their transfer when the owner is no longer an administrator.

A shared provider receives the prompts of the whole tenant, so only a user who is currently ADMIN in the
database may change it. `queries.py` decides who sees a row.
"""

from msgspec import UNSET, UnsetType
from sqlalchemy import select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.rights import is_admin_now
from luxx.domain.audit import Action, Actor, AuditEntry, Detail, record
from luxx.errors import NotAllowed
from luxx.infra.config.schema import AuthConfig, LimitsConfig
from luxx.providers.models import ProviderChanges, ProviderRow
from luxx.providers.queries import visible_row

ADMIN_EDITABLE_FIELDS = frozenset({"enabled", "is_shared"})
"""The fields of another administrator's shared provider that an administrator may change. Only the owner may
change the key and the address that it is sent to."""


def check_sharing(is_shared: bool | UnsetType, *, is_admin: bool) -> None:
    """Raises NotAllowed if a user without the administrator right shares a provider."""
    if is_shared is True and not is_admin:
        raise NotAllowed("only an administrator may share a provider with the tenant")


def row_to_change(
    session: Session, caller: Caller, provider_id: int, changes: ProviderChanges, *, is_write: bool
) -> ProviderRow:
    """The row, if the caller may make these changes. Raises NotFound or NotAllowed.

    `is_write` is false for the check before the write transaction, which takes no lock.
    """
    is_admin = is_admin_now(session, caller) if is_write else caller.is_admin
    row = visible_row(session, caller, provider_id, is_locked=is_write)
    _check_shared(row, is_admin=is_admin)
    check_sharing(changes.is_shared, is_admin=is_admin)
    if row.user_id == caller.user_id:
        return row
    changed = {name for name in changes.__struct_fields__ if getattr(changes, name) is not UNSET}
    if not changed <= ADMIN_EDITABLE_FIELDS:
        raise NotAllowed(
            f"provider '{row.name}' belongs to another administrator; you may only disable it (enabled), "
            "stop sharing it (is_shared) or delete it"
        )
    return row


def row_to_delete(session: Session, caller: Caller, provider_id: int) -> ProviderRow:
    """The row that the caller may delete. Raises NotFound or NotAllowed."""
    is_admin = is_admin_now(session, caller)
    row = visible_row(session, caller, provider_id, is_locked=True)
    _check_shared(row, is_admin=is_admin)
    return row


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
            row.is_shared = False
        else:
            row.is_default = row.is_default and not has_default
            row.user_id = successor_id
        field = "is_shared" if successor_id is None else "user_id"
        record(
            session,
            AuditEntry(
                action=Action.PROVIDER_CHANGE,
                actor=actor,
                target_type="provider",
                target_id=str(row.id),
                tenant_id=row.tenant_id,
                detail=Detail(name=row.name, fields=[field]),
            ),
        )
    session.flush()


def _check_shared(row: ProviderRow, *, is_admin: bool) -> None:
    if row.is_shared and not is_admin:
        raise NotAllowed(
            f"provider '{row.name}' is shared with the tenant; only its owner may change it, and only while "
            "being an administrator; other administrators may disable it"
        )


def open_registration_warning(session: Session, auth: AuthConfig, limits: LimitsConfig) -> str | None:
    """A warning if anyone can register and use shared providers without a limit for all users, else None."""
    has_limit = limits.tokens_per_day or limits.cost_per_day
    shared = select(ProviderRow.id).where(ProviderRow.is_shared, ProviderRow.enabled).limit(1)
    if not auth.allow_registration or has_limit or session.scalar(shared) is None:
        return None
    level1 = auth.default_permission_level == 1 and limits.level1_tokens_per_day
    amount = f"{level1} tokens a day each" if level1 else "without a daily limit"
    return f"anyone who can connect to this server can register and use shared providers, {amount}"


def has_no_daily_limit(auth: AuthConfig, limits: LimitsConfig) -> bool:
    """Whether a newly registered user has no daily limit on shared providers."""
    level1 = auth.default_permission_level == 1 and limits.level1_tokens_per_day
    return not (limits.tokens_per_day or limits.cost_per_day or level1)
