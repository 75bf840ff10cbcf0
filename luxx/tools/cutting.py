"""Cutting a tool's answer without keeping the event loop from others. What is cut, and how, is output's."""

import asyncio
from functools import partial

from luxx.tools.output import CutOutput, cut_output, takes_more_than
from luxx.wire.tool import ToolResult

_MOST_AT_ONCE = 32 * 1024
"""Bytes of JSON that are looked through on the event loop."""


async def cut_aside(
    result: ToolResult, read_on: str, *, keeps_lines: bool = False, is_whole: bool = False
) -> CutOutput:
    """As `cut_output` says; a large result is cut in a thread."""
    cut = partial(cut_output, result, read_on, keeps_lines=keeps_lines, is_whole=is_whole)
    if takes_more_than(_MOST_AT_ONCE, [result.data, result.error]):
        return await asyncio.to_thread(cut)
    return cut()
