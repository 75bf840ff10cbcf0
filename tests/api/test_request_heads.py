"""Requests with a head that is too large are refused with a sentence, whichever part of it is too large."""

import json
import socket
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import pytest

from api.server_process import ServerProcess

SECONDS = 30.0
MIB = 1024 * 1024


def answer_of(server: ServerProcess, *parts: bytes) -> tuple[int, dict[str, Any]]:
    """Status and envelope of the answer; the whole request is sent before it is read."""
    status, _, body = read_answer(server, *parts)
    return status, json.loads(body)


def read_answer(server: ServerProcess, *parts: bytes) -> tuple[int, bytes, bytes]:
    address = urlsplit(server.url)
    with closing(socket.create_connection((address.hostname, address.port), timeout=SECONDS)) as connection:
        for part in parts:
            connection.sendall(part)
        connection.shutdown(socket.SHUT_WR)
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), head, body


def request(target: bytes, *headers: bytes) -> bytes:
    return b"\r\n".join([b"GET " + target + b" HTTP/1.1", b"host: localhost", *headers, b"", b""])


@pytest.mark.parametrize(
    ("status", "sent"),
    [
        pytest.param(414, request(b"/health?q=" + b"x" * 20_000), id="a long query"),
        pytest.param(414, request(b"/" + b"x" * 20_000), id="a long path"),
        pytest.param(414, request(b"/" + b"%F0%9F%98%80" * 5_000), id="a long path of few characters"),
        pytest.param(414, request(b"/health?q=" + b"x" * 100_000), id="a query that the parser refuses"),
        pytest.param(431, request(b"/health", b"x-long: " + b"x" * 70_000), id="a long header"),
        pytest.param(431, request(b"/health", *[b"x: y"] * 300), id="300 headers"),
        pytest.param(431, request(b"/health", *[b"x: y"] * 10_000), id="10,000 headers"),
        pytest.param(431, request(b"/health?q=" + b"x" * MIB), id="a query of a megabyte"),
        pytest.param(431, request(b"/health", b"x-long: " + b"x" * MIB), id="a header of a megabyte"),
        pytest.param(431, request(b"/health", *[b"x-n: " + b"x" * 100] * 10_000), id="a megabyte of headers"),
    ],
)
def test_a_head_past_the_bounds_is_refused_with_a_sentence(
    server: ServerProcess, status: int, sent: bytes
) -> None:
    answer_status, failure = answer_of(server, sent)
    assert (answer_status, failure["code"], failure["success"]) == (status, status, False)
    assert failure["detail"]["kind"] == "head_too_large"
    assert "request" in failure["error"]


@pytest.mark.parametrize(
    "sent", [b"GET\r\n\r\n", b"\x16\x03\x01 not HTTP\r\n\r\n", request(b"/ ", b"no colon")]
)
def test_what_is_not_http_is_refused_in_the_form_of_all_errors(server: ServerProcess, sent: bytes) -> None:
    status, failure = answer_of(server, sent)
    assert (status, failure["code"], failure["detail"]["kind"]) == (400, 400, "invalid_input")
    assert "not valid HTTP" in failure["error"]


def test_a_head_without_end_is_refused_while_it_is_sent(server: ServerProcess) -> None:
    begin = b"GET /health HTTP/1.1\r\nhost: localhost\r\nx-long: "
    status, failure = answer_of(server, begin, *[b"x" * 65536] * 64)
    assert (status, failure["detail"]["kind"]) == (431, "head_too_large")


def test_endless_trailers_after_a_body_end_the_connection(server: ServerProcess) -> None:
    """Headers may follow a chunked body; the server stores them like those before it."""
    address = urlsplit(server.url)
    begin = b"POST /auth/login HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    endless = [begin, b"2\r\n{}\r\n0\r\nx: ", *[b"x" * 65536] * 1024]
    with (
        closing(socket.create_connection((address.hostname, address.port), timeout=SECONDS)) as connection,
        pytest.raises(OSError, match=r"(?i)reset|broken pipe"),
    ):
        send_all(connection, endless)


def send_all(connection: socket.socket, parts: list[bytes]) -> None:
    for part in parts:
        connection.sendall(part)


def test_a_head_within_the_bounds_is_answered(server: ServerProcess) -> None:
    headers = [b"x-n%d: %b" % (number, b"x" * 300) for number in range(190)]
    status, _, body = read_answer(
        server, request(b"/health?q=" + b"x" * 16_000, *headers, b"connection: close")
    )
    assert (status, json.loads(body)["success"]) == (200, True)
