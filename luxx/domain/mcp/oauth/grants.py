"""The grants of MCP servers: what is sent with a request, refreshing tokens, and which ones are used up.

One process refreshes a grant at a time: one conditional UPDATE takes its lease. A refresh token that may be
spent is not used again: if the answer is lost, or the process dies before it is stored, only a new sign-in
helps. Not here: signing in (`flows`).
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgspec
import structlog
from sqlalchemy import ColumnElement, Connection, and_, delete, or_, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from luxx.domain.accounts.models import User
from luxx.domain.mcp.models import Credential, McpServerRow, held_by
from luxx.domain.mcp.oauth.http import NotSent, TokenRefused, TokensLost
from luxx.domain.mcp.oauth.metadata import SignInFailed, read_challenge, scopes_of, union
from luxx.domain.mcp.oauth.models import GrantState, McpClientRow, McpGrantRow
from luxx.domain.mcp.oauth.requests import ClientIdentity, IssuedTokens, refresh_form
from luxx.domain.mcp.oauth.revocation import EndedTokens, RevocationRequests, revoke_all
from luxx.domain.mcp.sign_in import Authorization, EndedSignIn, NeedsSignIn, RefusedRequest
from luxx.errors import ToolFailed, Unavailable, Unreachable
from luxx.infra.clock import new_id, utc_now
from luxx.infra.secrets import Vault
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import database_time, table_of

LEASE_SECONDS = 15.0
"""Longer than a token request may take, with the time to store its answer."""

EARLY_SECONDS = 30.0
"""A token that expires sooner is refreshed before it is used."""

MOST_WIDENINGS = 2
"""How often a server may ask for more scopes than the user agreed to."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.5
_WRITE_TRIES = 3
_grants, _clients, _servers = table_of(McpGrantRow), table_of(McpClientRow), table_of(McpServerRow)
_users = table_of(User)

logger = structlog.get_logger()


class TokenRequests(RevocationRequests, Protocol):
    """Sends token requests."""

    async def tokens(self, endpoint: str, client: ClientIdentity, form: dict[str, str]) -> IssuedTokens: ...


class GrantSecrets(msgspec.Struct, frozen=True, kw_only=True):
    """The sealed part of a grant."""

    client: ClientIdentity
    token_endpoint: str
    resource: str
    access: str
    refresh: str

    def __repr__(self) -> str:
        return "GrantSecrets()"


class _Held(msgspec.Struct, frozen=True, kw_only=True):
    """A grant as it was read. `seconds`: until its token expires; `lease_seconds`: until another process's
    lease ends. Negative: it has."""

    id: str
    server_id: str
    server: str
    is_usable: bool
    version: int
    sealed: str
    scopes: tuple[str, ...]
    wanted: tuple[str, ...]
    asked: int
    seconds: float | None
    lease_seconds: float | None

    @property
    def is_fresh(self) -> bool:
        return self.seconds is None or self.seconds > EARLY_SECONDS


def identity_of(grant_id: str) -> str:
    """What the secrets of a grant are sealed for."""
    return f"mcp_grants:{grant_id}"


def of_user(server_id: str, user_id: int | None) -> ColumnElement[bool]:
    """The condition on the grant of a user; with None on the shared one."""
    return and_(_grants.c.server_id == server_id, held_by(_grants.c.user_id, user_id))


def has_grant(connection: Connection, server_id: str, user_id: int | None) -> bool:
    """Whether the user need not sign in: there are tokens, and the server wants no more scopes."""
    usable = and_(
        of_user(server_id, user_id), _grants.c.state == GrantState.READY.value, _grants.c.wanted == ""
    )
    return connection.scalar(select(_grants.c.id).where(usable)) is not None


def is_signed_in(connection: Connection, user_id: int, name: str) -> bool:
    """Whether a user need not sign in at the server that they know by this name; also where none has it any
    more, so that nobody waits for it."""
    of_caller = or_(_servers.c.user_id == user_id, _servers.c.user_id.is_(None))
    query = (
        select(_servers.c.id, _servers.c.credential)
        .join(_users, _users.c.tenant_id == _servers.c.tenant_id)
        .where(_users.c.id == user_id, _servers.c.name == name, of_caller)
    )
    rows = connection.execute(query).all()
    return all(
        row.credential == Credential.NONE
        or has_grant(connection, row.id, None if row.credential == Credential.SHARED else user_id)
        for row in rows
    )


