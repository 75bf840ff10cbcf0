"""Passwords: which are accepted, and hashing them off the event loop.

bcrypt reads 72 bytes at most and stops at NUL, so it is given the base64 of the password's SHA-256.
"""

import asyncio
import base64
import hashlib
import os
import threading
import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import bcrypt

from luxx.errors import InvalidInput, TooMany

T = TypeVar("T")

DEFAULT_ADMIN = "admin"
DEFAULT_PASSWORD = "admin123"
SHORTEST = 8
LONGEST = 1024
COST = 12
"""240 ms on one core: slow enough for an attacker, bearable once per sign-in."""
QUEUE = 32
"""Most passwords waiting or being hashed; at COST on two threads the last waits about four seconds."""


def check_password(password: str, *, username: str, where: str = "$.password") -> None:
    """Raises InvalidInput for a password that nobody may choose; `where` is its JSON path."""
    if len(password) < SHORTEST:
        problem = f"a password needs at least {SHORTEST} characters"
    elif len(password) > LONGEST:
        problem = f"a password may have at most {LONGEST} characters"
    elif password.casefold() == username.casefold():
        problem = "the password must not be the username"
    elif password == DEFAULT_PASSWORD:
        problem = f"'{DEFAULT_PASSWORD}' is the published default; choose another password"
    elif any(unicodedata.category(each) == "Cs" for each in password):
        problem = "the password contains half of a character (a lone surrogate)"
    else:
        return
    raise InvalidInput(problem, kind="password_refused", detail={"fields": {where: problem}})


class Passwords:
    """Hashes and checks on threads of its own, behind a bounded queue."""

    def __init__(self, *, cost: int = COST, threads: int | None = None, queue: int = QUEUE) -> None:
        self._cost = cost
        count = threads or min(2, max(1, (os.cpu_count() or 1) // 2))
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="passwords")
        self._room = threading.BoundedSemaphore(queue)
        # Well-formed but no password's: checking against it takes as long as against a real one.
        self._nobody = f"$2b${cost:02d}$" + "." * 53

    async def hash(self, password: str) -> str:
        """A new salted hash. Raises TooMany while the queue is full."""
        salt = bcrypt.gensalt(self._cost)
        return await self._run(lambda: bcrypt.hashpw(_digest(password), salt).decode())

    async def is_right(self, password: str, password_hash: str | None) -> bool:
        """Whether the password fits. No hash (an unknown user) takes the same time and never fits."""
        known = (password_hash or self._nobody).encode()
        fits = await self._run(lambda: bcrypt.checkpw(_digest(password), known))
        return fits and password_hash is not None

    def close(self) -> None:
        """Ends the threads after what they hold is done."""
        self._threads.shutdown(wait=True)

    async def _run(self, work: Callable[[], T]) -> T:
        if not self._room.acquire(blocking=False):
            raise TooMany("too many sign-ins at once; try again in a moment", retry_after=2)
        try:
            future = self._threads.submit(work)
        except BaseException:
            self._room.release()
            raise
        future.add_done_callback(lambda _: self._room.release())
        return await asyncio.wrap_future(future)


def _digest(password: str) -> bytes:
    composed = unicodedata.normalize("NFC", password).encode("utf-8", "surrogatepass")
    return base64.b64encode(hashlib.sha256(composed).digest())
