"""A process of a test that makes calls with the grant of a user, or dies before it stores its refresh.

Arguments: the database and its secret, the seconds of a lease, the port of the server, its id, the user, how
many calls; and `dies`. It imports little, because three of them start at once.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from luxx.domain.mcp.oauth.grants import McpGrants
from luxx.domain.mcp.oauth.http import OAuthHttp
from luxx.domain.mcp.oauth.requests import ClientIdentity, IssuedTokens
from luxx.infra.secrets import Vault
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.providers.addresses import AddressGuard


class Dying(OAuthHttp):
    """Ends its process when it has the answer."""

    async def tokens(self, endpoint: str, client: ClientIdentity, form: Mapping[str, str]) -> IssuedTokens:
        await super().tokens(endpoint, client, form)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


async def main(
    url: str, secret: str, lease: str, port: str, server_id: str, user_id: str, calls: str, *options: str
) -> None:
    store = Store(open_engine(resolve_url(url, Path.cwd())))
    http = (Dying if "dies" in options else OAuthHttp)(AddressGuard(store, [f"127.0.0.1:{port}"]))
    grants = McpGrants(store, Vault(secret), http, lease_seconds=float(lease))
    made = [grants.authorization(server_id, int(user_id)) for _ in range(int(calls))]
    found = [one for one in await asyncio.gather(*made) if one is not None]
    tokens, versions = {one.header for one in found}, {one.version for one in found}
    print(f"{len(found)} calls with {len(tokens)} token, version {max(versions)}")
    await grants.close()
    store.close()


asyncio.run(main(*sys.argv[1:]))
