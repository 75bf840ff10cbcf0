"""The protection middleware behind a real uvicorn and a real socket, with chunked and announced bodies."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn

from luxx.api.http.security import protection
from luxx.infra.config.schema import Config, ServerConfig
from luxx.infra.observe import Metrics

SETTINGS = Config(server=ServerConfig(max_body_mb=0.001))
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bytes]]


async def echo(scope: Any, receive: Any, send: Any) -> None:
    size = 0
    while True:
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"%04d" % size})


async def serve_and(talk: Talk) -> bytes:
    """What `talk` reads from a server that runs meanwhile."""
    # The socket listens before the server starts: a client waits in its backlog, and nothing polls.
    listener = socket.create_server(("127.0.0.1", 0))
    guarded: Any = protection(SETTINGS, Metrics())(echo)
    server = uvicorn.Server(uvicorn.Config(guarded, log_config=None, lifespan="off", access_log=False))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    try:
        async with asyncio.timeout(20):
            return await talk(reader, writer)
    finally:
        writer.close()
        server.should_exit = True
        await serving


def head(*lines: str) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode()


async def test_a_chunked_body_is_refused_in_its_middle_and_the_connection_closed() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(head("POST /messages HTTP/1.1", "Host: localhost", "Transfer-Encoding: chunked"))
        for _ in range(3):
            writer.write(b"200\r\n" + b"x" * 512 + b"\r\n")
        # The body never ends; the answer comes all the same, and then the connection ends.
        return await reader.read()

    answer = await serve_and(talk)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"kind":"too_large"' in answer


async def test_an_announced_body_is_refused_before_a_byte_of_it_is_sent() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(head("POST /messages HTTP/1.1", "Host: localhost", "Content-Length: 2000"))
        return await reader.read()

    assert (await serve_and(talk)).startswith(b"HTTP/1.1 413 ")


async def test_a_chunked_body_within_the_limit_arrives_and_the_connection_stays() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        answers = b""
        for _ in range(2):
            writer.write(head("POST /messages HTTP/1.1", "Host: localhost", "Transfer-Encoding: chunked"))
            writer.write(b"200\r\n" + b"x" * 512 + b"\r\n1\r\ny\r\n0\r\n\r\n")
            answers += await reader.readuntil(b"\r\n\r\n") + await reader.readexactly(4)
        return answers

    answers = await serve_and(talk)
    assert answers.count(b"HTTP/1.1 200 ") == 2
    assert answers.count(b"0513") == 2


async def test_a_foreign_host_and_no_host_are_refused() -> None:
    async def foreign(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(head("GET / HTTP/1.1", "Host: evil.example"))
        return await reader.read()

    async def missing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(head("GET / HTTP/1.0"))
        return await reader.read()

    assert (await serve_and(foreign)).startswith(b"HTTP/1.1 403 ")
    assert (await serve_and(missing)).startswith(b"HTTP/1.1 400 ")
