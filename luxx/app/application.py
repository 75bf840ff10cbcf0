"""The web application: all controllers, and the dependencies that Litestar passes to handlers by name."""

from collections.abc import Callable, Mapping, Sequence
from inspect import signature

import structlog
from litestar import Controller, Litestar
from litestar.di import Provide
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler

from luxx.api.http.authentication import PeerReader, provide_caller, provide_peer, require_sign_in
from luxx.api.http.errors import HANDLERS
from luxx.api.http.request_input import InjectedCaller, JsonRequest, before_request
from luxx.api.http.security import protection
from luxx.api.openai.routes import OpenAIController
from luxx.api.openapi.page import DocsController
from luxx.api.routes.agents import AgentController
from luxx.api.routes.artifacts import ArtifactController, ArtifactFileController
from luxx.api.routes.audit import AuditController, record_refusals
from luxx.api.routes.auth import AuthController, KeyController, SocketController
from luxx.api.routes.conversation_work import (
    ConversationComparisonController,
    ConversationContextController,
    ConversationQueueController,
    ConversationTodosController,
)
from luxx.api.routes.conversations import (
    ConversationController,
    ProjectController,
    SearchController,
    TransferController,
)
from luxx.api.routes.files import AttachmentController, FileController
from luxx.api.routes.graph import GraphController
from luxx.api.routes.knowledge import BaseMemberController, DocumentController, KnowledgeController
from luxx.api.routes.mcp import McpController
from luxx.api.routes.memories import MemoryController, MemoryEpisodeController
from luxx.api.routes.messages import ConversationBranchController, MessageBranchController, MessageController
from luxx.api.routes.permissions import PermissionController
from luxx.api.routes.prompts import PatternController, PromptController
from luxx.api.routes.providers import AllowedHostsController, ProvidersController, UsageController
from luxx.api.routes.rooms import RoomController, RoomMemberController, SeatController
from luxx.api.routes.runs import QuestionController, ReplayController, RunController
from luxx.api.routes.service import ProbeController, ProcessController, ServiceInfoController
from luxx.api.routes.setup import SetupController
from luxx.api.routes.shares import ShareController, SharedController, TenantSharedController
from luxx.api.routes.skills import SkillController, TenantSkillController
from luxx.api.routes.subject_runs import PlanController, RoomRunController, TaskRunController
from luxx.api.routes.tasks import TaskController, TaskTemplateController
from luxx.api.routes.tools import CompositionController, ToolController
from luxx.api.routes.users import SettingsController, TenantController, TenantsController, UserController
from luxx.app.container import Services
from luxx.app.startup import PYDANTIC_PACKAGES, hidden_modules
from luxx.features.chats.comparing import ChatComparing
from luxx.infra.observe import Metrics
from luxx.web.files import UiController, WebFiles

CONTROLLERS: list[type[Controller]] = [
    AgentController,
    AllowedHostsController,
    ArtifactController,
    ArtifactFileController,
    AttachmentController,
    AuditController,
    AuthController,
    BaseMemberController,
    CompositionController,
    ConversationBranchController,
    ConversationContextController,
    ConversationController,
    ConversationQueueController,
    ConversationComparisonController,
    ConversationTodosController,
    DocsController,
    DocumentController,
    FileController,
    GraphController,
    KeyController,
    KnowledgeController,
    McpController,
    MemoryController,
    MessageBranchController,
    MessageController,
    OpenAIController,
    PermissionController,
    ProbeController,
    ProcessController,
    ProjectController,
    MemoryEpisodeController,
    PatternController,
    PromptController,
    ProvidersController,
    QuestionController,
    ReplayController,
    RoomController,
    RoomRunController,
    TaskRunController,
    PlanController,
    RoomMemberController,
    RunController,
    SearchController,
    SeatController,
    ServiceInfoController,
    SettingsController,
    SetupController,
    ShareController,
    SharedController,
    SkillController,
    TenantSkillController,
    SocketController,
    TaskController,
    TaskTemplateController,
    TenantController,
    TenantSharedController,
    TenantsController,
    ToolController,
    TransferController,
    UiController,
    UsageController,
    UserController,
]


for handler in [member for controller in CONTROLLERS for member in vars(controller).values()]:
    if isinstance(handler, HTTPRouteHandler) and "GET" in handler.http_methods:
        # The same handler answers HEAD. uvicorn leaves out the body; long responses check the method.
        handler.http_methods.add("HEAD")


