"""A remote MCP server of the official SDK with one tool that does nothing: `python -m tests.bench.mcp_server
PORT`."""

import sys

import uvicorn
from mcp.server.mcpserver import MCPServer


def main() -> None:
    server = MCPServer("bench", log_level="CRITICAL")

    @server.tool()
    def nothing(text: str = "") -> str:  # pyright: ignore[reportUnusedFunction]
        """Does nothing."""
        return text

    app = server.streamable_http_app(stateless_http=True, json_response=True)
    uvicorn.run(app, port=int(sys.argv[1]), log_level="critical")


if __name__ == "__main__":
    main()
