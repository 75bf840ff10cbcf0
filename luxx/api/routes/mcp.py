"""`/mcp`: the MCP servers of the tenant, and the changed definitions of their tools."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

import msgspec
from litestar import Controller, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import Meta

from luxx.api.http.envelope import Page, Success, page_of, success
from luxx.api.http.request_input import InjectedCaller, PageNumber, PageSize, TextId
from luxx.domain.accounts.caller import Caller
from luxx.domain.mcp.approval import McpChange, McpDefinitions
from luxx.domain.mcp.server import ServerState
from luxx.domain.mcp.service import McpServers, McpStatus
from luxx.tools.core import CommandPermission

InjectedMcpDefinitions = NamedDependency[McpDefinitions]
InjectedServers = NamedDependency[McpServers]


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


class McpServerState(StrEnum):
    """`stopped`: Luxx has not started the server yet. A server that has ended is `failed`; the next call of
    one of its tools starts it again."""

    RUNNING = "running"
    STARTING = "starting"
    FAILED = "failed"
    STOPPED = "stopped"


class McpServerView(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP server of the tenant. `tools` and `withheld` are empty until it has run once."""

    name: str
    state: McpServerState
    reason: Annotated[str, Meta(description="why it failed, also while it is started again; else empty")]
    output: Annotated[
        str | None, Meta(description="the last lines that a failed server printed; null below ADMIN")
    ]
    since: Annotated[datetime | None, Meta(description="when it came into this state; null: not started")]
    tools: Annotated[list[str], Meta(description="the names of the tools that it offers")]
    withheld: Annotated[
        list[str], Meta(description="changed tools that an ADMIN has to approve, with the reason")
    ]
    left_out: Annotated[list[str], Meta(description="tools that cannot be offered, with the reason")]


def _server_view(status: McpStatus, caller: Caller) -> McpServerView:
    is_admin = caller.permission_level >= CommandPermission.ADMIN
    is_stopped = status.state == ServerState.NOT_STARTED
    return McpServerView(
        name=status.name,
        state=McpServerState.STOPPED if is_stopped else McpServerState(status.state.value),
        reason=status.reason,
        output=status.output if is_admin else None,
        since=status.since,
        tools=status.names,
        withheld=status.withheld,
        left_out=status.left_out,
    )


class McpController(Controller):
    path = "/mcp"
    tags = ("tools",)

    @get("/servers", summary="The MCP servers of your tenant")
    async def list_servers(
        self,
        caller: InjectedCaller,
        mcp_servers: InjectedServers,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[McpServerView]]:
        """What each does, since when, its tools, and why it failed. As seen by the process that answers:
        each process of Luxx runs the servers once."""
        statuses = mcp_servers.statuses_for(caller.tenant_id)
        first = (page - 1) * page_size
        items = [_server_view(status, caller) for status in statuses[first : first + page_size]]
        return success(Page(items=items, total=len(statuses), page=page, page_size=page_size))

    @get("/changes")
    async def list_changes(
        self,
        caller: InjectedCaller,
        mcp_definitions: InjectedMcpDefinitions,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[McpChange]]:
        """Changed tools of your tenant's MCP servers that need approval. ADMIN only."""
        found = await mcp_definitions.changes(caller, page=page, page_size=page_size)
        return page_of(found, page, page_size)

    @post("/changes/{change_id:str}/approve", status_code=200)
    async def approve(
        self,
        caller: InjectedCaller,
        mcp_definitions: InjectedMcpDefinitions,
        mcp_servers: InjectedServers,
        change_id: TextId,
        data: JSONBody[Approval],
    ) -> Success[None]:
        """Approve the new definition with this hash, so that models get the tool again. ADMIN only."""
        await mcp_definitions.approve(caller, change_id, data.hash)
        await mcp_servers.recheck_withheld()
        return success(None, "approved")