class McpGrants:
    """One per process."""

    def __init__(
        self, store: Store, vault: Vault, requests: TokenRequests, *, lease_seconds: float = LEASE_SECONDS
    ) -> None:
        self._store = store
        self._vault = vault
        self._requests = requests
        self._lease_seconds = lease_seconds
        self._refreshes: dict[tuple[str, int], asyncio.Task[None]] = {}

    async def authorization(self, server_id: str, user_id: int | None) -> Authorization | None:
        """What to send with the next request. Raises NeedsSignIn, and ToolFailed if the token cannot be
        refreshed now."""
        held = await self._find(server_id, user_id)
        if not held.is_fresh:
            held = await self._refreshed(held, user_id)
        return self._authorization(held)

    async def refused(self, server_id: str, user_id: int | None, refusal: RefusedRequest) -> Authorization:
        """What to repeat a refused request with: a token that another call has refreshed meanwhile, else a
        new one. Raises NeedsSignIn, and ToolFailed as `authorization` does."""
        held = await self._find(server_id, user_id)
        challenge = read_challenge([refusal.challenge])
        is_same = held.version == refusal.version
        if refusal.status == 403 and is_same:
            raise await self._widened(held, challenge.scopes)
        if is_same or not held.is_fresh:
            held = await self._refreshed(held, user_id)
        return self._authorization(held)

    async def is_complete(self, server_id: str, user_id: int | None) -> bool:
        """Whether the user need not sign in: there is a grant, and the server wants no more scopes."""
        return await self._store.read_rows(lambda connection: has_grant(connection, server_id, user_id))

    def forget(self, session: Session, server_id: str, user_id: int | None) -> list[EndedSignIn]:
        """Deletes the grant in this transaction, and with None those of all users; returns what can be
        revoked when it is committed."""
        condition = _grants.c.server_id == server_id if user_id is None else of_user(server_id, user_id)
        connection = session.connection()
        columns = (_grants.c.id, _grants.c.issuer, _grants.c.secrets)
        rows = connection.execute(select(*columns).where(condition).with_for_update()).all()
        connection.execute(delete(_grants).where(condition))
        ended: list[EndedSignIn] = []
        for row in rows:
            with suppress(Unavailable):
                if row.secrets:
                    found = self._opened(row.id, row.secrets)
                    tokens = {"access": found.access, "refresh": found.refresh}
                    ended.append(EndedTokens(issuer=row.issuer, client=found.client, **tokens))
        return ended

    async def revoke(self, ended: Sequence[EndedSignIn]) -> str:
        """Revokes the tokens of ended sign-ins, within a bounded time. Returns why some may still be valid;
        empty if none is."""
        problem = await revoke_all(self._requests, ended)
        if problem:
            logger.warning("mcp_tokens_not_revoked", reason=problem)
        return problem

    async def close(self) -> None:
        """Waits for the refreshes in progress, whose answers must be stored."""
        await asyncio.gather(*self._refreshes.values(), return_exceptions=True)

    async def _find(self, server_id: str, user_id: int | None) -> _Held:
        """The usable grant. Raises NeedsSignIn."""
        condition = of_user(server_id, user_id)

        def read(connection: Connection) -> _Held | str:
            held = _read(connection, condition)
            named = select(_servers.c.name).where(_servers.c.id == server_id)
            return str(connection.scalar(named) or "") if held is None else held

        held = await self._store.read_rows(read)
        if isinstance(held, str):
            raise NeedsSignIn(server_id, held)
        if not held.is_usable:
            raise NeedsSignIn(server_id, held.server)
        return held

    def _authorization(self, held: _Held) -> Authorization:
        return Authorization(header=f"Bearer {self._secrets(held).access}", version=held.version)

    def _secrets(self, held: _Held) -> GrantSecrets:
        try:
            return self._opened(held.id, held.sealed)
        except Unavailable as error:
            raise NeedsSignIn(held.server_id, held.server) from error

    def _opened(self, grant_id: str, sealed: str) -> GrantSecrets:
        text = self._vault.open(sealed, identity=identity_of(grant_id))
        return msgspec.json.decode(text, type=GrantSecrets)

    async def _widened(self, held: _Held, scopes: Sequence[str]) -> ToolFailed:
        """Notes the scopes that the server wants; the error to raise."""
        missing = [one for one in scopes if one not in held.scopes]
        if missing and set(missing) <= set(held.wanted):
            return NeedsSignIn(held.server_id, held.server)
        if not missing or held.asked >= MOST_WIDENINGS:
            return ToolFailed(
                f"the MCP server {held.server} wants more rights than the sign-in gave "
                f"({' '.join(scopes)[:200] or 'it does not say which'}); disconnect it, and sign in again "
                "with an account that has them"
            )
        changed = update(_grants).where(_grants.c.id == held.id, _grants.c.asked == held.asked)
        values = {"wanted": " ".join(union(held.wanted, missing)), "asked": held.asked + 1}
        await self._store.write_rows(lambda connection: connection.execute(changed.values(values)))
        return NeedsSignIn(held.server_id, held.server)

    async def _refreshed(self, held: _Held, user_id: int | None) -> _Held:
        """The grant with a newer token; calls of this process that want the same one wait for one refresh."""
        key = held.id, held.version
        task = self._refreshes.get(key)
        if task is None:
            task = self._refreshes[key] = asyncio.create_task(self._refresh(held))
            task.add_done_callback(lambda ended: self._ended(key, ended))
        await asyncio.shield(task)
        return await self._find(held.server_id, user_id)

    def _ended(self, key: tuple[str, int], task: asyncio.Task[None]) -> None:
        self._refreshes.pop(key, None)
        if not task.cancelled():
            task.exception()  # Whoever waits gets it; if nobody does any more, it is no news.

    async def _refresh(self, held: _Held) -> None:
        """Returns when the grant has a newer token, or none that can be used; one process asks for it."""
        pause, give_up_at = _FIRST_PAUSE, time.monotonic() + 2 * self._lease_seconds
        condition, version = _grants.c.id == held.id, held.version
        while time.monotonic() < give_up_at:
            now = await self._store.read_rows(lambda connection: _read(connection, condition))
            if now is None or not now.is_usable or now.version != version:
                return
            if now.lease_seconds is None:
                lease = new_id()
                if await self._take(now, lease):
                    await self._renew(now, lease)
                    return
            elif now.lease_seconds < 0:
                # Its process died between the request and the write: the refresh token may be spent.
                await self._use_up(now, None, "a refresh was interrupted")
                return
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
        raise ToolFailed(f"the sign-in at the MCP server {held.server} cannot be refreshed now; try again")

    async def _take(self, held: _Held, lease: str) -> bool:
        def work(connection: Connection) -> bool:
            free = and_(
                _grants.c.id == held.id,
                _grants.c.version == held.version,
                _grants.c.state == GrantState.READY.value,
                _grants.c.lease.is_(None),
            )
            values = {"lease": lease, "lease_until": database_time(connection) + self._lease_seconds}
            return connection.execute(update(_grants).where(free).values(values)).rowcount == 1

        return await self._store.write_rows(work)

    async def _renew(self, held: _Held, lease: str) -> None:
        """Asks for new tokens under the lease and stores them. Raises ToolFailed if none can be had now."""
        old = self._secrets(held)
        if not old.refresh:
            await self._use_up(held, lease, "it has expired")
            return
        form = refresh_form(old.client, old.refresh, old.resource)
        try:
            issued = await self._requests.tokens(old.token_endpoint, old.client, form)
        except TokensLost as error:
            await self._use_up(held, lease, error.message)
        except (Unreachable, NotSent) as error:
            await self._write(held, lease, {})
            raise ToolFailed(f"the sign-in at {held.server} cannot be refreshed: {error.message}") from error
        except TokenRefused as error:
            await self._use_up(held, lease, error.message)
            if error.error == "invalid_client":
                await self._store.write_rows(lambda connection: _forget_client(connection, held.id))
        except SignInFailed as error:
            await self._use_up(held, lease, error.message)
        else:
            await self._store_tokens(held, lease, old, issued)

    async def _store_tokens(self, held: _Held, lease: str, old: GrantSecrets, issued: IssuedTokens) -> None:
        new = msgspec.structs.replace(old, access=issued.access, refresh=issued.refresh or old.refresh)
        scopes = held.scopes if issued.scopes is None else issued.scopes
        values = {
            "secrets": self.seal(held.id, new),
            "version": held.version + 1,
            "scopes": " ".join(scopes),
            "seconds": issued.seconds,
        }
        if not await self._write(held, lease, values):
            logger.warning("mcp_refresh_too_late", server_id=held.server_id)

    def seal(self, grant_id: str, secrets: GrantSecrets) -> str:
        """The secrets as the row of this grant has them."""
        return self._vault.seal(msgspec.json.encode(secrets).decode(), identity=identity_of(grant_id))

    async def _use_up(self, held: _Held, lease: str | None, reason: str) -> None:
        """The tokens can be used no more; nothing of them is kept."""
        logger.warning("mcp_sign_in_needed", server=held.server, server_id=held.server_id, reason=reason)
        values = {"state": GrantState.NEEDS_SIGN_IN.value, "version": held.version + 1, "secrets": ""}
        await self._write(held, lease, values)

    async def _write(self, held: _Held, lease: str | None, values: dict[str, Any]) -> bool:
        """Changes the grant and ends its lease, if it still is this one; None: one that has ended. Whether it
        was. Tries again after a failure of the database: the answer exists only here."""

        def work(connection: Connection) -> bool:
            now = database_time(connection)
            changes = dict(values, lease=None, lease_until=None, updated_at=utc_now())
            if "seconds" in values:
                seconds = changes.pop("seconds")
                changes["expires_at"] = None if seconds is None else now + seconds
            mine = _grants.c.lease_until < now if lease is None else _grants.c.lease == lease
            condition = and_(_grants.c.id == held.id, _grants.c.version == held.version, mine)
            return connection.execute(update(_grants).where(condition).values(changes)).rowcount == 1

        for attempt in range(_WRITE_TRIES):
            try:
                return await self._store.write_rows(work)
            except SQLAlchemyError:
                if attempt == _WRITE_TRIES - 1:
                    raise
                await asyncio.sleep(_LONGEST_PAUSE)
        return False


