"""The roof: the web application of a house, with all that can be asked for and what handlers are given."""

from collections.abc import Callable

from litestar import Litestar
from litestar.di import Provide
from litestar.types import ControllerRouterHandler

from luxx.api.audit import AuditController, record_refusals
from luxx.api.auth import AuthController
from luxx.api.before import before_handling
from luxx.api.bodies import JsonRequest
from luxx.api.branches import ConversationBranchController, MessageBranchController
from luxx.api.compositions import CompositionController
from luxx.api.conversations import ConversationController
from luxx.api.docs import DocsController
from luxx.api.errors import HANDLERS
from luxx.api.files import AttachmentController, FileController
from luxx.api.guards import PeerReader, provide_caller, provide_peer, require_sign_in
from luxx.api.mcp import McpController
from luxx.api.messages import MessageController
from luxx.api.parameters import GivenCaller
from luxx.api.permissions import PermissionController
from luxx.api.processes import ProcessController
from luxx.api.projects import ProjectController
from luxx.api.protection import protection
from luxx.api.providers import AllowedHostsController, ProvidersController
from luxx.api.questions import QuestionController
from luxx.api.replay import ReplayController
from luxx.api.runs import RunController
from luxx.api.search import SearchController
from luxx.api.service_info import ProbeController, ServiceInfoController
from luxx.api.settings import SettingsController
from luxx.api.setup import SetupController
from luxx.api.skills import SkillController
from luxx.api.tenants import TenantController, TenantsController
from luxx.api.tools import ToolController
from luxx.api.transfer import TransferController
from luxx.api.usage import UsageController
from luxx.api.users import UserController
from luxx.api.websocket import SocketController
from luxx.house import House
from luxx.lean import MODELS, without

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
