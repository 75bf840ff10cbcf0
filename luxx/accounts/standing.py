"""Who of many may still keep open what they have open: asked in one go, for what is open for hours."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from sqlalchemy import Row, bindparam, select
from sqlalchemy.orm import Session

from luxx.accounts.caller import Caller
from luxx.accounts.models import SignIn, User

AT_ONCE = 500

_U, _S = User.__table__.c, SignIn.__table__.c
_STANDING = (
    select(_S.id, _U.permission_level, _U.tenant_id)
    .select_from(SignIn.__table__.join(User.__table__, _S.user_id == _U.id))
    .where(
        _S.id.in_(bindparam("ids", expanding=True)),
        _S.revoked_at.is_(None),
        _S.expires_at > bindparam("now"),
        _U.is_active,
    )
)


def fallen(session: Session, callers: Sequence[Caller], now: datetime) -> set[Caller]:
    """Those whose sign-in has ended, who were disabled or moved, or who may do less than they could."""
    ids = sorted({caller.sign_in_id for caller in callers})
    standing = {row.id: row for row in _rows(session, ids, now)}
    return {caller for caller in callers if not _stands(caller, standing.get(caller.sign_in_id))}


def _rows(session: Session, ids: list[str], now: datetime) -> Iterator[Row[str, int, int]]:
    connection = session.connection()
    for first in range(0, len(ids), AT_ONCE):
        yield from connection.execute(_STANDING, {"ids": ids[first : first + AT_ONCE], "now": now})


def _stands(caller: Caller, row: Row[str, int, int] | None) -> bool:
    return (
        row is not None
        and row.permission_level >= caller.permission_level
        and row.tenant_id == caller.tenant_id
    )
