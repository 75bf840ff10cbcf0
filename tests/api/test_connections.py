"""Connections without a sign-in are bounded in number, memory and time; honest slow clients are served."""

import json
import re
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen
from typing import Any

import httpx
import pytest

from api.client import ApiClient
from api.server_process import ServerProcess
from api.socket_client import new_ticket, open_with_ticket
from luxx.api.http.connection_limits import ConnectionBounds
from luxx.infra.config.schema import ServerConfig

WAIT_SECONDS = 30.0
CONNECTIONS = 140
MEGABYTES = 60
"""A bound on the memory of all connections; a tenth of what the server used before it had bounds."""

LOCAL = "127.0.0.1"
ELSEWHERE = "127.0.0.2"
"""An address of this machine from which no proxy connects."""

PER_ADDRESS = 20
HEAD_SECONDS = BODY_SECONDS = 1.5
BYTES_PER_SECOND = 500
SETTINGS = {
    "LUXX_SERVER__HEAD_SECONDS": str(HEAD_SECONDS),
    "LUXX_SERVER__BODY_IDLE_SECONDS": str(BODY_SECONDS),
    "LUXX_SERVER__BODY_BYTES_PER_SECOND": str(BYTES_PER_SECOND),
    "LUXX_SERVER__CONNECTIONS_PER_ADDRESS": str(PER_ADDRESS),
}
DESCRIPTORS = 512
FEW_DESCRIPTORS = f"""
import resource, sys
from luxx.app.cli.commands import main
resource.setrlimit(resource.RLIMIT_NOFILE, ({DESCRIPTORS // 2}, {DESCRIPTORS}))
sys.argv[0] = "luxx"
sys.exit(main())
"""


class SmallServer(ServerProcess):
    """A server that may open few descriptors, and fewer still unless it raises its own soft limit."""

    def start_process(self, arguments: Sequence[str]) -> Popen[str]:
        command = [sys.executable, "-c", FEW_DESCRIPTORS, *arguments]
        return Popen(command, cwd=self.folder, env=self.environ, stdout=PIPE, stderr=STDOUT, text=True)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with default settings."""
    with ServerProcess(tmp_path_factory.mktemp("plain")) as running:
        yield running


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with the short time limits above."""
    with ServerProcess(tmp_path_factory.mktemp("hurried"), **SETTINGS) as running:
        yield running


def connect(server: ServerProcess, source: str = LOCAL) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=WAIT_SECONDS, source_address=(source, 0))


def request(method: str, path: str, *headers: str, body: bytes = b"") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "host: localhost", *headers, "", ""]).encode() + body


def read_to_end(connection: socket.socket) -> bytes:
    """What the server sends until it closes or resets the connection."""
    received = b""
    try:
        while piece := connection.recv(65_536):
            received += piece
    except ConnectionResetError:
        pass
    return received


def answers(received: bytes) -> list[tuple[int, dict[str, Any]]]:
    """Status and content of each whole answer."""
    parsed = []
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        size = int(re.search(rb"(?i)content-length: (\d+)", head)[1])  # type: ignore[index]
        assert len(rest) >= size, "an answer was cut"
        parsed.append((int(head.split(b" ")[1]), json.loads(rest[:size])))
        received = rest[size:]
    return parsed


def refusal(connection: socket.socket) -> tuple[int, str]:
    """Status and kind of the only answer before the connection ends."""
    received = read_to_end(connection)
    assert received, "closed without an answer"
    ((status, content),) = answers(received)
    assert len(content["error"]) > 20
    assert content["code"] == status
    return status, content["detail"]["kind"]


def megabytes(server: ServerProcess) -> float:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


def health(server: ServerProcess, source: str = LOCAL) -> int:
    transport = httpx.HTTPTransport(local_address=source)
    with httpx.Client(transport=transport, timeout=WAIT_SECONDS, trust_env=False) as client:
        return client.get(f"{server.url}/health").status_code


