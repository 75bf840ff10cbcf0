"""What `luxx doctor` says of the MCP servers: each is started, asked for its tools, and ended."""

from collections.abc import Mapping
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from luxx.accounts.tenants import ids_by_name
from luxx.checkup import Finding
from luxx.config import Config
from luxx.errors import ConfigError
from luxx.mcp.approval import Definitions
from luxx.mcp.server import ServerState
from luxx.mcp.service import McpServers, McpStatus
from luxx.store.engine import Store
from luxx.tools.core import ToolRegistry
from luxx.tools.sandbox.service import Sandbox

_MEND = "mend mcp.servers, or what it names"
_APPROVE = "read what has changed at GET /mcp/changes and approve it there, or mend the server"


async def examine_mcp(config: Config, store: Store) -> list[Finding]:
    """Nothing where none is configured. A server that runs elsewhere is started a second time."""
    if not config.mcp.servers:
        return []
    try:
        sandbox = Sandbox(config.tools, Path(config.data_dir), Path(config.workspace.root))
    except ConfigError:
        # Said of the sandbox already.
        return []

    async def tenants() -> Mapping[str, int]:
        try:
            return await store.read(ids_by_name)
        except SQLAlchemyError:
            return {}

    await sandbox.open()
    known = Definitions(store, is_looking=True)
    servers = McpServers(config, sandbox, ToolRegistry(), tenants, known.withheld)
    try:
        return [_finding(one) for one in await servers.try_all()]
    finally:
        await servers.close()
        await sandbox.close()


def _finding(status: McpStatus) -> Finding:
    part = f"mcp {status.tenant}/{status.name}"
    if status.state != ServerState.RUNNING:
        return Finding(part=part, is_bad=True, text=status.reason or "does not start", mend=_MEND)
    if status.withheld:
        text = f"offers {status.tools} tools; withheld: {'; '.join(status.withheld[:5])}"
        return Finding(part=part, is_bad=True, text=text, mend=_APPROVE)
    left_out = f"; left out: {'; '.join(status.left_out[:5])}" if status.left_out else ""
    return Finding(part=part, text=f"starts and offers {status.tools} tools{left_out}")
