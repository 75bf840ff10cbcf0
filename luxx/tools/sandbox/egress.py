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
from luxx.infra.network.egress import EgressCaller, EgressSession
from luxx.infra.network.hosts import Resolve, WebGuard
from luxx.infra.network.proxy import PolicyProxy, ProxyBounds
from luxx.infra.network.urls import AllowList
from luxx.tools.sandbox.plan import Backend, ProgramLimits, ProgramSpec
from luxx.tools.sandbox.process import SandboxProcess
from luxx.tools.web.visitors import DnsLookups

KEY = "tools.network_allow"
_PROBE = ProgramLimits(seconds=10, cpu_seconds=10)

logger = structlog.get_logger()


async def ignore_ended(session: EgressSession) -> None:
    """The `on_ended` of a server that keeps no record of outings."""


class Egress:
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
        self.on_ended: Callable[[EgressSession], Coroutine[Any, Any, None]] = ignore_ended
        """Told of each session that ended."""
        self._is_available = False
        self._failure = ""
        self._notifications: set[asyncio.Task[None]] = set()
        self._backend = backend
        self._proxy: PolicyProxy | None = None
        if self.hosts:
            try:
                allow = AllowList(self.hosts)
            except InvalidInput as error:
                raise ConfigError(f"{KEY}: {error.message}") from error
            self._proxy = PolicyProxy(allow, WebGuard(config.web_allow_private), bounds)
            self._resolve_for = resolve_for or DnsLookups().for_user

    @property
    def is_configured(self) -> bool:
        """Whether hosts are listed."""
        return bool(self.hosts)

    async def open(self) -> None:
        """Finds out whether jails can be given a door here, where hosts are listed."""
        backend = self._backend()
        if not self.is_configured or backend is None or not backend.supports_proxy:
            return
        program = shutil.which("true", path="/usr/bin:/bin") or "true"
        program_spec = ProgramSpec(argv=(program,), workspace=None, limits=_PROBE, has_proxy=True)
        try:
            process = await SandboxProcess.start(backend.spec(program_spec))
            await process.run(b"", _PROBE)
        except (ToolFailed, OSError) as error:
            logger.warning("no_way_out", error=str(error))
            self._failure = f"there is no network: no jail can be given a way out here ({error})"
        else:
            self._is_available = True

    @property
    def is_open(self) -> bool:
        return self._is_available

    @property
    def problem(self) -> str:
        """Why programs have no way out though hosts are listed; empty where they have."""
        backend = self._backend()
        if not self.is_configured or self.is_open or backend is None:
            return ""
        if backend.name == "none":
            return f"without a sandbox programs reach whatever Luxx can, and {KEY} bounds nothing"
        return self._failure or f"there is no network: {KEY} needs bubblewrap, and {backend.name} is in force"

    def session(self, caller: EgressCaller) -> EgressSession | None:
        """For one program; None where hosts are not listed."""
        return EgressSession(caller, self._resolve_for(caller.user_id)) if self.is_configured else None

    @asynccontextmanager
    async def serve(self, process: SandboxProcess, session: EgressSession | None) -> AsyncGenerator[None]:
        """The process reaches what the session may reach, until this is left."""
        proxy_socket = process.take_proxy_socket()
        if proxy_socket is None or session is None or self._proxy is None:
            if proxy_socket is not None:
                proxy_socket.close()
            yield
            return
        try:
            async with self._proxy.serving(proxy_socket, session):
                yield
        finally:
            # Told also of a call that was cancelled, which must not wait for it.
            notification = asyncio.create_task(self.on_ended(session))
            self._notifications.add(notification)
            notification.add_done_callback(self._notifications.discard)

    async def close(self) -> None:
        """Returns when all outings that ended have been told of."""
        await asyncio.gather(*self._notifications, return_exceptions=True)
