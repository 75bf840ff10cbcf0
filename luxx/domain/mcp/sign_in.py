"""What connections to MCP servers need of sign-ins: the header of a request, and what a refusal means.

Not here: OAuth itself, which implements these protocols.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.errors import ToolFailed


class NeedsSignIn(ToolFailed):
    """A call cannot go on before its user has signed in at the server."""

    kind = "mcp_sign_in"

    def __init__(self, server_id: str, server: str) -> None:
        super().__init__(f"the MCP server {server} needs you to sign in: POST /mcp/servers/{server}/connect")
        self.server_id = server_id
        self.server = server


class RefusedStranger(ToolFailed):
    """A server without a credential refuses requests of those whom it does not know (status 401). The message
    is a predicate that follows the server's name."""


class Authorization(msgspec.Struct, frozen=True, kw_only=True):
    """The value of the header `Authorization`, and the version of the grant that it is from."""

    header: str
    version: int

    def __repr__(self) -> str:
        return f"Authorization(version={self.version})"


class RefusedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A server's refusal of a request: its status (401, or 403 for missing scopes), the value of its header
    `WWW-Authenticate`, and the version of the grant that the request was sent with; None if with none."""

    status: int
    challenge: str
    version: int | None


class EndedSignIn(msgspec.Struct, frozen=True, kw_only=True):
    """A sign-in that has ended here, and who issued its tokens."""

    issuer: str


class Grants(Protocol):
    """The grants of servers with a credential. `user_id` None: the grant that all users share."""

    async def authorization(self, server_id: str, user_id: int | None) -> Authorization | None:
        """What to send with the next request; None: nothing. Called before each request.

        Raises NeedsSignIn.
        """
        ...

    async def refused(self, server_id: str, user_id: int | None, refusal: RefusedRequest) -> Authorization:
        """What to repeat a refused request with. Called at most once for a request.

        Raises NeedsSignIn.
        """
        ...

    def forget(self, session: Session, server_id: str, user_id: int | None) -> Sequence[EndedSignIn]:
        """Deletes the grant in this transaction, and with None those of all users; returns what can be
        revoked when it is committed."""
        ...

    async def revoke(self, ended: Sequence[EndedSignIn]) -> str:
        """Revokes the tokens of ended sign-ins, within a bounded time. Returns why some may still be valid;
        empty if none is."""
        ...

    async def is_complete(self, server_id: str, user_id: int | None) -> bool:
        """Whether the user need not sign in: there is a grant, and the server wants no more scopes."""
        ...


class SignIns(Protocol):
    """Begins sign-ins."""

    async def begin(self, caller: Caller, server_id: str, base_url: str) -> str:
        """The address at which the caller signs in at this server; it leads back to Luxx at `base_url`.

        Raises Conflict if it cannot be found out, and Unreachable if the server cannot be reached.
        """
        ...