def create_app(services: Services) -> Litestar:
    """The web application of `services`; its start-up opens them and its shutdown closes them."""
    peers = PeerReader(services.config.server.trusted_proxies, _untrusted_proxy_report(services.metrics))
    web_files = WebFiles()
    with hidden_modules(*PYDANTIC_PACKAGES):
        app = Litestar(
            route_handlers=_with_dependencies(
                CONTROLLERS, {**_dependencies(services), "web_files": _provide(lambda: web_files)}
            ),
            dependencies={"caller": Provide(provide_caller), "peer": Provide(provide_peer)},
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


def _untrusted_proxy_report(metrics: Metrics) -> Callable[[str], None]:
    """Counts requests that a proxy has forwarded which is not trusted, and logs the first of them."""
    logged: list[str] = []

    def report(address: str) -> None:
        metrics.untrusted_forwards_total.inc()
        if not logged:
            logged.append(address)
            fix = "if this is your proxy, add it to server.trusted_proxies"
            structlog.get_logger().warning("untrusted_proxy", address=address, fix=fix)

    return report


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


def _with_dependencies(
    controllers: Sequence[type[Controller]], dependencies: Mapping[str, Provide]
) -> list[type[Controller]]:
    """The controllers, each with the dependencies that its handlers name.

    Litestar compares all dependencies of a handler with each other: with all of them at each handler, that
    took a sixth of the CPU time of a start, after the imports.
    """
    completed: list[type[Controller]] = []
    for controller in controllers:
        handlers = [member for member in vars(controller).values() if isinstance(member, BaseRouteHandler)]
        named = {name for handler in handlers for name in signature(handler.fn).parameters}
        own = {name: provide for name, provide in dependencies.items() if name in named}
        completed.append(type(controller.__name__, (controller,), {"dependencies": own}))
    return completed


def _dependencies(services: Services) -> dict[str, Provide]:
    return {
        "accounts": _provide(lambda: services.accounts),
        "authenticator": _provide(lambda: services.authenticator),
        "agents": _provide(lambda: services.agents),
        "administration": _provide(lambda: services.administration),
        "tenants": _provide(lambda: services.tenants),
        "user_settings": _provide(lambda: services.settings),
        "providers": _provide(lambda: services.providers),
        "attachments": _provide(lambda: services.attachments),
        "branches": _provide(lambda: services.branches),
        "conversations": _provide_after_caller(lambda: services.conversations),
        "temporary_chats": _provide_after_caller(lambda: services.temporary_chats),
        "files": _provide(lambda: services.files),
        "uploads": _provide(lambda: services.uploads),
        "keys": _provide(lambda: services.keys),
        "model_names": _provide(lambda: services.model_names),
        "processes": _provide(lambda: services.processes),
        "questions": _provide(lambda: services.questions),
        "password_setup": _provide(lambda: services.password_setup),
        "projects": _provide(lambda: services.projects),
        "replay": _provide(lambda: services.replay),
        "rules": _provide(lambda: services.rules),
        "runs": _provide(lambda: services.runs),
        "transfer": _provide(lambda: services.transfer),
        "sockets": _provide(lambda: services.sockets),
        "streams": _provide(lambda: services.streams),
        "tickets": _provide(lambda: services.tickets),
        "searches": _provide_after_caller(lambda: services.searches),
        "usage": _provide(lambda: services.usage),
        "provider_tests": _provide(lambda: services.provider_tests),
        "service_state": _provide(services.service_state),
        **_tool_dependencies(services),
        **_feature_dependencies(services),
    }


def _tool_dependencies(services: Services) -> dict[str, Provide]:
    return {
        "compositions": _provide(lambda: services.compositions),
        "rules_and_tools": _provide(lambda: services.rules.rules_and_tools),
        "tools_of": _provide(lambda: services.tools_of),
        "skills_of": _provide(lambda: services.skills_of),
        "mcp_definitions": _provide(lambda: services.mcp_definitions),
        "call_outputs": _provide(lambda: services.call_outputs),
        "clear_tool_cache": _provide(lambda: services.clear_tool_cache),
        "mcp_servers": _provide(lambda: services.mcp),
        "mcp_pool": _provide(lambda: services.mcp_pool),
        "mcp_registry": _provide(lambda: services.mcp_registry),
        "mcp_editor": _provide(lambda: services.mcp_editor),
        "mcp_sign_ins": _provide(lambda: services.mcp_sign_ins),
        "server_config": _provide(lambda: services.config.server),
        "request_router": _provide(lambda: services.request_router),
        "skills": _provide(lambda: services.skills),
        "tool_executor": _provide(lambda: services.executor),
        "workspace_of": _provide(lambda: services.workspace_of),
    }


def _feature_dependencies(services: Services) -> dict[str, Provide]:
    return {
        "admission": _provide(lambda: services.admission),
        "artifacts": _provide(lambda: services.artifacts),
        "artifact_files": _provide(lambda: services.artifact_files),
        "page_regeneration": _provide(lambda: services.page_regeneration),
        "comparing": _provide(lambda: ChatComparing(services.chats)),
        "chat_queue": _provide(lambda: services.chat_queue),
        "todos": _provide(lambda: services.todos),
        "chats": _provide(lambda: services.chats),
        "memory_recall": _provide(lambda: services.memory_recall),
        "next_prompts": _provide(lambda: services.next_prompts),
        "members": _provide(lambda: services.members),
        "memory": _provide(lambda: services.memory),
        "graph": _provide(lambda: services.graph),
        "embedding": _provide(lambda: services.embedding_report),
        "documents": _provide(lambda: services.documents),
        "knowledge": _provide(lambda: services.knowledge),
        "ingestion": _provide(lambda: services.ingestion),
        "prompts": _provide(lambda: services.prompts),
        "patterns": _provide(lambda: services.patterns),
        "rooms": _provide(lambda: services.rooms),
        "task_runs": _provide(lambda: services.task_runs),
        "plans": _provide(lambda: services.plans),
        "room_runs": _provide(lambda: services.room_runs),
        "room_calls": _provide(lambda: services.room_calls),
        "room_forks": _provide(lambda: services.room_forks),
        "room_transfer": _provide(lambda: services.room_transfer),
        "shares": _provide(lambda: services.shares),
        "limits": _provide(lambda: services.account_resources.limits),
        "seats": _provide(lambda: services.seats),
        "task_templates": _provide(lambda: services.task_templates),
        "tasks": _provide(lambda: services.tasks),
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