def fill(connections: list[socket.socket], data: bytes) -> None:
    """Sends on all connections as much as the server accepts in a few seconds, and reads nothing."""
    left = dict.fromkeys(connections, data)
    end = time.monotonic() + 5.0
    for connection in connections:
        connection.setblocking(False)
    while left and time.monotonic() < end:
        for connection in tuple(left):
            try:
                left[connection] = left[connection][connection.send(left[connection]) :]
            except BlockingIOError:
                continue
            except OSError:
                left[connection] = b""  # The server closed it.
            if not left[connection]:
                del left[connection]


FLOODS = {
    "small requests": request("GET", "/health") * 1500,
    "requests that are refused": request("GET", "/nothing-here") * 1500,
    "requests with large heads": request("GET", "/health", "x-long: " + "x" * 50_000) * 8,
    "requests with bodies": request("POST", "/messages", "content-length: 200000", body=b"x" * 200_000) * 8,
    "large answers": request("GET", "/openapi.json") * 20,
    "a head that does not end": request("GET", "/health")[:-2] + b"x-long: " + b"x" * 250_000,
    "thousands of headers": request("GET", "/health")[:-2] + b"x:\r\n" * 50_000,
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS.keys())
def test_connections_that_read_no_answers_cost_little_memory_and_do_not_delay_others(
    plain: ServerProcess, flood: bytes
) -> None:
    assert health(plain) == 200
    before = megabytes(plain)
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(plain)) for _ in range(CONNECTIONS)]
        fill(connections, flood)
        began = time.monotonic()
        assert health(plain) == 200
        assert time.monotonic() - began < 10
        assert megabytes(plain) - before < MEGABYTES
    end = time.monotonic() + WAIT_SECONDS
    while megabytes(plain) - before > MEGABYTES / 2:
        assert time.monotonic() < end, "the memory is not given back"
        assert health(plain) == 200
    assert "Exception in ASGI application" not in plain.output


def test_five_requests_sent_at_once_are_answered_in_their_order(plain: ServerProcess) -> None:
    paths = ("/health", "/nothing-1", "/health", "/auth/me", "/ready")
    last = request("GET", paths[-1], "connection: close")
    with connect(plain) as connection:
        connection.sendall(b"".join(request("GET", path) for path in paths[:-1]) + last)
        received = answers(read_to_end(connection))
    assert [status for status, _ in received] == [200, 404, 200, 401, 200]


def test_a_thousand_pipelined_requests_end_the_connection_after_whole_answers(
    plain: ServerProcess,
) -> None:
    with connect(plain) as connection:
        connection.sendall(request("GET", "/health") * 1000)
        received = answers(read_to_end(connection))
    assert 5 < len(received) < 100
    assert {status for status, _ in received} == {200}
    assert "Invalid HTTP request" not in plain.output


def test_requests_with_bodies_sent_at_once_are_all_read(plain: ServerProcess) -> None:
    """Sends more requests than the server reads at once, so reading has to go on between answers."""
    body = json.dumps({"username": "nobody", "password": "x" * 60_000}).encode()
    request_line = ("POST", "/auth/login", f"content-length: {len(body)}")
    with connect(plain) as connection:
        connection.sendall(
            request(*request_line, body=body) * 9 + request(*request_line, "connection: close", body=body)
        )
        assert len(answers(read_to_end(connection))) == 10


# --- deadlines


def send_slowly(connection: socket.socket, pieces: Iterator[bytes], pause: float) -> None:
    """Sends the pieces with pauses, until the server closes."""
    for piece in pieces:
        try:
            connection.sendall(piece)
        except OSError:
            return
        connection.settimeout(pause)
        try:
            if connection.recv(1, socket.MSG_PEEK):
                return
        except TimeoutError:
            pass
        finally:
            connection.settimeout(WAIT_SECONDS)


