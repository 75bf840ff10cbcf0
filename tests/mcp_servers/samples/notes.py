"""An ordinary MCP server made with the official SDK."""

import asyncio
import base64
import os
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp_types import ToolAnnotations

server = MCPServer("notes", log_level="ERROR")
READ_ONLY = ToolAnnotations(read_only_hint=True)
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@server.tool(annotations=READ_ONLY)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(annotations=READ_ONLY)
def count_words(text: str) -> dict[str, int]:
    """How often each word is there."""
    words = text.split()
    return {word: words.count(word) for word in words}


@server.tool()
def write_note(name: str, text: str) -> str:
    """Keep a note."""
    Path(name).write_text(text)
    return f"kept {name} beside {sorted(os.listdir('.'))}"


@server.tool(annotations=READ_ONLY)
def draw() -> Image:
    """A picture."""
    return Image(data=PIXEL, format="png")


@server.tool(annotations=READ_ONLY)
def fail() -> str:
    """Fails always."""
    raise ValueError("the ink is dry")


@server.tool(annotations=READ_ONLY)
def long_text(lines: int) -> str:
    """Many lines."""
    return "\n".join(f"line {number}" for number in range(lines))


@server.tool(annotations=READ_ONLY)
def variable(name: str) -> str:
    """A variable of the environment."""
    return os.environ.get(name, "")


@server.tool(annotations=READ_ONLY)
def world() -> dict[str, Any]:
    """What can be seen from here."""
    return {"uid": os.getuid(), "pid": os.getpid(), "etc": os.path.exists("/etc/shadow"), "cwd": os.getcwd()}


MET: dict[str, asyncio.Event] = {}


@server.tool(annotations=READ_ONLY)
async def wait(name: str) -> str:
    """Waits until it is cancelled, and notes what became of it."""
    leave(f"{name}.began")
    try:
        await asyncio.sleep(3600)
    except BaseException:
        leave(f"{name}.cancelled")
        raise
    return "waited"


def leave(name: str) -> None:
    Path(name).write_text("here")


@server.tool(annotations=READ_ONLY)
async def meet(name: str, other: str) -> str:
    """Returns once the other has come, too."""
    MET.setdefault(name, asyncio.Event()).set()
    await MET.setdefault(other, asyncio.Event()).wait()
    return f"{name} met {other}"


@server.tool(annotations=READ_ONLY)
async def grow(context: Context) -> str:
    """Brings one more tool."""

    def grown() -> str:
        """It was not there before."""
        return "here"

    server.add_tool(grown, annotations=READ_ONLY)
    await context.notify_tools_changed()
    await context.session.send_tool_list_changed()
    return "more"


if __name__ == "__main__":
    server.run()
