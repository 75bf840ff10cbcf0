"""Sockets show rooms and tasks to those who may see them, and say when a person is needed."""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from api.bad_requests import UNKNOWN_ID
from api.client import ApiClient
from api.conftest import connect
from api.room_rows import new_room
from api.schema import Document
from api.server_process import ServerProcess
from api.socket_client import new_ticket, open_socket, open_with_ticket
from luxx.providers.scripted import ScriptedProvider
from luxx.runs.streams.notices import SWEEP_SECONDS

JSON = {"accept": "application/json"}
numbers = itertools.count()
Join = Callable[[], ApiClient]


@pytest.fixture
def join(
    server: ServerProcess, document: Document, admin: ApiClient, upstream: ScriptedProvider
) -> Iterator[Join]:
    """Makes new users without runs, with a provider of their own."""
    with ExitStack() as stack:

        def make() -> ApiClient:
            person = ApiClient(server, document).register(f"noticed{next(numbers)}")
            stack.enter_context(person)
            connect(person, upstream)
            return person

        yield make


def member(owner: ApiClient, room: dict[str, Any], person: ApiClient, right: str) -> None:
    """A member who has not read the room yet."""
    body = {"user_id": person.user["id"], "right": right}
    owner.good("POST", f"/chat-rooms/{room['id']}/members", json=body)


def reader(owner: ApiClient, room: dict[str, Any], person: ApiClient, right: str) -> None:
    member(owner, room, person, right)
    person.good("GET", f"/chat-rooms/{room['id']}/messages")


def test_a_room_that_waits_notifies_its_owner_and_those_who_may_steer(join: Join) -> None:
    owner, steers, speaks, stranger = (join() for _ in range(4))
    room = new_room(owner, "A", policy="manual", title="Plans")
    reader(owner, room, steers, "steer")
    reader(owner, room, speaks, "speak")
    people = (owner, steers, speaks, stranger)
    with ExitStack() as stack:
        sockets = [stack.enter_context(open_socket(person)) for person in people]
        run = owner.good("POST", f"/chat-rooms/{room['id']}/start", headers=JSON)
        for socket in sockets[:2]:
            note = socket.until(type="notification", status="waiting")["data"]
            assert note["message"] == "The room waits for a person."
            assert (note["title"], note["session_id"], note["run_id"]) == ("Plans", room["id"], run["id"])
        steers.good("POST", f"/chat-rooms/{room['id']}/finish")
        note = sockets[0].until(type="notification", status="completed")["data"]
        assert note["message"] == "The room has ended."
        assert all(socket.drain() == [] for socket in sockets[1:])


def test_a_member_follows_the_states_of_a_room_until_removed(join: Join) -> None:
    owner, watches, stranger = (join() for _ in range(3))
    room = new_room(owner, "A", policy="manual", title="Plans")
    reader(owner, room, watches, "watch")
    path = f"/chat-rooms/{room['id']}"
    with open_socket(owner) as own, open_socket(watches) as other, open_socket(stranger) as third:
        for socket in (own, other):
            state = socket.subscribe(room["id"])
            assert (state["type"], state["data"]["status"]) == ("session_update", "idle")
            assert (state["data"]["title"], state["data"]["run_id"]) == ("Plans", None)
        hidden = third.subscribe(room["id"])
        assert hidden["detail"]["kind"] == "session_not_found"
        unknown = third.subscribe(UNKNOWN_ID)
        assert hidden | {"session_id": UNKNOWN_ID} == unknown
        run = owner.good("POST", f"{path}/start", headers=JSON)
        for socket in (own, other):
            assert socket.until(status="waiting")["data"]["run_id"] == run["id"]
        owner.good("POST", f"{path}/stop")
        for socket in (own, other):
            socket.until(status="paused")
        owner.good("DELETE", f"{path}/members/{watches.user['id']}")
        ended = other.until(type="error")
        assert (ended["session_id"], ended["detail"]["kind"]) == (room["id"], "session_not_found")
        owner.good("POST", f"{path}/resume", headers=JSON)
        own.until(status="waiting")
        owner.good("POST", f"{path}/finish")
        assert own.until(status="completed")["data"]["stop_reason"] == "person"
        assert other.drain() == []
        assert other.subscribe(room["id"])["detail"]["kind"] == "session_not_found"


def test_a_task_that_waits_for_approval_notifies_its_owner(join: Join) -> None:
    owner, stranger = join(), join()
    body = {"name": "Report", "goal": "Write", "require_approval": True, "steps": [{"name": "one"}]}
    task = owner.good("POST", "/tasks", json=body)
    with open_socket(owner) as own, open_socket(stranger) as other:
        owner.good("POST", f"/tasks/{task['id']}/execute", headers=JSON)
        note = own.until(type="notification", status="waiting")["data"]
        assert (note["title"], note["message"]) == ("Report", "The task waits for a person.")
        assert own.subscribe(task["id"])["data"]["status"] == "waiting"
        assert other.subscribe(task["id"])["detail"]["kind"] == "session_not_found"
        owner.good("POST", f"/tasks/{task['id']}/cancel")
        own.until(status="cancelled")


