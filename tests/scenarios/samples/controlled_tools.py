"""Tools of the test's own, brought into the server by `tools.modules`: each reports to the test's desk.

A call opens a socket to the desk, says what it is, and ends when the desk answers. A desk that sees the
socket close before its answer knows that the tool was stopped.
"""

import asyncio
from typing import Any

from luxx.tools.core import ToolContext
from luxx.tools.factory import tool

PARAMETERS = {
    "port": {"type": "integer"},
    "key": {"type": "string"},
}
REQUIRED = ["port", "key"]


async def _visit(arguments: dict[str, Any], tool_name: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", arguments["port"])
    try:
        writer.write(f"{tool_name} {arguments['key']}\n".encode())
        await writer.drain()
        answer = await reader.readline()
        if not answer:
            raise ConnectionError("the desk hung up")
        return answer.decode().rstrip("\n")
    finally:
        writer.close()


@tool("visit_once", "Visits the desk; must not be done twice.", PARAMETERS, REQUIRED)
async def visit_once(arguments: dict[str, Any]) -> str:
    return await _visit(arguments, "visit_once")


@tool("visit_again", "Visits the desk; may be done again.", PARAMETERS, REQUIRED, repeatable=True)
async def visit_again(arguments: dict[str, Any]) -> str:
    return await _visit(arguments, "visit_again")


@tool("visit_risky", "Visits the desk, if a person allows it.", PARAMETERS, REQUIRED, risk="high")
async def visit_risky(arguments: dict[str, Any]) -> str:
    return await _visit(arguments, "visit_risky")


@tool(
    "visit_strangers", "Visits the desk, where strangers write.", PARAMETERS, REQUIRED, brings_untrusted=True
)
async def visit_strangers(arguments: dict[str, Any]) -> str:
    return await _visit(arguments, "visit_strangers")


@tool(
    "visit_outside", "Tells the desk, which is outside.", PARAMETERS, REQUIRED, is_egress=True, subject="key"
)
async def visit_outside(arguments: dict[str, Any]) -> str:
    return await _visit(arguments, "visit_outside")


@tool("visit_named", "Asks a person for a name, then visits the desk.", PARAMETERS, REQUIRED)
async def visit_named(arguments: dict[str, Any], context: ToolContext) -> str:
    said = await context.ask({"kind": "clarification", "prompt": "Whom shall I name?"})
    return await _visit({**arguments, "key": said["answer"]}, "visit_named")
