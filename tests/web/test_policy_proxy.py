"""The proxy that programs in jails go out by: listed hosts, public addresses, each request judged, bounds.

Its door is a port of this machine here; `tests/sandbox/test_way_out.py` has it in jails.
"""

import asyncio
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest

from luxx.errors import InvalidInput
from luxx.infra.network.egress import Outing, Traveller
from luxx.infra.network.hosts import WebGuard
from luxx.infra.network.proxy import PolicyProxy
from luxx.infra.network.urls import AllowList, allowed_host
from web.conftest import Names
from web.door import SECONDS, Door, at_the_door, heard, status
from web.site import Site, page, site


def said(words: bytes, door: Door) -> bytes:
    return door.say(words)


@pytest.fixture
def public() -> Iterator[Site]:
    with site() as one:
        one.routes["*"] = page("hello", "text/plain")
        yield one


# --- the control --------------------------------------------------------------------------------------


def test_a_listed_host_is_reached_by_a_plain_request(public: Site, listed: dict[str, Any]) -> None:
    def work(door: Door) -> None:
        answer = door.get(f"http://public.example:{public.port}/a?b=c")
        assert status(answer) == 200
        assert answer.endswith(b"\r\n\r\nhello")
        (reached,) = door.outing.reached
        assert (reached.host, reached.connections) == (f"public.example:{public.port}", 1)
        assert reached.received >= len(b"hello")

    at_the_door(work, **listed)
    assert public.visits == ["/a?b=c"]


def test_a_listed_host_is_reached_through_a_tunnel_whatever_is_spoken_there(
    public: Site, listed: dict[str, Any]
) -> None:
    def work(door: Door) -> None:
        with door.knock() as one:
            # The first words for the host come with the request for the tunnel, as some clients do.
            tunnel = f"CONNECT public.example:{public.port} HTTP/1.1\r\nHost: x\r\n\r\n"
            one.sendall(f"{tunnel}GET /in HTTP/1.1\r\n".encode())
            one.sendall(b"Host: inside\r\n\r\n")
            answer = heard(one)
        assert status(answer) == 200
        assert answer.endswith(b"\r\n\r\nhello")

    at_the_door(work, **listed)
    assert public.visits == ["/in"]


def test_a_body_is_passed_on_in_either_framing(public: Site, listed: dict[str, Any]) -> None:
    url = f"http://public.example:{public.port}/take"

    def echo(talking: socket.socket, head: str) -> None:
        talking.sendall(page(head, "text/plain"))

    public.routes["*"] = echo

    def work(door: Door) -> None:
        sized = f"PUT {url} HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody".encode()
        assert door.say(sized).endswith(b"body")
        waiting = (
            f"PUT {url} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n".encode()
        )
        with door.knock() as one:
            one.sendall(waiting)
            assert one.recv(1000).startswith(b"HTTP/1.1 100")
            one.sendall(b"late")
            assert heard(one).endswith(b"late")

    at_the_door(work, **listed)
    assert len(public.visits) == 2


# --- what is not listed -------------------------------------------------------------------------------


def test_hosts_that_are_not_listed_are_refused_and_not_even_looked_up(victim: Site) -> None:
    names = Names()

    def work(door: Door) -> None:
        for target in (
            "other.example",
            "public.example.evil.example",
            "evilpublic.example",
            "sub.public.example",
        ):
            assert status(door.connect(f"{target}:443")) == 403
            assert status(door.get(f"http://{target}/")) == 403
        assert door.kinds == {"host_not_listed"}
        assert not door.outing.reached

    at_the_door(work, ["public.example"], names=names)
    assert names.asked == []


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "127.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
    ],
)
def test_this_machine_is_refused_in_every_spelling(victim: Site, host: str) -> None:
    def work(door: Door) -> None:
        assert status(door.connect(f"{host}:{victim.port}")) == 403
        assert status(door.get(f"http://{host}:{victim.port}/")) == 403

    at_the_door(work, ["public.example", "*.example.org"])
    # Listed alone opens nothing that is private: that takes the operator's other list, too.
    at_the_door(work, ["public.example", f"{host}:{victim.port}"])
    assert victim.connections == 0


