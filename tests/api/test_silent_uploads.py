"""Uploads that pause too long or take too long are ended with a sentence, at every route that takes them."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from api.client import ApiClient
from api.server_process import ServerProcess

WAIT_SECONDS = 20.0
SILENT = 1.0
BYTES_PER_SECOND = 1000
SETTINGS = {
    "LUXX_SERVER__BODY_IDLE_SECONDS": str(SILENT),
    "LUXX_SERVER__BODY_BYTES_PER_SECOND": str(BYTES_PER_SECOND),
}
HEAD = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
ENTRY_POINTS = [
    ("/files", "multipart/form-data; boundary=b", HEAD),
    ("/conversations/import", "multipart/form-data; boundary=b", HEAD),
    ("/conversations/import", "application/json", b"["),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server"), **SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def cat(server: ServerProcess) -> Iterator[ApiClient]:
    with ApiClient(server, None).register("cat") as person:
        yield person


@pytest.fixture(params=ENTRY_POINTS, ids=["files", "import of a form", "import"])
def connection(request: pytest.FixtureRequest, cat: ApiClient) -> Iterator[socket.socket]:
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


def answer(connection: socket.socket) -> bytes:
    """The whole answer, to the end of its JSON."""
    received = b""
    while b'"success"' not in received or not received.endswith(b"}"):
        piece = connection.recv(65_536)
        assert piece, received
        received += piece
    return received


def check_timeout_error(refused: bytes) -> None:
    assert refused.startswith(b"HTTP/1.1 408")
    assert b"it was discarded" in refused
    assert b'"request_timeout"' in refused


def check_nothing_is_left(cat: ApiClient) -> None:
    """Checks that the failed upload left nothing and that the next upload does not wait."""
    end = time.monotonic() + WAIT_SECONDS
    # The client gets its answer first; the server deletes the file after that.
    while (next_one := cat.ask("POST", "/conversations/import", content=b"[]x")).status_code == 429:
        assert time.monotonic() < end
    assert next_one.json()["detail"]["kind"] == "import_unreadable"
    assert cat.good("GET", "/files")["items"] == []


def test_a_silent_upload_times_out(connection: socket.socket, cat: ApiClient) -> None:
    began = time.monotonic()
    check_timeout_error(answer(connection))
    assert SILENT * 0.9 <= time.monotonic() - began < WAIT_SECONDS
    check_nothing_is_left(cat)


def test_a_slow_upload_without_end_times_out(connection: socket.socket, cat: ApiClient) -> None:
    """The client sends often enough, but the upload would take an hour."""
    done = threading.Event()

    def drip() -> None:
        while not done.wait(SILENT / 5):
            connection.sendall(b" ")

    began = time.monotonic()
    dripping = threading.Thread(target=drip)
    dripping.start()
    try:
        check_timeout_error(answer(connection))
    finally:
        done.set()
        dripping.join(WAIT_SECONDS)
    assert SILENT * 0.9 <= time.monotonic() - began < WAIT_SECONDS
    check_nothing_is_left(cat)


def test_a_slow_upload_within_the_bounds_is_taken(cat: ApiClient) -> None:
    def pieces() -> Iterator[bytes]:
        for piece in (HEAD, b"slow", b"\r\n--b--\r\n"):
            time.sleep(SILENT / 5)
            yield piece

    headers = {"content-type": "multipart/form-data; boundary=b"}
    uploaded = cat.good("POST", "/files", content=pieces(), headers=headers)
    assert uploaded["size"] == 4
    cat.good("DELETE", f"/files/{uploaded['id']}")
