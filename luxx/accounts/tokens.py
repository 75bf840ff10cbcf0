"""Access and refresh tokens, made and read. Whether one still holds is in the database: see `service.py`."""

import hashlib
from collections.abc import Callable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import jwt
import msgspec

from luxx.clock import new_id, utc_now
from luxx.errors import NotSignedIn
from luxx.vault import derive_key

ALGORITHM = "HS256"
LONGEST = 4096
LEEWAY_SECONDS = 60
"""How far the clocks of servers may be apart: a token that was made later than now was not made by us."""
CLAIMS = ["exp", "iat", "jti", "sub", "sid", "typ"]


class TokenType(StrEnum):
    ACCESS = "access"
    REFRESH = "refresh"


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """What a token says; times in seconds since 1970. `sid` is the sign-in, `sub` the user's id as text."""

    exp: int
    iat: int
    jti: str
    sub: str
    sid: str
    typ: TokenType


class Tokens:
    """Signs with HS256 and a 32-byte key derived from `app.secret_key`."""

    def __init__(
        self,
        secret: str,
        *,
        access: timedelta = timedelta(minutes=30),
        refresh: timedelta = timedelta(days=30),
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._key = derive_key(secret, "tokens")
        self._lifetime = {TokenType.ACCESS: access, TokenType.REFRESH: refresh}
        self._clock = clock
        self._jwt = jwt.PyJWT()

    def lifetime(self, typ: TokenType) -> timedelta:
        return self._lifetime[typ]

    def make(self, typ: TokenType, *, user_id: int, sign_in_id: str, jti: str | None = None) -> str:
        """A signed token of this kind for this sign-in; `jti` is new unless given."""
        now = self._clock()
        claims = Claims(
            exp=int((now + self._lifetime[typ]).timestamp()),
            iat=int(now.timestamp()),
            jti=jti or new_id(),
            sub=str(user_id),
            sid=sign_in_id,
            typ=typ,
        )
        return self._jwt.encode(msgspec.to_builtins(claims), self._key, algorithm=ALGORITHM)

    def read(self, token: str, typ: TokenType) -> Claims:
        """The claims of a genuine token of this kind that has not expired. Raises NotSignedIn otherwise."""
        claims = self._verified(token)
        if claims.typ is not typ:
            raise NotSignedIn(
                f"this is not an {typ} token" if typ is TokenType.ACCESS else f"this is not a {typ} token",
                kind="token_wrong_type",
            )
        if claims.exp <= self._clock().timestamp():
            raise NotSignedIn("the token has expired; refresh it or sign in again", kind="token_expired")
        if claims.iat > self._clock().timestamp() + LEEWAY_SECONDS:
            raise NotSignedIn(
                "the token is from the future; sign in again, and if that does not help, let an operator set "
                "this server's clock",
                kind="token_invalid",
            )
        return claims

    def _verified(self, token: str) -> Claims:
        try:
            if len(token) > LONGEST:
                raise ValueError("too long for a token of ours")
            payload: dict[str, Any] = self._jwt.decode(
                token,
                self._key,
                algorithms=[ALGORITHM],
                # Times are checked against our own clock, in `read`.
                options={"require": CLAIMS, "verify_exp": False, "verify_iat": False, "verify_nbf": False},
            )
            return msgspec.convert(payload, Claims)
        except (jwt.InvalidTokenError, msgspec.ValidationError, ValueError) as error:
            raise NotSignedIn("the token is not valid; sign in again", kind="token_invalid") from error


def jti_hash(jti: str) -> str:
    """How the database remembers a refresh token: reading the database gives no token."""
    return hashlib.sha256(jti.encode()).hexdigest()
