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
from web.proxy_client import SECONDS, ProxyClient, read_all, run_with_proxy, status
from web.site import Site, page, site


@pytest.fixture
def public_site() -> Iterator[Site]:
    """A site that may be reached as `public.example` and answers "hello"."""
    with site() as greeting:
        greeting.routes["*"] = page("hello", "text/plain")
        yield greeting


def read_without_answer(connection: socket.socket, head: str) -> None:
    """Reads to the end and sends nothing."""
    with suppress(OSError):
        while connection.recv(65_536):
            pass


def test_a_head_of_thousands_of_headers_is_refused(public_site: Site, allow_list: dict[str, Any]) -> None:
    # Each is small in bytes, below the bound for the size of a head; only the number of headers is too large.
    many_headers = "zz:\r\n" * 3500
    many_names_in_one_header = ",".join(f"a{number:x}" for number in range(2000))

    def use_proxy(client: ProxyClient) -> None:
        url = f"http://public.example:{public_site.port}/"
        assert status(client.send(f"GET {url} HTTP/1.1\r\nHost: x\r\n{many_headers}\r\n".encode())) == 431
        connection_header = f"Connection: {many_names_in_one_header}\r\n"
        assert (
            status(client.send(f"GET {url} HTTP/1.1\r\nHost: x\r\n{connection_header}\r\n".encode())) == 200
        )
        # An answer with so many headers is an error of the site.
        public_site.routes["*"] = f"HTTP/1.1 200 OK\r\n{many_headers}\r\n".encode()
        assert status(client.get(url)) == 502

    run_with_proxy(use_proxy, **allow_list)


@pytest.mark.parametrize("kind", ["plain", "tunnel"])
def test_a_program_that_does_not_read_is_disconnected(
    public_site: Site, allow_list: dict[str, Any], kind: str
) -> None:
    site_has_ended = threading.Event()

    def send_ninety_megabytes(connection: socket.socket, head: str) -> None:
        connection.settimeout(SECONDS)
        with suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 90000000\r\n\r\n")
            for _ in range(1000):
                connection.sendall(bytes(90_000))
        site_has_ended.set()

    public_site.routes["*"] = send_ninety_megabytes
    public_host = f"public.example:{public_site.port}"
    plain = f"GET http://{public_host}/ HTTP/1.1\r\nHost: x\r\n\r\n"
    tunnel = f"CONNECT {public_host} HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n"

    def use_proxy(client: ProxyClient) -> None:
        with client.connect_socket() as unread:
            unread.sendall((plain if kind == "plain" else tunnel).encode())
            assert site_has_ended.wait(5)
        # It was disconnected before the proxy had read the whole answer.
        assert client.egress_session.bytes < 80_000_000

    run_with_proxy(use_proxy, **allow_list, idle_seconds=0.2)


def test_an_upload_of_too_many_bytes_is_cut_and_reported(
    public_site: Site, allow_list: dict[str, Any]
) -> None:
    public_site.routes["*"] = read_without_answer

    def use_proxy(client: ProxyClient) -> None:
        head = f"POST http://public.example:{public_site.port}/ HTTP/1.1\r\nHost: x\r\n"
        began = time.monotonic()
        chunk = b"2dc6c0\r\n" + bytes(3_000_000)  # The first line is the size of the chunk in hex.
        client.send(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunk)
        # The site never answers, so the proxy itself ended the connection.
        assert time.monotonic() - began < 5
        assert client.refusal_kinds == {"too_many_bytes"}

    run_with_proxy(use_proxy, **allow_list, size=500_000)


def test_an_invalid_body_is_refused_without_waiting_for_an_answer(
    public_site: Site, allow_list: dict[str, Any]
) -> None:
    public_site.routes["*"] = read_without_answer

    def use_proxy(client: ProxyClient) -> None:
        chunked = "Host: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nno size\r\n"
        with client.connect_socket() as connection:
            # The site never answers; without the refusal this times out.
            connection.settimeout(5)
            connection.sendall(
                f"POST http://public.example:{public_site.port}/ HTTP/1.1\r\n{chunked}".encode()
            )
            assert status(read_all(connection)) == 400
        assert client.refusal_kinds == {"bad_request"}

    run_with_proxy(use_proxy, **allow_list)


def test_an_answer_that_comes_before_the_whole_request_is_passed_on(
    public_site: Site, allow_list: dict[str, Any]
) -> None:
    def refuse(connection: socket.socket, head: str) -> None:
        connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")

    public_site.routes["*"] = refuse

    def use_proxy(client: ProxyClient) -> None:
        unfinished = "Host: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
        with client.connect_socket() as connection:
            connection.settimeout(5)
            connection.sendall(
                f"POST http://public.example:{public_site.port}/ HTTP/1.1\r\n{unfinished}".encode()
            )
            assert status(read_all(connection)) == 413

    run_with_proxy(use_proxy, **allow_list)


