"""Personal API keys as credentials: how a key is made and stored, and which caller it stands for.

A key is `luxx_<prefix>_<secret>`. The prefix finds the row; of the secret, 256 random bits, only a hash is
stored. `api_keys.py` creates, lists and revokes keys.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NoReturn

import msgspec
import structlog
from sqlalchemy import Connection, Row, bindparam, or_, select, update
from sqlalchemy.exc import SQLAlchemyError

from luxx.domain.accounts.caller import Caller, KeyScope, Peer
from luxx.domain.accounts.models import ApiKeyRow, User
from luxx.errors import NotSignedIn
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.wire.tool import CommandPermission

KEY_START = "luxx_"
"""With what every key begins. No token does."""

PREFIX_BYTES = 6
SECRET_BYTES = 32
LAST_USE_INTERVAL = timedelta(hours=1)
"""How old `last_used_at` may be before a request with the key writes it again."""

_FORMAT = re.compile(rf"{KEY_START}([0-9a-f]{{{2 * PREFIX_BYTES}}})_[0-9a-f]{{{2 * SECRET_BYTES}}}")

_keys, _users = table_of(ApiKeyRow), table_of(User)
_K, _U = _keys.c, _users.c
_key_query = select(
    _U.id, _U.tenant_id, _U.username, _U.permission_level, _U.is_active, _U.must_change_password,
    _U.has_default_password, _K.id.label("key_id"), _K.key_hash, _K.scopes, _K.expires_at, _K.last_used_at,
).select_from(_keys.join(_users, _K.user_id == _U.id))  # fmt: skip
_by_prefix = _key_query.where(_K.prefix == bindparam("prefix"))
_by_id = _key_query.where(_K.id == bindparam("key_id"))
_is_unexpired = or_(_K.expires_at.is_(None), _K.expires_at > bindparam("now"))
VALID_KEYS = (
    select(_K.id, _U.permission_level, _U.tenant_id)
    .select_from(_keys.join(_users, _K.user_id == _U.id))
    .where(_K.id.in_(bindparam("ids", expanding=True)), _is_unexpired, _U.is_active)
)
"""Those of the keys `ids` that are valid at `now`, with the rights of their users."""

_write_last_use = (
    update(_keys)
    .where(_K.id == bindparam("key_id"))
    .where(or_(_K.last_used_at.is_(None), _K.last_used_at <= bindparam("before")))
    .values(last_used_at=bindparam("now"))
)

logger = structlog.get_logger()


class NewSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A key as its owner sees it once, and what is stored of it."""

    key: str
    prefix: str
    key_hash: str


def new_secret() -> NewSecret:
    """A random key."""
    prefix = secrets.token_hex(PREFIX_BYTES)
    key = f"{KEY_START}{prefix}_{secrets.token_hex(SECRET_BYTES)}"
    return NewSecret(key=key, prefix=prefix, key_hash=_hash_of(key))


def stored_scopes(scopes: Sequence[KeyScope]) -> str:
    """The scopes as the column has them: each once, in a fixed order."""
    return ",".join(scope for scope in KeyScope if scope in scopes)


def scopes_of(stored: str) -> list[KeyScope]:
    """The scopes in a value of the column."""
    return [KeyScope(scope) for scope in stored.split(",")]


def _hash_of(key: str) -> str:
    """SHA-256, because the secret is random: it needs no slow hash as a password does."""
    return hashlib.sha256(key.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class KeyReader:
    """Finds the caller of a key, with one read by index. Times are those of `clock`."""

    store: Store
    clock: Callable[[], datetime]

    async def authenticate(self, key: str, peer: Peer | None) -> Caller:
        """The user of a key, read from the database. Raises NotSignedIn."""
        match = _FORMAT.fullmatch(key)
        row = None if match is None else await self._read(_by_prefix, {"prefix": match.group(1)})
        if row is None or not hmac.compare_digest(row.key_hash, _hash_of(key)):
            _refuse_unknown_key()
        caller = self._caller(row, peer)
        now = self.clock()
        if row.last_used_at is None or now - row.last_used_at >= LAST_USE_INTERVAL:
            await self._record_use(row.key_id, now)
        return caller

    async def caller_of(self, key_id: str, peer: Peer | None) -> Caller:
        """The user of the key with this id, for sockets and streams. Raises NotSignedIn."""
        row = await self._read(_by_id, {"key_id": key_id})
        if row is None:
            _refuse_unknown_key()
        return self._caller(row, peer)

    async def _read(self, query: Any, parameters: dict[str, str]) -> Row[Any] | None:
        def work(connection: Connection) -> Row[Any] | None:
            return connection.execute(query, parameters).one_or_none()

        return await self.store.read_rows(work)

    def _caller(self, row: Row[Any], peer: Peer | None) -> Caller:
        if row.expires_at is not None and row.expires_at <= self.clock():
            raise NotSignedIn("this API key has expired; create another (POST /keys)", kind="key_expired")
        if not row.is_active:
            raise NotSignedIn("this account is disabled; ask an administrator", kind="account_disabled")
        return Caller(
            user_id=row.id,
            tenant_id=row.tenant_id,
            username=row.username,
            permission_level=CommandPermission(row.permission_level),
            sign_in_id=row.key_id,
            key_scopes=frozenset(scopes_of(row.scopes)),
            must_change_password=row.must_change_password,
            has_default_password=row.has_default_password,
            peer=peer,
        )

    async def _record_use(self, key_id: str, now: datetime) -> None:
        """Writes the time of the last use. The request does not fail if the database cannot write it."""
        parameters = {"key_id": key_id, "now": now, "before": now - LAST_USE_INTERVAL}
        try:
            await self.store.write_rows(lambda connection: connection.execute(_write_last_use, parameters))
        except SQLAlchemyError as error:
            logger.warning("key_use_not_recorded", key_id=key_id, error=str(error))


def _refuse_unknown_key() -> NoReturn:
    raise NotSignedIn(
        "this API key is not valid: it was revoked or is not complete; create another (POST /keys)",
        kind="key_invalid",
    )
