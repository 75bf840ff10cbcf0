"""What one program does outside, on whose behalf, and where it went: counted, bounded, told once.

Not here: what it may do (allowlist, guard), how it is done (proxy).
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import structlog

from luxx.infra.network.hosts import Resolve

MOST_PLACES = 50
"""Of one outing, which goes to no more; and its refusals kept by name, the others counted with the last."""
OTHERS = "others"
MOST_WORDS = 300

logger = structlog.get_logger()


class TooMuch(Exception):
    """The outing has used up its bytes."""


class Reached(msgspec.Struct, kw_only=True):
    """A `host:port` that was connected to. `sent` and `received` in bytes, as the program sees it."""

    host: str
    connections: int = 0
    sent: int = 0
    received: int = 0


class Refused(msgspec.Struct, kw_only=True):
    """What was not done. `kind` as errors name it, `reason` a sentence."""

    host: str
    kind: str
    reason: str
    times: int = 0


class Traveller(msgspec.Struct, frozen=True, kw_only=True):
    """For whom a program goes out, in which call of which tool."""

    user_id: int
    username: str = ""
    tenant_id: int | None = None
    call_id: str = ""
    tool: str = ""
    run_id: str | None = None


class Outing:
    """Of one program, from its beginning to its end."""

    def __init__(self, traveller: Traveller, resolve: Resolve | None = None) -> None:
        self.traveller = traveller
        self.resolve = resolve
        self.connections = 0
        self.bytes = 0
        self._places: set[str] = set()
        self._reached: dict[str, Reached] = {}
        self._refused: dict[tuple[str, str], Refused] = {}

    @property
    def reached(self) -> list[Reached]:
        return list(self._reached.values())

    @property
    def refused(self) -> list[Refused]:
        return list(self._refused.values())

    def may_try(self, host_port: str) -> bool:
        """Whether it may go there, too, and so where it was can be told in full."""
        if len(self._places) < MOST_PLACES:
            self._places.add(host_port)
        return host_port in self._places

    def has_reached(self, host_port: str) -> Reached:
        """A connection was made."""
        if host_port not in self._reached:
            self._reached[host_port] = Reached(host=host_port)
            self._tell("egress", host=host_port)
        place = self._reached[host_port]
        place.connections += 1
        return place

    def was_refused(self, host_port: str, kind: str, reason: str) -> None:
        """Something was asked for and not done."""
        host = host_port[:MOST_WORDS]
        if (host, kind) not in self._refused and len(self._refused) >= MOST_PLACES:
            host, kind = OTHERS, OTHERS
        if (host, kind) not in self._refused:
            self._refused[(host, kind)] = Refused(host=host, kind=kind, reason=reason[:MOST_WORDS])
            self._tell("egress_refused", host=host, kind=kind)
        self._refused[(host, kind)].times += 1

    def _tell(self, event: str, **more: str) -> None:
        who = self.traveller
        logger.info(event, user_id=who.user_id, call_id=who.call_id, tool=who.tool, run_id=who.run_id, **more)


class Traffic:
    """The bytes of one connection both ways; idle is it only when both of them are."""

    def __init__(self, outing: Outing, most_bytes: int) -> None:
        self.place: Reached | None = None
        self.moved_at = time.monotonic()
        self._outing = outing
        self._most_bytes = most_bytes

    def moved(self, *, sent: int = 0, received: int = 0) -> None:
        """Raises TooMuch."""
        self.moved_at = time.monotonic()
        self._outing.bytes += sent + received
        if self.place is not None:
            self.place.sent += sent
            self.place.received += received
        if self._outing.bytes > self._most_bytes:
            raise TooMuch


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