@pytest.mark.heavy
def test_a_head_that_arrives_byte_by_byte_times_out(impatient: ServerProcess) -> None:
    with connect(impatient) as connection:
        began = time.monotonic()
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nx-slow: ")
        send_slowly(connection, (b"x" for _ in range(100)), HEAD_SECONDS / 5)
        assert refusal(connection) == (408, "request_timeout")
        assert HEAD_SECONDS * 0.9 <= time.monotonic() - began < WAIT_SECONDS


def test_an_unfinished_later_head_times_out_too(impatient: ServerProcess) -> None:
    with connect(impatient) as connection:
        connection.sendall(request("GET", "/health") + b"GET /hea")
        first, second = answers(read_to_end(connection))
    assert (first[0], second[0], second[1]["detail"]["kind"]) == (200, 408, "request_timeout")


@pytest.mark.heavy
def test_a_silent_connection_is_closed(impatient: ServerProcess) -> None:
    with connect(impatient) as connection:
        assert read_to_end(connection) == b""


def test_a_head_in_pieces_within_the_deadline_is_answered(impatient: ServerProcess) -> None:
    with connect(impatient) as connection:
        sent = request("GET", "/health", "connection: close")
        send_slowly(connection, (sent[at : at + 20] for at in range(0, len(sent), 20)), HEAD_SECONDS / 20)
        assert [status for status, _ in answers(read_to_end(connection))] == [200]


LOGIN = ("POST", "/auth/login")


@pytest.mark.heavy
def test_a_body_that_pauses_times_out(impatient: ServerProcess) -> None:
    with connect(impatient) as connection:
        connection.sendall(request(*LOGIN, "content-length: 50000", body=b"{"))
        assert refusal(connection) == (408, "request_timeout")
    assert "request_failed" not in impatient.output
    assert "Exception" not in impatient.output


@pytest.mark.heavy
def test_a_slow_body_times_out(impatient: ServerProcess) -> None:
    """The body never pauses, but would take an hour."""
    with connect(impatient) as connection:
        connection.sendall(request(*LOGIN, "content-length: 50000", body=b"{"))
        send_slowly(connection, (b" " for _ in range(200)), BODY_SECONDS / 10)
        assert refusal(connection) == (408, "request_timeout")


def test_a_slow_body_with_pauses_is_taken(impatient: ServerProcess) -> None:
    """Two kilobytes a second, for twice the allowed length of a pause."""
    body = json.dumps({"username": "nobody", "password": "wrong"}).encode() + b" " * 6000
    with connect(impatient) as connection:
        connection.sendall(request(*LOGIN, f"content-length: {len(body)}", "connection: close"))
        send_slowly(connection, (body[at : at + 1000] for at in range(0, len(body), 1000)), 0.5)
        assert [status for status, _ in answers(read_to_end(connection))] == [401]


# --- numbers


@contextmanager
def many(server: ServerProcess, number: int, source: str) -> Iterator[list[socket.socket]]:
    """Connections that the server has accepted or refused."""
    with ExitStack() as stack:
        yield [stack.enter_context(closing(connect(server, source))) for _ in range(number)]


def keep_open(connections: list[socket.socket]) -> list[socket.socket]:
    """The connections that are answered; each begins another request, so that the server keeps it open."""
    accepted = []
    for connection in connections:
        try:
            connection.sendall(request("GET", "/health") + b"G")
            received = connection.recv(65_536)
        except ConnectionResetError:
            continue
        if received.startswith(b"HTTP/1.1 200"):
            accepted.append(connection)
    return accepted


def test_connections_of_one_address_are_bounded_and_those_of_others_are_not(impatient: ServerProcess) -> None:
    with many(impatient, 300, ELSEWHERE) as connections:
        assert len(keep_open(connections)) == PER_ADDRESS
        assert health(impatient) == 200
        with connect(impatient, ELSEWHERE) as one_more:
            assert refusal(one_more) == (429, "too_many_connections")
        with connect(impatient, "127.0.0.3") as another, many(impatient, 2 * PER_ADDRESS, LOCAL) as local:
            assert len(keep_open([another])) == 1
            assert len(keep_open(local)) == 2 * PER_ADDRESS, "a proxy on this machine has many"
    end = time.monotonic() + WAIT_SECONDS
    while health(impatient, ELSEWHERE) != 200:
        assert time.monotonic() < end, "what was closed still counts"