def test_a_body_of_small_chunks_is_passed_on_in_larger_pieces(
    public_site: Site, allow_list: dict[str, Any]
) -> None:
    received_bodies: list[bytes] = []

    def record_body(connection: socket.socket, head: str) -> None:
        body = head.encode().partition(b"\r\n\r\n")[2]
        while not body.endswith(b"0\r\n\r\n") and (piece := connection.recv(65_536)):
            body += piece
        received_bodies.append(body)
        connection.sendall(page("taken", "text/plain"))

    public_site.routes["*"] = record_body

    def use_proxy(client: ProxyClient) -> None:
        head = f"POST http://public.example:{public_site.port}/ HTTP/1.1\r\nHost: x\r\n"
        small_chunks = "Transfer-Encoding: chunked\r\n\r\n" + "1\r\na\r\n" * 5000 + "0\r\n\r\n"
        assert client.send(f"{head}{small_chunks}".encode()).endswith(b"taken")
        # A chunk "1\r\na\r\n" has six bytes: passed on separately, the 5000 chunks are 30,000 bytes.
        assert received_bodies[0].count(b"a") >= 5000
        assert len(received_bodies[0]) < 6000

    run_with_proxy(use_proxy, **allow_list)


async def test_a_user_with_many_connections_leaves_some_for_others() -> None:
    slots = FairSlots(16)
    acquired_by_user = dict.fromkeys(range(6), 0)
    release = asyncio.Event()

    async def hold_slot(user_id: int) -> None:
        async with slots.hold(user_id, SECONDS):
            acquired_by_user[user_id] += 1
            await release.wait()

    async def start_waiting_tasks() -> None:
        # In the first turn of the loop the tasks ask for a slot, in the second those that got one run on.
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    tasks: list[asyncio.Task[None]] = []
    for user_id in range(5):
        tasks += [asyncio.create_task(hold_slot(user_id)) for _ in range(16)]
        await start_waiting_tasks()
    # Each user gets slots until it holds as many as are still free: half of what the users before it left.
    assert [acquired_by_user[user_id] for user_id in range(5)] == [8, 4, 2, 1, 1]
    with pytest.raises(TimeoutError):
        async with slots.hold(5, 0.01):
            raise AssertionError
    release.set()
    await asyncio.gather(*tasks)
    assert list(acquired_by_user.values()) == [16] * 5 + [0]
    # All slots are free again: user 0 gets eight more and waits for the ninth.
    release.clear()
    tasks = [asyncio.create_task(hold_slot(0)) for _ in range(9)]
    await start_waiting_tasks()
    assert acquired_by_user[0] == 16 + 8
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    # The cancelled tasks released their slots, and the one that waited keeps none.
    async with slots.hold(0, 1), slots.hold(0, 1):
        pass


def test_a_program_without_a_free_connection_is_refused_with_the_reason(
    public_site: Site, allow_list: dict[str, Any]
) -> None:
    def use_proxy(client: ProxyClient) -> None:
        assert status(client.get(f"http://public.example:{public_site.port}/")) == 503
        assert client.refusal_kinds == {"too_busy"}

    run_with_proxy(use_proxy, **allow_list, total_connections=0, wait_seconds=0.01)


class FailsOnce(socket.socket):
    """A listener whose first `accept` fails, as in a process that has too many files open."""

    def accept(self) -> Any:
        # The next call gets the method of the base class.
        self.accept = super().accept  # type: ignore[method-assign]
        raise OSError(errno.EMFILE, "Too many open files")


async def test_a_connection_that_cannot_be_accepted_now_is_accepted_later(public_site: Site) -> None:
    entry = f"public.example:{public_site.port}"
    proxy = PolicyProxy(AllowList([entry]), WebGuard((entry,), resolve=FakeResolver().resolve))
    egress_session = EgressSession(EgressCaller(user_id=1))
    listener = FailsOnce(fileno=socket.create_server(("127.0.0.1", 0)).detach())
    port = int(listener.getsockname()[1])
    async with asyncio.timeout(SECONDS), proxy.serving(listener, egress_session):
        result = await asyncio.to_thread(ProxyClient(port, egress_session).get, f"http://{entry}/")
    assert status(result) == 200


def test_a_program_reaches_no_more_hosts_than_are_reported_in_full(public_site: Site) -> None:
    entry = f"*.public.example:{public_site.port}"
    resolver = FakeResolver()
    hosts = [f"h{number}.public.example" for number in range(52)]
    for host in hosts:
        resolver.addresses[host] = ["127.0.0.1"]
    host_ports = tuple(f"{host}:{public_site.port}" for host in hosts)

    def use_proxy(client: ProxyClient) -> None:
        statuses = [status(client.get(f"http://{host_port}/")) for host_port in host_ports]
        # 50 is MAX_HOSTS: the hosts that one session may reach.
        assert statuses == [200] * 50 + [403] * 2
        # A host that is among the reported ones can still be reached.
        assert status(client.get(f"http://{host_ports[0]}/")) == 200
        reached = [reached_host.host for reached_host in client.egress_session.reached]
        assert reached == list(host_ports[:50])
        assert client.refusal_kinds == {"too_many_hosts"}

    run_with_proxy(use_proxy, [entry], allow_private=host_ports, resolver=resolver)
    # The two refused hosts were not even resolved: only the first host, a second time.
    assert resolver.resolved_hosts[50:] == [hosts[0]]
