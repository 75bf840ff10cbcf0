"""`/mcp`: the MCP servers of the configuration and those that people add, their tools, and changed tools."""

from typing import Annotated, Any

import msgspec
from litestar import Controller, Request, Response, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter
from msgspec import Meta

from luxx.api.http.authentication import PUBLIC
from luxx.api.http.cross_origin import is_same_host
from luxx.api.http.envelope import Page, Success, page_of, success
from luxx.api.http.request_input import InjectedCaller, PageNumber, PageSize, TextId
from luxx.api.routes.tools import (
    Hand,
    InjectedExecutor,
    InjectedOutputs,
    InjectedRulesAndTools,
    InjectedSkillsOf,
    InjectedWorkspaceOf,
    ToolAnswer,
)
from luxx.domain.mcp.approval import McpChange, McpDefinitions
from luxx.domain.mcp.editing import McpEditor
from luxx.domain.mcp.models import (
    McpServerChanges,
    McpServerStatus,
    McpServerView,
    McpToolView,
    NewMcpServer,
)
from luxx.domain.mcp.oauth.flows import McpSignIns
from luxx.domain.mcp.oauth.requests import ClientDocument, client_document
from luxx.domain.mcp.pool import McpPool
from luxx.domain.mcp.registry import McpRegistry
from luxx.domain.mcp.service import McpServers
from luxx.errors import NotFound
from luxx.infra.config.schema import ServerConfig
from luxx.runs.questions import QuestionService
from luxx.runs.sign_in_questions import WhoseQuestions

InjectedMcpDefinitions = NamedDependency[McpDefinitions]
InjectedServers = NamedDependency[McpServers]
InjectedPool = NamedDependency[McpPool]
InjectedRegistry = NamedDependency[McpRegistry]
InjectedEditor = NamedDependency[McpEditor]
InjectedSignIns = NamedDependency[McpSignIns]
InjectedServerConfig = NamedDependency[ServerConfig]
InjectedQuestions = NamedDependency[QuestionService]
ServerNameInPath = Annotated[str, PathParameter(max_length=64, description="the name of the server")]