def test_a_socket_counts_among_the_connections_of_its_address_until_it_is_closed(
    impatient: ServerProcess,
) -> None:
    source = "127.0.0.4"
    with ApiClient(impatient, None).register("sam") as sam, ExitStack() as stack:
        for _ in range(PER_ADDRESS):
            stack.enter_context(open_with_ticket(impatient.url, new_ticket(sam), source_address=(source, 0)))
        with connect(impatient, source) as one_more:
            assert refusal(one_more) == (429, "too_many_connections")
        stack.close()
        end = time.monotonic() + WAIT_SECONDS
        while health(impatient, source) != 200:
            assert time.monotonic() < end, "what was closed still counts"


def test_trusted_proxies_are_not_bounded_by_their_address(tmp_path: Path) -> None:
    settings = SETTINGS | {"LUXX_SERVER__TRUSTED_PROXIES": f"[{ELSEWHERE}]"}
    with (
        ServerProcess(tmp_path, **settings) as server,
        many(server, 2 * PER_ADDRESS, ELSEWHERE) as connections,
    ):
        assert len(keep_open(connections)) == 2 * PER_ADDRESS


@pytest.mark.parametrize("descriptors", [128, 512, 65_536])
def test_one_address_cannot_take_all_connections_however_few_there_are(descriptors: int) -> None:
    bounds = ConnectionBounds(ServerConfig(), descriptors)
    opened = 0
    while bounds.admit("192.0.2.1", opened) == "192.0.2.1":
        opened += 1
    assert opened == min(256, bounds.max_open // 4)
    assert bounds.admit("192.0.2.2", opened) == "192.0.2.2"


@pytest.mark.heavy
def test_one_address_leaves_connections_to_others_where_few_files_may_be_open(tmp_path: Path) -> None:
    with (
        SmallServer(tmp_path, LUXX_SERVER__KEEP_ALIVE_SECONDS="60") as server,
        many(server, DESCRIPTORS, ELSEWHERE) as connections,
    ):
        assert len(keep_open(connections)) == DESCRIPTORS // 2 // 4
        with connect(server, ELSEWHERE) as one_more:
            assert refusal(one_more) == (429, "too_many_connections")
        assert health(server, "127.0.0.3") == 200


@pytest.mark.heavy
def test_descriptors_are_reserved_for_tools_and_databases(tmp_path: Path) -> None:
    with (
        SmallServer(tmp_path, LUXX_SERVER__KEEP_ALIVE_SECONDS="60") as server,
        ApiClient(server, None).sign_in() as admin,
    ):
        check_work(admin, "before")
        with many(server, DESCRIPTORS + 100, LOCAL) as connections:
            accepted = keep_open(connections)
            assert DESCRIPTORS // 3 < len(accepted) < DESCRIPTORS * 3 // 4
            check_work(admin, "meanwhile")
            with connect(server) as one_more:
                assert refusal(one_more) == (503, "too_many_connections")
        end = time.monotonic() + WAIT_SECONDS
        while health(server) != 200:
            assert time.monotonic() < end, "what was closed still counts"
        assert "Too many open files" not in server.output


def check_work(admin: ApiClient, title: str) -> None:
    """Runs a program and writes a file and the database."""
    arguments = {"code": "print(6 * 7)"}
    ran = admin.good("POST", "/tools/python_execute/execute", json={"arguments": arguments})
    assert "42" in json.dumps(ran), ran
    conversation = admin.good("POST", "/conversations", json={"title": title})
    assert admin.good("GET", f"/conversations/{conversation['id']}")["title"] == title
