"""`/auth/…`, `/keys` and `WS /ws`: sign-in, the own password and API keys, tickets and sockets. `users.py`
administers users.

`http/websockets.py` handles the messages of a socket.
"""

from datetime import datetime
from typing import Annotated, Any

import msgspec
from litestar import Controller, WebSocket, delete, get, post, websocket
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import Meta
from sqlalchemy.exc import SQLAlchemyError

from luxx.api.http.authentication import (
    KEY_SCOPE,
    NO_KEY,
    PASSWORD_CHANGE_EXEMPT,
    PEER,
    PUBLIC,
    check_password_changed,
)
from luxx.api.http.envelope import Page, Success, page_of, success
from luxx.api.http.request_input import InjectedCaller, PageNumber, PageSize, TextId
from luxx.api.http.websockets import CLOSE_SIGN_IN_AGAIN, CLOSE_TRY_AGAIN_LATER, CloseReason, Sockets
from luxx.domain.accounts.api_keys import ApiKeyService, ApiKeyView, CreatedApiKey, NewApiKey
from luxx.domain.accounts.authentication import Authenticator, Ticket, TicketService, check_peer
from luxx.domain.accounts.caller import Caller, KeyScope, Peer
from luxx.domain.accounts.passwords import DEFAULT_PASSWORD, LONGEST_PASSWORD, MIN_PASSWORD_LENGTH
from luxx.domain.accounts.service import AccountService, SignedIn
from luxx.domain.accounts.setup import PasswordSetup
from luxx.domain.accounts.users import EMAIL, USERNAME, UserView
from luxx.errors import LuxxError, TooMany
from luxx.infra.strict_json import IN_NAME, NAME

InjectedAccounts = NamedDependency[AccountService]
InjectedPeer = NamedDependency[Peer]

Username = Annotated[
    str, Meta(pattern=rf"^{USERNAME}$(?!\n)", description="3 to 64 letters a-z, digits, '.', '_' and '-'")
]
NewPassword = Annotated[str, Meta(min_length=MIN_PASSWORD_LENGTH, max_length=LONGEST_PASSWORD)]
TriedPassword = Annotated[str, Meta(max_length=LONGEST_PASSWORD)]
Email = Annotated[
    str,
    Meta(
        pattern=rf"^{EMAIL}$(?!\n)", max_length=254, description="an e-mail address, such as name@example.org"
    ),
]


class RegisterBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    username: Username
    password: NewPassword
    email: Email | None = None


class LoginBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Accepts any text: an impossible username fails like a wrong one."""

    username: Annotated[str, Meta(max_length=200)]
    password: TriedPassword


class RefreshBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    refresh_token: Annotated[str, Meta(max_length=10_000)]


class PasswordBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    current_password: TriedPassword
    new_password: NewPassword


class DefaultSignIn(msgspec.Struct, frozen=True, kw_only=True):
    """The published name and password of the first administrator."""

    username: str
    password: str


class SignInOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a user can get in. `default`: the default sign-in while it stands, for clients on this machine."""

    is_registration_open: bool
    default: DefaultSignIn | None


class AuthController(Controller):
    path = "/auth"
    tags = ("auth",)

    @get("/options", opt={PUBLIC: True})
    async def options(
        self, accounts: InjectedAccounts, peer: InjectedPeer, password_setup: NamedDependency[PasswordSetup]
    ) -> Success[SignInOptions]:
        """What a sign-in page offers: registration, and the default password while it stands."""
        name = await password_setup.default_username() if peer.is_direct else None
        default = None if name is None else DefaultSignIn(username=name, password=DEFAULT_PASSWORD)
        is_open = await accounts.is_registration_open()
        return success(SignInOptions(is_registration_open=is_open, default=default))

    @post("/register", status_code=200, opt={PUBLIC: True})
    async def register(
        self, accounts: InjectedAccounts, peer: InjectedPeer, data: JSONBody[RegisterBody]
    ) -> Success[SignedIn]:
        """Create an account and sign in with it."""
        return success(await accounts.register(peer, data.username, data.password, data.email), "welcome")

    @post("/login", status_code=200, opt={PUBLIC: True})
    async def login(
        self, accounts: InjectedAccounts, peer: InjectedPeer, data: JSONBody[LoginBody]
    ) -> Success[SignedIn]:
        """Sign in with a username and a password."""
        return success(await accounts.sign_in(peer, data.username, data.password), "signed in")

    @post("/refresh", status_code=200, opt={PUBLIC: True})
    async def refresh(
        self, accounts: InjectedAccounts, peer: InjectedPeer, data: JSONBody[RefreshBody]
    ) -> Success[SignedIn]:
        """Exchange a refresh token, which is valid once, for new tokens."""
        return success(await accounts.refresh(peer, data.refresh_token), "refreshed")

    @post("/logout", status_code=200, opt={PASSWORD_CHANGE_EXEMPT: True, KEY_SCOPE: NO_KEY})
    async def logout(self, accounts: InjectedAccounts, caller: InjectedCaller) -> Success[None]:
        """End this sign-in and revoke its access and refresh tokens."""
        await accounts.sign_out(caller)
        return success(None, "signed out")

    @post("/password", status_code=200, opt={PASSWORD_CHANGE_EXEMPT: True, KEY_SCOPE: NO_KEY})
    async def password(
        self,
        accounts: InjectedAccounts,
        caller: InjectedCaller,
        peer: InjectedPeer,
        data: JSONBody[PasswordBody],
    ) -> Success[UserView]:
        """Change your own password; all other sign-ins end."""
        user = await accounts.change_password(caller, peer, data.current_password, data.new_password)
        return success(user, "password changed; all other sign-ins have ended")

    @get("/me", opt={PASSWORD_CHANGE_EXEMPT: True})
    async def me(self, accounts: InjectedAccounts, caller: InjectedCaller) -> Success[UserView]:
        """The signed-in user."""
        return success(await accounts.me(caller))


