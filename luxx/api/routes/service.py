"""`/`, `/health`, `/ready` and `/metrics`: the version and state of the server.

All of these are public and must not reveal more. `/admin/processes` is for operators.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec
import structlog
from litestar import Controller, MediaType, Request, Response, get
from litestar.di import NamedDependency
from litestar.response import Redirect

from luxx.api.http.authentication import PUBLIC
from luxx.api.http.envelope import Page, Success, page_of, success
from luxx.api.http.request_input import IGNORES_QUERY, InjectedCaller, PageNumber, PageSize
from luxx.domain.accounts.caller import Peer
from luxx.domain.mcp.server import ServerState
from luxx.errors import NotAllowed, Unavailable
from luxx.infra.bus.core import Bus
from luxx.infra.observe import Metrics
from luxx.runs.engine.processes import ProcessService, ProcessView
from luxx.tools.sandbox.choosing import BackendReport, BackendStatus

CHECK_SECONDS = 2.0
PROMETHEUS_MEDIA_TYPE = "text/plain; version=0.0.4"


class ServiceState(msgspec.Struct, frozen=True, kw_only=True):
    """The parts that these routes report about; `app/container.py` makes it.

    `/ready` awaits `checks`, by the names of the parts. The server is not ready if one raises or takes more
    than CHECK_SECONDS. `sandbox` is the active backend.
    """

    bus: Bus
    version: str
    database: Literal["sqlite", "postgresql"]
    sandbox: str
    metrics: Metrics
    is_metrics_public: bool
    checks: dict[str, Callable[[], Awaitable[object]]]
    document_readers: str = "none"
    sandbox_backends: list[BackendReport] = []
    mcp_servers: Callable[[], list[ServerState]] = list


class ServiceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The version, and paths on this server."""

    name: str
    version: str
    docs: str = "/docs"
    openapi: str = "/openapi.json"
    ui: str = "/ui/"


class SandboxBackend(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox backend. `reason` says why it is not active."""

    name: str
    standing: BackendStatus
    reason: str


class McpCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The number of configured MCP servers by state. `luxx doctor` lists them."""

    not_started: int
    starting: int
    running: int
    failed: int


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The process is alive. `sandbox` and `database` are the active backends.

    `bus`: whether the bus to other servers is connected. While it is `away` runs continue, and updates from
    runs of other servers arrive later. `none`: no other server can exist.
    `sandbox_backends`: the state of each on this host. `document_readers`: the backend in which web pages and
    PDFs are parsed; with `none`, processes of the server's user parse them.
    """

    status: Literal["ok"] = "ok"
    version: str
    sandbox: str
    sandbox_backends: list[SandboxBackend]
    document_readers: str
    mcp_servers: McpCounts
    database: str
    bus: Literal["none", "up", "away"]


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """`checks`: `ok` or `failed` for each part."""

    status: Literal["ready"] = "ready"
    checks: dict[str, str]


class ServiceInfoController(Controller):
    path = "/"
    opt = {PUBLIC: True, IGNORES_QUERY: True}
    tags = ("service",)

    @get("/", media_type=MediaType.JSON)
    async def info(
        self, request: Request[Any, Any, Any], service_state: NamedDependency[ServiceState]
    ) -> Response[Success[ServiceInfo]]:
        """The name and version of the server. Redirects a browser to the web UI."""
        if "text/html" in request.headers.get("accept", "").lower():
            return Redirect("/ui/", status_code=303)
        return Response(success(ServiceInfo(name="Luxx", version=service_state.version)))


class ProbeController(Controller):
    """Probes for process supervisors and monitoring; workers serve them too."""

    path = "/"
    opt = {PUBLIC: True, IGNORES_QUERY: True}
    tags = ("service",)

    @get("/health")
    async def health(self, service_state: NamedDependency[ServiceState]) -> Success[Health]:
        """Whether the process is alive, and its backends."""
        state, bus, servers = service_state, service_state.bus, service_state.mcp_servers()
        return success(
            Health(
                version=state.version,
                sandbox=state.sandbox,
                sandbox_backends=msgspec.convert(
                    state.sandbox_backends, list[SandboxBackend], from_attributes=True
                ),
                document_readers=state.document_readers,
                mcp_servers=McpCounts(**{state.value: servers.count(state) for state in ServerState}),
                database=state.database,
                bus="none" if bus.is_alone else "up" if bus.is_up else "away",
            )
        )

    @get("/ready")
    async def ready(self, service_state: NamedDependency[ServiceState]) -> Success[Readiness]:
        """Whether the server can work: 503 while the database or the engine does not answer."""
        names = list(service_state.checks)
        passed = await asyncio.gather(*(_check_passes(name, service_state.checks[name]) for name in names))
        checks = {name: "ok" if ok else "failed" for name, ok in zip(names, passed, strict=True)}
        if not all(passed):
            failed = ", ".join(name for name, ok in zip(names, passed, strict=True) if not ok)
            raise Unavailable(
                f"not ready: {failed} does not answer", kind="not_ready", detail={"checks": checks}
            )
        return success(Readiness(checks=checks))

    @get("/metrics", media_type=MediaType.TEXT)
    async def metrics(
        self, peer: NamedDependency[Peer], service_state: NamedDependency[ServiceState]
    ) -> Response[bytes]:
        """Metrics in the Prometheus text format."""
        if not (service_state.is_metrics_public or peer.is_local):
            raise NotAllowed(
                "metrics are for this machine only; an operator can set observability.metrics_public"
            )
        return Response(service_state.metrics.render(), media_type=PROMETHEUS_MEDIA_TYPE)


async def _check_passes(name: str, check: Callable[[], Awaitable[object]]) -> bool:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            await check()
    except Exception as error:
        # Any error means that the part is not ready. Only the operator's log gets the reason.
        structlog.get_logger().warning("readiness_check_failed", part=name, error=repr(error))
        return False
    return True


class ProcessController(Controller):
    path = "/admin/processes"
    tags = ("admin",)

    @get()
    async def list_processes(
        self,
        caller: InjectedCaller,
        processes: NamedDependency[ProcessService],
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[ProcessView]]:
        """The processes of this database, newest first, with the number of driven runs. Operators only."""
        found = await processes.list_page(caller, page=page, page_size=page_size)
        return page_of(found, page, page_size)
