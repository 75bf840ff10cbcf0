"""Network access of sandboxed programs: whether it is available, and the proxy for one process at a time.

The configuration lists the hosts; the proxy checks each request (`infra/network/proxy`).
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
from luxx.tools.sandbox.backends import Backend
from luxx.tools.sandbox.plan import ProgramLimits, ProgramSpec
from luxx.tools.sandbox.process import SandboxProcess
from luxx.tools.web.clients import DnsLookups

KEY = "tools.network_allow"
_PROBE = ProgramLimits(seconds=10, cpu_seconds=10)

logger = structlog.get_logger()


async def ignore_ended(session: EgressSession) -> None:
    """The `on_ended` of a server that records no egress sessions."""


class Egress:
    """One per server; `backend` returns the active backend. Raises ConfigError for an entry that is no host.

    `resolve_for` replaces each user's DNS lookups, `bounds` the default bounds of the proxy.
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
        """Called with each session that has ended."""
        self.is_open = False
        """Whether programs have network access through the proxy."""
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
        """If hosts are listed, tests whether a sandbox with a proxy socket works on this host."""
        backend = self._backend()
        if not self.is_configured or backend is None or not backend.supports_proxy:
            return
        program = shutil.which("true", path="/usr/bin:/bin") or "true"
        program_spec = ProgramSpec(argv=(program,), workspace=None, limits=_PROBE, has_proxy=True)
        try:
            process = await SandboxProcess.start(backend.spec(program_spec))
            await process.run(b"", _PROBE)
        except (ToolFailed, OSError) as error:
            logger.warning("egress_unavailable", error=str(error))
            self._failure = f"there is no network: the sandbox cannot provide a proxy on this host ({error})"
        else:
            self.is_open = True

    @property
    def problem(self) -> str:
        """Why programs have no network although hosts are listed; empty otherwise."""
        backend = self._backend()
        if not self.is_configured or self.is_open or backend is None:
            return ""
        if backend.name == "none":
            return f"without a sandbox programs reach every host that Luxx can reach, and {KEY} has no effect"
        return self._failure or f"there is no network: {KEY} needs bubblewrap, and {backend.name} is in force"

    def session(self, caller: EgressCaller) -> EgressSession | None:
        """A session for one program; None if no hosts are listed."""
        return EgressSession(caller, self._resolve_for(caller.user_id)) if self.is_configured else None

    @asynccontextmanager
    async def serve(self, process: SandboxProcess, session: EgressSession | None) -> AsyncGenerator[None]:
        """Connects the process to the proxy, on behalf of the session, until the context ends."""
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
            # A task of its own: a cancelled call is recorded, too, and must not wait for it.
            notification = asyncio.create_task(self.on_ended(session))
            self._notifications.add(notification)
            notification.add_done_callback(self._notifications.discard)

    async def close(self) -> None:
        """Returns once `on_ended` has handled all ended sessions."""
        await asyncio.gather(*self._notifications, return_exceptions=True)
