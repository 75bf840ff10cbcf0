"""Passwords: which ones are accepted, and hashing off the event loop.

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
from typing import TypeVar

import bcrypt

from luxx.errors import InvalidInput, TooMany

T = TypeVar("T")

DEFAULT_ADMIN = "admin"
DEFAULT_PASSWORD = "admin123"
MIN_PASSWORD_LENGTH = 8
LONGEST_PASSWORD = 1024
QUEUE = 32
"""Maximum passwords that wait or are being hashed; with two threads at cost 12 the last waits 4 s."""


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
    elif any(unicodedata.category(character) == "Cs" for character in password):
        problem = "the password contains an invalid character (half of a surrogate pair); type it again"
    else:
        return
    raise InvalidInput(problem, kind="password_refused", field=where)


class Passwords:
    """Hashes and checks passwords on its own threads, behind a bounded queue."""

    def __init__(self, *, cost: int, threads: int | None = None, queue: int = QUEUE) -> None:
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
