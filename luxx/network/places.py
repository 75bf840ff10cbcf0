"""Places that users share: many for one who is alone, and some left for whoever comes next."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Places:
    """One who holds as many as are free gets no other before somebody gives one back; who holds the fewest
    goes first."""

    def __init__(self, in_all: int) -> None:
        self._free = in_all
        self._held: Counter[int] = Counter()
        self._waiting: dict[int, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def one(self, user_id: int, seconds: float) -> AsyncGenerator[None]:
        """A place until this is left. Raises TimeoutError if there is none within so many seconds."""
        await self._take(user_id, seconds)
        try:
            yield
        finally:
            self._give_back(user_id)

    async def _take(self, user_id: int, seconds: float) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user_id, deque()).append(turn)
        self._hand_out()
        try:
            async with asyncio.timeout(seconds):
                await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._give_back(user_id)
            else:
                self._forget(user_id, turn)
            raise

    def _forget(self, user_id: int, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(user_id, deque())
        # One that was given up may have been passed over meanwhile.
        if turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[user_id]

    def _give_back(self, user_id: int) -> None:
        self._free += 1
        self._held[user_id] -= 1
        if not self._held[user_id]:
            del self._held[user_id]
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting:
            user_id = min(self._waiting, key=self._held.__getitem__)
            if self._held[user_id] >= self._free:
                return
            turn = self._waiting[user_id][0]
            self._forget(user_id, turn)
            if not turn.cancelled():
                self._free -= 1
                self._held[user_id] += 1
                turn.set_result(None)