def _read(connection: Connection, condition: ColumnElement[bool]) -> _Held | None:
    """The grant, usable only at the URL at which its user signed in."""
    now = database_time(connection).label("now")
    joined = select(_grants, _servers.c.name, _servers.c.url.label("server_url"), now).join(
        _servers, _servers.c.id == _grants.c.server_id
    )
    row = connection.execute(joined.where(condition)).first()
    if row is None:
        return None
    return _Held(
        id=row.id,
        server_id=row.server_id,
        server=row.name,
        is_usable=row.state == GrantState.READY.value and row.url == row.server_url,
        version=row.version,
        sealed=row.secrets,
        scopes=scopes_of(row.scopes),
        wanted=scopes_of(row.wanted),
        asked=row.asked,
        seconds=None if row.expires_at is None else row.expires_at - row.now,
        lease_seconds=None if row.lease_until is None else row.lease_until - row.now,
    )


def _forget_client(connection: Connection, grant_id: str) -> None:
    """Deletes the registration that this grant was made with: the authorization server does not know it."""
    of_grant = (
        select(_clients.c.id)
        .join(_servers, _servers.c.tenant_id == _clients.c.tenant_id)
        .join(_grants, and_(_grants.c.server_id == _servers.c.id, _grants.c.issuer == _clients.c.issuer))
        .where(_grants.c.id == grant_id)
    )
    connection.execute(delete(_clients).where(_clients.c.id.in_(of_grant)))
