"""The limit on open streams and sockets of one user: `limits.streams_per_user`."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from api.client import ApiClient
from api.server_process import ServerProcess
from api.socket_client import new_ticket, open_socket, open_with_ticket
from api.streams import stream_message, stream_run
from luxx.providers.scripted import ScriptedProvider

MOST = 3
WAIT_SECONDS = 20.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    settings = {"LUXX_LIMITS__STREAMS_PER_USER": str(MOST)}
    with ServerProcess(tmp_path_factory.mktemp("server"), **settings) as running:
        yield running


@pytest.fixture
def run_id(anna: ApiClient, upstream: ScriptedProvider) -> Iterator[str]:
    """A run that lasts as long as the test."""
    conversation = anna.good("POST", "/conversations", json={})
    body = {"conversation_id": conversation["id"], "content": "wait here"}
    run = anna.good("POST", "/messages/stream", json=body, headers={"accept": "application/json"})
    yield run["id"]
    anna.good("POST", f"/runs/{run['id']}/cancel")


@contextmanager
def all_open(person: ApiClient, run_id: str) -> Iterator[None]:
    """Opens as many streams as one user may have."""
    with ExitStack() as stack:
        streams = [stack.enter_context(stream_run(person, run_id)) for _ in range(MOST)]
        assert [stream.until("run")["type"] for stream in streams] == ["run"] * MOST
        yield
        assert len(streams) == MOST


def check_stream_is_refused(person: ApiClient, run_id: str) -> None:
    answer = person.ask("GET", f"/runs/{run_id}/events")
    assert answer.status_code == 429
    assert answer.json()["detail"]["kind"] == "too_many_streams"
    assert int(answer.headers["retry-after"]) >= 1
    assert f"you have {MOST} streams" in answer.json()["error"]


def opens_within_bounds(person: ApiClient, run_id: str) -> None:
    """Opens a stream, as soon as the server has noticed that an earlier one was closed."""
    end = time.monotonic() + WAIT_SECONDS
    while True:
        with person.http.stream("GET", f"/runs/{run_id}/events") as response:
            if response.status_code == 200:
                return
        assert time.monotonic() < end, "what was closed still counts"


def test_streams_of_one_user_are_bounded_and_those_of_others_are_not(
    anna: ApiClient, bob: ApiClient, run_id: str
) -> None:
    with all_open(anna, run_id):
        check_stream_is_refused(anna, run_id)
        conversation = bob.good("POST", "/conversations", json={})
        with stream_message(bob, conversation["id"], "hello") as stream:
            assert stream.read_to_end()[-1]["type"] == "done"
    opens_within_bounds(anna, run_id)


def test_a_message_whose_stream_is_refused_is_not_sent(anna: ApiClient, run_id: str) -> None:
    conversation = anna.good("POST", "/conversations", json={})
    body = {"conversation_id": conversation["id"], "content": "hello"}
    with all_open(anna, run_id):
        assert anna.bad("POST", "/messages/stream", 429, json=body)["detail"]["kind"] == "too_many_streams"
    assert anna.good("GET", f"/messages?conversation_id={conversation['id']}")["items"] == []
    opens_within_bounds(anna, run_id)


def test_many_streams_opened_at_the_same_moment_are_bounded_too(anna: ApiClient, run_id: str) -> None:
    together = threading.Barrier(5 * MOST)

    def status(_: int) -> int:
        with anna.http.stream("GET", f"/runs/{run_id}/events") as response:
            together.wait(WAIT_SECONDS)  # All threads wait until each has its answer.
            return response.status_code

    with ThreadPoolExecutor(5 * MOST) as pool:
        statuses = sorted(pool.map(status, range(5 * MOST)))
    assert statuses == [200] * MOST + [429] * 4 * MOST
    opens_within_bounds(anna, run_id)


def test_a_refused_stream_of_an_unknown_run_is_not_counted(anna: ApiClient, run_id: str) -> None:
    for _ in range(2 * MOST):
        anna.bad("GET", "/runs/none/events", 404)
    with stream_run(anna, run_id) as stream:
        stream.until("run")


def test_sockets_count_among_the_streams(anna: ApiClient, run_id: str) -> None:
    with ExitStack() as stack:
        for _ in range(MOST):
            stack.enter_context(open_socket(anna)).drain()
        check_stream_is_refused(anna, run_id)
        with open_with_ticket(anna.server.url, new_ticket(anna)) as client:
            assert client.wait_closed()[0] == 1013
    opens_within_bounds(anna, run_id)