def test_a_listed_host_is_refused_at_another_port(public: Site, victim: Site, listed: dict[str, Any]) -> None:
    def work(door: Door) -> None:
        assert status(door.connect(f"public.example:{victim.port}")) == 403
        assert status(door.get(f"http://public.example:{victim.port}/")) == 403
        assert status(door.get("http://public.example/")) == 403

    at_the_door(work, **listed)
    assert (victim.connections, public.connections) == (0, 0)


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "169.254.169.254", "10.0.0.1", "::ffff:127.0.0.1", "fd00:ec2::254"]
)
def test_a_listed_name_that_leads_inside_is_refused(victim: Site, address: str) -> None:
    names = Names()
    names.addresses["public.example"] = [address]
    entry = f"public.example:{victim.port}"

    def work(door: Door) -> None:
        assert status(door.connect(entry)) == 403
        assert status(door.get(f"http://{entry}/")) == 403
        assert not door.outing.reached

    at_the_door(work, [entry], names=names)
    assert victim.connections == 0


def test_a_listed_name_that_changes_its_address_is_judged_at_each_connection(victim: Site) -> None:
    names = Names()
    # Public, but of a protocol (AMT) that uses UDP only: nothing accepts connections there.
    names.changes["public.example"] = [["192.52.193.1"], ["127.0.0.1"]]
    entry = f"public.example:{victim.port}"

    def work(door: Door) -> None:
        assert status(door.connect(entry)) in (403, 502)
        assert status(door.connect(entry)) == 403

    at_the_door(work, [entry], names=names)
    assert names.asked == ["public.example", "public.example"]
    assert victim.connections == 0


# --- words that mean two things -----------------------------------------------------------------------


def test_the_host_is_told_the_name_that_was_judged_whatever_the_program_calls_it(
    public: Site, listed: dict[str, Any]
) -> None:
    def work(door: Door) -> None:
        assert status(door.get(f"http://public.example:{public.port}/", host="other.example")) == 200

    at_the_door(work, **listed)
    assert "other.example" not in public.heads[0]
    assert f"host: public.example:{public.port}\r\n" in public.heads[0].lower()


def test_a_second_request_on_a_connection_reaches_nobody(
    public: Site, victim: Site, listed: dict[str, Any]
) -> None:
    first = f"GET http://public.example:{public.port}/1 HTTP/1.1\r\nHost: x\r\n\r\n"
    for second in (f"http://127.0.0.1:{victim.port}/2", f"http://public.example:{public.port}/2"):
        again = f"GET {second} HTTP/1.1\r\nHost: x\r\n\r\n"
        answer = at_the_door(partial(said, (first + again).encode()), **listed)
        assert answer.count(b"HTTP/1.1 ") == 1
        assert b"connection: close" in answer.lower()
    assert public.visits == ["/1", "/1"]
    assert victim.connections == 0


@pytest.mark.parametrize(
    "lines",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Content-Length: 5\r\nContent-Length: 6",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Content-Length : 5",
        "Content-Length: +5",
        "X: a\r\n folded",
        "Host: y",
        "X\x00: a",
        "X: a\rb",
    ],
)
def test_a_request_whose_length_or_name_is_said_in_two_ways_is_not_passed_on(
    public: Site, listed: dict[str, Any], lines: str
) -> None:
    smuggled = f"GET http://public.example:{public.port}/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    head = f"POST http://public.example:{public.port}/ HTTP/1.1\r\nHost: x\r\n{lines}\r\n\r\n0\r\n\r\n"

    def work(door: Door) -> None:
        answer = door.say((head + smuggled).encode())
        is_folded = "folded" in lines
        assert status(answer) in ((200,) if is_folded else (400, 501))
        assert answer.count(b"HTTP/1.1 ") == 1

    at_the_door(work, **listed)
    assert not [head for head in public.heads if "smuggled" in head.split("\r\n\r\n")[0]]


