"""Who may change a provider that a tenant shares, and what becomes of it when its owner stops administering.

A shared provider gets what the whole tenant says, so only who is an ADMIN at this moment, by the database,
has a hand in it. Who sees a row is `queries.py`'s.
"""

from msgspec import UNSET, UnsetType
from sqlalchemy import select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.rights import is_admin_now
from luxx.domain.audit.entries import Action, Actor, AuditEntry, Detail, record
from luxx.errors import NotAllowed
from luxx.infra.config.schema import AuthConfig, LimitsConfig
from luxx.providers.models import ProviderChanges, ProviderRow
from luxx.providers.queries import visible_row

ADMIN_EDITABLE_FIELDS = frozenset({"enabled", "is_shared"})
"""What administrators change of each other's shared providers; the key and where it goes are the owner's."""


def check_sharing(is_shared: bool | UnsetType, *, is_admin: bool) -> None:
    """Raises NotAllowed for who may not share with the tenant."""
    if is_shared is True and not is_admin:
        raise NotAllowed("only an administrator may share a provider with the tenant")


def row_to_change(
    session: Session, caller: Caller, provider_id: int, changes: ProviderChanges, *, is_write: bool
) -> ProviderRow:
    """The row that these changes may be made to. Raises NotFound or NotAllowed.

    Not `is_written`, it is a first look, outside a write transaction.
    """
    is_admin = is_admin_now(session, caller) if is_write else caller.is_admin
    row = visible_row(session, caller, provider_id, is_locked=is_write)
    _check_shared(row, is_admin=is_admin)
    check_sharing(changes.is_shared, is_admin=is_admin)
    if row.user_id == caller.user_id:
        return row
    given = {name for name in changes.__struct_fields__ if getattr(changes, name) is not UNSET}
    if not given <= ADMIN_EDITABLE_FIELDS:
        raise NotAllowed(
            f"provider '{row.name}' is another administrator's; you may switch it off (enabled), "
            "end its sharing (is_shared) or delete it"
        )
    return row


def row_to_delete(session: Session, caller: Caller, provider_id: int) -> ProviderRow:
    """The row that the caller may delete. Raises NotFound or NotAllowed."""
    is_admin = is_admin_now(session, caller)
    row = visible_row(session, caller, provider_id, is_locked=True)
    _check_shared(row, is_admin=is_admin)
    return row


def transfer_shared_providers(session: Session, user_id: int, successor_id: int | None, actor: Actor) -> None:
    """Gives the providers that a user shared to another of the tenant, who keeps the default they have.

    Without an heir they stay the user's and are shared no longer.
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
            f"provider '{row.name}' is shared with the tenant; only its owner, while an administrator, "
            "may change it, and administrators may switch it off"
        )


def open_registration_warning(session: Session, auth: AuthConfig, limits: LimitsConfig) -> str | None:
    """What strangers who register may take of shared providers, where no limit for all users bounds it."""
    has_limit = limits.tokens_per_day or limits.cost_per_day
    shared = select(ProviderRow.id).where(ProviderRow.is_shared, ProviderRow.enabled).limit(1)
    if not auth.allow_registration or has_limit or session.scalar(shared) is None:
        return None
    level1 = auth.default_permission_level == 1 and limits.level1_tokens_per_day
    amount = f"{level1} tokens a day each" if level1 else "without a daily limit"
    return f"anybody who reaches this server can register and use shared providers, {amount}"


def has_no_daily_limit(auth: AuthConfig, limits: LimitsConfig) -> bool:
    """Whether a user who registers has no daily limit at all on shared providers."""
    level1 = auth.default_permission_level == 1 and limits.level1_tokens_per_day
    return not (limits.tokens_per_day or limits.cost_per_day or level1)
