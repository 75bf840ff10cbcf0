"""The rows of providers: who may see, use and change one; the default, allowed hosts, audit entries; and
their keys: sealed, masked, and changed together with their address.

A shared provider receives the prompts of the whole tenant, so only a user who is currently ADMIN in the
database may change it.
"""

from collections.abc import Sequence, Set
from typing import Any, NamedTuple

import structlog
from msgspec import UNSET
from sqlalchemy import Table, bindparam, delete, select, update
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import Tenant, UserSettings
from luxx.domain.accounts.rights import check_still_admin
from luxx.domain.audit import MAX_NAMES, Action, AuditEntry, Detail, record
from luxx.domain.owned import Shared
from luxx.errors import (
    AmbiguousName,
    ConfigError,
    Conflict,
    InvalidInput,
    NotAllowed,
    NotFound,
    Unavailable,
)
from luxx.infra.clock import utc_now
from luxx.infra.config.schema import AuthConfig, LimitsConfig
from luxx.infra.secrets import Vault, mask
from luxx.infra.store.tables import Lock, keep_name, lock_until_commit, lost_error, table_of
from luxx.providers.local.model import LOCAL
from luxx.providers.models import (
    AllowedHostRow,
    ProviderChanges,
    ProviderRow,
    ServerValueRow,
    validate_api_key,
)
from luxx.providers.registry import ProviderType, adapter_for
from luxx.wire.model_settings import MAX_ID

logger = structlog.get_logger()


def before_unsharing(session: Session, row: ProviderRow) -> None:
    """Keeps the name of a shared provider in what others have chosen it for."""
    keep_name(session.connection(), ProviderRow, row.id, row.name, owner_id=row.user_id)
    tenants = update(Tenant).where(Tenant.default_provider_id == row.id)
    session.execute(tenants.values(lost_default_provider=row.name))
    of_tenant = update(Tenant).where(Tenant.title_provider_id == row.id)
    session.execute(of_tenant.values(lost_title_provider=row.name))
    is_of_others = (UserSettings.title_provider_id == row.id) & (UserSettings.user_id != row.user_id)
    session.execute(update(UserSettings).where(is_of_others).values(lost_title_provider=row.name))


def _before_transfer(session: Session, row: ProviderRow, successor_id: int | None) -> None:
    """No default changes: the former owner keeps a transferred one by the settings, the successor has the own
    one or that of the tenant."""
    if successor_id is None:
        before_unsharing(session, row)
    else:
        if row.is_default:
            _keep_by_settings(session, row)
        row.is_default = False


def _keep_by_settings(session: Session, row: ProviderRow) -> None:
    """A default that passes to another user stays that of its former one, who may still use it."""
    users = update(UserSettings).where(
        UserSettings.user_id == row.user_id,
        UserSettings.default_provider_id.is_(None),
        UserSettings.lost_default_provider.is_(None),
    )
    session.execute(users.values(default_provider_id=row.id))


PROVIDERS = Shared(
    row=ProviderRow,
    noun="provider",
    is_audited=True,
    admin_fields=frozenset({"enabled", "is_shared"}),
    shared_text="provider '{name}' is shared with the tenant; only its owner may change it, and only while "
    "being an administrator; other administrators may disable it",
    before_transfer=_before_transfer,
    others_text="provider '{name}' belongs to another administrator; you may only disable it (enabled), stop "
    "sharing it (is_shared) or delete it",
)
"""Only the owner of a shared provider may change the key and the address that it is sent to."""

_visible_provider = PROVIDERS.is_visible(bindparam("b_tenant"), bindparam("b_user"))
_provider_by_id = select(ProviderRow).where(ProviderRow.id == bindparam("b_id"), _visible_provider)
_visible_providers = select(ProviderRow).where(_visible_provider).order_by(ProviderRow.id)
"""Built once: every message that a user sends runs these statements."""


def visible_row(session: Session, caller: Caller, provider_id: int) -> ProviderRow:
    """A row that the caller may see. Raises NotFound."""
    row = None
    if 0 < provider_id <= MAX_ID:
        row = session.scalar(_provider_by_id, {"b_id": provider_id, **_caller_parameters(caller)})
    if row is None:
        raise PROVIDERS.not_found(provider_id)
    return row


def lost_provider_error(
    session: Session, caller: Caller, provider_id: int | None, name: str | None, chosen_by: str
) -> Conflict:
    """The error for a provider that was chosen for something and that the caller cannot use any more.

    `name`: the name that was kept; None: its present one. Whoever chose it for the caller, as the owner of a
    shared agent, could choose only what was shared in their tenant; no name of another tenant is shown.
    """
    if name is None and provider_id is not None:
        of_tenant = select(ProviderRow.name).where(
            ProviderRow.id == provider_id, ProviderRow.tenant_id == caller.tenant_id
        )
        name = session.scalar(of_tenant)
    return lost_error("provider", name, chosen_by)


