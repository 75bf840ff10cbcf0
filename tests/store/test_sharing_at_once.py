"""A provider is shared, changed and deleted while its owner is demoted: in no order does the owner
keep sharing it.
"""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path
from typing import Any

from provider_service.services import ProviderServices, caller, new_provider
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from luxx.domain.accounts.models import Tenant, User
from luxx.domain.accounts.rights import Offboarding, UserChange, change_user
from luxx.errors import NotAllowed, NotFound
from luxx.infra.clock import utc_now
from luxx.infra.secrets import Vault
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.providers.models import ProviderChanges, ProviderRow
from luxx.providers.queries import PROVIDERS
from luxx.runs.cancel import cancel_runs_of
from luxx.wire.tool import CommandPermission

ROUNDS = 12
FIRST, OWNER, OTHER = (caller(number, 1, CommandPermission.ADMIN) for number in (1, 2, 3))
EVERYBODY_ADMINISTERS = update(User).values(permission_level=4, role="admin")
KEPT_BY_THE_DEMOTED = (
    select(ProviderRow.id)
    .join(User, User.id == ProviderRow.user_id)
    .where(ProviderRow.is_shared, User.permission_level < CommandPermission.ADMIN)
)


def fill(session: Session) -> None:
    now = utc_now()
    session.add(Tenant(id=1, name="default", is_default=True, created_at=now))
    session.flush()
    for who in (FIRST, OWNER, OTHER):
        name = who.username
        user = User(
            id=who.user_id, tenant_id=1, username=name, username_key=name, password_hash="x", role="admin",
            permission_level=4, created_at=now,
        )  # fmt: skip
        session.add(user)


def demote_owner(session: Session) -> None:
    owner = session.get_one(User, OWNER.user_id)
    offboarding = Offboarding(cancel_runs_of, PROVIDERS.transfer)
    change = UserChange(permission_level=CommandPermission.READ_ONLY)
    change_user(session, owner, change, actor=FIRST.actor, offboarding=offboarding, now=utc_now())


async def done_or_refused(work: Awaitable[Any]) -> None:
    with suppress(NotAllowed, NotFound):
        await work


async def test_no_order_of_requests_leaves_a_shared_provider_with_a_demoted_owner(
    ready_url: str, tmp_path: Path
) -> None:
    engine = open_engine(resolve_url(ready_url, tmp_path))
    store = Store(engine)
    store.write_now(fill)
    services = ProviderServices(store, Vault("a secret that is long enough for tests"))

    try:
        async with services.open() as service:
            for number in range(ROUNDS):
                await store.write(lambda session: session.execute(EVERYBODY_ADMINISTERS))
                provider = await service.create(OWNER, new_provider(is_shared=number % 2 == 0))
                redirected = ProviderChanges(is_shared=True, base_url="https://other.example/v1")
                await asyncio.gather(
                    done_or_refused(service.update(OWNER, provider.id, redirected)),
                    store.write(demote_owner),
                    done_or_refused(service.update(OTHER, provider.id, ProviderChanges(enabled=False))),
                    done_or_refused(service.delete(OTHER, provider.id)),
                    done_or_refused(service.create(OWNER, new_provider(is_shared=True))),
                )
                assert await store.read(lambda session: session.scalars(KEPT_BY_THE_DEMOTED).all()) == []
    finally:
        store.close()
