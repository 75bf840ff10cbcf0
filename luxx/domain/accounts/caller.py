"""The caller of a request. Every service method takes the caller first."""

import msgspec

from luxx.domain.accounts.limits import Peer
from luxx.domain.audit.entries import Actor
from luxx.errors import NotAllowed
from luxx.wire.tool import CommandPermission

DEFAULT_TENANT_ID = 1
"""The id of the default tenant; its administrators are the operators of the server."""


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """A signed-in user, as read from the database at this request (never from the token alone)."""

    user_id: int
    tenant_id: int
    username: str
    permission_level: CommandPermission
    sign_in_id: str
    must_change_password: bool = False
    has_default_password: bool = False
    peer: Peer | None = None

    @property
    def is_admin(self) -> bool:
        return self.permission_level >= CommandPermission.ADMIN

    @property
    def is_operator(self) -> bool:
        """An ADMIN of the default tenant: administers all tenants and the server."""
        return self.is_admin and self.tenant_id == DEFAULT_TENANT_ID

    @property
    def actor(self) -> Actor:
        """The caller as the audit log names them."""
        return Actor(
            user_id=self.user_id,
            tenant_id=self.tenant_id,
            username=self.username,
            address=self.peer.address if self.peer else "",
            request_id=self.peer.request_id if self.peer else "",
        )

    def require(self, level: CommandPermission) -> None:
        """Raises NotAllowed below `level`."""
        if self.permission_level < level:
            raise NotAllowed(
                f"this needs permission level {level} ({level.name}); yours is {int(self.permission_level)}; "
                "an administrator can raise it"
            )

    def require_operator(self) -> None:
        """Raises NotAllowed unless the caller is an administrator of the default tenant."""
        if not self.is_operator:
            raise NotAllowed("only an administrator of the default tenant may see or change this")
