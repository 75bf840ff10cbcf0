"""Malicious servers: bombs, slow answers and endless answers cost their own call and nothing else."""

import gzip
import socket
import time
import tracemalloc
import zlib
from collections.abc import Callable

import pytest

from luxx.tools.web.reading import MAX_TEXT_BYTES
from web.conftest import WebTools
from web.site import Site, page, redirect

SECONDS = 1.0
MAX_SECONDS = 8.0
"""Far more than SECONDS, for a busy machine, and far less than any of these answers takes."""

MIB = 1024 * 1024
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"


@pytest.fixture
def web(public_site: Site) -> WebTools:
    return WebTools(f"public.example:{public_site.port}", seconds=SECONDS)


def endless_answer(first: bytes, piece: bytes, pause: float = 0.0) -> Callable[[socket.socket, str], None]:
    def answer(connection: socket.socket, _head: str) -> None:
        connection.sendall(first)
        while True:
            connection.sendall(piece)
            if pause:
                time.sleep(pause)

    return answer


DRIPS = {
    "a byte of the body now and then": endless_answer(OK + b"\r\n", b"x", 0.05),
    "a byte of the head now and then": endless_answer(b"HTTP/1.1 200 OK\r\nX-A: ", b"x", 0.05),
    "a header now and then": endless_answer(b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n", 0.05),
    "a chunk now and then": endless_answer(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", 0.05),
    "continue, continue": endless_answer(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.01),
    "nothing": endless_answer(b"", b"", 0.05),
    "a promise": endless_answer(OK + b"Content-Length: 1000\r\n\r\n", b"", 0.05),
}


@pytest.mark.parametrize("name", DRIPS)
def test_a_slow_answer_ends_at_the_deadline(
    web: WebTools, public_site: Site, base_url: str, name: str
) -> None:
    public_site.routes["/"] = DRIPS[name]
    started = time.monotonic()
    assert f"did not answer in full within {SECONDS:g} seconds" in web.refusal(f"{base_url}/")
    assert time.monotonic() - started < MAX_SECONDS


def test_the_deadline_is_one_for_all_redirects(web: WebTools, public_site: Site, base_url: str) -> None:
    def slow(connection: socket.socket, head: str) -> None:
        time.sleep(0.4)
        connection.sendall(redirect(head.split(" ", 2)[1] + "x"))

    public_site.routes["*"] = slow
    started = time.monotonic()
    assert "did not answer in full" in web.refusal(f"{base_url}/")
    assert time.monotonic() - started < MAX_SECONDS


def test_a_head_without_end_is_refused_early(public_site: Site, base_url: str) -> None:
    web = WebTools(f"public.example:{public_site.port}", seconds=30.0)
    for piece in (b"X-A: " + b"x" * 1000 + b"\r\n", b"x" * 1000):
        public_site.routes["/"] = endless_answer(b"HTTP/1.1 200 OK\r\nX-B: ", piece)
        started = time.monotonic()
        assert "sent no valid HTTP response" in web.refusal(f"{base_url}/")
        assert time.monotonic() - started < MAX_SECONDS


def test_redirects_without_end_are_counted(web: WebTools, public_site: Site, base_url: str) -> None:
    public_site.routes["/"] = redirect("/")
    assert "redirects more than 5 times" in web.refusal(f"{base_url}/")
    assert len(public_site.visits) == 6


def test_the_body_of_a_redirect_is_not_read(web: WebTools, public_site: Site, base_url: str) -> None:
    public_site.routes["/"] = endless_answer(
        b"HTTP/1.1 302 Found\r\nLocation: /b\r\nContent-Type: text/html\r\n\r\n", b"x" * 65_536
    )
    public_site.routes["/b"] = page("<p>arrived")
    assert web.read(f"{base_url}/")["content"] == "arrived"


def test_a_body_without_end_is_read_to_its_bound(public_site: Site, base_url: str) -> None:
    web = WebTools(f"public.example:{public_site.port}", seconds=20.0)
    public_site.routes["/"] = endless_answer(OK.replace(b"html", b"plain") + b"\r\n", b"word " * 10_000)
    data = web.read(f"{base_url}/")
    assert "Only the beginning was read: 500,000 characters" in data["note"]


def bombs() -> dict[str, tuple[str, bytes]]:
    packer = zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    packed = packer.compress(b" " * (200 * MIB)) + packer.flush()
    bare = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return {
        "gzip": ("gzip", packed),
        "deflate": ("deflate", zlib.compress(b" " * (100 * MIB))),
        "bare deflate": ("deflate", bare.compress(b" " * (100 * MIB)) + bare.flush()),
    }


def test_a_bomb_unpacks_to_its_bound_and_no_further(public_site: Site, base_url: str) -> None:
    web = WebTools(f"public.example:{public_site.port}", seconds=20.0)
    for name, (encoding, body) in bombs().items():
        public_site.routes["/"] = (
            page(b"", Content_Encoding=encoding).replace(
                b"Content-Length: 0", b"Content-Length: %d" % len(body)
            )
            + body
        )
        tracemalloc.start()
        try:
            data = web.read(f"{base_url}/")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert data["content"] == "", name
        assert peak < 6 * MAX_TEXT_BYTES, name


@pytest.mark.parametrize("encoding", ["gzip, gzip", "br", "zstd", "gzip, gzip, gzip, gzip", "x" * 500])
def test_an_unrequested_encoding_is_not_unpacked(
    web: WebTools, public_site: Site, base_url: str, encoding: str
) -> None:
    public_site.routes["/"] = page(gzip.compress(gzip.compress(b"x" * MIB)), Content_Encoding=encoding)
    assert "which is not supported" in web.refusal(f"{base_url}/")
    assert "accept-encoding: gzip, deflate\r\n" in public_site.heads[0].lower()


def test_control_a_requested_encoding_is_unpacked(web: WebTools, public_site: Site, base_url: str) -> None:
    public_site.routes["/gzip"] = page(gzip.compress(b"<p>packed"), Content_Encoding="gzip")
    public_site.routes["/deflate"] = page(zlib.compress(b"<p>packed"), Content_Encoding="deflate")
    public_site.routes["/bare"] = page(zlib.compress(b"<p>packed")[2:-4], Content_Encoding="deflate")
    for path in ("gzip", "deflate", "bare"):
        assert web.read(f"{base_url}/{path}")["content"] == "packed"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 999999 X\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 100\r\n\r\n<p>half",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Encoding: gzip\r\n\r\nnot gzip at all",
        b"HTTP/1.1 302 Found\r\nLocation: " + b"/x" * 5000 + b"\r\n\r\n",
    ],
)
def test_an_invalid_answer_is_reported_in_a_sentence(
    web: WebTools, public_site: Site, base_url: str, answer: bytes
) -> None:
    public_site.routes["/"] = answer
    error = web.refusal(f"{base_url}/")
    assert error.startswith("public.example ")
    assert "Error" not in error


def test_a_missing_server_is_reported_in_a_sentence(public_site: Site, base_url: str) -> None:
    web = WebTools(f"public.example:{public_site.port}")
    public_site.close()
    assert "public.example cannot be reached" in web.refusal(f"{base_url}/")


def test_a_form_and_cookies_are_sent_only_to_their_own_server(
    web: WebTools, public_site: Site, base_url: str
) -> None:
    public_site.routes["/"] = page("<p>a", Set_Cookie="id=1; Domain=public.example")
    web.read(f"{base_url}/")
    public_site.routes["/b"] = page("<p>b")
    web.read(f"{base_url}/b")
    assert "cookie" not in public_site.heads[1].lower()
