"""The provider service for two tenants on a temporary database, the real model client, and a fake
upstream.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from migrated_databases import make_ready
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import Tenant, User
from luxx.domain.accounts.user_data import SettingsView
from luxx.domain.usage.provider_tests import ProviderTests
from luxx.errors import Unavailable
from luxx.infra.clock import utc_now
from luxx.infra.config.schema import LimitsConfig, ProvidersConfig
from luxx.infra.secrets import Vault
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.providers.addresses import AddressGuard
from luxx.providers.catalog import ProviderSelection, ResolvedProvider
from luxx.providers.client import ModelClient
from luxx.providers.local.child import LocalAddress
from luxx.providers.models import NewProvider
from luxx.providers.service import ProviderService
from luxx.providers.transport import Transport
from luxx.wire.tool import CommandPermission

KEY = "sk-a-key-that-nobody-may-see-again-7f3d"
URL = "https://models.example/v1"
PUBLIC_ADDRESS = "93.184.215.14"
NAMES = {
    "models.example": [PUBLIC_ADDRESS],
    "other.example": ["2606:2800:21f:cb07:6820:80da:af6b:8b2c"],
    "inside.example": ["10.1.2.3"],
    "both.example": [PUBLIC_ADDRESS, "127.0.0.1"],
    "metadata.example": ["169.254.169.254"],
}


def caller(user_id: int, tenant_id: int, level: CommandPermission = CommandPermission.READ_ONLY) -> Caller:
    return Caller(
        user_id=user_id,
        tenant_id=tenant_id,
        username=f"user{user_id}",
        permission_level=level,
        sign_in_id="s",
    )


ADMIN = caller(1, 1, CommandPermission.ADMIN)
ANN = caller(2, 1)
BOB = caller(3, 1)
OTHER_ADMIN = caller(4, 2, CommandPermission.ADMIN)
EVE = caller(5, 2)
EVERYBODY = (ADMIN, ANN, BOB, OTHER_ADMIN, EVE)


def new_provider(name: str = "mine", **more: Any) -> NewProvider:
    fields: dict[str, Any] = {
        "name": name,
        "provider_type": "openai_compatible",
        "base_url": URL,
        "api_key": KEY,
        "default_model": "one",
    }
    return NewProvider(**(fields | more))


class FakeLocal:
    """An embedded model that runs, or raises its problem."""

    model_name = "smollm2-135m-instruct"

    def __init__(self, problem: str = "") -> None:
        self.problem = problem

    async def ensure_ready(self, timeout: float) -> LocalAddress:
        if self.problem:
            raise Unavailable(self.problem)
        return LocalAddress(base_url="http://127.0.0.1:40001/v1", api_key="of-this-start")


class ResolvingService(ProviderService):
    def tests(self) -> ProviderTests:
        """The tests of its providers, without limits."""
        return ProviderTests(self._store, self, LimitsConfig())

    async def resolve(
        self,
        caller: Caller,
        provider_id: int | None = None,
        model: str | None = None,
        *,
        preferred_id: int | None = None,
    ) -> ResolvedProvider:
        """`select_provider` and `resolve_selection` in one call, with the provider of the settings."""

        def select(session: Session) -> ProviderSelection:
            nothing_chosen = dict.fromkeys(SettingsView.__struct_fields__)
            settings = SettingsView(
                **nothing_chosen | {"user_id": caller.user_id, "default_provider_id": preferred_id}
            )
            return self.select_provider(session, caller, provider_id, model, default=settings)

        return await self.resolve_selection(await self._store.read(select))


class ProviderServices:
    """The services of one database. Use `open` inside the event loop."""

    def __init__(self, store: Store, vault: Vault) -> None:
        self.store = store
        self.vault = vault
        self.names = dict(NAMES)
        self.service: ProviderService

    async def resolve(self, host: str, port: int) -> list[str]:
        return self.names.get(host, [PUBLIC_ADDRESS])

    def guard(self, *allowed: str) -> AddressGuard:
        return AddressGuard(self.store, allowed, resolve=self.resolve)

    @asynccontextmanager
    async def open(self, *allowed: str, local: Any = None) -> AsyncGenerator["ResolvingService", None]:
        config = ProvidersConfig(connect_timeout_seconds=2, idle_timeout_seconds=2)
        guard = self.guard(*allowed)
        transport = Transport(config, guard)
        try:
            client = ModelClient(transport, config)
            yield ResolvingService(self.store, self.vault, client, guard, local=local)
        finally:
            await transport.aclose()


def make_services(folder: Path, ready_url: str = "") -> ProviderServices:
    """With a `ready_url` in that database, which has all tables and nothing in them."""
    engine = open_engine(resolve_url(ready_url or "sqlite:///./t.db", folder))
    if not ready_url:
        make_ready(engine)
    store = Store(engine)
    now = utc_now()

    def fill(session: Any) -> None:
        session.add(Tenant(id=1, name="default", is_default=True, created_at=now))
        session.add(Tenant(id=2, name="other", created_at=now))
        session.flush()
        for caller in EVERYBODY:
            session.add(
                User(
                    id=caller.user_id,
                    tenant_id=caller.tenant_id,
                    username=caller.username,
                    username_key=caller.username,
                    password_hash="x",
                    role="admin" if caller.is_admin else "user",
                    permission_level=int(caller.permission_level),
                    created_at=now,
                )
            )

    store.write_now(fill)
    return ProviderServices(store, Vault("a secret that is long enough for tests"))


JSON = "application/json"
REFUSED = b'{"error": {"message": "bad key %s"}}'


class Upstream:
    """An OpenAI-compatible server with one key and two models; `lists` and `chats` enable its routes."""

    def __init__(self) -> None:
        self.key = KEY
        self.lists = True
        self.is_open_list = False
        self.page = False
        self.requests_seen: list[tuple[str, str]] = []
        self.port = 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator["Upstream", None]:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            await server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path, _ = head.split(" ", 2)
        headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        lower = {name.lower(): value for name, value in headers.items()}
        body = await reader.readexactly(int(lower.get("content-length", "0")))
        authorization = lower.get("authorization", "")
        self.requests_seen.append((f"{method} {path}", authorization))
        status, kind, content = self._content(path, authorization, body)
        writer.write(
            f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(content)}\r\n"
            "connection: close\r\n\r\n".encode()
            + content
        )
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    def _content(self, path: str, authorization: str, body: bytes) -> tuple[int, str, bytes]:
        if self.page:
            return 200, "text/html", b"<html>welcome to our shop</html>"
        knows = authorization == f"Bearer {self.key}"
        if path == "/v1/models" and self.lists:
            if not knows and not self.is_open_list:
                return (
                    401,
                    JSON,
                    b'{"error": {"message": "bad key %s"}}' % authorization.encode(),
                )
            return (
                200,
                JSON,
                b'{"object": "list", "data": [{"id": "one"}, {"id": "two", "max_model_len": 9000}]}',
            )
        if path == "/v1/chat/completions":
            if not knows:
                return (
                    401,
                    JSON,
                    b'{"error": {"message": "bad key %s"}}' % authorization.encode(),
                )
            if json.loads(body)["model"] not in ("one", "two"):
                return 404, JSON, b'{"error": {"message": "no such model"}}'
            chunk = {
                "id": "1",
                "choices": [{"index": 0, "delta": {"content": "ok"}, "finish_reason": "stop"}],
            }
            stream = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
            return 200, "text/event-stream", stream.encode()
        return 404, JSON, b'{"error": {"message": "nothing here"}}'
