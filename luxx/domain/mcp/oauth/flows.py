"""Signing in at MCP servers: a user's browser goes to the authorization server, and comes back with a code.

A flow is a row, so any process can complete what another began. Its state belongs to the user who began it
and is used once. Not here: what happens with the tokens afterwards (`grants`).
"""

import asyncio
from urllib.parse import urlsplit

import msgspec
from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.mcp.models import Credential, McpServerRow
from luxx.domain.mcp.oauth.clients import ConfiguredClient, OAuthClients
from luxx.domain.mcp.oauth.grants import GrantSecrets, McpGrants, of_user
from luxx.domain.mcp.oauth.http import NoAnswer, OAuthHttp, TokenRefused
from luxx.domain.mcp.oauth.metadata import (
    Challenge,
    IssuerMetadata,
    SignInFailed,
    origin_of,
    scopes_of,
    union,
    web_url,
)
from luxx.domain.mcp.oauth.models import GrantState, McpFlowRow, McpGrantRow
from luxx.domain.mcp.oauth.requests import (
    CALLBACK_PATH,
    AuthorizationRequest,
    IssuedTokens,
    authorization_url,
    check_issuer,
    choose_scopes,
    code_form,
    hash_of_state,
    new_secret,
)
from luxx.domain.mcp.stored import read_server
from luxx.errors import Conflict, NotFound
from luxx.infra.clock import new_id, utc_now
from luxx.infra.secrets import Vault
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import database_time, table_of
from luxx.wire.tool import CommandPermission

FLOW_SECONDS = 300.0
"""How long a person has, from the address to the answer."""

KEPT_SECONDS = 3600.0
"""How long a flow is kept after its end, so that a late answer gets a reason."""

MOST_FLOWS = 20
"""Flows of one user; a further one ends the oldest."""

BEGIN_SECONDS = 30.0
"""For all requests before a person can sign in."""

_flows, _grants = table_of(McpFlowRow), table_of(McpGrantRow)


class FlowSecrets(msgspec.Struct, frozen=True, kw_only=True):
    """The sealed part of a flow."""

    request: AuthorizationRequest
    issuer: IssuerMetadata


class CompletedSignIn(msgspec.Struct, frozen=True, kw_only=True):
    """A completed sign-in. `user_id` None: for all users of the server."""

    server_id: str
    server: str
    user_id: int | None


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """The server of a sign-in, and what its grant already has."""

    server_id: str
    name: str
    tenant_id: int
    url: str
    grant_user_id: int | None
    client: ConfiguredClient | None
    scopes: tuple[str, ...]


class _Flow(msgspec.Struct, frozen=True, kw_only=True):
    server_id: str
    grant_user_id: int | None
    url: str
    issuer: str
    sealed: str


def check_return_address(base_url: str) -> str:
    """The address of this server to which a browser returns. Raises Conflict if a code cannot safely be sent
    there."""
    parsed = urlsplit(base_url)
    host = (parsed.hostname or "").rstrip(".")
    is_local = host in ("localhost", "127.0.0.1", "::1") or host.endswith(".localhost")
    if parsed.scheme == "https" or (parsed.scheme == "http" and is_local):
        return base_url.rstrip("/")
    raise Conflict(
        "a sign-in returns to this server's page, which needs https (or localhost): set server.public_url to "
        "the https address of this server, and open the page there",
        kind="mcp_no_return_address",
    )