def provider_named(session: Session, caller: Caller, name: str, field: str) -> ProviderRow:
    """The caller's provider of this name, else the shared one.

    Raises NotFound or AmbiguousName for `field`.
    """
    rows = session.scalars(
        select(ProviderRow)
        .where(PROVIDERS.visible_to(caller), ProviderRow.name == name.strip())
        .order_by(ProviderRow.id)
    ).all()
    if not rows:
        problem = f"there is no provider named {name[:100]!r}; GET /providers lists yours"
        raise NotFound(problem, kind="provider_not_found", field=field)
    matching = [row for row in rows if row.user_id == caller.user_id] or rows
    if len(matching) > 1:
        ids = ", ".join(str(row.id) for row in matching[:10])
        problem = (
            f"{len(matching)} providers are named {name.strip()[:100]!r} (ids {ids}); rename all but one"
        )
        raise AmbiguousName(problem, field=field)
    return matching[0]


def provider_name(session: Session, caller: Caller, provider_id: int | None) -> str | None:
    """The name of a provider that the caller may use; None for others, whose names are not theirs to see."""
    if provider_id is None:
        return None
    try:
        return visible_row(session, caller, provider_id).name
    except NotFound:
        return None


def enabled_rows(session: Session, caller: Caller) -> list[ProviderRow]:
    """The enabled providers that the caller may use, oldest first."""
    return [row for row in visible_rows(session, caller) if row.enabled]


def visible_rows(session: Session, caller: Caller) -> list[ProviderRow]:
    """The providers that the caller may see, also disabled ones, oldest first."""
    return list(session.scalars(_visible_providers, _caller_parameters(caller)))


def _caller_parameters(caller: Caller) -> dict[str, int]:
    return {"b_tenant": caller.tenant_id, "b_user": caller.user_id}


def has_no_provider(session: Session, user_id: int) -> bool:
    """Whether the user has none besides the demo."""
    own = select(ProviderRow.id).where(
        ProviderRow.user_id == user_id, ProviderRow.provider_type != ProviderType.DEMO
    )
    return session.scalar(own.limit(1)) is None


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


def replace_allowed_hosts(session: Session, caller: Caller, wanted: Set[str]) -> None:
    check_still_admin(session, caller)
    existing = {row.host_port: row for row in session.scalars(select(AllowedHostRow))}
    for host_port in existing.keys() - wanted:
        session.delete(existing[host_port])
    for host_port in sorted(wanted - existing.keys()):
        add_allowed_host(session, caller, host_port)
    record_host_changes(session, caller, added=wanted - existing.keys(), removed=existing.keys() - wanted)


def record_host_changes(
    session: Session, caller: Caller, *, added: Set[str] = frozenset(), removed: Set[str] = frozenset()
) -> None:
    """Adds the audit entry for a change of the allowed hosts."""
    if not added and not removed:
        return
    detail = Detail(added=sorted(added)[:MAX_NAMES], removed=sorted(removed)[:MAX_NAMES])
    record(session, AuditEntry(action=Action.ALLOWED_HOSTS_CHANGE, actor=caller.actor, detail=detail))


def check_type(caller: Caller, provider_type: str) -> None:
    """Raises InvalidInput or NotAllowed unless the caller may add a provider of this type."""
    try:
        adapter_for(provider_type)
    except InvalidInput as error:
        raise error.about("$.provider_type") from error
    if provider_type == ProviderType.DEMO:
        problem = "the demo is added by the configuration (demo.enabled); choose another type"
        raise InvalidInput(problem, field="$.provider_type")
    if provider_type == LOCAL and not caller.is_admin:
        raise NotAllowed("only an administrator may add the embedded model; it can be shared with you")


def open_registration_warning(session: Session, auth: AuthConfig, limits: LimitsConfig) -> str | None:
    """A warning if anyone can register and use shared providers, and no daily limit applies to every user."""
    has_limit = limits.tokens_per_day or limits.cost_per_day
    is_charged = ProviderRow.provider_type != ProviderType.DEMO
    shared = select(ProviderRow.id).where(ProviderRow.is_shared, ProviderRow.enabled, is_charged).limit(1)
    if not auth.allow_registration or has_limit or session.scalar(shared) is None:
        return None
    level1_limit = auth.default_permission_level == 1 and limits.level1_tokens_per_day
    amount = f"{level1_limit} tokens a day each" if level1_limit else "without a daily limit"
    return f"anyone who can connect to this server can register and use shared providers, {amount}"


def has_no_daily_limit(auth: AuthConfig, limits: LimitsConfig) -> bool:
    """Whether a newly registered user has no daily limit on shared providers."""
    level1_limit = auth.default_permission_level == 1 and limits.level1_tokens_per_day
    return not (limits.tokens_per_day or limits.cost_per_day or level1_limit)


SECRET_CHECK = "secret_check"  # The row of a sealed text that only this database's secret key opens.
_CHECK_TEXT = "sealed with this server's secret key"


