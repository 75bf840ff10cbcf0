"""The egress session of one program: which hosts it reached, for whom, how many bytes, with bounds and logs.

Not here: which hosts are allowed (`urls`, `hosts`), the connections themselves (`proxy`).
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import structlog

from luxx.infra.network.hosts import Resolve

MAX_HOSTS = 50
"""Hosts that one session may reach, and refusals that it keeps by name; further ones count as OTHERS."""
OTHERS = "others"
MAX_TEXT = 300

logger = structlog.get_logger()


class ByteLimitExceeded(Exception):
    """The session has used up its bytes."""


class ReachedHost(msgspec.Struct, kw_only=True):
    """A `host:port` that the program connected to. It `sent` and `received` this many bytes."""

    host: str
    connections: int = 0
    sent: int = 0
    received: int = 0


class RefusedHost(msgspec.Struct, kw_only=True):
    """A refused request. `kind` is the code of the error, `reason` a sentence."""

    host: str
    kind: str
    reason: str
    times: int = 0


class EgressCaller(msgspec.Struct, frozen=True, kw_only=True):
    """The user a program runs for, and the tool call that started it."""

    user_id: int
    username: str = ""
    tenant_id: int | None = None
    call_id: str = ""
    tool: str = ""
    run_id: str | None = None


class EgressSession:
    """The network use of one program. `resolve` replaces the guard's DNS lookup."""

    def __init__(self, caller: EgressCaller, resolve: Resolve | None = None) -> None:
        self.caller = caller
        self.resolve = resolve
        self.connections = 0
        self.bytes = 0
        self._hosts: set[str] = set()
        self._reached: dict[str, ReachedHost] = {}
        self._refused: dict[tuple[str, str], RefusedHost] = {}

    @property
    def reached(self) -> list[ReachedHost]:
        return list(self._reached.values())

    @property
    def refused(self) -> list[RefusedHost]:
        return list(self._refused.values())

    def may_connect(self, host_port: str) -> bool:
        """Whether the host is among the first MAX_HOSTS; so the record of hosts is always complete."""
        if len(self._hosts) < MAX_HOSTS:
            self._hosts.add(host_port)
        return host_port in self._hosts

    def record_connection(self, host_port: str) -> ReachedHost:
        if host_port not in self._reached:
            self._reached[host_port] = ReachedHost(host=host_port)
            self._log("egress", host=host_port)
        reached_host = self._reached[host_port]
        reached_host.connections += 1
        return reached_host

    def record_refusal(self, host_port: str, kind: str, reason: str) -> None:
        """Record a refused request; `host_port` may be empty."""
        host = host_port[:MAX_TEXT]
        if (host, kind) not in self._refused and len(self._refused) >= MAX_HOSTS:
            host, kind = OTHERS, OTHERS
        if (host, kind) not in self._refused:
            self._refused[(host, kind)] = RefusedHost(host=host, kind=kind, reason=reason[:MAX_TEXT])
            self._log("egress_refused", host=host, kind=kind)
        self._refused[(host, kind)].times += 1

    def _log(self, event: str, **more: str) -> None:
        caller = self.caller
        logger.info(
            event,
            user_id=caller.user_id,
            call_id=caller.call_id,
            tool=caller.tool,
            run_id=caller.run_id,
            **more,
        )


class Traffic:
    """Counts the bytes of one connection; it is idle only if both directions are."""

    def __init__(self, egress_session: EgressSession, most_bytes: int) -> None:
        self.reached_host: ReachedHost | None = None
        self.last_moved_at = time.monotonic()
        self._egress_session = egress_session
        self._most_bytes = most_bytes

    def count(self, *, sent: int = 0, received: int = 0) -> None:
        """Raises ByteLimitExceeded."""
        self.last_moved_at = time.monotonic()
        self._egress_session.bytes += sent + received
        if self.reached_host is not None:
            self.reached_host.sent += sent
            self.reached_host.received += received
        if self._egress_session.bytes > self._most_bytes:
            raise ByteLimitExceeded


class FairSlots:
    """Shares `total` slots between users: the user with the fewest slots goes first.

    A user who holds as many slots as are free waits for a release, so that one user cannot take all.
    """

    def __init__(self, total: int) -> None:
        self._free = total
        self._in_use: Counter[int] = Counter()
        self._waiting: dict[int, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def hold(self, user_id: int, seconds: float) -> AsyncGenerator[None]:
        """Holds a slot. Raises TimeoutError if none is free within `seconds`."""
        await self._acquire(user_id, seconds)
        try:
            yield
        finally:
            self._release(user_id)

    async def _acquire(self, user_id: int, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user_id, deque()).append(future)
        self._grant()
        try:
            async with asyncio.timeout(seconds):
                await future
        except BaseException:
            if future.done() and not future.cancelled():
                self._release(user_id)
            else:
                self._forget(user_id, future)
            raise

    def _forget(self, user_id: int, future: asyncio.Future[None]) -> None:
        futures = self._waiting.get(user_id, deque())
        # `_grant` may have removed a cancelled one already.
        if future in futures:
            futures.remove(future)
            if not futures:
                del self._waiting[user_id]

    def _release(self, user_id: int) -> None:
        self._free += 1
        self._in_use[user_id] -= 1
        if not self._in_use[user_id]:
            del self._in_use[user_id]
        self._grant()

    def _grant(self) -> None:
        while self._waiting:
            user_id = min(self._waiting, key=self._in_use.__getitem__)
            if self._in_use[user_id] >= self._free:
                return
            future = self._waiting[user_id][0]
            self._forget(user_id, future)
            if not future.cancelled():
                self._free -= 1
                self._in_use[user_id] += 1
                future.set_result(None)
