"""What is told to whoever keeps something open for a user: that a sign-in ended or that rights shrank."""

from collections.abc import Callable
from enum import StrEnum

import msgspec

from luxx.accounts.caller import Caller


class Because(StrEnum):
    """Why a sign-in ended or a user's rights shrank."""

    SIGNED_OUT = "signed_out"
    PASSWORD_CHANGED = "password_changed"
    PASSWORD_RESET = "password_reset"
    TOKEN_REUSED = "token_reused"
    DISABLED = "disabled"
    DEMOTED = "demoted"
    MOVED = "moved"
    DELETED = "deleted"


class AccountChange(msgspec.Struct, frozen=True, kw_only=True):
    """Told once it is on disk; it concerns all of a user's sign-ins, `only` one, or all but `spared`."""

    user_id: int
    because: Because
    only: str | None = None
    spared: str | None = None

    def concerns(self, caller: Caller) -> bool:
        """Whether what this caller has open must be cut."""
        return (
            caller.user_id == self.user_id
            and self.only in (None, caller.sign_in_id)
            and self.spared != caller.sign_in_id
        )


class AccountChanges:
    """One per process; other processes learn of a change by asking again (`AccountService.recheck`)."""

    def __init__(self) -> None:
        self._subscribers: list[Callable[[AccountChange], None]] = []

    def subscribe(self, callback: Callable[[AccountChange], None]) -> Callable[[], None]:
        """`callback` runs on the event loop after each change; the answer ends the subscription."""
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    def tell(self, change: AccountChange) -> None:
        for callback in tuple(self._subscribers):
            callback(change)
