"""A program cannot overload the proxy, hide requests in it or take connections from others."""

import asyncio
import errno
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from luxx.infra.network.egress import EgressCaller, EgressSession, FairSlots
from luxx.infra.network.hosts import WebGuard
from luxx.infra.network.proxy import PolicyProxy
from luxx.infra.network.urls import AllowList
from web.conftest import FakeResolver
from web.proxy_client import SECONDS, ProxyClient, read_all, status, with_proxy
from web.site import Site, page, site


@pytest.fixture
def public() -> Iterator[Site]:
    with site() as one:
        one.routes["*"] = page("hello", "text/plain")
        yield one


def test_a_head_of_thousands_of_headers_is_refused(public: Site, listed: dict[str, Any]) -> None:
    names = ",".join(f"a{number:x}" for number in range(2000))
    many = "zz:\r\n" * 3500

    def work(client: ProxyClient) -> None:
        url = f"http://public.example:{public.port}/"
        assert status(client.say(f"GET {url} HTTP/1.1\r\nHost: x\r\n{many}\r\n".encode())) == 431
        assert (
            status(client.say(f"GET {url} HTTP/1.1\r\nHost: x\r\nConnection: {names}\r\n\r\n".encode()))
            == 200
        )
        public.routes["*"] = f"HTTP/1.1 200 OK\r\n{many}\r\n".encode()
        assert status(client.get(url)) == 502

    with_proxy(work, **listed)


@pytest.mark.parametrize("kind", ["plain", "tunnel"])
def test_a_program_that_does_not_read_is_disconnected(
    public: Site, listed: dict[str, Any], kind: str
) -> None:
    is_over = threading.Event()

    def pour(talking: socket.socket, head: str) -> None:
        talking.settimeout(SECONDS)
        with suppress(OSError):
            talking.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 90000000\r\n\r\n")
            for _ in range(1000):
                talking.sendall(bytes(90_000))
        is_over.set()

    public.routes["*"] = pour
    public_host = f"public.example:{public.port}"
    plain = f"GET http://{public_host}/ HTTP/1.1\r\nHost: x\r\n\r\n"
    tunnel = f"CONNECT {public_host} HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n"

    def work(client: ProxyClient) -> None:
        with client.connect_socket() as one:
            one.sendall((plain if kind == "plain" else tunnel).encode())
            assert is_over.wait(5)
        assert client.egress_session.bytes < 80_000_000

    with_proxy(work, **listed, idle_seconds=0.2)


def test_an_upload_of_too_many_bytes_is_cut_and_reported(public: Site, listed: dict[str, Any]) -> None:
    public.routes["*"] = swallow

    def work(client: ProxyClient) -> None:
        head = f"POST http://public.example:{public.port}/ HTTP/1.1\r\nHost: x\r\n"
        began = time.monotonic()
        client.say(f"{head}Transfer-Encoding: chunked\r\n\r\n2dc6c0\r\n".encode() + bytes(3_000_000))
        assert time.monotonic() - began < 5
        assert client.kinds == {"too_many_bytes"}

    with_proxy(work, **listed, size=500_000)


def test_an_invalid_body_is_refused_without_waiting_for_an_answer(
    public: Site, listed: dict[str, Any]
) -> None:
    public.routes["*"] = swallow

    def work(client: ProxyClient) -> None:
        chunked = "Host: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nno size\r\n"
        with client.connect_socket() as one:
            one.settimeout(5)
            one.sendall(f"POST http://public.example:{public.port}/ HTTP/1.1\r\n{chunked}".encode())
            assert status(read_all(one)) == 400
        assert client.kinds == {"bad_request"}

    with_proxy(work, **listed)


def test_an_answer_that_comes_before_the_whole_request_is_passed_on(
    public: Site, listed: dict[str, Any]
) -> None:
    def refuse(talking: socket.socket, head: str) -> None:
        talking.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")

    public.routes["*"] = refuse

    def work(client: ProxyClient) -> None:
        head = "Host: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
        with client.connect_socket() as one:
            one.settimeout(5)
            one.sendall(f"POST http://public.example:{public.port}/ HTTP/1.1\r\n{head}".encode())
            assert status(read_all(one)) == 413

    with_proxy(work, **listed)


