"""The services that sign users in at an MCP server, on a database of two tenants, without an API."""

from pathlib import Path
from typing import Any

from provider_service.services import ADMIN, ANN, BOB, EVE, make_services
from sqlalchemy import select

from luxx.domain.accounts.caller import Caller
from luxx.domain.mcp.models import McpServerRow
from luxx.domain.mcp.oauth.flows import CompletedSignIn, McpSignIns
from luxx.domain.mcp.oauth.grants import McpGrants
from luxx.domain.mcp.oauth.http import OAuthHttp
from luxx.domain.mcp.oauth.models import McpGrantRow
from luxx.infra.clock import utc_now
from luxx.infra.secrets import Vault
from luxx.infra.store.engine import Store, open_engine
from luxx.providers.addresses import AddressGuard

__all__ = ["ADMIN", "ANN", "BOB", "EVE", "BASE_URL", "LEASE_SECONDS", "SECRET", "SignInHarness"]

BASE_URL = "http://localhost:8000"
SECRET = "a secret that is long enough for tests"
LEASE_SECONDS = 1.5
"""Longer than a refresh takes here, also on a busy machine."""


class SignInHarness:
    """`server_id`: the server of the tenant at which each user signs in."""

    server_id = "server-1"

    def __init__(self, folder: Path, url: str, *, allowed: list[str], database: str = "") -> None:
        made = make_services(folder, database)
        self.store, self.vault = made.store, Vault(SECRET)
        self._stores: list[Store] = []
        self.http = OAuthHttp(AddressGuard(self.store, allowed), seconds=5.0)
        self.grants = self.more_grants(self.store)
        self.flows = McpSignIns(self.store, self.vault, self.http, self.grants)
        self.add_server(self.server_id, "people", url)

    def more_grants(self, store: Store | None = None) -> McpGrants:
        """The grants of another process of the same database."""
        own = Store(open_engine(self.store.engine.url)) if store is None else store
        self._stores.append(own)
        return McpGrants(own, self.vault, self.http, lease_seconds=LEASE_SECONDS)

    def close(self) -> None:
        for store in self._stores:
            store.close()

    def add_server(self, server_id: str, name: str, url: str, credential: str = "per_user") -> None:
        now = utc_now()
        row = McpServerRow(
            id=server_id, tenant_id=1, user_id=None, project_id=None, name=name, transport="http", url=url,
            command="", args="[]", reads="[]", credential=credential, oauth=None, secrets="", trusted=False,
            level=1, enabled=True, revision=1, created_at=now, updated_at=now,
        )  # fmt: skip
        self.store.write_now(lambda session: session.add(row))

    async def begin(self, caller: Caller = ANN) -> str:
        return await self.flows.begin(caller, self.server_id, BASE_URL)

    async def complete(self, caller: Caller, answer: dict[str, str]) -> CompletedSignIn:
        return await self.flows.complete(caller, answer["state"], answer["code"], answer.get("iss"))

    def change(self, **values: Any) -> None:
        """Changes the columns of all grants."""

        def work(session: Any) -> None:
            for row in session.scalars(select(McpGrantRow)):
                for name, value in values.items():
                    setattr(row, name, value)

        self.store.write_now(work)

    def expire(self) -> None:
        """Lets all access tokens expire, without a word of their server."""
        self.change(expires_at=1.0)
