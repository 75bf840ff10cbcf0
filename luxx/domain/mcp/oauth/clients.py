"""Luxx as a client of authorization servers: configured, described by a document, or registered there.

Not here: what is sent for it (`requests`, `http`).
"""

from datetime import timedelta

import msgspec
from sqlalchemy import delete, insert, select, union_all
from sqlalchemy.exc import IntegrityError

from luxx.domain.mcp.oauth.http import OAuthHttp
from luxx.domain.mcp.oauth.metadata import IssuerMetadata, SignInFailed, origin_of
from luxx.domain.mcp.oauth.models import McpClientRow, McpFlowRow, McpGrantRow
from luxx.domain.mcp.oauth.requests import (
    CALLBACK_PATH,
    ClientIdentity,
    configured_client,
    document_id,
    may_use_document,
)
from luxx.errors import Unavailable
from luxx.infra.clock import new_id, utc_now
from luxx.infra.secrets import Vault
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of

UNUSED_SECONDS = 3600.0
"""How long a registration is kept that no grant was made with."""

_clients, _flows, _grants = table_of(McpClientRow), table_of(McpFlowRow), table_of(McpGrantRow)


class ConfiguredClient(msgspec.Struct, frozen=True, kw_only=True):
    """A client that was registered by hand. `scopes` empty: those that the server asks for."""

    client_id: str
    client_secret: str = ""
    scopes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"ConfiguredClient({self.client_id!r})"


class OAuthClients:
    """One per process."""

    def __init__(self, store: Store, vault: Vault, http: OAuthHttp) -> None:
        self._store = store
        self._vault = vault
        self._http = http

    async def client(
        self,
        tenant_id: int,
        configured: ConfiguredClient | None,
        named: str,
        issuer: IssuerMetadata,
        base_url: str,
        scopes: tuple[str, ...],
    ) -> ClientIdentity:
        """Luxx as this authorization server knows it, which is `named` by its MCP server. Raises SignInFailed
        and Unreachable."""
        if configured is not None:
            return configured_client(configured.client_id, configured.client_secret, issuer)
        if may_use_document(issuer, base_url):
            return ClientIdentity(client_id=document_id(base_url))
        redirect_uri = f"{base_url}{CALLBACK_PATH}"
        known = await self._registered(tenant_id, named, redirect_uri)
        if known is not None:
            return known
        if not issuer.registration_endpoint:
            raise SignInFailed(
                f"{origin_of(named)} registers no clients by itself; register Luxx there with the redirect "
                f"address {redirect_uri}, and give the server an oauth client"
            )
        client = await self._http.register(issuer.registration_endpoint, base_url, scopes)
        row_id = new_id()
        values = {
            "id": row_id,
            "tenant_id": tenant_id,
            "issuer": named,
            "redirect_uri": redirect_uri,
            "client": self._vault.seal(msgspec.json.encode(client).decode(), identity=_identity(row_id)),
            "created_at": utc_now(),
        }
        try:
            await self._store.write_rows(lambda connection: connection.execute(insert(_clients), [values]))
        except IntegrityError:
            # Another process has registered Luxx first.
            return await self._registered(tenant_id, named, redirect_uri) or client
        return client

    async def forget(self, tenant_id: int, issuer: str) -> None:
        """Deletes the registrations at an authorization server, which does not know them any more."""
        gone = delete(_clients).where(_clients.c.tenant_id == tenant_id, _clients.c.issuer == issuer)
        await self._store.write_rows(lambda connection: connection.execute(gone))

    async def delete_unused(self) -> None:
        """Deletes registrations that nobody has signed in with."""
        used = union_all(select(_grants.c.issuer), select(_flows.c.issuer))
        is_old = _clients.c.created_at < utc_now() - timedelta(seconds=UNUSED_SECONDS)
        unused = delete(_clients).where(is_old, _clients.c.issuer.not_in(used))
        await self._store.write_rows(lambda connection: connection.execute(unused))

    async def _registered(self, tenant_id: int, issuer: str, redirect_uri: str) -> ClientIdentity | None:
        query = select(_clients.c.id, _clients.c.client).where(
            _clients.c.tenant_id == tenant_id,
            _clients.c.issuer == issuer,
            _clients.c.redirect_uri == redirect_uri,
        )
        row = await self._store.read_rows(lambda connection: connection.execute(query).first())
        if row is None:
            return None
        try:
            text = self._vault.open(row.client, identity=_identity(row.id))
        except Unavailable:
            # Sealed with a lost secret key.
            await self.forget(tenant_id, issuer)
            return None
        return msgspec.json.decode(text, type=ClientIdentity)


def _identity(row_id: str) -> str:
    return f"mcp_clients:{row_id}"