class McpSignIns:
    """One per process."""

    def __init__(self, store: Store, vault: Vault, http: OAuthHttp, grants: McpGrants) -> None:
        self._store = store
        self._vault = vault
        self._http = http
        self._grants = grants
        self._clients = OAuthClients(store, vault, http)

    async def begin(self, caller: Caller, server_id: str, base_url: str) -> str:
        """The address at which the caller signs in at this server, and which leads back to `base_url`.

        Raises Conflict if it cannot be found out, and Unreachable if a server cannot be reached.
        """
        base_url = check_return_address(base_url)
        place = await self._store.read(lambda session: self._place(session, caller, server_id))
        try:
            async with asyncio.timeout(BEGIN_SECONDS):
                return await self._begin(caller, place, base_url)
        except TimeoutError as error:
            raise NoAnswer(
                f"{origin_of(web_url(place.url))} takes too long to say where to sign in"
            ) from error

    async def complete(self, caller: Caller, state: str, code: str, iss: str | None) -> CompletedSignIn:
        """Exchanges the code that a browser came back with for tokens.

        Raises NotFound for a state that is not the caller's, Conflict where it was used, is too old, or the
        answer is not what was asked for, and Unreachable.
        """
        state_hash = hash_of_state(state)
        flow = await self._store.write_rows(lambda connection: _use(connection, caller, state_hash))
        secrets = self._open(flow.sealed, state_hash)
        check_issuer(iss, secrets.issuer)
        now = await self._http.issuer_metadata(flow.issuer)
        if (now.issuer, now.token_endpoint) != (secrets.issuer.issuer, secrets.issuer.token_endpoint):
            raise SignInFailed("the authorization server has changed meanwhile; start the sign-in again")
        request = secrets.request
        try:
            issued = await self._http.tokens(
                secrets.issuer.token_endpoint, request.client, code_form(request, code)
            )
        except TokenRefused as error:
            if error.error == "invalid_client":
                await self._clients.forget(caller.tenant_id, flow.issuer)
            raise
        return await self._store.write(lambda session: self._keep(session, caller, flow, secrets, issued))

    async def delete_old(self) -> None:
        """Deletes flows that ended long ago, and registrations that nobody uses."""
        await self._store.write_rows(_delete_old)
        await self._clients.delete_unused()

    def _place(self, session: Session, caller: Caller, server_id: str) -> _Place:
        row = session.get(McpServerRow, server_id)
        if row is None or row.tenant_id != caller.tenant_id or row.user_id not in (None, caller.user_id):
            raise NotFound("there is no MCP server with this name", kind="mcp_server_not_found")
        if row.credential == Credential.NONE:
            raise Conflict(
                f"nobody signs in at {row.name}: its credential is none; set it to per_user or shared",
                kind="mcp_no_sign_in",
            )
        is_shared = row.credential == Credential.SHARED
        if is_shared and row.user_id is None:
            caller.require(CommandPermission.ADMIN)
        user_id = None if is_shared else caller.user_id
        held = (
            session.connection()
            .execute(select(_grants.c.scopes, _grants.c.wanted).where(of_user(row.id, user_id)))
            .first()
        )
        return _Place(
            server_id=row.id,
            name=row.name,
            tenant_id=row.tenant_id,
            url=row.url,
            grant_user_id=user_id,
            client=self._configured_client(session, row.id),
            scopes=() if held is None or not held.wanted else scopes_of(f"{held.scopes} {held.wanted}"),
        )

    def _configured_client(self, session: Session, server_id: str) -> ConfiguredClient | None:
        server = read_server(session.connection(), server_id)
        if server is None or server.oauth is None:
            return None
        return ConfiguredClient(
            client_id=server.oauth.client_id,
            client_secret=server.opened(self._vault).client_secret or "",
            scopes=tuple(server.oauth.scopes or ()),
        )

    async def _begin(self, caller: Caller, place: _Place, base_url: str) -> str:
        url = web_url(place.url)
        challenge = await self._http.challenge(url)
        resource = await self._http.resource_metadata(url, challenge or Challenge())
        if challenge is None and resource is None:
            raise Conflict(
                f"{place.name} asks for no sign-in; set its credential to none", kind="mcp_no_sign_in"
            )
        named = origin_of(url) if resource is None else resource.authorization_servers[0]
        issuer = await self._http.issuer_metadata(named)
        configured = () if place.client is None else place.client.scopes
        scopes = choose_scopes(configured, challenge or Challenge(), resource, issuer)
        scopes = union(scopes, place.scopes)
        request = AuthorizationRequest(
            client=await self._clients.client(place.tenant_id, place.client, named, issuer, base_url, scopes),
            redirect_uri=f"{base_url}{CALLBACK_PATH}",
            resource=url if resource is None else resource.resource,
            scopes=scopes,
            verifier=new_secret(),
        )
        state = new_secret()
        sealed = self._seal(FlowSecrets(request=request, issuer=issuer), hash_of_state(state))
        flow = _Flow(
            server_id=place.server_id,
            grant_user_id=place.grant_user_id,
            url=place.url,
            issuer=named,
            sealed=sealed,
        )
        await self._store.write_rows(lambda connection: _add(connection, caller, flow, hash_of_state(state)))
        return authorization_url(issuer.authorization_endpoint, request, state)

    def _seal(self, secrets: FlowSecrets, state_hash: str) -> str:
        return self._vault.seal(msgspec.json.encode(secrets).decode(), identity=f"mcp_flows:{state_hash}")

    def _open(self, sealed: str, state_hash: str) -> FlowSecrets:
        text = self._vault.open(sealed, identity=f"mcp_flows:{state_hash}")
        return msgspec.json.decode(text, type=FlowSecrets)

    def _keep(
        self, session: Session, caller: Caller, flow: _Flow, secrets: FlowSecrets, issued: IssuedTokens
    ) -> CompletedSignIn:
        """Stores the grant. Raises Conflict if the server has changed since the sign-in began."""
        server = session.get(McpServerRow, flow.server_id)
        if server is None or server.url != flow.url or server.tenant_id != caller.tenant_id:
            raise SignInFailed("the MCP server has changed meanwhile; start the sign-in again")
        shares = server.credential == Credential.SHARED
        if server.credential == Credential.NONE or shares != (flow.grant_user_id is None):
            raise SignInFailed("who signs in at the MCP server has changed meanwhile; start again")
        connection = session.connection()
        of_same = select(McpGrantRow).where(of_user(flow.server_id, flow.grant_user_id))
        grant = session.scalar(of_same.with_for_update())
        now, request = utc_now(), secrets.request
        if grant is None:
            grant = McpGrantRow(
                id=new_id(),
                server_id=server.id,
                user_id=flow.grant_user_id,
                version=0,
                asked=0,
                created_at=now,
            )
            session.add(grant)
        elif not grant.wanted:
            grant.asked = 0
        kept = GrantSecrets(
            client=request.client,
            token_endpoint=secrets.issuer.token_endpoint,
            resource=request.resource,
            access=issued.access,
            refresh=issued.refresh,
        )
        grant.secrets, grant.url, grant.issuer = self._grants.seal(grant.id, kept), flow.url, flow.issuer
        grant.scopes = " ".join(request.scopes if issued.scopes is None else issued.scopes)
        grant.wanted, grant.state = "", GrantState.READY.value
        grant.version += 1
        grant.signed_in_by, grant.updated_at = caller.user_id, now
        grant.lease = grant.lease_until = None
        seconds = connection.scalar(select(database_time(connection)))
        grant.expires_at = None if issued.seconds is None or seconds is None else seconds + issued.seconds
        return CompletedSignIn(server_id=server.id, server=server.name, user_id=flow.grant_user_id)


