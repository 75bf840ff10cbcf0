"""Notifies whoever keeps a stream or socket open for a user that a sign-in ended or rights shrank."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum

import msgspec
import structlog
from sqlalchemy import Row, bindparam, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import SignIn, User
from luxx.infra.bus.core import Bus

TOPIC = "account"

logger = structlog.get_logger()


class RevocationReason(StrEnum):
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
    """Published once it is on disk. It concerns all of a user's sign-ins, `only` one, or all but `spared`."""

    user_id: int
    because: RevocationReason
    only: str | None = None
    spared: str | None = None

    def concerns(self, caller: Caller) -> bool:
        """Whether the streams and sockets of this caller must be closed."""
        return (
            caller.user_id == self.user_id
            and self.only in (None, caller.sign_in_id)
            and self.spared != caller.sign_in_id
        )


class AccountChanges:
    """One per process. Publishes to other processes over the bus; while the bus is down, they learn of a
    change from their periodic `AccountService.recheck`."""

    def __init__(self, bus: Bus) -> None:
        self._subscribers: list[Callable[[AccountChange], None]] = []
        self._bus = bus
        bus.on(TOPIC, self._on_message)

    def subscribe(self, callback: Callable[[AccountChange], None]) -> Callable[[], None]:
        """`callback` runs on the event loop after each change; call the return value to unsubscribe."""
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    def publish(self, change: AccountChange) -> None:
        """Notifies every subscriber of this process and of the others."""
        if not self._bus.is_alone:
            self._bus.publish(TOPIC, msgspec.json.encode(change))
        self._notify_subscribers(change)

    def _on_message(self, _process: str, payload: bytes) -> None:
        try:
            self._notify_subscribers(msgspec.json.decode(payload, type=AccountChange))
        except msgspec.DecodeError as error:
            # Sent by another version of Luxx.
            logger.warning("account_change_invalid", error=str(error))

    def _notify_subscribers(self, change: AccountChange) -> None:
        for callback in tuple(self._subscribers):
            callback(change)


BATCH_SIZE = 500

_U, _S = User.__table__.c, SignIn.__table__.c
_VALID_SIGN_INS = (
    select(_S.id, _U.permission_level, _U.tenant_id)
    .select_from(SignIn.__table__.join(User.__table__, _S.user_id == _U.id))
    .where(
        _S.id.in_(bindparam("ids", expanding=True)),
        _S.revoked_at.is_(None),
        _S.expires_at > bindparam("now"),
        _U.is_active,
    )
)


def revoked_callers(session: Session, callers: Sequence[Caller], now: datetime) -> set[Caller]:
    """The callers whose sign-in ended, who were disabled or moved, or whose level is lower than before."""
    ids = sorted({caller.sign_in_id for caller in callers})
    valid_sign_ins = {row.id: row for row in _rows(session, ids, now)}
    return {
        caller for caller in callers if not _is_still_valid(caller, valid_sign_ins.get(caller.sign_in_id))
    }


def _rows(session: Session, ids: list[str], now: datetime) -> Iterator[Row[str, int, int]]:
    connection = session.connection()
    for first in range(0, len(ids), BATCH_SIZE):
        yield from connection.execute(_VALID_SIGN_INS, {"ids": ids[first : first + BATCH_SIZE], "now": now})


def _is_still_valid(caller: Caller, row: Row[str, int, int] | None) -> bool:
    return (
        row is not None
        and row.permission_level >= caller.permission_level
        and row.tenant_id == caller.tenant_id
    )
