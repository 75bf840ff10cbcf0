"""A real MCP server with its own authorization server, both of the official SDK, in a thread of the test.

Whoever opens the authorization address is `person` and agrees. Refresh tokens are used once; a second use is
counted, and ends the whole family, as at providers that look for stolen tokens.
"""

import asyncio
import secrets
import threading
import time
from collections import Counter
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import httpx
import uvicorn
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    TokenError,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions, RevocationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from mcp_types import ToolAnnotations
from pydantic import AnyHttpUrl

CANARY = "canary-of-a-token"
"""In each token that this server issues."""

Reply = tuple[int, dict[str, str], bytes]


class Issuer(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """The authorization server's memory."""

    def __init__(self) -> None:
        self.url = ""
        self.person = "ann"
        self.seconds: int | None = 3600
        self.says_issuer = True
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.refresh: dict[str, RefreshToken] = {}
        self.access: dict[str, AccessToken] = {}
        self.spent: set[str] = set()
        self.replays = 0

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        assert client_info.client_id is not None
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        code = AuthorizationCode(
            code=secrets.token_urlsafe(32),
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=str(client.client_id),
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
            subject=self.person,
        )
        self.codes[code.code] = code
        more = {"iss": self.url} if self.says_issuer else {}
        return construct_redirect_uri(str(params.redirect_uri), code=code.code, state=params.state, **more)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        return self._issue(authorization_code, authorization_code.scopes)

    async def load_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: str
    ) -> RefreshToken | None:
        if refresh_token in self.spent:
            self.replays += 1
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        if self.refresh.pop(refresh_token.token, None) is None:
            raise TokenError("invalid_grant")
        self.spent.add(refresh_token.token)
        return self._issue(refresh_token, refresh_token.scopes)

    def _issue(self, given: AuthorizationCode | RefreshToken, scopes: list[str]) -> OAuthToken:
        access, refresh = (f"{CANARY}-{kind}-{secrets.token_urlsafe(24)}" for kind in ("access", "refresh"))
        ends = None if self.seconds is None else int(time.time()) + self.seconds
        self.access[access] = AccessToken(
            token=access,
            client_id=given.client_id,
            scopes=scopes,
            resource=given.resource,
            subject=given.subject,
            expires_at=ends,
        )
        self.refresh[refresh] = RefreshToken(
            token=refresh,
            client_id=given.client_id,
            scopes=scopes,
            resource=given.resource,
            subject=given.subject,
        )
        return OAuthToken(
            access_token=access, refresh_token=refresh, expires_in=self.seconds, scope=" ".join(scopes)
        )

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.access.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.access.pop(token.token, None)
        self.refresh.pop(token.token, None)


class OAuthServer:
    """The running server. `requests` counts them by path; `replies` replaces the answer of a path."""

    def __init__(self) -> None:
        self.issuer = Issuer()
        self.requests: Counter[str] = Counter()
        self.replies: dict[str, Reply] = {}
        self.forms: list[dict[str, list[str]]] = []
        self.authorizations: list[str] = []
        self._server = uvicorn.Server(
            uvicorn.Config(self._app, port=0, log_config=None, lifespan="on", interface="asgi3")
        )
        self._server.config.load()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._socket = self._server.config.bind_socket()
        self.port: int = self._socket.getsockname()[1]
        self.origin = f"http://127.0.0.1:{self.port}"
        self.url = f"{self.origin}/mcp"
        self.issuer.url = f"{self.origin}/"
        self._inner = _make_app(self.issuer, self.origin)

    def __enter__(self) -> Self:
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive()
            time.sleep(0.005)
        return self

    def __exit__(self, *reason: object) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()

    def _run(self) -> None:
        asyncio.run(self._server.serve([self._socket]))

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        path = scope["path"]
        self.requests[path] += 1
        self.authorizations += [
            value.decode() for name, value in scope["headers"] if name == b"authorization"
        ]
        if path in self.replies:
            status, headers, body = self.replies[path]
            encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
            await send({"type": "http.response.start", "status": status, "headers": encoded})
            await send({"type": "http.response.body", "body": body})
            return
        if path == "/token":
            receive = await self._noted(receive)
        await self._inner(scope, receive, send)

    async def _noted(self, receive: Any) -> Any:
        message = await receive()
        self.forms.append(parse_qs(message.get("body", b"").decode()))
        pending = [message]

        async def again() -> Any:
            return pending.pop() if pending else await receive()

        return again

    @property
    def refreshes(self) -> int:
        return sum(form["grant_type"] == ["refresh_token"] for form in self.forms)

    def agree(self, authorization_url: str, person: str = "ann") -> dict[str, str]:
        """Opens the address as this person; what the browser would send back to Luxx."""
        self.issuer.person = person
        answer = httpx.get(authorization_url, follow_redirects=False, trust_env=False)
        assert answer.status_code in (302, 307), (answer.status_code, answer.text)
        query = parse_qs(urlsplit(answer.headers["location"]).query)
        return {name: query[name][0] for name in ("state", "code", "iss") if name in query}


def _make_app(issuer: Issuer, origin: str) -> Any:
    server = MCPServer(
        "people",
        auth_server_provider=issuer,
        auth=AuthSettings(
            issuer_url=AnyHttpUrl(issuer.url),
            resource_server_url=AnyHttpUrl(f"{origin}/mcp"),
            client_registration_options=ClientRegistrationOptions(
                enabled=True, valid_scopes=["people", "admin"], default_scopes=["people"]
            ),
            revocation_options=RevocationOptions(enabled=True),
            required_scopes=["people"],
            validate_token_resource=True,
        ),
        log_level="ERROR",
    )

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def who_am_i() -> str:
        """Who you are here."""
        token = get_access_token()
        return f"you are {token.subject if token else 'nobody'}"

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def wait_a_second() -> str:
        """Take a second."""
        await asyncio.sleep(1)
        return "waited"

    return server.streamable_http_app(stateless_http=True, json_response=True)