def test_what_is_for_the_proxy_alone_is_not_passed_on(public: Site, listed: dict[str, Any]) -> None:
    more = (
        "Connection: X-Mine, Upgrade\r\nX-Mine: 1\r\nUpgrade: websocket\r\nProxy-Authorization: c2VjcmV0\r\n"
    )
    words = (
        f"GET http://public.example:{public.port}/ HTTP/1.1\r\nHost: x\r\n{more}X-Kept: 2\r\n\r\n".encode()
    )
    assert status(at_the_door(lambda door: door.say(words), **listed)) == 200
    said = public.heads[0].lower()
    assert not re.search("x-mine|upgrade|proxy-|c2vj", said)
    assert "x-kept: 2" in said


@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.1\r\nHost: public.example\r\n\r\n",
        b"GET https://public.example/ HTTP/1.1\r\nHost: public.example\r\n\r\n",
        b"GET file:///etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://public.example@127.0.0.1/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://public.example\\@127.0.0.1/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http:///x HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT public.example HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT public.example:0 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT public.example:443@127.0.0.1:80 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT /etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n",
        b"\x05\x01\x00\r\n\r\n",
        b"GET http://public.example/\r\n\r\n",
        b"\xff" * 100 + b"\r\n\r\n",
    ],
)
def test_what_is_no_request_for_a_proxy_is_answered_with_400(words: bytes) -> None:
    names = Names()

    def work(door: Door) -> None:
        assert status(door.say(words)) == 400
        assert door.kinds == {"bad_request"}

    at_the_door(work, ["public.example"], names=names)
    assert names.asked == []


# --- bounds -------------------------------------------------------------------------------------------


