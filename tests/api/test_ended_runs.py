"""A run that has ended is told to its user once, also if its server is killed before it could."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from api.client import ApiClient
from api.conftest import answering, connect
from api.server_process import ServerProcess
from api.socket_client import SECONDS, open_socket
from luxx.providers.scripted import Finish, Gate, Rule, ScriptedProvider, Text, When

DETACHED = {"accept": "application/json"}
Endings = dict[str, tuple[str, str]]


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedProvider]:
    rules = [
        Rule(when=When(user="refuse this"), status=401, message="wrong key"),
        Rule(when=When(user="go on for long"), reply=[Text(text="I am"), Gate(name="never"), Finish()]),
        Rule(reply=[Text(text="Hello there."), Finish()]),
    ]
    with answering(rules) as provider:
        yield provider


def serving(folder: Path, upstream: ScriptedProvider) -> ServerProcess:
    return ServerProcess(folder, LUXX_PROVIDERS__ALLOW_PRIVATE=upstream.url.removeprefix("http://"))


@contextmanager
def signed_in(server: ServerProcess, token: str = "") -> Iterator[ApiClient]:
    with ApiClient(server, None, token) if token else ApiClient(server, None).register("ann") as person:
        yield person


def stored_endings(server: ServerProcess) -> Endings:
    """The kind and status of the runs whose ending nobody was told of yet."""
    with closing(sqlite3.connect(f"file:{server.data_dir / 'luxx.db'}?mode=ro", uri=True)) as connection:
        rows = connection.execute("SELECT run_id, kind, status FROM run_ended").fetchall()
    return {run_id: (kind, status) for run_id, kind, status in rows}


def until_stored(server: ServerProcess, count: int) -> Endings:
    """The endings once there are so many."""
    end = time.monotonic() + SECONDS
    while len(found := stored_endings(server)) != count:
        assert time.monotonic() < end, found
        time.sleep(0.02)
    return found


def start_chat(person: ApiClient, content: str) -> str:
    """Sends a message without following its run. Returns the id of the run."""
    chat = person.good("POST", "/conversations", json={"title": content})["id"]
    body = {"conversation_id": chat, "content": content}
    run_id: str = person.good("POST", "/messages/stream", json=body, headers=DETACHED)["id"]
    return run_id


def test_an_end_that_a_killed_server_did_not_tell_is_told_once(
    tmp_path: Path, upstream: ScriptedProvider
) -> None:
    with serving(tmp_path, upstream) as server, signed_in(server) as ann:
        connect(ann, upstream)
        token = ann.token
        lost = start_chat(ann, "before the kill")
        assert until_stored(server, 1) == {lost: ("chat", "completed")}
        server.kill()
    with serving(tmp_path, upstream) as server, signed_in(server, token) as ann:
        with open_socket(ann) as socket:
            assert socket.until(type="notification", status="completed")["data"]["run_id"] == lost
            until_stored(server, 0)
        server.kill()
    with serving(tmp_path, upstream) as server, signed_in(server, token) as ann, open_socket(ann) as socket:
        socket.drain()
        second = start_chat(ann, "after the kill")
        told = [socket.until(type="notification")["data"]["run_id"], *(m["type"] for m in socket.drain())]
        assert told == [second]


def test_the_end_of_a_run_that_a_server_told_is_not_told_after_its_stop(
    tmp_path: Path, upstream: ScriptedProvider
) -> None:
    with serving(tmp_path, upstream) as server, signed_in(server) as ann:
        connect(ann, upstream)
        token = ann.token
        with open_socket(ann) as socket:
            first = start_chat(ann, "before the stop")
            assert socket.until(type="notification")["data"]["run_id"] == first
        server.stop()
        assert stored_endings(server) == {}
    with serving(tmp_path, upstream) as server, signed_in(server, token) as ann, open_socket(ann) as socket:
        socket.drain()
        second = start_chat(ann, "after the stop")
        assert socket.until(type="notification")["data"]["run_id"] == second


def test_every_way_to_end_is_stored_with_the_end(tmp_path: Path, upstream: ScriptedProvider) -> None:
    with serving(tmp_path, upstream) as server, signed_in(server) as ann:
        connect(ann, upstream)
        cancelled = start_chat(ann, "go on for long")
        ann.good("POST", f"/runs/{cancelled}/cancel")
        expected = {cancelled: ("chat", "cancelled"), start_chat(ann, "refuse this"): ("chat", "failed")}
        room = ann.good("POST", "/chat-rooms", json={"title": "Plans", "task": "Talk."})["id"]
        seat = {"name": "Ada", "system_prompt": "Be short."}
        ann.good("POST", f"/chat-rooms/{room}/agents", json=seat)
        ann.good("PUT", f"/chat-rooms/{room}", json={"max_rounds": 1})
        expected[ann.good("POST", f"/chat-rooms/{room}/start", headers=DETACHED)["id"]] = (
            "room",
            "completed",
        )
        steps = [{"name": "one", "goal": "Say hello."}]
        task = ann.good("POST", "/tasks", json={"name": "Hello", "goal": "Say hello.", "steps": steps})["id"]
        expected[ann.good("POST", f"/tasks/{task}/execute", headers=DETACHED)["id"]] = ("task", "completed")
        seen: Endings = {}
        end = time.monotonic() + SECONDS
        while seen != expected:
            assert time.monotonic() < end, (seen, expected)
            seen |= stored_endings(server)
            time.sleep(0.02)
        # Nobody listens, and this server is there to tell whoever did.
        until_stored(server, 0)
