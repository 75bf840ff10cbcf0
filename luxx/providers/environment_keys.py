"""Keys of the environment that were set after the first start: connected at the next one, or why not.

The first start is in `discovery.py`, whose values this uses.
"""

from collections.abc import Mapping

import msgspec
import structlog
from sqlalchemy import Row, exists, or_, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.models import Tenant, User, UserSettings
from luxx.domain.audit import Action, AuditRow, Detail
from luxx.errors import Unavailable
from luxx.infra.secrets import Vault
from luxx.infra.store.engine import Store
from luxx.providers.discovery import (
    DiscoveredProvider,
    first_operator,
    insert_provider,
    log_discovered,
    providers_of_environment,
)
from luxx.providers.local.model import LOCAL
from luxx.providers.models import ProviderRow
from luxx.providers.queries import read_key

log = structlog.stdlib.get_logger(__name__)


async def connect_environment_keys(store: Store, vault: Vault, environ: Mapping[str, str]) -> None:
    """Adds a shared provider for each key of the environment that is new, and logs why others are not added.

    Does nothing without an operator. The provider becomes the default only in place of the embedded model.
    """
    if not providers_of_environment(environ):
        return

    def connect(session: Session) -> list[DiscoveredProvider]:
        operator = first_operator(session)
        if operator is None:
            return []
        # Of several servers that start at the same time, the later one finds what the first has added.
        session.execute(select(User.id).where(User.id == operator.id).with_for_update())
        unused = unused_keys(session, vault, operator, environ)
        for provider in unused:
            if not provider.problem:
                is_default = _takes_the_default(session, operator)
                insert_provider(
                    session, vault, provider, operator.id, operator.tenant_id, is_default=is_default
                )
        return unused

    for provider in await store.write(connect):
        log_discovered(provider)


def unused_keys(
    session: Session, vault: Vault | None, operator: Row[int, int], environ: Mapping[str, str]
) -> list[DiscoveredProvider]:
    """The keys of the environment that no provider of the operator has. `problem` says why the next start
    does not connect one; it is empty where it does. `vault` None: stored keys cannot be read.
    """
    rows = list(session.scalars(select(ProviderRow).where(ProviderRow.user_id == operator.id)))
    unused: list[DiscoveredProvider] = []
    for provider in providers_of_environment(environ):
        of_this_type = [row for row in rows if row.provider_type == str(provider.provider_type)]
        if any(_has_key(vault, row, provider.api_key) for row in of_this_type):
            continue
        problem = provider.problem
        if not problem and of_this_type:
            problem = (
                f"the provider '{of_this_type[0].name}' has another key; change the key there, or delete the "
                "provider and add it again with this key"
            )
        elif not problem and _was_deleted(session, operator, provider.name):
            problem = f"a provider '{provider.name}' was deleted; add it again to use the key"
        unused.append(msgspec.structs.replace(provider, problem=problem))
    return unused


def _has_key(vault: Vault | None, row: ProviderRow, api_key: str) -> bool:
    try:
        return vault is not None and read_key(vault, row) == api_key
    except Unavailable:
        return False


def _was_deleted(session: Session, operator: Row[int, int], name: str) -> bool:
    """Whether the audit log, which is kept for `runs.retention_days`, has the deletion of such a provider."""
    deleted = select(AuditRow.detail).where(
        AuditRow.action == Action.PROVIDER_DELETE, AuditRow.tenant_id == operator.tenant_id
    )
    details = (msgspec.json.decode(detail, type=Detail) for detail in session.scalars(deleted))
    return any(detail.name == name for detail in details)


def _takes_the_default(session: Session, operator: Row[int, int]) -> bool:
    """Whether nobody chose a default of the user or the tenant that is there or lost; an embedded model gives
    its place up.
    """
    is_own = (ProviderRow.user_id == operator.id) & ProviderRow.is_default
    lost_of_user = UserSettings.lost_default_provider.is_not(None)
    lost_of_tenant = Tenant.lost_default_provider.is_not(None)
    is_chosen = or_(
        exists().where(is_own | ProviderRow.is_tenant_default, ProviderRow.provider_type != LOCAL),
        exists().where(UserSettings.user_id == operator.id, lost_of_user),
        exists().where(Tenant.id == operator.tenant_id, lost_of_tenant),
    )
    return not session.scalar(select(is_chosen))