def test_a_request_line_of_ten_megabytes_is_given_up_early(listed: dict[str, Any]) -> None:
    def work(door: Door) -> None:
        began = time.monotonic()
        answer = door.say(b"GET http://public.example/" + b"a" * 10_000_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status(answer) in (0, 431)
        assert time.monotonic() - began < 5
        assert door.outing.bytes < 1_000_000
        assert door.kinds == {"bad_request"}

    at_the_door(work, **listed)


def test_a_head_that_drips_is_given_up(listed: dict[str, Any]) -> None:
    def work(door: Door) -> None:
        with door.knock() as one:
            one.settimeout(0.05)
            answer = b""
            for _ in range(400):
                try:
                    one.sendall(b"G")
                    answer = one.recv(1000)
                    break
                except TimeoutError:
                    continue
        assert status(answer) == 408
        assert door.kinds == {"slow_request"}

    at_the_door(work, **listed, head_seconds=0.5)


def test_a_silent_tunnel_is_closed(public: Site, listed: dict[str, Any]) -> None:
    def work(door: Door) -> None:
        assert status(door.connect(f"public.example:{public.port}")) == 200

    at_the_door(work, **listed, idle_seconds=0.2)


def test_a_thousand_connections_cost_their_program_its_way_out_and_nobody_else_anything(
    public: Site, listed: dict[str, Any]
) -> None:
    def work(door: Door) -> None:
        held = [door.knock() for _ in range(8)]
        for one in held:
            one.sendall(f"CONNECT public.example:{public.port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert one.recv(1000).startswith(b"HTTP/1.1 200")
        # One more waits until another has ended.
        with door.knock() as waiting:
            waiting.sendall(f"GET http://public.example:{public.port}/w HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            waiting.settimeout(0.2)
            with pytest.raises(TimeoutError):
                waiting.recv(1000)
            waiting.settimeout(SECONDS)
            held.pop().close()
            assert status(heard(waiting)) == 200
        for one in held:
            one.close()
        # The bound of all: there is no door any more.
        knocks = 0
        with suppress(OSError):
            while knocks < 1000:
                door.knock().close()
                knocks += 1
        assert knocks < 1000
        with pytest.raises(ConnectionRefusedError):
            door.knock()
        assert door.kinds == {"too_many_connections"}

    at_the_door(work, **listed, at_once=8, connections=200)
    assert public.connections == 9


def test_too_many_bytes_end_the_connection(public: Site, listed: dict[str, Any]) -> None:
    public.routes["*"] = page(b"x" * 3_000_000, "text/plain")

    def work(door: Door) -> None:
        url = f"http://public.example:{public.port}/"
        assert len(door.get(url)) < 2_500_000
        assert door.kinds == {"too_many_bytes"}

    at_the_door(work, **listed, size=1_000_000)


def test_an_answer_that_breaks_off_is_not_taken_for_a_whole_one(public: Site, listed: dict[str, Any]) -> None:
    public.routes["*"] = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"
    url = f"http://public.example:{public.port}/"
    answer = at_the_door(lambda door: door.get(url), **listed)
    assert len(answer.partition(b"\r\n\r\n")[2]) < 100
    for broken in (b"no HTTP at all\r\n\r\n", b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100):
        public.routes["*"] = broken
        assert status(at_the_door(lambda door: door.get(url), **listed)) == 502


def test_what_one_may_reach_is_not_anothers(public: Site) -> None:
    entry = f"public.example:{public.port}"

    async def run() -> tuple[bytes, bytes]:
        guard = WebGuard((entry,), resolve=Names().resolve)
        with two_doors() as (first, second):
            open_one, closed = PolicyProxy(AllowList([entry]), guard), PolicyProxy(AllowList([]), guard)
            mine, yours = (Outing(Traveller(user_id=number)) for number in (1, 2))
            ports = [int(one.getsockname()[1]) for one in (first, second)]
            async with open_one.serving(first, mine), closed.serving(second, yours):
                doors = (Door(ports[0], mine), Door(ports[1], yours))
                answers = [await asyncio.to_thread(door.get, f"http://{entry}/") for door in doors]
            assert len(mine.reached) == 1
            assert yours.reached == []
            return answers[0], answers[1]

    first, second = asyncio.run(run())
    assert (status(first), status(second)) == (200, 403)


@contextmanager
def two_doors() -> Iterator[tuple[socket.socket, socket.socket]]:
    yield socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))


# --- the list -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "yes", "no"),
    [
        (
            "Example.ORG.",
            [("example.org", 443), ("example.org", 80)],
            [("example.org", 22), ("a.example.org", 443)],
        ),
        ("example.org:8443", [("example.org", 8443)], [("example.org", 443)]),
        (
            "*.example.org",
            [("a.example.org", 443), ("a.b.example.org", 80)],
            [("example.org", 443), ("aexample.org", 80)],
        ),
        ("*.example.org:99", [("a.example.org", 99)], [("a.example.org", 443)]),
        ("bücher.example", [("xn--bcher-kva.example", 443)], [("bucher.example", 443)]),
        ("10.0.0.7:8080", [("10.0.0.7", 8080)], [("10.0.0.7", 80)]),
        ("[::1]:8080", [("::1", 8080)], [("::1", 80)]),
    ],
)
def test_an_entry_means_what_it_says(
    entry: str, yes: list[tuple[str, int]], no: list[tuple[str, int]]
) -> None:
    found = AllowList([entry])
    assert all(found.allows(*one) for one in yes)
    assert not any(found.allows(*one) for one in no)


@pytest.mark.parametrize(
    "entry",
    ["", "*", "*.com", "*.127.0.0.1", "https://example.org", "example.org/path", "a b", "[::1",
     "example.org:0", "example.org:99999", "a.*.org", "user@example.org", "169.254.169.254",
     "metadata.google.internal"],
)  # fmt: skip
def test_what_is_no_entry_is_said_in_a_sentence(entry: str) -> None:
    with pytest.raises(InvalidInput):
        allowed_host(entry)
