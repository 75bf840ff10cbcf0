"""Who asks. Every service takes the caller first."""

import msgspec

from luxx.errors import NotAllowed
from luxx.wire.tool import CommandPermission


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """A signed-in user, as read from the database at this request (never from the token alone)."""

    user_id: int
    tenant_id: int
    username: str
    permission_level: CommandPermission
    sign_in_id: str
    must_change_password: bool = False

    @property
    def is_admin(self) -> bool:
        return self.permission_level >= CommandPermission.ADMIN

    def require(self, level: CommandPermission) -> None:
        """Raises NotAllowed below `level`."""
        if self.permission_level < level:
            raise NotAllowed(
                f"this needs permission level {level} ({level.name}); yours is {int(self.permission_level)}; "
                "an administrator can raise it"
            )
