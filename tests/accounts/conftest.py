"""A small server with accounts and sign-ins only, on a temporary database, driven over HTTP."""

from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from litestar import Litestar
from litestar.connection import ASGIConnection
from litestar.di import Provide
from litestar.handlers import BaseRouteHandler
from litestar.types import Receive, Scope, Send
from migrated_databases import make_ready

import luxx.providers.models  # noqa: F401  (settings point to its table)
from luxx.api.http.authentication import PeerReader, provide_caller, provide_peer, require_sign_in
from luxx.api.http.errors import HANDLERS
from luxx.api.http.request_input import JsonRequest
from luxx.api.routes.audit import record_refusals
from luxx.api.routes.auth import AuthController, KeyController
from luxx.api.routes.setup import SetupController
from luxx.api.routes.users import SettingsController, UserController
from luxx.domain.accounts.administration import Administration, Operator
from luxx.domain.accounts.api_keys import ApiKeyService
from luxx.domain.accounts.authentication import AccountResources, Authenticator, TokenSigner
from luxx.domain.accounts.caller import Caller, RateLimits
from luxx.domain.accounts.passwords import Passwords
from luxx.domain.accounts.rights import AccountChanges, Offboarding
from luxx.domain.accounts.service import AccountService
from luxx.domain.accounts.setup import PasswordSetup
from luxx.domain.accounts.user_data import SettingsService, Workspaces
from luxx.domain.audit import Refusals
from luxx.errors import NotFound
from luxx.infra.bus.core import Bus
from luxx.infra.clock import utc_now
from luxx.infra.config.schema import AuthConfig, LimitsConfig
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.providers.queries import PROVIDERS
from luxx.runs.cancel import cancel_runs_of
from luxx.wire.tool import CommandPermission

SECRET = "a secret of the tests, long enough"
USABLE_PROVIDER = 7


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def __call__(self) -> datetime:
        return utc_now() + self.ahead

    def seconds(self) -> float:
        return self().timestamp()


async def check_provider(caller: Caller, provider_id: int, _field: str) -> None:
    if provider_id != USABLE_PROVIDER:
        raise NotFound(f"there is no provider {provider_id}")


ASKED: ContextVar["AccountServer"] = ContextVar("asked")
"""The server whose request is answered. All share one app, because an app takes 0.15 s to make."""


@cache
def all_routes() -> Litestar:
    """The routes of accounts, with the services of the server that is asked."""

    async def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        await ASKED.get().guard(connection, handler)

    async def after_exception(exception: Exception, scope: Scope) -> None:
        await ASKED.get().record_refusal(exception, scope)

    def service(name: str) -> Provide:
        return Provide(lambda: getattr(ASKED.get(), name), sync_to_thread=False)

    names = ("accounts", "administration", "user_settings", "keys", "password_setup")
    return Litestar(
        [AuthController, KeyController, SettingsController, SetupController, UserController],
        request_class=JsonRequest,
        guards=[guard],
        dependencies={
            **{name: service(name) for name in names},
            "caller": Provide(provide_caller),
            "peer": Provide(provide_peer),
        },
        after_exception=[after_exception],
        exception_handlers=HANDLERS,
        openapi_config=None,
    )


class AccountServer:
    """One server; `client` is a browser or a proxy in front of it."""

    def __init__(
        self, folder: Path, *, auth: AuthConfig, limits: LimitsConfig, trusted_proxies: list[str]
    ) -> None:
        self.clock = Clock()
        self.store = Store(open_engine(resolve_url("sqlite:///./luxx.db", folder)))
        make_ready(self.store.engine)
        self.passwords = Passwords(cost=4)
        self.tokens = TokenSigner(
            SECRET,
            access=timedelta(minutes=auth.access_minutes),
            refresh=timedelta(days=auth.refresh_days),
            clock=self.clock,
        )
        self.workspaces = Workspaces(str(folder / "workspaces"))
        offboarding = Offboarding(cancel_runs_of, PROVIDERS.transfer)
        self.refusals = Refusals(self.store, clock=self.clock.seconds)
        self.stopped: list[int] = []
        resources = AccountResources(
            store=self.store,
            passwords=self.passwords,
            workspaces=self.workspaces,
            limits=RateLimits(limits, clock=self.clock.seconds),
            changes=AccountChanges(Bus("here")),
            refusals=self.refusals,
            clock=self.clock,
        )
        self.password_setup = PasswordSetup(resources, SECRET)
        self.authenticator = Authenticator(resources, self.tokens)
        self.accounts = AccountService(resources, tokens=self.tokens, config=auth)
        self.operator = Operator(resources, offboarding=offboarding, stop_runs=self.stop_runs)
        self.administration = Administration(resources, offboarding=offboarding, stop_runs=self.stop_runs)
        self.user_settings = SettingsService(self.store, check_provider=check_provider, clock=self.clock)
        self.keys = ApiKeyService(resources)
        self.guard = require_sign_in(self.authenticator, PeerReader(trusted_proxies))
        self.record_refusal = record_refusals(self.refusals)

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request with the services of this server."""
        asked = ASKED.set(self)
        try:
            await all_routes()(scope, receive, send)
        finally:
            ASKED.reset(asked)

    async def stop_runs(self, user_id: int) -> None:
        """No runs exist here; records whose runs would be stopped."""
        self.stopped.append(user_id)

    def client(
        self, address: str = "127.0.0.1", token: str | None = None, **headers: str
    ) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app, client=(address, 40_000), raise_app_exceptions=False)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000", headers=sent)

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        address: str = "127.0.0.1",
        **headers: str,
    ) -> httpx.Response:
        async with self.client(address, token, **headers) as client:
            if isinstance(body, bytes):
                return await client.request(
                    method, path, content=body, headers={"Content-Type": "application/json"}
                )
            return await client.request(method, path, json=body)

    async def join(
        self, username: str, *, level: int = 1, password: str = "correct horse", tenant: str | None = None
    ) -> dict[str, Any]:
        """A user with this level, signed in: `{access_token, refresh_token, user, …}`."""
        await self.operator.add_user(username, password, level=CommandPermission(level), tenant=tenant)
        return await self.enter(username, password)

    async def enter(self, username: str, password: str = "correct horse") -> dict[str, Any]:
        answer = await self.ask("POST", "/auth/login", {"username": username, "password": password})
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def close(self) -> None:
        self.passwords.close()
        self.store.close()


@pytest.fixture
def build_server(tmp_path: Path):
    """Creates servers: `build()`, `build(auth={…}, limits={…}, trusted_proxies=[…])`."""
    built: list[AccountServer] = []

    def make(
        auth: dict[str, Any] | None = None,
        limits: dict[str, Any] | None = None,
        trusted_proxies: list[str] | None = None,
    ) -> AccountServer:
        account_server = AccountServer(
            tmp_path,
            auth=msgspec.convert(auth or {}, AuthConfig),
            limits=msgspec.convert({"logins_per_minute": 0, **(limits or {})}, LimitsConfig),
            trusted_proxies=trusted_proxies or [],
        )
        built.append(account_server)
        return account_server

    yield make
    for account_server in built:
        account_server.close()


@pytest.fixture
def account_server(build_server: Callable[..., AccountServer]) -> AccountServer:
    return build_server()
