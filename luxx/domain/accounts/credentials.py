"""Passwords and tokens: which passwords are accepted, hashing off the event loop, signed JWTs.

bcrypt reads at most 72 bytes and stops at NUL, so it gets the base64 of the password's SHA-256.
"""

import asyncio
import base64
import hashlib
import os
import threading
import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar

import bcrypt
import jwt
import msgspec

from luxx.errors import InvalidInput, NotSignedIn, TooMany
from luxx.infra.clock import new_id, utc_now
from luxx.infra.secrets import derive_key

T = TypeVar("T")

DEFAULT_ADMIN = "admin"
DEFAULT_PASSWORD = "admin123"
MIN_PASSWORD_LENGTH = 8
LONGEST_PASSWORD = 1024
COST = 12
"""240 ms on one core: slow enough for an attacker, bearable once per sign-in."""
QUEUE = 32
"""Maximum passwords that wait or are being hashed; at COST on two threads the last waits four seconds."""


def check_password(password: str, *, username: str, where: str = "$.password") -> None:
    """Raises InvalidInput for an unacceptable password; `where` is its JSON path in the request."""
    if len(password) < MIN_PASSWORD_LENGTH:
        problem = f"a password needs at least {MIN_PASSWORD_LENGTH} characters"
    elif len(password) > LONGEST_PASSWORD:
        problem = f"a password may have at most {LONGEST_PASSWORD} characters"
    elif password.casefold() == username.casefold():
        problem = "the password must not be the username"
    elif password == DEFAULT_PASSWORD:
        problem = f"'{DEFAULT_PASSWORD}' is the published default; choose another password"
    elif any(unicodedata.category(each) == "Cs" for each in password):
        problem = "the password contains an invalid character (half of a surrogate pair); type it again"
    else:
        return
    raise InvalidInput(problem, kind="password_refused", detail={"fields": {where: problem}})


class Passwords:
    """Hashes and checks passwords on its own threads, behind a bounded queue."""

    def __init__(self, *, cost: int = COST, threads: int | None = None, queue: int = QUEUE) -> None:
        self._cost = cost
        count = threads or min(2, max(1, (os.cpu_count() or 1) // 2))
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="passwords")
        self._queue_slots = threading.BoundedSemaphore(queue)
        # A well-formed hash that matches no password: checking it takes as long as checking a real one.
        self._dummy_hash = f"$2b${cost:02d}$" + "." * 53

    async def hash(self, password: str) -> str:
        """A new salted hash. Raises TooMany while the queue is full."""
        salt = bcrypt.gensalt(self._cost)
        return await self._run(lambda: bcrypt.hashpw(_digest(password), salt).decode())

    async def is_correct(self, password: str, password_hash: str | None) -> bool:
        """Whether the password matches. Without a hash (unknown user) it takes equal time and returns
        false."""
        known_hash = (password_hash or self._dummy_hash).encode()
        matches = await self._run(lambda: bcrypt.checkpw(_digest(password), known_hash))
        return matches and password_hash is not None

    def close(self) -> None:
        """Finishes the queued work, then ends the threads."""
        self._threads.shutdown(wait=True)

    async def _run(self, work: Callable[[], T]) -> T:
        if not self._queue_slots.acquire(blocking=False):
            raise TooMany("too many sign-ins at once; try again in a moment", retry_after=2)
        try:
            future = self._threads.submit(work)
        except BaseException:
            self._queue_slots.release()
            raise
        future.add_done_callback(lambda _: self._queue_slots.release())
        return await asyncio.wrap_future(future)


def _digest(password: str) -> bytes:
    composed = unicodedata.normalize("NFC", password).encode("utf-8", "surrogatepass")
    return base64.b64encode(hashlib.sha256(composed).digest())


ALGORITHM = "HS256"
LONGEST_TOKEN = 4096
LEEWAY_SECONDS = 60
"""How far servers' clocks may differ; a token issued later than that after now is refused."""
CLAIMS = ["exp", "iat", "jti", "sub", "sid", "typ"]


class TokenType(StrEnum):
    ACCESS = "access"
    REFRESH = "refresh"


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """The claims of a token; times in seconds since 1970. `sid` is the sign-in, `sub` the user's id as
    text."""

    exp: int
    iat: int
    jti: str
    sub: str
    sid: str
    typ: TokenType


class TokenSigner:
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
        """A signed token of this type for this sign-in; `jti` is new unless given."""
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
        """The claims of a genuine, unexpired token of this type. Raises NotSignedIn otherwise."""
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
                "the token was issued in the future; sign in again; if that does not help, ask "
                "an operator to set this server's clock",
                kind="token_invalid",
            )
        return claims

    def _verified(self, token: str) -> Claims:
        try:
            if len(token) > LONGEST_TOKEN:
                raise ValueError("token too long")
            payload: dict[str, Any] = self._jwt.decode(
                token,
                self._key,
                algorithms=[ALGORITHM],
                # `read` checks the times against our own clock.
                options={"require": CLAIMS, "verify_exp": False, "verify_iat": False, "verify_nbf": False},
            )
            return msgspec.convert(payload, Claims)
        except (jwt.InvalidTokenError, msgspec.ValidationError, ValueError) as error:
            raise NotSignedIn("the token is not valid; sign in again", kind="token_invalid") from error


def jti_hash(jti: str) -> str:
    """The hash under which the database stores a refresh token, so that reading the database gives no
    token."""
    return hashlib.sha256(jti.encode()).hexdigest()
