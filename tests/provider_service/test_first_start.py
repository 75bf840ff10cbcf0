"""The first start connects models for an operator, not for the oldest user."""

from pathlib import Path

import msgspec
from migrated_databases import make_ready
from sample_user import add_user
from sqlalchemy import select, update

from luxx.domain.accounts.models import User
from luxx.infra.config.schema import Config, LocalConfig
from luxx.infra.secrets import Vault
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.providers.discovery import connect_discovered_providers
from luxx.providers.local.model import LocalModel
from luxx.providers.models import ProviderRow

SECRET = "a secret of the tests, long enough"


async def test_keys_of_the_environment_become_providers_of_an_operator_only(tmp_path: Path) -> None:
    engine = open_engine(resolve_url("sqlite:///./t.db", tmp_path))
    make_ready(engine)
    store, config = Store(engine), msgspec.structs.replace(Config(), local=LocalConfig(enabled=False))
    environ = {"OPENAI_API_KEY": "sk-an-operators-key-of-the-environment"}

    async def start() -> list[int]:
        local = LocalModel(config.local, tmp_path)
        await connect_discovered_providers(store, Vault(SECRET), environ, config, local)
        return await store.read(lambda session: list(session.scalars(select(ProviderRow.user_id))))

    await store.write(add_user)
    assert await start() == []
    raised = update(User).values(permission_level=4, role="admin")
    await store.write(lambda session: session.execute(raised) and None)
    assert set(await start()) == {1}
    store.close()
