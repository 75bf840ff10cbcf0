"""The first start: models are looked for once, for the first operator; what counts is in `discovery.py`."""

from collections.abc import Mapping

from sqlalchemy import Row, select
from sqlalchemy.orm import Session

from luxx.accounts.caller import DEFAULT_TENANT_ID
from luxx.accounts.models import User
from luxx.config import Config
from luxx.providers.discovery import apply, discover, probe_loopback
from luxx.providers.local import LOCAL, LocalModel
from luxx.providers.models import ProviderRow
from luxx.store.engine import Store
from luxx.vault import Vault
from luxx.wire.tool import CommandPermission


async def connect_what_is_there(
    store: Store, vault: Vault, environ: Mapping[str, str], config: Config, local: LocalModel
) -> None:
    """Makes providers of what is found for the first operator, unless they have one already."""
    first = await store.read(_first_user)
    if first is None:
        return
    probes = await probe_loopback(except_ports=(config.app.port,))
    local_model = local.model_name if local.missing() is None else ""
    found = discover(environ, config, probes, local_model=local_model)
    await apply(store, vault, user_id=first.id, tenant_id=first.tenant_id, found=found)


async def has_local_provider(store: Store) -> bool:
    """Whether anybody may call the embedded model, so that it is worth starting."""
    wanted = select(ProviderRow.id).where(ProviderRow.provider_type == LOCAL, ProviderRow.enabled).limit(1)
    return await store.read(lambda session: session.scalar(wanted)) is not None


def _first_user(session: Session) -> Row[int, int] | None:
    """The oldest operator, if they have no provider yet: nobody else may get the operator's keys."""
    operators = select(User.id, User.tenant_id).where(
        User.tenant_id == DEFAULT_TENANT_ID, User.permission_level == CommandPermission.ADMIN
    )
    first = session.execute(operators.order_by(User.id).limit(1)).one_or_none()
    if first is None:
        return None
    owned = select(ProviderRow.id).where(ProviderRow.user_id == first.id).limit(1)
    return None if session.scalar(owned) is not None else first
