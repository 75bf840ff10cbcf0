"""The egress proxy for programs in sandboxes: listed hosts, public addresses, checks of each request, bounds.

Here it listens on a port of this machine; `tests/sandbox/test_egress.py` tests it from sandboxes.
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
from luxx.infra.network.egress import EgressCaller, EgressSession
from luxx.infra.network.hosts import WebGuard
from luxx.infra.network.proxy import PolicyProxy
from luxx.infra.network.urls import AllowList, allowed_host
from web.conftest import FakeResolver
from web.proxy_client import SECONDS, ProxyClient, read_all, run_with_proxy, status
from web.site import Site, page, site


def send_request(request: bytes, client: ProxyClient) -> bytes:
    return client.send(request)


@pytest.fixture
def public_site() -> Iterator[Site]:
    with site() as started_site:
        started_site.routes["*"] = page("hello", "text/plain")
        yield started_site


# --- allowed requests ---------------------------------------------------------------------------------


def test_a_listed_host_is_reached_by_a_plain_request(public_site: Site, allow_list: dict[str, Any]) -> None:
    def use_proxy(client: ProxyClient) -> None:
        answer = client.get(f"http://public.example:{public_site.port}/a?b=c")
        assert status(answer) == 200
        assert answer.endswith(b"\r\n\r\nhello")
        (reached,) = client.egress_session.reached
        assert (reached.host, reached.connections) == (f"public.example:{public_site.port}", 1)
        assert reached.received >= len(b"hello")

    run_with_proxy(use_proxy, **allow_list)
    assert public_site.visits == ["/a?b=c"]


def test_a_listed_host_is_reached_through_a_tunnel_whatever_is_spoken_there(
    public_site: Site, allow_list: dict[str, Any]
) -> None:
    def use_proxy(client: ProxyClient) -> None:
        with client.connect_socket() as connection:
            # Some clients send the first bytes for the host together with the request for the tunnel.
            tunnel = f"CONNECT public.example:{public_site.port} HTTP/1.1\r\nHost: x\r\n\r\n"
            connection.sendall(f"{tunnel}GET /in HTTP/1.1\r\n".encode())
            connection.sendall(b"Host: inside\r\n\r\n")
            answer = read_all(connection)
        assert status(answer) == 200
        assert answer.endswith(b"\r\n\r\nhello")

    run_with_proxy(use_proxy, **allow_list)
    assert public_site.visits == ["/in"]


def test_a_body_is_passed_on_in_either_framing(public_site: Site, allow_list: dict[str, Any]) -> None:
    url = f"http://public.example:{public_site.port}/take"

    def echo(connection: socket.socket, head: str) -> None:
        connection.sendall(page(head, "text/plain"))

    public_site.routes["*"] = echo

    def use_proxy(client: ProxyClient) -> None:
        sized = f"PUT {url} HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody".encode()
        assert client.send(sized).endswith(b"body")
        waiting = (
            f"PUT {url} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n".encode()
        )
        with client.connect_socket() as connection:
            connection.sendall(waiting)
            assert connection.recv(1000).startswith(b"HTTP/1.1 100")
            connection.sendall(b"late")
            assert read_all(connection).endswith(b"late")

    run_with_proxy(use_proxy, **allow_list)
    assert len(public_site.visits) == 2


# --- what is not listed -------------------------------------------------------------------------------


def test_hosts_that_are_not_listed_are_refused_and_not_even_looked_up(forbidden_site: Site) -> None:
    resolver = FakeResolver()

    def use_proxy(client: ProxyClient) -> None:
        for target in (
            "other.example",
            "public.example.evil.example",
            "evilpublic.example",
            "sub.public.example",
        ):
            assert status(client.connect(f"{target}:443")) == 403
            assert status(client.get(f"http://{target}/")) == 403
        assert client.refusal_kinds == {"host_not_listed"}
        assert not client.egress_session.reached

    run_with_proxy(use_proxy, ["public.example"], resolver=resolver)
    assert resolver.resolved_hosts == []


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
def test_this_machine_is_refused_in_every_spelling(forbidden_site: Site, host: str) -> None:
    def use_proxy(client: ProxyClient) -> None:
        assert status(client.connect(f"{host}:{forbidden_site.port}")) == 403
        assert status(client.get(f"http://{host}:{forbidden_site.port}/")) == 403

    run_with_proxy(use_proxy, ["public.example", "*.example.org"])
    # A listed private address also needs the operator's `web_allow_private`.
    run_with_proxy(use_proxy, ["public.example", f"{host}:{forbidden_site.port}"])
    assert forbidden_site.connections == 0


def test_a_listed_host_is_refused_at_another_port(
    public_site: Site, forbidden_site: Site, allow_list: dict[str, Any]
) -> None:
    def use_proxy(client: ProxyClient) -> None:
        assert status(client.connect(f"public.example:{forbidden_site.port}")) == 403
        assert status(client.get(f"http://public.example:{forbidden_site.port}/")) == 403
        assert status(client.get("http://public.example/")) == 403

    run_with_proxy(use_proxy, **allow_list)
    assert (forbidden_site.connections, public_site.connections) == (0, 0)


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "169.254.169.254", "10.0.0.1", "::ffff:127.0.0.1", "fd00:ec2::254"]
)
def test_a_listed_name_with_a_private_address_is_refused(forbidden_site: Site, address: str) -> None:
    resolver = FakeResolver()
    resolver.addresses["public.example"] = [address]
    entry = f"public.example:{forbidden_site.port}"

    def use_proxy(client: ProxyClient) -> None:
        assert status(client.connect(entry)) == 403
        assert status(client.get(f"http://{entry}/")) == 403
        assert not client.egress_session.reached

    run_with_proxy(use_proxy, [entry], resolver=resolver)
    assert forbidden_site.connections == 0


def test_a_listed_name_that_changes_its_address_is_checked_at_each_connection(forbidden_site: Site) -> None:
    resolver = FakeResolver()
    # Public, but used for a UDP protocol (AMT) only: nothing accepts connections there.
    resolver.changes["public.example"] = [["192.52.193.1"], ["127.0.0.1"]]
    entry = f"public.example:{forbidden_site.port}"

    def use_proxy(client: ProxyClient) -> None:
        assert status(client.connect(entry)) in (403, 502)
        assert status(client.connect(entry)) == 403

    run_with_proxy(use_proxy, [entry], resolver=resolver)
    assert resolver.resolved_hosts == ["public.example", "public.example"]
    assert forbidden_site.connections == 0


# --- ambiguous requests -------------------------------------------------------------------------------


def test_the_host_header_is_the_name_that_was_checked(public_site: Site, allow_list: dict[str, Any]) -> None:
    def use_proxy(client: ProxyClient) -> None:
        assert status(client.get(f"http://public.example:{public_site.port}/", host="other.example")) == 200

    run_with_proxy(use_proxy, **allow_list)
    assert "other.example" not in public_site.heads[0]
    assert f"host: public.example:{public_site.port}\r\n" in public_site.heads[0].lower()


def test_a_second_request_on_a_connection_is_not_passed_on(
    public_site: Site, forbidden_site: Site, allow_list: dict[str, Any]
) -> None:
    first = f"GET http://public.example:{public_site.port}/1 HTTP/1.1\r\nHost: x\r\n\r\n"
    for second in (
        f"http://127.0.0.1:{forbidden_site.port}/2",
        f"http://public.example:{public_site.port}/2",
    ):
        again = f"GET {second} HTTP/1.1\r\nHost: x\r\n\r\n"
        answer = run_with_proxy(partial(send_request, (first + again).encode()), **allow_list)
        assert answer.count(b"HTTP/1.1 ") == 1
        assert b"connection: close" in answer.lower()
    assert public_site.visits == ["/1", "/1"]
    assert forbidden_site.connections == 0


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
def test_a_request_with_an_ambiguous_length_or_host_is_not_passed_on(
    public_site: Site, allow_list: dict[str, Any], lines: str
) -> None:
    smuggled = f"GET http://public.example:{public_site.port}/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    head = f"POST http://public.example:{public_site.port}/ HTTP/1.1\r\nHost: x\r\n{lines}\r\n\r\n0\r\n\r\n"

    def use_proxy(client: ProxyClient) -> None:
        answer = client.send((head + smuggled).encode())
        is_folded = "folded" in lines
        assert status(answer) in ((200,) if is_folded else (400, 501))
        assert answer.count(b"HTTP/1.1 ") == 1

    run_with_proxy(use_proxy, **allow_list)
    assert not [head for head in public_site.heads if "smuggled" in head.split("\r\n\r\n")[0]]


def test_headers_for_the_proxy_are_not_passed_on(public_site: Site, allow_list: dict[str, Any]) -> None:
    more = (
        "Connection: X-Mine, Upgrade\r\nX-Mine: 1\r\nUpgrade: websocket\r\nProxy-Authorization: c2VjcmV0\r\n"
    )
    url = f"http://public.example:{public_site.port}/"
    request = f"GET {url} HTTP/1.1\r\nHost: x\r\n{more}X-Kept: 2\r\n\r\n".encode()
    assert status(run_with_proxy(lambda client: client.send(request), **allow_list)) == 200
    head = public_site.heads[0].lower()
    assert not re.search("x-mine|upgrade|proxy-|c2vj", head)
    assert "x-kept: 2" in head


@pytest.mark.parametrize(
    "sent_bytes",
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
def test_an_invalid_proxy_request_is_answered_with_400(sent_bytes: bytes) -> None:
    resolver = FakeResolver()

    def use_proxy(client: ProxyClient) -> None:
        assert status(client.send(sent_bytes)) == 400
        assert client.refusal_kinds == {"bad_request"}

    run_with_proxy(use_proxy, ["public.example"], resolver=resolver)
    assert resolver.resolved_hosts == []


# --- bounds -------------------------------------------------------------------------------------------


def test_a_request_line_of_ten_megabytes_is_refused_early(allow_list: dict[str, Any]) -> None:
    def use_proxy(client: ProxyClient) -> None:
        began = time.monotonic()
        answer = client.send(
            b"GET http://public.example/" + b"a" * 10_000_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"
        )
        assert status(answer) in (0, 431)
        assert time.monotonic() - began < 5
        assert client.egress_session.bytes < 1_000_000
        assert client.refusal_kinds == {"bad_request"}

    run_with_proxy(use_proxy, **allow_list)


def test_a_slow_head_times_out(allow_list: dict[str, Any]) -> None:
    def use_proxy(client: ProxyClient) -> None:
        with client.connect_socket() as connection:
            connection.settimeout(0.05)
            answer = b""
            for _ in range(400):
                try:
                    connection.sendall(b"G")
                    answer = connection.recv(1000)
                    break
                except TimeoutError:
                    continue
        assert status(answer) == 408
        assert client.refusal_kinds == {"slow_request"}

    run_with_proxy(use_proxy, **allow_list, head_seconds=0.5)


def test_a_silent_tunnel_is_closed(public_site: Site, allow_list: dict[str, Any]) -> None:
    def use_proxy(client: ProxyClient) -> None:
        assert status(client.connect(f"public.example:{public_site.port}")) == 200

    run_with_proxy(use_proxy, **allow_list, idle_seconds=0.2)


def test_a_thousand_connections_end_the_egress_of_their_program_only(
    public_site: Site, allow_list: dict[str, Any]
) -> None:
    def use_proxy(client: ProxyClient) -> None:
        open_connections = [client.connect_socket() for _ in range(8)]
        for connection in open_connections:
            connection.sendall(
                f"CONNECT public.example:{public_site.port} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            )
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        # One more connection waits until another has ended.
        with client.connect_socket() as waiting:
            waiting.sendall(
                f"GET http://public.example:{public_site.port}/w HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            )
            waiting.settimeout(0.2)
            with pytest.raises(TimeoutError):
                waiting.recv(1000)
            waiting.settimeout(SECONDS)
            open_connections.pop().close()
            assert status(read_all(waiting)) == 200
        for connection in open_connections:
            connection.close()
        # Past the total limit the proxy has closed its listener.
        attempts = 0
        with suppress(OSError):
            while attempts < 1000:
                client.connect_socket().close()
                attempts += 1
        assert attempts < 1000
        with pytest.raises(ConnectionRefusedError):
            client.connect_socket()
        assert client.refusal_kinds == {"too_many_connections"}

    run_with_proxy(use_proxy, **allow_list, at_once=8, connections=200)
    assert public_site.connections == 9


def test_too_many_bytes_end_the_connection(public_site: Site, allow_list: dict[str, Any]) -> None:
    public_site.routes["*"] = page(b"x" * 3_000_000, "text/plain")

    def use_proxy(client: ProxyClient) -> None:
        url = f"http://public.example:{public_site.port}/"
        assert len(client.get(url)) < 2_500_000
        assert client.refusal_kinds == {"too_many_bytes"}

    run_with_proxy(use_proxy, **allow_list, size=1_000_000)


def test_an_interrupted_answer_is_not_treated_as_complete(
    public_site: Site, allow_list: dict[str, Any]
) -> None:
    public_site.routes["*"] = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"
    url = f"http://public.example:{public_site.port}/"
    answer = run_with_proxy(lambda client: client.get(url), **allow_list)
    assert len(answer.partition(b"\r\n\r\n")[2]) < 100
    for broken in (b"no HTTP at all\r\n\r\n", b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100):
        public_site.routes["*"] = broken
        assert status(run_with_proxy(lambda client: client.get(url), **allow_list)) == 502


async def test_an_allow_list_applies_to_its_own_program_only(public_site: Site) -> None:
    entry = f"public.example:{public_site.port}"

    guard = WebGuard((entry,), resolve=FakeResolver().resolve)
    with two_listeners() as (first, second):
        allowing, refusing = PolicyProxy(AllowList([entry]), guard), PolicyProxy(AllowList([]), guard)
        first_session, second_session = (EgressSession(EgressCaller(user_id=number)) for number in (1, 2))
        ports = [int(listener.getsockname()[1]) for listener in (first, second)]
        async with allowing.serving(first, first_session), refusing.serving(second, second_session):
            clients = (ProxyClient(ports[0], first_session), ProxyClient(ports[1], second_session))
            answers = [await asyncio.to_thread(client.get, f"http://{entry}/") for client in clients]
        assert len(first_session.reached) == 1
        assert second_session.reached == []
        first, second = answers[0], answers[1]
    assert (status(first), status(second)) == (200, 403)


@contextmanager
def two_listeners() -> Iterator[tuple[socket.socket, socket.socket]]:
    yield socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))


# --- entries of the list ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "allowed", "refused"),
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
def test_an_entry_allows_its_hosts_and_no_others(
    entry: str, allowed: list[tuple[str, int]], refused: list[tuple[str, int]]
) -> None:
    allow_list = AllowList([entry])
    assert all(allow_list.allows(*host_and_port) for host_and_port in allowed)
    assert not any(allow_list.allows(*host_and_port) for host_and_port in refused)


@pytest.mark.parametrize(
    "entry",
    ["", "*", "*.com", "*.127.0.0.1", "https://example.org", "example.org/path", "a b", "[::1",
     "example.org:0", "example.org:99999", "a.*.org", "user@example.org", "169.254.169.254",
     "metadata.google.internal"],
)  # fmt: skip
def test_an_invalid_entry_is_refused_with_a_sentence(entry: str) -> None:
    with pytest.raises(InvalidInput):
        allowed_host(entry)
