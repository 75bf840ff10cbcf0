"""Uploads that fall silent or never come to an end: every door gives up on them, and says so."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from api.person import Person
from api.server import Server

WAIT_SECONDS = 20.0
SILENT = 1.0
BYTES_PER_SECOND = 1000
SETTINGS = {
    "LUXX_SERVER__BODY_IDLE_SECONDS": str(SILENT),
    "LUXX_SERVER__BODY_BYTES_PER_SECOND": str(BYTES_PER_SECOND),
}
HEAD = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
DOORS = [
    ("/files", "multipart/form-data; boundary=b", HEAD),
    ("/conversations/import", "multipart/form-data; boundary=b", HEAD),
    ("/conversations/import", "application/json", b"["),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server"), **SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def cat(server: Server) -> Iterator[Person]:
    with Person(server, None).register("cat") as person:
        yield person


@pytest.fixture(params=DOORS, ids=["files", "import of a form", "import"])
def line(request: pytest.FixtureRequest, cat: Person) -> Iterator[socket.socket]:
    """A connection on which an upload of a megabyte has begun."""
    path, kind, begun = request.param
    host, port = cat.server.url.removeprefix("http://").split(":")
    lines = [
        f"POST {path} HTTP/1.1", f"Host: {host}:{port}", f"Authorization: Bearer {cat.token}",
        f"Content-Type: {kind}", "Content-Length: 1000000",
    ]  # fmt: skip
    with socket.create_connection((host, int(port)), timeout=WAIT_SECONDS) as opened:
        opened.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + begun)
        yield opened


def answer(line: socket.socket) -> bytes:
    """All of it, up to the end of its JSON."""
    received = b""
    while b'"success"' not in received or not received.endswith(b"}"):
        piece = line.recv(65_536)
        assert piece, received
        received += piece
    return received


def check(refused: bytes) -> None:
    assert refused.startswith(b"HTTP/1.1 408")
    assert b"nothing of it is kept" in refused
    assert b'"request_timeout"' in refused


def check_free(cat: Person) -> None:
    """Nothing is left, and the next upload need not wait for anything."""
    end = time.monotonic() + WAIT_SECONDS
    # The connection is told first, and what it had begun ends then.
    while (next_one := cat.ask("POST", "/conversations/import", content=b"[]x")).status_code == 429:
        assert time.monotonic() < end
    assert next_one.json()["detail"]["kind"] == "import_unreadable"
    assert cat.good("GET", "/files")["items"] == []


def test_an_upload_that_falls_silent_is_given_up(line: socket.socket, cat: Person) -> None:
    began = time.monotonic()
    check(answer(line))
    assert SILENT * 0.9 <= time.monotonic() - began < WAIT_SECONDS
    check_free(cat)


def test_an_upload_that_drips_for_ever_is_given_up(line: socket.socket, cat: Person) -> None:
    """It says something often enough, and would take an hour."""
    done = threading.Event()

    def drip() -> None:
        while not done.wait(SILENT / 5):
            line.sendall(b" ")

    began = time.monotonic()
    dripping = threading.Thread(target=drip)
    dripping.start()
    try:
        check(answer(line))
    finally:
        done.set()
        dripping.join(WAIT_SECONDS)
    assert SILENT * 0.9 <= time.monotonic() - began < WAIT_SECONDS
    check_free(cat)


def test_a_slow_upload_within_the_bounds_is_taken(cat: Person) -> None:
    def pieces() -> Iterator[bytes]:
        for piece in (HEAD, b"slow", b"\r\n--b--\r\n"):
            time.sleep(SILENT / 5)
            yield piece

    headers = {"content-type": "multipart/form-data; boundary=b"}
    made = cat.good("POST", "/files", content=pieces(), headers=headers)
    assert made["size"] == 4
    cat.good("DELETE", f"/files/{made['id']}")