def test_a_body_of_small_chunks_is_passed_on_in_larger_pieces(public: Site, listed: dict[str, Any]) -> None:
    raw: list[bytes] = []

    def take(talking: socket.socket, head: str) -> None:
        body = head.encode().partition(b"\r\n\r\n")[2]
        while not body.endswith(b"0\r\n\r\n") and (piece := talking.recv(65_536)):
            body += piece
        raw.append(body)
        talking.sendall(page("taken", "text/plain"))

    public.routes["*"] = take

    def work(client: ProxyClient) -> None:
        head = f"POST http://public.example:{public.port}/ HTTP/1.1\r\nHost: x\r\n"
        small_chunks = "Transfer-Encoding: chunked\r\n\r\n" + "1\r\na\r\n" * 5000 + "0\r\n\r\n"
        assert client.say(f"{head}{small_chunks}".encode()).endswith(b"taken")
        # Six bytes each, if each chunk is passed on separately.
        assert raw[0].count(b"a") >= 5000
        assert len(raw[0]) < 6000

    with_proxy(work, **listed)


def swallow(talking: socket.socket, head: str) -> None:
    """Reads to the end and sends nothing."""
    with suppress(OSError):
        while talking.recv(65_536):
            pass


async def test_a_user_with_many_connections_leaves_some_for_others() -> None:
    places = FairSlots(16)
    connections_by_user = dict.fromkeys(range(6), 0)
    leaving = asyncio.Event()

    async def stay(user_id: int) -> None:
        async with places.one(user_id, SECONDS):
            connections_by_user[user_id] += 1
            await leaving.wait()

    tasks: list[asyncio.Task[None]] = []
    for user_id in range(5):
        tasks += [asyncio.create_task(stay(user_id)) for _ in range(16)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert [connections_by_user[user_id] for user_id in range(5)] == [8, 4, 2, 1, 1]
    with pytest.raises(TimeoutError):
        async with places.one(5, 0.01):
            raise AssertionError
    leaving.set()
    await asyncio.gather(*tasks)
    assert list(connections_by_user.values()) == [16] * 5 + [0]
    # All connections were released, also that of the client which was cancelled while it waited.
    leaving.clear()
    tasks = [asyncio.create_task(stay(0)) for _ in range(9)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert connections_by_user[0] == 24
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    async with places.one(0, 1), places.one(0, 1):
        pass


def test_a_program_without_a_free_connection_is_refused_with_the_reason(
    public: Site, listed: dict[str, Any]
) -> None:
    def work(client: ProxyClient) -> None:
        assert status(client.get(f"http://public.example:{public.port}/")) == 503
        assert client.kinds == {"too_busy"}

    with_proxy(work, **listed, total_connections=0, wait_seconds=0.01)


class FullListener(socket.socket):
    """A listener of a process that has too many files open, at first."""

    def accept(self) -> Any:
        self.accept = super().accept  # type: ignore[method-assign]
        raise OSError(errno.EMFILE, "Too many open files")


async def test_a_connection_that_cannot_be_accepted_now_is_accepted_later(public: Site) -> None:
    entry = f"public.example:{public.port}"

    proxy = PolicyProxy(AllowList([entry]), WebGuard((entry,), resolve=FakeResolver().resolve))
    egress_session = EgressSession(EgressCaller(user_id=1))
    listener = FullListener(fileno=socket.create_server(("127.0.0.1", 0)).detach())
    port = int(listener.getsockname()[1])
    async with asyncio.timeout(SECONDS), proxy.serving(listener, egress_session):
        result = await asyncio.to_thread(ProxyClient(port, egress_session).get, f"http://{entry}/")
    assert status(result) == 200


def test_a_program_reaches_no_more_hosts_than_are_reported_in_full(public: Site) -> None:
    entry = f"*.public.example:{public.port}"
    names = FakeResolver()
    hosts = [f"h{number}.public.example" for number in range(52)]
    for host in hosts:
        names.addresses[host] = ["127.0.0.1"]
    private = tuple(f"{host}:{public.port}" for host in hosts)

    def work(client: ProxyClient) -> None:
        answers = [status(client.get(f"http://{host}:{public.port}/")) for host in hosts]
        assert answers == [200] * 50 + [403] * 2
        assert status(client.get(f"http://{hosts[0]}:{public.port}/")) == 200
        assert [one.host for one in client.egress_session.reached] == [
            f"{host}:{public.port}" for host in hosts[:50]
        ]
        assert client.kinds == {"too_many_hosts"}

    with_proxy(work, [entry], private=private, names=names)
    # The others were not even resolved.
    assert names.asked[50:] == [hosts[0]]
