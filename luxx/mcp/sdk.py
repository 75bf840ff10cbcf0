"""The official SDK for Python, loaded when the first server is started: it costs a second and 60 MB."""

import asyncio
import logging
from importlib import import_module
from typing import Any

import msgspec

from luxx.errors import ToolFailed

_OWN_LOGGERS = ("mcp", "client")
_MISSING = "the extra 'mcp' is not installed: pip install 'luxx[mcp]'"


class Sdk(msgspec.Struct, frozen=True, kw_only=True):
    """What is used of it: the class of sessions, the words of the protocol, and how both are carried."""

    session: Any
    types: Any
    message: Any
    error: type[Exception]


async def load_sdk() -> Sdk:
    """In a thread: the server goes on meanwhile. Raises ToolFailed where it is not installed."""
    return await asyncio.to_thread(_load)


def _load() -> Sdk:
    try:
        found = Sdk(
            session=import_module("mcp.client.session").ClientSession,
            types=import_module("mcp_types"),
            message=import_module("mcp.shared.message").SessionMessage,
            error=import_module("mcp.shared.exceptions").MCPError,
        )
    except ImportError as error:
        raise ToolFailed(_MISSING) from error
    for name in _OWN_LOGGERS:
        # They tell in the server's words what it sent wrong; what is worth telling is told of it here.
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return found
