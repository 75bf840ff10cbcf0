"""The web application: all controllers, and the dependencies that Litestar passes to handlers by name."""

from collections.abc import Callable

from litestar import Litestar
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler
from litestar.types import ControllerRouterHandler

from luxx.api.http.authentication import PeerReader, provide_caller, provide_peer, require_sign_in
from luxx.api.http.errors import HANDLERS
from luxx.api.http.json_body import JsonRequest
from luxx.api.http.parameters import InjectedCaller, before_request
from luxx.api.http.security import protection
from luxx.api.openapi.page import DocsController
from luxx.api.routes.audit import AuditController, record_refusals
from luxx.api.routes.auth import AuthController, SocketController
from luxx.api.routes.conversations import (
    ConversationController,
    ProjectController,
    SearchController,
    TransferController,
)
from luxx.api.routes.files import AttachmentController, FileController
from luxx.api.routes.messages import ConversationBranchController, MessageBranchController, MessageController
from luxx.api.routes.permissions import PermissionController
from luxx.api.routes.providers import AllowedHostsController, ProvidersController
from luxx.api.routes.runs import QuestionController, ReplayController, RunController
from luxx.api.routes.service import ProbeController, ProcessController, ServiceInfoController
from luxx.api.routes.setup import SetupController
from luxx.api.routes.tools import CompositionController, McpController, SkillController, ToolController
from luxx.api.routes.usage import UsageController
from luxx.api.routes.users import SettingsController, TenantController, TenantsController, UserController
from luxx.app.container import Services
from luxx.app.startup import PYDANTIC_PACKAGES, hidden_modules

CONTROLLERS: list[ControllerRouterHandler] = [
    AllowedHostsController,
    AttachmentController,
    AuditController,
    AuthController,
    CompositionController,
    ConversationBranchController,
    ConversationController,
    DocsController,
    FileController,
    McpController,
    MessageBranchController,
    MessageController,
    PermissionController,
    ProbeController,
    ProcessController,
    ProjectController,
    ProvidersController,
    QuestionController,
    ReplayController,
    RunController,
    SearchController,
    ServiceInfoController,
    SettingsController,
    SetupController,
    SkillController,
    SocketController,
    TenantController,
    TenantsController,
    ToolController,
    TransferController,
    UsageController,
    UserController,
]


for handler in [member for controller in CONTROLLERS for member in vars(controller).values()]:
    if isinstance(handler, HTTPRouteHandler) and "GET" in handler.http_methods:
        # The same handler answers HEAD. uvicorn leaves out the body; long responses check the method.
        handler.http_methods.add("HEAD")


def create_app(services: Services) -> Litestar:
    """The web application of `services`; its start-up opens them and its shutdown closes them."""
    peers = PeerReader(services.config.server.trusted_proxies)
    with hidden_modules(*PYDANTIC_PACKAGES):
        app = Litestar(
            route_handlers=CONTROLLERS,
            dependencies=_dependencies(services),
            guards=[require_sign_in(services.authenticator, peers)],
            before_request=before_request,
            after_exception=[record_refusals(services.refusals)],
            exception_handlers=HANDLERS,
            on_startup=[services.open],
            on_shutdown=[services.close],
            openapi_config=None,
            request_class=JsonRequest,
            request_max_body_size=None,
            logging_config=None,
            debug=False,
        )
    app.asgi_handler = protection(services.config, services.metrics)(app.asgi_handler)
    return app


def create_probes(services: Services) -> Litestar:
    """The web application of a worker: liveness, readiness and metrics only."""
    peers = PeerReader([])
    with hidden_modules(*PYDANTIC_PACKAGES):
        app = Litestar(
            route_handlers=[ProbeController],
            dependencies={"peer": Provide(provide_peer), "service_state": _provide(services.service_state)},
            guards=[require_sign_in(services.authenticator, peers)],
            before_request=before_request,
            exception_handlers=HANDLERS,
            openapi_config=None,
            logging_config=None,
            debug=False,
        )
    app.asgi_handler = protection(services.config, services.metrics)(app.asgi_handler)
    return app


def _dependencies(services: Services) -> dict[str, Provide]:
    return {
        "caller": Provide(provide_caller),
        "peer": Provide(provide_peer),
        "accounts": _provide(lambda: services.accounts),
        "authenticator": _provide(lambda: services.authenticator),
        "administration": _provide(lambda: services.administration),
        "tenants": _provide(lambda: services.tenants),
        "user_settings": _provide(lambda: services.settings),
        "providers": _provide(lambda: services.providers),
        "attachments": _provide(lambda: services.attachments),
        "branches": _provide(lambda: services.branches),
        "compositions": _provide(lambda: services.compositions),
        "conversations": _provide_after_caller(lambda: services.conversations),
        "files": _provide(lambda: services.files),
        "uploads": _provide(lambda: services.uploads),
        "own_tools_of": _provide(lambda: services.compositions.own_tools),
        "mcp_definitions": _provide(lambda: services.mcp_definitions),
        "mcp_servers": _provide(lambda: services.mcp),
        "processes": _provide(lambda: services.processes),
        "questions": _provide(lambda: services.questions),
        "password_setup": _provide(lambda: services.password_setup),
        "projects": _provide(lambda: services.projects),
        "replay": _provide(lambda: services.replay),
        "rules": _provide(lambda: services.rules),
        "rules_of": _provide(lambda: services.rules.effective_rules),
        "runs": _provide(lambda: services.runs),
        "skill_registry": _provide(lambda: services.skill_registry),
        "transfer": _provide(lambda: services.transfer),
        "sockets": _provide(lambda: services.sockets),
        "streams": _provide(lambda: services.streams),
        "tickets": _provide(lambda: services.tickets),
        "searches": _provide_after_caller(lambda: services.searches),
        "tool_executor": _provide(lambda: services.executor),
        "usage": _provide(lambda: services.usage),
        "workspace_of": _provide(lambda: services.workspace_of),
        "service_state": _provide(services.service_state),
    }


def _provide(factory: object) -> Provide:
    """A dependency. `factory` runs at each request, because `Services.open` creates some parts."""
    assert callable(factory)
    return Provide(factory, sync_to_thread=False)


def _provide_after_caller(factory: Callable[[], object]) -> Provide:
    """A dependency for busy routes.

    Litestar starts a task for each dependency that it can resolve in parallel. Depending on the caller
    makes it resolve this one afterwards, without a task.
    """

    async def provide(caller: InjectedCaller) -> object:
        return factory()

    return Provide(provide)
