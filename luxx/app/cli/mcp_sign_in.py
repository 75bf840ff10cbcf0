"""Where a person signs in at an MCP server: the address that Luxx gives for a sign-in that begins now."""

import msgspec

from luxx.app.cli.server_api import ServerApi


class SignInAddress(msgspec.Struct, frozen=True, kw_only=True):
    """None: no sign-in is needed."""

    authorization_url: str | None = None


async def begin_sign_in(server: ServerApi, name: str) -> str | None:
    """The address to open in a browser; None if no sign-in is needed. Raises LuxxError with the reason."""
    return (await server.call("POST", f"/mcp/servers/{name}/connect", SignInAddress)).authorization_url
