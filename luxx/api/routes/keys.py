"""`/keys`: the caller's personal API keys. `http/authentication.py` has which routes a key may use."""

from datetime import datetime
from typing import Annotated

import msgspec
from litestar import Controller, delete, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import Meta

from luxx.api.http.authentication import KEY_SCOPE, NO_KEY
from luxx.api.http.envelope import Page, Success, page_of, success
from luxx.api.http.request_input import InjectedCaller, PageNumber, PageSize, TextId
from luxx.domain.accounts.api_keys import ApiKeyService, ApiKeyView, CreatedApiKey, NewApiKey
from luxx.domain.accounts.caller import KeyScope
from luxx.wire.line import IN_NAME, NAME

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