class SealedColumn(NamedTuple):
    """A column of sealed texts, whose identity is `table:id:column`; an empty text is none."""

    table: Table
    column: str

    def rows(self, session: Session) -> list[tuple[Any, str]]:
        """The ids and sealed texts."""
        column = self.table.c[self.column]
        rows = session.execute(select(self.table.c.id, column).where(column != "")).all()
        return [(row_id, text) for row_id, text in rows]

    def identity(self, row_id: Any) -> str:
        return f"{self.table.name}:{row_id}:{self.column}"

    def set(self, session: Session, row_id: Any, text: str) -> None:
        session.execute(update(self.table).where(self.table.c.id == row_id).values({self.column: text}))


_KEYS = SealedColumn(table_of(ProviderRow), "api_key")
"""The encrypted keys of providers."""


def secret_key_problem(session: Session, vault: Vault) -> str | None:
    """Why the secret key does not match this database; None if it does."""
    stored = session.get(ServerValueRow, SECRET_CHECK)
    # An old database, and one after `--forget-sealed-keys`, has no check value, only provider keys.
    sealed = [text for _, text in _KEYS.rows(session)] if stored is None else [stored.value]
    if not sealed or any(vault.has_key_for(sealed_text) for sealed_text in sealed):
        return None
    return (
        "app.secret_key does not match this database, so stored provider keys cannot be decrypted; set the "
        "previous key again, or list it in app.previous_secret_keys to rotate to the new one; if it is lost, "
        "delete the encrypted keys with `luxx migrate --forget-sealed-keys`"
    )


def check_and_reseal_keys(session: Session, vault: Vault, others: Sequence[SealedColumn] = ()) -> None:
    """Checks the secret key and re-encrypts what a previous key encrypted, also in `others`.

    Raises ConfigError.
    """
    lock_until_commit(session.connection(), Lock.SECRET_CHECK)
    problem = secret_key_problem(session, vault)
    if problem is not None:
        raise ConfigError(problem)
    stored = session.get(ServerValueRow, SECRET_CHECK)
    if stored is not None and not vault.needs_resealing(stored.value):
        return
    resealed_count = unreadable_count = 0
    for column in (_KEYS, *others):
        for row_id, sealed in column.rows(session):
            identity = column.identity(row_id)
            if not vault.needs_resealing(sealed):
                continue
            try:
                resealed = vault.seal(vault.open(sealed, identity=identity), identity=identity)
            except Unavailable:
                unreadable_count += 1
                continue
            column.set(session, row_id, resealed)
            resealed_count += 1
    session.merge(ServerValueRow(name=SECRET_CHECK, value=vault.seal(_CHECK_TEXT, identity=SECRET_CHECK)))
    if resealed_count or unreadable_count:
        logger.info("provider_keys_resealed", count=resealed_count, unknown=unreadable_count)


def delete_unreadable_keys(session: Session, vault: Vault, others: Sequence[SealedColumn] = ()) -> int:
    """Deletes the provider keys, and what `others` have, that the secret key cannot decrypt; returns their
    number."""
    session.execute(delete(ServerValueRow).where(ServerValueRow.name == SECRET_CHECK))
    count = 0
    for column in (_KEYS, *others):
        for row_id, sealed in column.rows(session):
            if not vault.has_key_for(sealed):
                column.set(session, row_id, "")
                count += 1
    return count


def key_identity(provider_id: int) -> str:
    """The identity that a provider's encrypted key is bound to."""
    return f"llm_providers:{provider_id}:api_key"


def store_key(vault: Vault, row: ProviderRow, api_key: str) -> None:
    """Encrypts the key into a row that has its id; an empty key removes the stored one."""
    row.api_key = vault.seal(api_key, identity=key_identity(row.id)) if api_key else ""


def read_key(vault: Vault, row: ProviderRow) -> str:
    """The decrypted key, empty if there is none. Raises Unavailable if it cannot be decrypted."""
    return vault.open(row.api_key, identity=key_identity(row.id)) if row.api_key else ""


def masked_key(vault: Vault, row: ProviderRow) -> str:
    try:
        return mask(read_key(vault, row)) if row.api_key else ""
    except Unavailable:
        return mask("")


def change_key(vault: Vault, row: ProviderRow, changes: ProviderChanges, base_url: str) -> None:
    """Stores a new key. The mask of the stored key, which a form sends back unchanged, is no new key.

    A new address removes the stored key. Raises InvalidInput if the changes name only a new type, whose
    address it is: nobody would expect that the key is removed.
    """
    new_key = changes.api_key
    if new_key is not UNSET and not (new_key and new_key == masked_key(vault, row)):
        store_key(vault, row, validate_api_key(new_key or ""))
        return
    if base_url == row.base_url:
        return
    if row.api_key and changes.base_url is UNSET:
        raise InvalidInput(
            f"the type {changes.provider_type} has another address ({base_url or 'its own'}), to which the "
            f"stored key does not belong; send api_key with a key for it (null for none), or base_url "
            f"{row.base_url} to keep address and key",
            kind="key_would_be_lost",
            field="$.api_key",
        )
    row.api_key = ""
