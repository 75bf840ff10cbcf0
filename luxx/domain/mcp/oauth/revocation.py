"""Revoking the tokens of ended sign-ins at the authorization servers that issued them (RFC 7009).

The sign-in has ended here already; a token that could not be revoked ends when it expires.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from luxx.domain.mcp.oauth.metadata import IssuerMetadata
from luxx.domain.mcp.oauth.requests import ClientIdentity, revocation_form
from luxx.domain.mcp.sign_in import EndedSignIn
from luxx.errors import LuxxError

REVOKE_SECONDS = 8.0
"""How long the end of a sign-in may take, of all that end together."""


class EndedTokens(EndedSignIn, frozen=True, kw_only=True):
    """The tokens of a sign-in that has ended."""

    client: ClientIdentity
    access: str
    refresh: str

    def __repr__(self) -> str:
        return f"EndedTokens({self.issuer!r})"


class RevocationRequests(Protocol):
    """Asks authorization servers. Both raise LuxxError."""

    async def issuer_metadata(self, issuer: str) -> IssuerMetadata: ...

    async def revoke(self, endpoint: str, client: ClientIdentity, form: dict[str, str]) -> None: ...


async def revoke_all(requests: RevocationRequests, ended: Sequence[EndedSignIn]) -> str:
    """Why tokens may still be valid, as a sentence without a period; empty if they are not."""
    problems: list[str] = []

    async def one(sign_in: EndedSignIn) -> None:
        try:
            if isinstance(sign_in, EndedTokens):
                await _revoke(requests, sign_in)
        except LuxxError as error:
            problems.append(error.message)

    tasks = [asyncio.create_task(one(sign_in)) for sign_in in ended]
    if not tasks:
        return ""
    try:
        done, late = await asyncio.wait(tasks, timeout=REVOKE_SECONDS)
    finally:
        for task in tasks:
            task.cancel()
    for task in done:
        task.result()
    problems += ["the authorization server did not answer in time"] * len(late)
    if not problems:
        return ""
    return f"signed out here, but {len(problems)} of {len(tasks)} tokens were not revoked: {problems[0]}"


async def _revoke(requests: RevocationRequests, ended: EndedTokens) -> None:
    metadata = await requests.issuer_metadata(ended.issuer)
    endpoint = metadata.revocation_endpoint
    if not endpoint:
        # Such a server takes back no tokens.
        return
    for kind, token in (("refresh_token", ended.refresh), ("access_token", ended.access)):
        if token:
            await requests.revoke(endpoint, ended.client, revocation_form(ended.client, token, kind))
