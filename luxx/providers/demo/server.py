"""The server of the demo provider, on a loopback port of this process, and the provider that uses it.

`answers.yaml` has what it answers. Its rules do not count calls: any number of people can run the samples.
"""

import secrets
from pathlib import Path

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from luxx.infra.clock import utc_now
from luxx.infra.store.tables import Lock, lock_until_commit
from luxx.providers.discovery import first_operator
from luxx.providers.models import ProviderRow
from luxx.providers.registry import ProviderType
from luxx.providers.scripted import ScriptedProvider, load_script

DEMO_NAME = "Demo (scripted answers)"
DEMO_MODEL = "demo"
ANSWERS = Path(__file__).with_name("answers.yaml")
SEARCHED_CHARACTERS = 50_000
"""What the prompts of the samples have at most. The server runs on the event loop, for prompts of anybody."""


class DemoServer:
    """Serves the scripted answers from `start` to `stop`, to requests with `api_key`.

    `internal_keys` has the key meanwhile, by the `host:port` at which requests need it.
    """

    def __init__(self, internal_keys: dict[str, str]) -> None:
        self._internal_keys = internal_keys
        self.api_key = secrets.token_urlsafe(32)
        self._server: ScriptedProvider | None = None

    @property
    def base_url(self) -> str:
        """The address for the OpenAI dialect; empty while it is not listening."""
        return f"{self._server.url}/v1" if self._server else ""

    async def start(self) -> None:
        server = ScriptedProvider(
            load_script(ANSWERS),
            keeps_requests=False,
            searched_characters=SEARCHED_CHARACTERS,
            api_key=self.api_key,
        )
        await server.start()
        self._server = server
        self._internal_keys[server.host_port] = self.api_key

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            del self._internal_keys[server.host_port]
            await server.stop()


def store_demo_provider(session: Session, *, is_enabled: bool) -> None:
    """Adds the demo provider, shared by the first operator, or removes it. One that exists stays as it is."""
    if not is_enabled:
        session.execute(delete(ProviderRow).where(ProviderRow.provider_type == ProviderType.DEMO))
        return
    lock_until_commit(session.connection(), Lock.DEMO_PROVIDER)
    operator = first_operator(session)
    exists = select(ProviderRow.id).where(ProviderRow.provider_type == ProviderType.DEMO).limit(1)
    if operator is None or session.scalar(exists) is not None:
        return
    now = utc_now()
    session.add(
        ProviderRow(
            user_id=operator.id,
            tenant_id=operator.tenant_id,
            name=DEMO_NAME,
            provider_type=ProviderType.DEMO,
            default_model=DEMO_MODEL,
            is_shared=True,
            created_at=now,
            updated_at=now,
        )
    )
