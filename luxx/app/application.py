"""The roof: the web application of a house, with all that can be asked for and what handlers are given."""

from collections.abc import Callable

from litestar import Litestar
from litestar.di import Provide
from litestar.types import ControllerRouterHandler

from luxx.api.http.bodies import JsonRequest
from luxx.api.http.errors import HANDLERS
from luxx.api.http.guards import PeerReader, provide_caller, provide_peer, require_sign_in
from luxx.api.http.parameters import GivenCaller, before_handling
from luxx.api.http.protection import protection
from luxx.api.openapi.page import DocsController
from luxx.api.routes.audit import AuditController, record_refusals
from luxx.api.routes.auth import AuthController
from luxx.api.routes.conversations import (
    ConversationController,
    ProjectController,
    SearchController,
    TransferController,
)
from luxx.api.routes.files import AttachmentController, FileController
from luxx.api.routes.mcp import McpController
from luxx.api.routes.messages import ConversationBranchController, MessageBranchController, MessageController
from luxx.api.routes.permissions import PermissionController
from luxx.api.routes.providers import AllowedHostsController, ProvidersController
from luxx.api.routes.runs import QuestionController, ReplayController, RunController
from luxx.api.routes.service import ProbeController, ProcessController, ServiceInfoController
from luxx.api.routes.setup import SetupController
from luxx.api.routes.tenants import TenantController, TenantsController
from luxx.api.routes.tools import CompositionController, SkillController, ToolController
from luxx.api.routes.usage import UsageController
from luxx.api.routes.users import SettingsController, UserController
from luxx.api.routes.websocket import SocketController
from luxx.app.container import House
from luxx.app.server.startup import MODELS, without

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
"""All that can be asked for."""


def create_app(house: House) -> Litestar:
    """The web application of a house; its start and stop are the house's."""
    peers = PeerReader(house.config.server.trusted_proxies)
    with without(*MODELS):
        app = Litestar(
            route_handlers=CONTROLLERS,
            dependencies=_parts(house),
            guards=[require_sign_in(house.accounts, peers)],
            before_request=before_handling,
            after_exception=[record_refusals(house.refusals)],
            exception_handlers=HANDLERS,
            on_startup=[house.open],
            on_shutdown=[house.close],
            openapi_config=None,
            request_class=JsonRequest,
            request_max_body_size=None,
            logging_config=None,
            debug=False,
        )
    app.asgi_handler = protection(house.config, house.metrics)(app.asgi_handler)
    return app


def create_probes(house: House) -> Litestar:
    """What a worker answers: whether it lives, whether it can work, and its counters."""
    peers = PeerReader([])
    with without(*MODELS):
        app = Litestar(
            route_handlers=[ProbeController],
            dependencies={"peer": Provide(provide_peer), "service_state": _given(house.service_state)},
            guards=[require_sign_in(house.accounts, peers)],
            before_request=before_handling,
            exception_handlers=HANDLERS,
            openapi_config=None,
            logging_config=None,
            debug=False,
        )
    app.asgi_handler = protection(house.config, house.metrics)(app.asgi_handler)
    return app


def _parts(house: House) -> dict[str, Provide]:
    """What handlers are given by name."""
    return {
        "caller": Provide(provide_caller),
        "peer": Provide(provide_peer),
        "accounts": _given(lambda: house.accounts),
        "administration": _given(lambda: house.administration),
        "tenants": _given(lambda: house.tenants),
        "user_settings": _given(lambda: house.settings),
        "providers": _given(lambda: house.providers),
        "attachments": _given(lambda: house.attachments),
        "branches": _given(lambda: house.branches),
        "compositions": _given(lambda: house.compositions),
        "conversations": _given_after_caller(lambda: house.conversations),
        "files": _given(lambda: house.files),
        "uploads": _given(lambda: house.uploads),
        "own_tools_of": _given(lambda: house.compositions.own_tools),
        "mcp_definitions": _given(lambda: house.mcp_definitions),
        "mcp_servers": _given(lambda: house.mcp),
        "processes": _given(lambda: house.processes),
        "questions": _given(lambda: house.questions),
        "password_setup": _given(lambda: house.password_setup),
        "projects": _given(lambda: house.projects),
        "replay": _given(lambda: house.replay),
        "rules": _given(lambda: house.rules),
        "rules_of": _given(lambda: house.rules.binding),
        "runs": _given(lambda: house.runs),
        "shelf": _given(lambda: house.shelf),
        "transfer": _given(lambda: house.transfer),
        "sockets": _given(lambda: house.sockets),
        "streams": _given(lambda: house.streams),
        "tickets": _given(lambda: house.tickets),
        "searches": _given_after_caller(lambda: house.searches),
        "tool_executor": _given(lambda: house.executor),
        "usage": _given(lambda: house.usage),
        "workspace_of": _given(lambda: house.workspace_of),
        "service_state": _given(house.service_state),
    }


def _given(part: object) -> Provide:
    """A part of the house as a dependency; looked up late, because some are wired when it opens."""
    assert callable(part)
    return Provide(part, sync_to_thread=False)


def _given_after_caller(part: Callable[[], object]) -> Provide:
    """The same for busy routes: what Litestar resolves at once costs a task each, one by one it does not."""

    async def give(caller: GivenCaller) -> object:
        return part()

    return Provide(give)
