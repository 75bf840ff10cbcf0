"""The WebSocket transport of MCP, which is experimental: the protocol's standard does not have it.

Each message is one text frame. The connection goes to an address that the link has checked.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator
from typing import Any

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from luxx.domain.mcp.inbox import MOST_BYTES, MOST_PARTS, parts
from luxx.domain.mcp.link import Link, LinkProblem
from luxx.domain.mcp.sign_in import Authorization, RefusedRequest

OPEN_SECONDS = 10.0
_SUBPROTOCOL = Subprotocol("mcp")


@contextlib.asynccontextmanager
async def websocket_client(link: Link) -> AsyncGenerator[tuple[Any, Any]]:
    """A transport of the SDK. Raises LinkProblem if there is no connection."""
    authorization = await link.authorization()
    try:
        connection = await _open(link, authorization)
    except InvalidStatus as error:
        status = error.response.status_code
        if status != 401:
            raise link.failed(LinkProblem(f"answered with the status {status}")) from error
        challenge = error.response.headers.get("www-authenticate", "")
        version = None if authorization is None else authorization.version
        refusal = RefusedRequest(status=status, challenge=challenge, version=version)
        connection = await _open(link, await link.refused(refusal))
    incoming_writer, incoming = anyio.create_memory_object_stream[Any](0)
    outgoing, outgoing_reader = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        async with incoming_writer:
            with contextlib.suppress(WebSocketException, anyio.BrokenResourceError):
                async for text in connection:
                    if (received := _parsed(text)) is not None:
                        await incoming_writer.send(received)

    async def write() -> None:
        async with outgoing_reader:
            async for sent in outgoing_reader:
                message = sent.message.model_dump_json(by_alias=True, exclude_unset=True)
                with contextlib.suppress(WebSocketException):
                    await connection.send(message)

    async with connection, anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(write)
        yield incoming, outgoing
        tasks.cancel_scope.cancel()


def _parsed(text: str | bytes) -> SessionMessage | Exception | None:
    data = text.encode() if isinstance(text, str) else text
    if parts(data) > MOST_PARTS:
        return None
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(data, by_name=False))
    except ValueError as error:
        return error


async def _open(link: Link, authorization: Authorization | None) -> ClientConnection:
    """Raises LinkProblem and InvalidStatus."""
    headers = dict(link.headers)
    if authorization is not None:
        headers["Authorization"] = authorization.header
    is_secure = link.address.scheme == "wss"
    try:
        return await connect(
            link.address.url,
            sock=await _connected_socket(link),
            server_hostname=link.address.endpoint.host if is_secure else None,
            additional_headers=headers,
            subprotocols=[_SUBPROTOCOL],
            open_timeout=OPEN_SECONDS,
            max_size=MOST_BYTES,
            compression=None,
            proxy=None,
        )
    except InvalidStatus:
        raise
    except (OSError, TimeoutError, WebSocketException, ValueError) as error:
        raise link.failed(LinkProblem(f"cannot be reached: {str(error)[:200] or 'no connection'}")) from error


async def _connected_socket(link: Link) -> socket.socket:
    failure: OSError | None = None
    loop = asyncio.get_running_loop()
    for address in await link.addresses():
        sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await loop.sock_connect(sock, (address, link.address.endpoint.port))
        except (OSError, TimeoutError) as error:
            sock.close()
            failure = error
        else:
            return sock
    raise failure or OSError("no connection")
