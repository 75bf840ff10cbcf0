"""Whether programs of this server have a way out, and serving it for one jail at a time.

Which hosts it leads to is the configuration's to say, what goes through it the proxy's to judge.
"""

import asyncio
import shutil
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import structlog

from luxx.errors import ConfigError, InvalidInput, ToolFailed
from luxx.infra.config.schema import ToolsConfig
from luxx.infra.network.egress import Outing, Traveller
from luxx.infra.network.hosts import Resolve, WebGuard
from luxx.infra.network.proxy import PolicyProxy, ProxyBounds
from luxx.infra.network.urls import AllowList
from luxx.tools.sandbox.plan import Backend, Limits, Order
from luxx.tools.sandbox.process import Jail
from luxx.tools.web.visitors import Lookups

KEY = "tools.network_allow"
_PROBE = Limits(seconds=10, cpu_seconds=10)

logger = structlog.get_logger()


async def tell_nobody(outing: Outing) -> None:
    """The `on_ended` of a server that keeps no record of outings."""


class WayOut:
    """One per server; `backend` gives the one in force. Raises ConfigError for an entry that is no host.

    `resolve_for` stands in for the lookups of each user, and `bounds` for the usual ones.
    """

    def __init__(
        self,
        config: ToolsConfig,
        backend: Callable[[], Backend | None],
        *,
        resolve_for: Callable[[int], Resolve] | None = None,
        bounds: ProxyBounds | None = None,
    ) -> None:
        self.hosts = tuple(config.network_allow)
        self.on_ended: Callable[[Outing], Coroutine[Any, Any, None]] = tell_nobody
        """Told of each outing that ended."""
        self._has_doors = False
        self._failure = ""
        self._tellings: set[asyncio.Task[None]] = set()
        self._backend = backend
        self._proxy: PolicyProxy | None = None
        if self.hosts:
            try:
                allow = AllowList(self.hosts)
            except InvalidInput as error:
                raise ConfigError(f"{KEY}: {error.message}") from error
            self._proxy = PolicyProxy(allow, WebGuard(config.web_allow_private), bounds)
            self._resolve_for = resolve_for or Lookups().of

    @property
    def is_wanted(self) -> bool:
        """Whether hosts are listed."""
        return bool(self.hosts)

    async def open(self) -> None:
        """Finds out whether jails can be given a door here, where hosts are listed."""
        backend = self._backend()
        if not self.is_wanted or backend is None or not backend.has_doors:
            return
        program = shutil.which("true", path="/usr/bin:/bin") or "true"
        order = Order(argv=(program,), workspace=None, limits=_PROBE, has_door=True)
        try:
            jail = await Jail.start(backend.spec(order))
            await jail.run(b"", _PROBE)
        except (ToolFailed, OSError) as error:
            logger.warning("no_way_out", error=str(error))
            self._failure = f"there is no network: no jail can be given a way out here ({error})"
        else:
            self._has_doors = True

    @property
    def is_open(self) -> bool:
        return self._has_doors

    @property
    def problem(self) -> str:
        """Why programs have no way out though hosts are listed; empty where they have."""
        backend = self._backend()
        if not self.is_wanted or self.is_open or backend is None:
            return ""
        if backend.name == "none":
            return f"without a sandbox programs reach whatever Luxx can, and {KEY} bounds nothing"
        return self._failure or f"there is no network: {KEY} needs bubblewrap, and {backend.name} is in force"

    def outing(self, traveller: Traveller) -> Outing | None:
        """For one program; None where hosts are not listed."""
        return Outing(traveller, self._resolve_for(traveller.user_id)) if self.is_wanted else None

    @asynccontextmanager
    async def served(self, jail: Jail, outing: Outing | None) -> AsyncGenerator[None]:
        """The jail's way out leads as far as the outing may go, until this is left."""
        door = jail.door()
        if door is None or outing is None or self._proxy is None:
            if door is not None:
                door.close()
            yield
            return
        try:
            async with self._proxy.serving(door, outing):
                yield
        finally:
            # Told also of a call that was cancelled, which must not wait for it.
            telling = asyncio.create_task(self.on_ended(outing))
            self._tellings.add(telling)
            telling.add_done_callback(self._tellings.discard)

    async def close(self) -> None:
        """Returns when all outings that ended have been told of."""
        await asyncio.gather(*self._tellings, return_exceptions=True)