def _use(connection: Connection, caller: Caller, state_hash: str) -> _Flow:
    """Marks the caller's flow as used. Raises NotFound, and Conflict if it was used or is too old."""
    own = (_flows.c.state_hash == state_hash, _flows.c.user_id == caller.user_id)
    now = database_time(connection)
    row = connection.execute(select(_flows, now.label("now")).where(*own)).first()
    if row is None:
        raise NotFound("you have begun no sign-in with this state", kind="mcp_sign_in_not_found")
    if row.expires_at < row.now:
        minutes = FLOW_SECONDS / 60
        raise SignInFailed(f"the sign-in took longer than {minutes:g} minutes; start it again")
    used = update(_flows).where(*own, _flows.c.used_at.is_(None)).values(used_at=now)
    if connection.execute(used).rowcount != 1:
        raise SignInFailed("this sign-in has been completed already; start it again if you need a new one")
    return _Flow(
        server_id=row.server_id,
        grant_user_id=row.grant_user_id,
        url=row.url,
        issuer=row.issuer,
        sealed=row.secrets,
    )


def _add(connection: Connection, caller: Caller, flow: _Flow, state_hash: str) -> None:
    """Stores a flow, and ends the user's oldest ones beyond the limit."""
    _delete_old(connection)
    own = _flows.c.user_id == caller.user_id
    newest = select(_flows.c.state_hash).where(own).order_by(_flows.c.expires_at.desc())
    beyond = connection.scalars(newest.offset(MOST_FLOWS - 1)).all()
    connection.execute(delete(_flows).where(_flows.c.state_hash.in_(beyond)))
    values = {
        "state_hash": state_hash,
        "server_id": flow.server_id,
        "user_id": caller.user_id,
        "grant_user_id": flow.grant_user_id,
        "url": flow.url,
        "issuer": flow.issuer,
        "secrets": flow.sealed,
        "expires_at": database_time(connection) + FLOW_SECONDS,
    }
    connection.execute(insert(_flows).values(values))


def _delete_old(connection: Connection) -> None:
    ended = database_time(connection) - KEPT_SECONDS
    connection.execute(delete(_flows).where(_flows.c.expires_at < ended))
