"""Answers of many small parts, which need much CPU: other tasks of the event loop still run."""

import asyncio
import gc
import gzip
import socket
import time
import zlib
from collections.abc import Callable

import pytest

from luxx.infra.network.fetch import DecompressionError, Inflater
from web.conftest import WebTools
from web.site import Site, page

MAX_BLOCKED_SECONDS = 0.08
"""CPU time between two turns of the event loop: many times the normal amount, less than without the
bounds."""

CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
COOKIES = b"".join(b"Set-Cookie:a%d=b\r\n" % number for number in range(4500))
PIECE = b"1\r\n\n\r\n" * 20_000


def pour(first: bytes, piece: bytes) -> Callable[[socket.socket, str], None]:
    def answer(connection: socket.socket, _head: str) -> None:
        connection.sendall(first)
        while True:
            connection.sendall(piece)

    return answer


FLOODS = {
    "a body of single bytes": pour(CHUNKED, PIECE),
    "preliminary answers": pour(b"", b"HTTP/1.1 103 \r\n\r\n" * 5000),
    "cookies": b"HTTP/1.1 302 Found\r\nLocation: /flood\r\n" + COOKIES + b"Content-Length: 0\r\n\r\n",
}


async def longest_blocked(work: asyncio.Task[object]) -> float:
    """The longest time between two turns of the event loop, in CPU seconds of this thread."""
    longest, last = 0.0, time.thread_time()
    while not work.done():
        await asyncio.sleep(0)
        now = time.thread_time()
        longest, last = max(longest, now - last), now
    return longest


@pytest.mark.parametrize("name", FLOODS)
async def test_other_tasks_run_while_a_flood_is_read(public_site: Site, base_url: str, name: str) -> None:
    web = WebTools(f"public.example:{public_site.port}", seconds=20.0)
    public_site.routes["/flood"] = FLOODS[name]
    public_site.routes["/"] = page("<p>first")

    try:
        # The first visit also creates what all later ones share.
        await web.call("web_fetch", url=f"{base_url}/")
        # As after the start of a server: objects that exist by now are excluded from garbage collection.
        gc.collect()
        gc.freeze()
        result = await longest_blocked(asyncio.create_task(web.call("web_fetch", url=f"{base_url}/flood")))
        assert result < MAX_BLOCKED_SECONDS
    finally:
        gc.unfreeze()


def test_a_body_of_small_chunks_is_read_to_a_bound(public_site: Site, base_url: str) -> None:
    web = WebTools(f"public.example:{public_site.port}", seconds=20.0)
    public_site.routes["/"] = pour(CHUNKED, PIECE)
    data = web.read(f"{base_url}/")
    assert data["content"].strip() == ""
    assert data["note"].startswith("Only the beginning was read: 4,0")


def test_preliminary_answers_without_end_are_refused_early(public_site: Site, base_url: str) -> None:
    web = WebTools(f"public.example:{public_site.port}", seconds=20.0)
    public_site.routes["/"] = FLOODS["preliminary answers"]
    assert "sent no valid HTTP response" in web.refusal(f"{base_url}/")


def test_control_small_chunks_and_a_preliminary_answer_are_accepted(
    web: WebTools, public_site: Site, base_url: str
) -> None:
    chunks = b"".join(b"5\r\nword\n\r\n" for _ in range(3000))
    public_site.routes["/"] = b"HTTP/1.1 103 Early Hints\r\n\r\n" + CHUNKED + chunks + b"0\r\n\r\n"
    data = web.read(f"{base_url}/")
    assert (data["content"].count("word"), data.get("note")) == (3000, None)


def unpack(encoding: str, *pieces: bytes) -> tuple[bytes, bool]:
    inflater = Inflater(encoding, 1_000_000)
    for piece in pieces:
        inflater.feed(piece)
    return bytes(inflater.data), inflater.is_whole


def one_by_one(data: bytes) -> list[bytes]:
    return [data[offset : offset + 1] for offset in range(len(data))]


def test_gzip_of_several_parts_is_read_whole() -> None:
    parts = gzip.compress(b"first ") + gzip.compress(b"") + gzip.compress(b"second")
    assert unpack("gzip", parts) == (b"first second", True)
    assert unpack("gzip", *one_by_one(parts)) == (b"first second", True)
    assert unpack("gzip", parts + b"\0" * 100, b"more padding") == (b"first second", True)


def test_a_raw_deflate_stream_is_recognised() -> None:
    bare = zlib.compress(b"hello world " * 50)[2:-4]
    assert unpack("deflate", *one_by_one(bare)) == (b"hello world " * 50, True)
    assert unpack("deflate", *one_by_one(zlib.compress(b"hello"))) == (b"hello", True)


def test_a_truncated_stream_is_reported_as_cut(web: WebTools, public_site: Site, base_url: str) -> None:
    packed = gzip.compress(bytes(range(256)) * 1000)
    assert unpack("gzip", packed[:-20])[1] is False
    assert unpack("gzip", gzip.compress(b"a") + packed[:100])[1] is False
    assert unpack("gzip", b"") == (b"", True)
    text = gzip.compress(b"words of a page " * 10, 0)
    public_site.routes["/"] = page(text[:100], "text/plain", Content_Encoding="gzip")
    assert "Only the beginning was read" in web.read(f"{base_url}/")["note"]


def test_parts_without_end_are_bounded_and_damage_is_reported() -> None:
    inflater = Inflater("gzip", 1_000_000)
    inflater.feed(gzip.compress(b"") * 5000)
    assert (inflater.is_full, inflater.is_whole) == (True, False)
    with pytest.raises(DecompressionError, match="damaged"):
        unpack("gzip", b"not gzip at all")
