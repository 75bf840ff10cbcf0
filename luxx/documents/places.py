"""Places for processes that read documents: few for all, and fewer for one user, whose own wait in line.

Whoever sends many that take long waits for their own, and stands in the common line once for each place
that they may have.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class _Line:
    def __init__(self, places: int) -> None:
        self.places = asyncio.Semaphore(places)
        self.waiting = 0


class Places:
    """One per kind of document and server."""

    def __init__(self, *, in_all: int, per_user: int, patience: float) -> None:
        self._in_all = asyncio.Semaphore(in_all)
        self._per_user = per_user
        self._patience = patience
        self._lines: dict[int, _Line] = {}

    @asynccontextmanager
    async def of(self, user_id: int) -> AsyncGenerator[None]:
        """A place of theirs. Raises TimeoutError where they would wait for longer than the patience."""
        line = self._lines.setdefault(user_id, _Line(self._per_user))
        line.waiting += 1
        try:
            async with asyncio.timeout(self._patience) as patience, line.places, self._in_all:
                # Waiting is over; how long the work takes is bounded elsewhere.
                patience.reschedule(None)
                yield
        finally:
            line.waiting -= 1
            if not line.waiting:
                self._lines.pop(user_id, None)
