"""Sockets at one server report what happens at another server of the same PostgreSQL."""

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from api.client import ApiClient
from api.conftest import connect
from api.server_process import ServerProcess
from api.socket_client import new_ticket, open_socket, open_with_ticket

from luxx.providers.scripted import Call, Finish, Gate, Rule, Script, ScriptedProvider, Text, When
from luxx.runs.streams.notices import SWEEP_SECONDS
from store.databases import new_database

pytestmark = pytest.mark.heavy

SECRET = "a secret that all servers of one database share, long enough"
CUT_SECONDS = 5.0


class Pair(NamedTuple):
    """The same user at two servers."""

    here: ApiClient
    there: ApiClient
    upstream: ScriptedProvider


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedProvider]:
    asks = {"decision_type": "confirmation", "context": "Go on?", "options": []}
    rules = [
        Rule(
            when=When(system="You are Asker", has_tool_result=False),
            reply=[Call(name="ask_decision", arguments=asks), Finish(reason="tool_calls")],
        ),
        Rule(reply=[Text(text="I am"), Gate(name="go"), Finish()]),
    ]
    with ScriptedProvider(Script(rules=rules)) as model:
        yield model


@contextmanager
def pair_of(postgresql: str, folder: Path, upstream: ScriptedProvider, **more: str) -> Generator[Pair]:
    settings = {
        "LUXX_DATABASE__URL": new_database(postgresql, folder.name),
        "LUXX_APP__SECRET_KEY": SECRET,
        "LUXX_PROVIDERS__ALLOW_PRIVATE": upstream.url.removeprefix("http://"),
        **more,
    }
    with (
        ServerProcess(folder, data_dir=folder / "one", **settings) as started_server,
        ServerProcess(folder, data_dir=folder / "two", **settings) as two,
        ApiClient(started_server, None).register("pair") as here,
        ApiClient(two, None, here.token) as there,
    ):
        connect(here, upstream)
        yield Pair(here, there, upstream)


def test_a_socket_reports_events_of_another_server(
    postgresql: str, tmp_path: Path, upstream: ScriptedProvider
) -> None:
    with pair_of(postgresql, tmp_path, upstream) as (here, there, _):
        subscribed, other = (
            here.good("POST", "/conversations", json={"title": title})["id"] for title in ("one", "two")
        )
        ticket = new_ticket(here)
        with open_with_ticket(there.server.url, ticket) as client:
            with open_with_ticket(here.server.url, ticket) as again:
                assert again.wait_closed()[0] == 4401, "a ticket is good once, wherever"
            assert client.subscribe(subscribed)["data"]["status"] == "idle"
            for session_id in (subscribed, other):
                body = {"conversation_id": session_id, "content": "hello"}
                here.good("POST", "/messages/stream", json=body, headers={"accept": "application/json"})
            assert client.until(type="session_update", status="running")["session_id"] == subscribed
            upstream.release("go")
            messages = [client.receive(), client.receive()]
            assert {(each["type"], each["data"]["title"], each["data"]["status"]) for each in messages} == {
                ("session_update", "one", "completed"),
                ("notification", "two", "completed"),
            }
        # What a member writes into an idle room here reaches the owner there.
        room = here.good("POST", "/chat-rooms", json={"title": "Plans", "task": "Talk."})["id"]
        with ApiClient(here.server, None).register("member") as member, open_socket(there) as client:
            body = {"user_id": member.user["id"], "right": "speak"}
            assert client.subscribe(room)["data"]["members"] == 0
            here.good("POST", f"/chat-rooms/{room}/members", json=body)
            assert client.until(type="session_update")["data"]["members"] == 1
            said = member.good("POST", f"/chat-rooms/{room}/messages", json={"content": "Hello"})
            assert client.until(type="session_update")["data"]["message_id"] == said["id"]
        with open_socket(there) as client:
            client.drain()
            here.good("POST", "/auth/logout")
            assert client.wait_closed(CUT_SECONDS)[0] == 4401


def test_a_member_elsewhere_learns_at_once_that_a_question_was_answered(
    postgresql: str, tmp_path: Path, upstream: ScriptedProvider
) -> None:
    """Also where the room then waits for a slot, so that no process drives it."""
    settings = {"LUXX_LIMITS__CONCURRENT_RUNS_PER_USER": "1"}
    accepted = {"accept": "application/json"}
    with (
        pair_of(postgresql, tmp_path, upstream, **settings) as (here, there, _),
        ApiClient(there.server, None).register("reader") as member,
        open_socket(member) as client,
    ):
        rooms = dict[str, str]()
        for _ in range(4):
            seats = [{"name": "Asker", "tools": ["ask_decision"]}]
            body = {"title": "Plans", "task": "Talk.", "agents": seats}
            room = here.good("POST", "/chat-rooms", json=body)["id"]
            body = {"user_id": member.user["id"], "right": "watch"}
            here.good("POST", f"/chat-rooms/{room}/members", json=body)
            client.subscribe(room)
            rooms[room] = here.good("POST", f"/chat-rooms/{room}/start", headers=accepted)["id"]
            client.until(session_id=room, status="waiting")
        body = {"conversation_id": here.good("POST", "/conversations", json={})["id"], "content": "hello"}
        holder = here.good("POST", "/messages/stream", json=body, headers=accepted)["id"]
        while here.good("GET", f"/runs/{holder}")["status"] != "running":
            time.sleep(0.02)
        began = time.monotonic()
        for room, run in rooms.items():
            (question,) = here.good("GET", f"/runs/{run}/questions")["items"]
            path = f"/runs/{run}/questions/{question['id']}/answer"
            here.good("POST", path, json={"answer": "yes"})
            client.until(session_id=room, status="queued")
        # The sweep would have announced at most one of them in each of its intervals.
        assert time.monotonic() - began < 2 * SWEEP_SECONDS
        upstream.release("go")


def test_the_end_that_a_killed_server_did_not_tell_is_told_by_another(
    postgresql: str, tmp_path: Path, upstream: ScriptedProvider
) -> None:
    """Once its lease is over, also to a socket that was opened after the kill."""
    with pair_of(postgresql, tmp_path, upstream, LUXX_RUNS__LEASE_SECONDS="2") as (here, there, _):
        chat = here.good("POST", "/conversations", json={"title": "lost"})["id"]
        body = {"conversation_id": chat, "content": "hello"}
        accepted = {"accept": "application/json"}
        lost = here.good("POST", "/messages/stream", json=body, headers=accepted)["id"]
        upstream.release("go")
        while there.good("GET", f"/runs/{lost}")["status"] != "completed":
            time.sleep(0.02)
        here.server.kill()
        with open_socket(there) as first:
            assert first.until(type="notification", run_id=lost)["data"]["status"] == "completed"
        time.sleep(2 * SWEEP_SECONDS)
        with open_socket(there) as second:
            second.drain()
            body["conversation_id"] = there.good("POST", "/conversations", json={"title": "next"})["id"]
            found = there.good("POST", "/messages/stream", json=body, headers=accepted)["id"]
            upstream.release("go")
            assert second.until(type="notification")["data"]["run_id"] == found