REASON_BYTES = 123
"""The most bytes that a close frame can contain."""

DATABASE_UNAVAILABLE = CloseReason(
    CLOSE_TRY_AGAIN_LATER, "the database does not answer; try again in a moment"
)


class SocketController(Controller):
    path = "/"
    tags = ("auth",)

    @post("/auth/ticket", status_code=200, opt={KEY_SCOPE: KeyScope.READ})
    async def ticket(
        self, caller: InjectedCaller, tickets: NamedDependency[TicketService]
    ) -> Success[Ticket]:
        """Get a ticket that opens one socket, `WS /ws?token=<ticket>`, within 30 seconds."""
        return success(await tickets.issue(caller))

    # Public, because browsers cannot send an Authorization header here; the ticket identifies the caller.
    @websocket("/ws", opt={PUBLIC: True})
    async def socket(
        self,
        socket: WebSocket[Any, Any, Any],
        authenticator: NamedDependency[Authenticator],
        tickets: NamedDependency[TicketService],
        sockets: NamedDependency[Sockets],
    ) -> None:
        """Refuses with a close code after the handshake: browsers do not expose a handshake's status."""
        caller_or_close = await _authenticate(socket, authenticator, tickets)
        await socket.accept()
        if isinstance(caller_or_close, Caller):
            await sockets.serve(caller_or_close, socket.receive, socket.send)
        else:
            await socket.close(caller_or_close.code, caller_or_close.reason)


async def _authenticate(
    socket: WebSocket[Any, Any, Any], authenticator: Authenticator, tickets: TicketService
) -> Caller | CloseReason:
    peer: Peer = socket.scope["state"][PEER]
    try:
        caller = await tickets.redeem(socket.query_params.get("token") or "", peer)
        check_peer(peer, has_default_password=caller.has_default_password)
        check_password_changed(caller)
        authenticator.count_request(caller)
    except TooMany as error:
        return _close_reason(CLOSE_TRY_AGAIN_LATER, error)
    except LuxxError as error:
        return _close_reason(CLOSE_SIGN_IN_AGAIN, error)
    except SQLAlchemyError:
        return DATABASE_UNAVAILABLE
    return caller


def _close_reason(code: int, error: LuxxError) -> CloseReason:
    return CloseReason(code, error.message.encode()[:REASON_BYTES].decode(errors="ignore"))


InjectedKeys = NamedDependency[ApiKeyService]
KeyName = Annotated[str, Meta(min_length=1, max_length=100, pattern=NAME, description=IN_NAME)]
Expiry = Annotated[datetime, Meta(tz=True)]


class NewKeyBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Without `expires_at` the key stays valid until it is revoked."""

    name: KeyName
    scopes: Annotated[list[KeyScope], Meta(min_length=1, max_length=len(KeyScope))]
    expires_at: Expiry | None = None


class KeyController(Controller):
    path = "/keys"
    tags = ("keys",)

    @get()
    async def list_keys(
        self, caller: InjectedCaller, keys: InjectedKeys, page: PageNumber = 1, page_size: PageSize = 20
    ) -> Success[Page[ApiKeyView]]:
        """Your API keys, newest first, without their secrets."""
        return page_of(await keys.list_keys(caller, page=page, page_size=page_size), page, page_size)

    @post(status_code=201, opt={KEY_SCOPE: NO_KEY})
    async def create(
        self, caller: InjectedCaller, keys: InjectedKeys, data: JSONBody[NewKeyBody]
    ) -> Success[CreatedApiKey]:
        """Create an API key. The answer has the key, which the server does not show again.

        Needs the token of a sign-in: a key cannot create keys.
        """
        new = NewApiKey(name=data.name, scopes=data.scopes, expires_at=data.expires_at)
        return success(await keys.create(caller, new), "created; copy the key now, it is not shown again")

    @delete("/{key_id:str}", status_code=200)
    async def revoke(self, caller: InjectedCaller, keys: InjectedKeys, key_id: TextId) -> Success[None]:
        """Revoke an API key: requests with it are refused at once, its streams and sockets end."""
        await keys.revoke(caller, key_id)
        return success(None, "revoked")