class Approval(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`hash`: the hash of the new definition in the list of changes."""

    hash: Annotated[
        str,
        Meta(
            min_length=64,
            max_length=64,
            pattern=r"^[0-9a-f]+$(?!\n)",
            description="digits and the letters a to f",
        ),
    ]


class McpToolCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`name`: the server's own name of its tool, or the one that models see."""

    name: Annotated[str, Meta(min_length=1, max_length=1000)]
    arguments: dict[str, Any] = {}


_PLAIN = r"^[\x21-\x7e]+$(?!\n)"
_IN_PLAIN = "plain ASCII without spaces"


class SignInAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the service at which a user signed in sent the browser back with."""

    state: Annotated[str, Meta(min_length=1, max_length=500, pattern=_PLAIN, description=_IN_PLAIN)]
    code: Annotated[str, Meta(min_length=1, max_length=8000, pattern=_PLAIN, description=_IN_PLAIN)]
    iss: Annotated[str, Meta(max_length=2000, pattern=_PLAIN, description=_IN_PLAIN)] | None = None


def return_address(request: Request[Any, Any, Any], config: ServerConfig) -> str:
    """The address of this server for the browser of a request: the configured one, else that of its page.

    `security.py` has checked both headers: the host is one of this server's, and the origin is of that host.
    """
    if config.public_url:
        return config.public_url
    host, origin = request.headers.get("host", ""), request.headers.get("origin", "")
    is_page = is_same_host(origin.encode("latin-1"), host.encode("latin-1"))
    return origin if is_page else f"http://{host}"


class McpController(Controller):
    path = "/mcp"
    tags = ("tools",)

    @get("/servers", summary="The MCP servers that you have")
    async def list_servers(
        self,
        caller: InjectedCaller,
        mcp_registry: InjectedRegistry,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[McpServerView]]:
        """Those of the configuration, which cannot be changed here, then those of your tenant and your own by
        name. Each process of Luxx runs the servers of the configuration once; their state is that of the
        process that answers."""
        found = await mcp_registry.list_page(caller, page=page, page_size=page_size)
        return page_of(found, page, page_size)

    @post("/servers", summary="Add an MCP server")
    async def create_server(
        self, caller: InjectedCaller, mcp_editor: InjectedEditor, data: JSONBody[NewMcpServer]
    ) -> Success[McpServerView]:
        """A server of your tenant (ADMIN), or a remote one of your own (level 2). Luxx connects to it and
        lists its tools; if that fails, the server is saved nevertheless, and `problem` says why."""
        return success(await mcp_editor.create(caller, data), "added")

    @get("/servers/{name:str}", summary="An MCP server")
    async def get_server(
        self, caller: InjectedCaller, mcp_registry: InjectedRegistry, name: ServerNameInPath
    ) -> Success[McpServerView]:
        """Your own server of this name, else that of your tenant."""
        return success(await mcp_registry.get(caller, name))

    @put("/servers/{name:str}", summary="Change an MCP server")
    async def update_server(
        self,
        caller: InjectedCaller,
        mcp_editor: InjectedEditor,
        name: ServerNameInPath,
        data: JSONBody[McpServerChanges],
    ) -> Success[McpServerView]:
        """Luxx connects to it anew, as after adding it."""
        return success(await mcp_editor.update(caller, name, data), "changed")

    @delete("/servers/{name:str}", status_code=200, summary="Delete an MCP server")
    async def delete_server(
        self, caller: InjectedCaller, mcp_editor: InjectedEditor, name: ServerNameInPath
    ) -> Success[None]:
        """With its tools, approvals, sign-ins, whose tokens are revoked, and the directory of a program."""
        problem = await mcp_editor.delete(caller, name)
        return success(None, f"deleted; {problem}" if problem else "deleted")

    @get("/servers/{name:str}/status", summary="What an MCP server does")
    async def get_status(
        self, caller: InjectedCaller, mcp_registry: InjectedRegistry, name: ServerNameInPath
    ) -> Success[McpServerStatus]:
        """As it was last seen; nothing is sent to the server."""
        return success(await mcp_registry.status(caller, name))

    @get("/servers/{name:str}/tools", summary="The tools of an MCP server")
    async def list_server_tools(
        self,
        caller: InjectedCaller,
        mcp_registry: InjectedRegistry,
        name: ServerNameInPath,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[McpToolView]]:
        """As it listed them last, in its order; also those that cannot be used, with the reason."""
        return success(_page(await mcp_registry.tools(caller, name), page, page_size))

    @post("/servers/{name:str}/tools/call", status_code=200, summary="Call a tool of an MCP server")
    async def call_tool(
        self,
        caller: InjectedCaller,
        mcp_registry: InjectedRegistry,
        tool_executor: InjectedExecutor,
        workspace_of: InjectedWorkspaceOf,
        rules_and_tools: InjectedRulesAndTools,
        skills_of: InjectedSkillsOf,
        call_outputs: InjectedOutputs,
        name: ServerNameInPath,
        data: JSONBody[McpToolCall],
    ) -> Success[ToolAnswer]:
        """As `POST /tools/{name}/execute`. `outcome` is `unknown` if the server may have carried out a call
        that failed."""
        tool_name = await mcp_registry.tool_name(caller, name, data.name)
        hand = Hand(tool_executor, workspace_of, rules_and_tools, skills_of, call_outputs)
        return success(await hand.call(caller, tool_name, data.arguments))

    @post("/servers/{name:str}/test", status_code=200, summary="Connect to an MCP server and list its tools")
    async def test_server(
        self, caller: InjectedCaller, mcp_registry: InjectedRegistry, name: ServerNameInPath
    ) -> Success[McpServerView]:
        """Answers when the server has listed its tools, or has failed to: `problem` says why. Level 2."""
        return success(await mcp_registry.test(caller, name))

    @post("/servers/{name:str}/connect", status_code=200, summary="Connect to an MCP server, or sign in")
    async def connect_server(
        self,
        request: Request[Any, Any, Any],
        caller: InjectedCaller,
        mcp_registry: InjectedRegistry,
        server_config: InjectedServerConfig,
        name: ServerNameInPath,
    ) -> Success[McpServerStatus]:
        """Connects as `test` does. If you have to sign in, `authorization_url` is where: open it in a browser
        within five minutes. Level 2, unless each user signs in there."""
        return success(await mcp_registry.connect(caller, name, return_address(request, server_config)))

    @post("/oauth/complete", status_code=200, summary="Complete a sign-in at an MCP server")
    async def complete_sign_in(
        self,
        caller: InjectedCaller,
        mcp_sign_ins: InjectedSignIns,
        mcp_registry: InjectedRegistry,
        questions: InjectedQuestions,
        data: JSONBody[SignInAnswer],
    ) -> Success[McpServerView]:
        """By the user who began it, once. Answers the questions of runs that wait for it. 409 for an answer
        that is not what was asked for, with the reason."""
        done = await mcp_sign_ins.complete(caller, data.state, data.code, data.iss)
        whose = WhoseQuestions(user_id=done.user_id, tenant_id=caller.tenant_id)
        await questions.answer_signed_in(whose)
        return success(await mcp_registry.signed_in(caller, done.server_id, done.user_id, done.server))

    @get("/oauth/client.json", opt={PUBLIC: True}, summary="Luxx as a client of OAuth")
    async def read_client(self, server_config: InjectedServerConfig) -> Response[ClientDocument]:
        """The client-id metadata document, for services at which users sign in. Without an envelope; 404
        without `server.public_url`."""
        if not server_config.public_url:
            raise NotFound(
                "this server has no client-id metadata document, because server.public_url is not set",
                kind="mcp_no_client_document",
            )
        return Response(client_document(server_config.public_url), media_type="application/json")

    @post("/servers/{name:str}/disconnect", status_code=200, summary="Close the connection to an MCP server")
    async def disconnect_server(
        self, caller: InjectedCaller, mcp_registry: InjectedRegistry, name: ServerNameInPath
    ) -> Success[McpServerStatus]:
        """Also ends your sign-in at it, and revokes its tokens; `problem` says if that failed. A connection
        that all users share is ended by an ADMIN."""
        return success(await mcp_registry.disconnect(caller, name))

    @get("/tools", summary="The tools of all your MCP servers")
    async def list_server_tools_of_all(
        self,
        caller: InjectedCaller,
        mcp_registry: InjectedRegistry,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[McpToolView]]:
        """Server by server, also those that cannot be used."""
        return success(_page(await mcp_registry.tools(caller), page, page_size))

    @get("/changes")
    async def list_changes(
        self,
        caller: InjectedCaller,
        mcp_definitions: InjectedMcpDefinitions,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[McpChange]]:
        """Changed tools that need your approval: of your own servers, and for an ADMIN of the tenant's."""
        found = await mcp_definitions.changes(caller, page=page, page_size=page_size)
        return page_of(found, page, page_size)

    @post("/changes/{change_id:str}/approve", status_code=200)
    async def approve(
        self,
        caller: InjectedCaller,
        mcp_definitions: InjectedMcpDefinitions,
        mcp_servers: InjectedServers,
        mcp_pool: InjectedPool,
        change_id: TextId,
        data: JSONBody[Approval],
    ) -> Success[None]:
        """Approve the new definition with this hash, so that models get the tool again. For an ADMIN, or the
        owner of the server."""
        await mcp_definitions.approve(caller, change_id, data.hash)
        await mcp_servers.recheck_withheld()
        mcp_pool.has_changed()
        return success(None, "approved")


def _page(views: list[McpToolView], page: int, page_size: int) -> Page[McpToolView]:
    first = (page - 1) * page_size
    return Page(items=views[first : first + page_size], total=len(views), page=page, page_size=page_size)
