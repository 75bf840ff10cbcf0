"""What people see of MCP servers and their tools: of those of the configuration and of those that were added.

Pure, apart from decrypting the names of variables and headers.
"""

from collections.abc import Sequence

from luxx.domain.accounts.caller import Caller
from luxx.domain.mcp.approval import Withheld
from luxx.domain.mcp.models import (
    Credential,
    McpServerView,
    McpToolView,
    ServerScope,
    ServerStatus,
    ServerTransport,
)
from luxx.domain.mcp.offering import own_name, tool_name
from luxx.domain.mcp.pool import BuiltTools, withheld_names
from luxx.domain.mcp.server import ServerState
from luxx.domain.mcp.service import McpStatus
from luxx.domain.mcp.stored import ServerSecrets, StoredServer, TenantServers, ToolManifest
from luxx.errors import Unavailable
from luxx.infra.secrets import Vault
from luxx.tools.core import ToolDefinition
from luxx.wire.tool import Risk

_STATUSES = {
    ServerState.RUNNING: ServerStatus.READY,
    ServerState.STARTING: ServerStatus.STARTING,
    ServerState.FAILED: ServerStatus.FAILED,
    ServerState.NOT_STARTED: ServerStatus.STOPPED,
}
_NOT_SIGNED_IN = "you have not signed in at it; POST /mcp/servers/{name}/connect begins that"


def configured_view(status: McpStatus, caller: Caller) -> McpServerView:
    """A server of the configuration, whose command only the operator sees."""
    return McpServerView(
        name=status.name,
        transport=ServerTransport.STDIO,
        url="",
        command="",
        args=[],
        reads=[],
        env_names=[],
        header_names=[],
        credential=Credential.NONE,
        oauth=None,
        scope=ServerScope.TENANT,
        project_id=None,
        is_configured=True,
        is_editable=False,
        trusted=status.trusted,
        level=status.level,
        enabled=True,
        status=_STATUSES[status.state],
        problem=status.reason,
        output=status.output if caller.is_admin else None,
        since=status.since,
        tools=status.names,
        withheld=status.withheld,
        left_out=status.left_out,
        owner=None,
    )


def is_editable(server: StoredServer, caller: Caller) -> bool:
    """Whether the caller may change a server that the caller sees."""
    return caller.is_admin if server.user_id is None else server.user_id == caller.user_id


def status_of(
    server: StoredServer, manifest: ToolManifest | None, *, is_starting: bool
) -> tuple[ServerStatus, str]:
    """What a server does, and its problem. `manifest`: the caller's own."""
    if not server.enabled:
        return ServerStatus.STOPPED, ""
    if is_starting:
        return ServerStatus.STARTING, ""
    if manifest is not None:
        return manifest.status, manifest.problem
    if server.credential is not Credential.NONE:
        return ServerStatus.NEEDS_SIGN_IN, _NOT_SIGNED_IN.format(name=server.name)
    return ServerStatus.STOPPED, ""


def stored_view(
    server: StoredServer,
    tenant: TenantServers,
    built: BuiltTools | None,
    caller: Caller,
    vault: Vault,
    *,
    is_starting: bool,
    owner: str | None,
) -> McpServerView:
    """A server that somebody added. `built`: its tools, if it has listed some. `owner`: the process that has
    the connection that the caller uses."""
    may_change = is_editable(server, caller)
    manifest = tenant.manifests.get((server.id, server.holder(caller.user_id)))
    status, problem = status_of(server, manifest, is_starting=is_starting)
    secrets = _secrets_of(server, vault) if may_change else ServerSecrets()
    withheld = withheld_names(built, tenant, server) if built is not None else []
    names = [] if built is None else [tool.name for tool in built.tools.list_all()]
    hidden = {server.prefix + name for name in withheld}
    return McpServerView(
        name=server.name,
        transport=server.transport,
        url=server.url if may_change else server.url.partition("?")[0],
        command=server.command if may_change else "",
        args=list(server.args) if may_change else [],
        reads=list(server.reads) if may_change else [],
        env_names=list(secrets.env),
        header_names=list(secrets.headers),
        credential=server.credential,
        oauth=server.oauth if may_change else None,
        scope=server.scope,
        project_id=server.project_id,
        is_configured=False,
        is_editable=may_change,
        trusted=server.trusted,
        level=server.level,
        enabled=server.enabled,
        status=status,
        problem=problem,
        output=None,
        since=None if manifest is None else manifest.checked_at,
        tools=[name for name in names if server.enabled and name not in hidden],
        withheld=[f"{name} {Withheld.CHANGED}" for name in withheld],
        left_out=[] if built is None else built.left_out,
        owner=owner,
    )


def _secrets_of(server: StoredServer, vault: Vault) -> ServerSecrets:
    try:
        return server.opened(vault)
    except Unavailable:
        return ServerSecrets()


def configured_tools(
    name: str, listed: Sequence[ToolDefinition], withheld: dict[str, str]
) -> list[McpToolView]:
    """The tools of a server of the configuration."""
    return [
        McpToolView(
            server=name,
            name=own_name(tool.name),
            tool_name=tool.name,
            description=tool.description,
            input_schema=tool.parameters,
            read_only=tool.risk == Risk.LOW,
            enabled=tool.name not in withheld,
            problem=withheld.get(tool.name, ""),
        )
        for tool in listed
    ]


def stored_tools(server: StoredServer, tenant: TenantServers, built: BuiltTools) -> list[McpToolView]:
    """All tools that a server listed, in its order; those that cannot be used have a problem."""
    left_out = dict(text.split(": ", 1) for text in built.left_out if ": " in text)
    withheld = set(withheld_names(built, tenant, server))
    views: list[McpToolView] = []
    for tool in built.listed:
        name = tool_name(server.prefix, tool.name)
        found = None if tool.problem else built.tools.get(name)
        problem = "" if found is not None else left_out.get(tool.name, "is left out")
        if name.removeprefix(server.prefix) in withheld:
            problem = Withheld.CHANGED.value
        view = McpToolView(
            server=server.name,
            name=tool.name,
            tool_name=name,
            description="" if found is None else found.description,
            input_schema={} if found is None else found.parameters,
            read_only=tool.is_read_only,
            enabled=not problem and server.enabled,
            problem=problem,
        )
        views.append(view)
    return views
