"""Concurrent visits: those of one call overlap, and no user waits for another."""

import asyncio
import socket
import threading

from luxx.tools.web.clients import PER_USER
from web.conftest import WebTools
from web.site import Site, page

WAIT_SECONDS = 20.0


def test_the_pages_of_a_batch_are_asked_for_at_the_same_time(
    web: WebTools, public_site: Site, base_url: str
) -> None:
    met = threading.Barrier(4)

    def meet(connection: socket.socket, head: str) -> None:
        met.wait(WAIT_SECONDS)
        connection.sendall(page("<p>met"))

    public_site.routes["*"] = meet
    result = web.execute("batch_fetch", urls=[f"{base_url}/{number}" for number in range(4)])
    assert [page_result["data"]["content"] for page_result in result.data["results"]] == ["met"] * 4


async def test_slow_pages_of_one_user_delay_only_that_user(public_site: Site, base_url: str) -> None:
    web = WebTools(f"public.example:{public_site.port}", seconds=WAIT_SECONDS)
    release = threading.Event()

    def slow(connection: socket.socket, head: str) -> None:
        release.wait(WAIT_SECONDS)
        connection.sendall(page("<p>slow"))

    public_site.routes["*"] = slow
    public_site.routes["/quick"] = page("<p>quick")

    pages = [
        asyncio.create_task(web.call("web_fetch", url=f"{base_url}/slow{number}"))
        for number in range(2 * PER_USER)
    ]
    assert await asyncio.to_thread(public_site.visited, PER_USER)
    async with asyncio.timeout(WAIT_SECONDS):
        quick = await web.call("web_fetch", user_id=2, url=f"{base_url}/quick")
    assert quick.data["content"] == "quick"
    assert len(public_site.visits) == PER_USER + 1
    release.set()
    results = await asyncio.gather(*pages)
    assert [result.data["content"] for result in results] == ["slow"] * (2 * PER_USER)


async def test_a_cancelled_fetch_closes_its_connection_and_leaves_the_queue(
    public_site: Site, base_url: str
) -> None:
    web = WebTools(f"public.example:{public_site.port}", seconds=WAIT_SECONDS)
    is_closed = threading.Event()

    def hang(connection: socket.socket, head: str) -> None:
        if not connection.recv(1):
            is_closed.set()

    public_site.routes["*"] = hang
    public_site.routes["/quick"] = page("<p>quick")

    for number in range(PER_USER + 1):
        visit = asyncio.create_task(web.call("web_fetch", url=f"{base_url}/{number}"))
        assert await asyncio.to_thread(public_site.visited, number + 1)
        visit.cancel()
        await asyncio.gather(visit, return_exceptions=True)
    assert await asyncio.to_thread(is_closed.wait, WAIT_SECONDS)
    assert (await web.call("web_fetch", url=f"{base_url}/quick")).data["content"] == "quick"
