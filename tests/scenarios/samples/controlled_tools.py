"""Tools of the tests, loaded by `tools.modules`: each call reports to the test's `ToolController`.

A call opens a socket to the controller, sends its key, and ends when the controller answers. If the socket
closes before the answer, the controller knows that the tool was stopped.
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
            raise ConnectionError("the test hung up")
        return answer.decode().rstrip("\n")
    finally:
        writer.close()


@tool("visit_once", "Visits the test; must not be done twice.", PARAMETERS, REQUIRED)
async def visit_once(arguments: dict[str, Any]) -> str:
    return await _visit(arguments, "visit_once")


@tool("visit_again", "Visits the test; may be done again.", PARAMETERS, REQUIRED, repeatable=True)
async def visit_again(arguments: dict[str, Any]) -> str:
    return await _visit(arguments, "visit_again")


@tool("visit_risky", "Visits the test, if a person allows it.", PARAMETERS, REQUIRED, risk="high")
async def visit_risky(arguments: dict[str, Any]) -> str:
    return await _visit(arguments, "visit_risky")


@tool(
    "visit_strangers", "Visits the test, where strangers write.", PARAMETERS, REQUIRED, brings_untrusted=True
)
async def visit_strangers(arguments: dict[str, Any]) -> str:
    return await _visit(arguments, "visit_strangers")


@tool(
    "visit_outside", "Tells the test, which is outside.", PARAMETERS, REQUIRED, is_egress=True, subject="key"
)
async def visit_outside(arguments: dict[str, Any]) -> str:
    return await _visit(arguments, "visit_outside")


@tool("visit_named", "Asks a person for a name, then visits the test.", PARAMETERS, REQUIRED)
async def visit_named(arguments: dict[str, Any], context: ToolContext) -> str:
    said = await context.actions.ask({"kind": "clarification", "prompt": "Whom shall I name?"})
    return await _visit({**arguments, "key": said["answer"]}, "visit_named")