def test_rooms_and_tasks_that_wait_for_a_slot_are_announced_at_their_admission(
    tmp_path: Path, upstream: ScriptedProvider
) -> None:
    settings = {
        "LUXX_LIMITS__CONCURRENT_RUNS_PER_USER": "1",
        "LUXX_PROVIDERS__ALLOW_PRIVATE": upstream.url.removeprefix("http://"),
    }
    with (
        ServerProcess(tmp_path, **settings) as server,
        ApiClient(server, None).register("patient") as owner,
    ):
        connect(owner, upstream)
        body = {
            "conversation_id": owner.good("POST", "/conversations", json={})["id"],
            "content": "wait here",
        }
        owner.good("POST", "/messages/stream", json=body, headers=JSON)
        with open_with_ticket(server.url, new_ticket(owner)) as socket:
            for path, action in (("chat-rooms", "start"), ("tasks", "execute")):
                began = time.monotonic()
                for _ in range(4):
                    if path == "tasks":
                        subject = owner.good("POST", "/tasks", json={"name": "T", "goal": "G"})
                    else:
                        subject = new_room(owner, "A")
                    socket.subscribe(subject["id"])
                    owner.good("POST", f"/{path}/{subject['id']}/{action}", headers=JSON)
                    socket.until(session_id=subject["id"], status="queued")
                # The sweep would have announced at most one of them in each of its intervals.
                assert time.monotonic() - began < 2 * SWEEP_SECONDS
        upstream.release("waiting")


def test_a_message_in_an_idle_room_is_announced_to_all_but_its_author(join: Join) -> None:
    owner, speaks, watches, stranger = (join() for _ in range(4))
    room = new_room(owner, "A", policy="manual", title="Plans")
    reader(owner, room, speaks, "speak")
    reader(owner, room, watches, "watch")
    with ExitStack() as stack:
        sockets = [stack.enter_context(open_socket(one)) for one in (owner, speaks, watches, stranger)]
        own, author, watching, other = sockets
        before = watching.subscribe(room["id"])["data"]
        assert (before["message_id"], before["members"], before["right"]) == (None, 2, "watch")
        said = speaks.good("POST", f"/chat-rooms/{room['id']}/messages", json={"content": "Hello"})
        assert watching.until(type="session_update")["data"]["message_id"] == said["id"]
        note = own.until(type="notification", kind="message")["data"]
        assert (note["title"], note["session_id"], note["session_kind"]) == ("Plans", room["id"], "room")
        assert (note["sender"], note["run_id"], note["status"]) == (speaks.user["username"], None, "idle")
        assert author.drain() == other.drain() == []
        owner.good("POST", f"/chat-rooms/{room['id']}/start", headers=JSON)
        watching.until(status="waiting")
        speaks.good("POST", f"/chat-rooms/{room['id']}/messages", json={"content": "On"})
        assert not [each for each in own.drain() if each.get("data", {}).get("kind") == "message"]
        owner.good("POST", f"/chat-rooms/{room['id']}/finish")


def test_new_changed_and_removed_members_learn_of_it(join: Join) -> None:
    owner, person = join(), join()
    room = new_room(owner, "A", policy="manual", title="Plans")
    path = f"/chat-rooms/{room['id']}/members"
    with open_socket(owner) as own, open_socket(person) as socket:
        assert own.subscribe(room["id"])["data"]["members"] == 0
        member(owner, room, person, "watch")
        note = socket.until(type="notification", kind="member")["data"]
        assert (note["title"], note["session_id"]) == ("Plans", room["id"])
        assert note["sender"] == owner.user["username"]
        assert own.until(type="session_update")["data"]["members"] == 1
        assert socket.subscribe(room["id"])["data"]["right"] == "watch"
        owner.good("PUT", f"{path}/{person.user['id']}", json={"right": "steer"})
        assert socket.until(type="session_update")["data"]["right"] == "steer"
        owner.good("DELETE", f"{path}/{person.user['id']}")
        assert socket.until(type="error")["detail"]["kind"] == "session_not_found"
        assert own.until(type="session_update")["data"]["members"] == 0


def test_a_new_member_who_was_away_is_told_until_they_have_read_the_room(join: Join) -> None:
    owner, person, other = join(), join(), join()
    room = new_room(owner, "A", title="Plans")
    for each in (person, other):
        member(owner, room, each, "watch")
    told = {
        "type": "notification",
        "kind": "member",
        "session_id": room["id"],
        "sender": owner.user["username"],
    }
    for _ in range(2):
        with open_socket(person) as socket:
            assert socket.until(**told)["data"]["title"] == "Plans"
    person.good("GET", f"/chat-rooms/{room['id']}/messages")
    # A second room shows that the first one is not told of any more.
    second = new_room(owner, "A", title="Trees")
    member(owner, second, person, "speak")
    with open_socket(person) as socket:
        assert socket.receive()["data"]["title"] == "Trees"
        with open_socket(other) as another:
            assert another.until(**told)["data"]["title"] == "Plans"
        owner.good("DELETE", f"/chat-rooms/{second['id']}/members/{person.user['id']}")
        assert socket.drain() == []
    with open_socket(person) as socket, open_socket(other) as another:
        another.until(**told)
        assert socket.drain() == []


def test_each_approval_that_a_task_waits_for_is_announced(join: Join) -> None:
    owner = join()
    steps = [
        {"id": "s1", "name": "one", "require_approval": True},
        {"id": "s2", "name": "two", "require_approval": True, "depends_on": ["s1"]},
    ]
    task = owner.good("POST", "/tasks", json={"name": "Report", "goal": "Write", "steps": steps})
    with open_socket(owner) as following, open_socket(owner) as other:
        following.subscribe(task["id"])
        owner.good("POST", f"/tasks/{task['id']}/execute", headers=JSON)
        first = following.until(status="waiting")["data"]
        other.until(type="notification", status="waiting", session_kind="task")
        owner.good("POST", f"/tasks/{task['id']}/approve", json={"step_ids": ["s1"]})
        second = following.until(status="waiting")["data"]
        assert second["waiting_seq"] > first["waiting_seq"]
        other.until(type="notification", status="waiting")
        owner.good("POST", f"/tasks/{task['id']}/cancel")
