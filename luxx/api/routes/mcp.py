"""`/mcp`: approval of MCP tools whose definition differs from the approved one."""

from typing import Annotated

import msgspec
from litestar import Controller, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import Meta

from luxx.api.http.envelope import Page, Success, success
from luxx.api.http.parameters import InjectedCaller, PageNumber, PageSize, TextId
from luxx.domain.mcp.approval import Definitions, McpChange
from luxx.domain.mcp.service import McpServers

InjectedDefinitions = NamedDependency[Definitions]
InjectedServers = NamedDependency[McpServers]


class Approval(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`hash`: the hash of the new definition in the list of changes."""

    hash: Annotated[str, Meta(min_length=64, max_length=64, pattern=r"^[0-9a-f]+$(?!\n)")]


class McpController(Controller):
    path = "/mcp"
    tags = ("tools",)

    @get("/changes")
    async def list_changes(
        self,
        caller: InjectedCaller,
        mcp_definitions: InjectedDefinitions,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[McpChange]]:
        """Changed tools of your tenant's MCP servers that need approval. ADMIN only."""
        items, total = await mcp_definitions.changes(caller, page=page, page_size=page_size)
        return success(Page(items=items, total=total, page=page, page_size=page_size))

    @post("/changes/{change_id:str}/approve", status_code=200)
    async def approve(
        self,
        caller: InjectedCaller,
        mcp_definitions: InjectedDefinitions,
        mcp_servers: InjectedServers,
        change_id: TextId,
        data: JSONBody[Approval],
    ) -> Success[None]:
        """Approve the new definition with this hash, so that models get the tool again. ADMIN only."""
        await mcp_definitions.approve(caller, change_id, data.hash)
        await mcp_servers.recheck_withheld()
        return success(None, "approved")
