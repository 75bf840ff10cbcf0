"""Rooms through the API, without their runs: settings, seats, members, messages, copies and files."""

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from process_environment import ROOT

from api.client import PASSWORD, UUID7, ApiClient
from api.conftest import connect
from api.room_rows import RoomRows, new_room
from api.server_process import ServerProcess
from luxx.features.rooms.document import document_schema
from luxx.providers.scripted import ScriptedProvider

numbers = itertools.count()
NO_ID = "01890a5d-ac96-774b-bcce-b302099a8057"
SEAT: dict[str, Any] = {
    "name": "Writer",
    "role": "writes short texts",
    "model": "scripted",
    "system_prompt": "Write plainly.",
    "color": "#abcdef",
    "temperature": 0.3,
    "max_tokens": 500,
    "max_iterations": 2,
    "tools": ["file_read"],
    "thinking_enabled": False,
    "reasoning_effort": "low",
}


@pytest.fixture(scope="module")
def server(own_server: ServerProcess) -> ServerProcess:
    return own_server


@pytest.fixture(scope="module")
def rows(server: ServerProcess, admin: ApiClient) -> Iterator[RoomRows]:
    rows = RoomRows(server.data_dir)
    yield rows
    rows.close()


def member(owner: ApiClient, room: dict[str, Any], person: ApiClient, right: str) -> None:
    body = {"user_id": person.user["id"], "right": right}
    owner.good("POST", f"/chat-rooms/{room['id']}/members", json=body)


# Rooms and seats


def test_a_room_is_stored_shown_changed_listed_and_deleted(anna: ApiClient) -> None:
    body = {"title": " Plan ", "task": "Agree on a plan.", "agents": [SEAT, {"name": "Critic"}]}
    room = anna.good("POST", "/chat-rooms", json=body)
    assert UUID7.fullmatch(room["id"])
    shown = {name: room[name] for name in ("title", "status", "right", "max_rounds", "current_round")}
    assert shown == {
        "title": "Plan", "status": "idle", "right": "owner", "max_rounds": 10, "current_round": 0
    }  # fmt: skip
    assert (room["policy"], room["stop"], room["run_id"]) == ({"name": "round_robin"}, None, None)
    writer, critic = room["agents"]
    assert {name: writer[name] for name in SEAT} == SEAT
    assert (writer["turn_order"], critic["turn_order"], critic["muted"]) == (0, 1, False)
    assert critic["color"].startswith("#")
    assert set(writer["overrides"]) == set(SEAT) - {"name", "color"}
    path = f"/chat-rooms/{room['id']}"
    changes = {
        "title": "Talk",
        "max_rounds": 3,
        "policy": "manual",
        "stop": {"any": [{"rounds": 2}, {"person": True}]},
    }
    changed = anna.good("PUT", path, json=changes)
    assert {name: changed[name] for name in ("title", "max_rounds", "stop")} == {
        name: changes[name] for name in ("title", "max_rounds", "stop")
    }
    assert changed["policy"] == {"name": "manual"}
    assert changed["task"] == body["task"], "omitted fields do not change"
    assert anna.good("PUT", path, json={"stop": None})["stop"] is None
    listed = anna.good("GET", "/chat-rooms?page_size=100")
    assert listed["items"][0]["id"] == room["id"]
    assert "agents" not in listed["items"][0]
    assert listed["total"] == len(listed["items"])
    anna.good("DELETE", path)
    assert anna.bad("GET", path, 404)["detail"]["kind"] == "room_not_found"


def test_every_policy_can_be_set_by_name_or_with_its_options(anna: ApiClient) -> None:
    provider_id = anna.good("GET", "/providers")["items"][0]["id"]
    for name in ("round_robin", "sequential", "selector", "mention", "parallel", "manual"):
        assert new_room(anna, policy=name)["policy"] == {"name": name}
        assert new_room(anna, policy={"name": name})["policy"] == {"name": name}
    options = {"name": "selector", "provider_id": provider_id, "model": "scripted", "prompt": "Who is next?"}
    assert new_room(anna, policy=options)["policy"] == options


def test_a_seat_follows_its_agent_except_for_its_overrides(anna: ApiClient) -> None:
    agent = anna.good("POST", "/agents", json={"name": "Guide", "role": "leads", "temperature": 0.5})
    room = new_room(anna)
    path = f"/chat-rooms/{room['id']}/agents"
    seat = anna.good("POST", path, json={"agent_id": agent["id"], "temperature": 0.9})
    assert (seat["name"], seat["role"], seat["temperature"]) == ("Guide", "leads", 0.9)
    assert (seat["agent_id"], seat["overrides"]) == (agent["id"], ["temperature"])
    changes = {"name": "Chief", "role": "decides", "temperature": 0.1, "max_tokens": 99, "color": "#111111"}
    anna.good("PUT", f"/agents/{agent['id']}", json=changes)
    (seat,) = anna.good("GET", path)
    assert (seat["role"], seat["max_tokens"]) == ("decides", 99), "live values of the agent"
    assert seat["temperature"] == 0.9, "an override stays"
    assert seat["name"] == "Guide", "the name is the seat's own"
    seat = anna.good("PUT", f"{path}/{seat['id']}", json={"temperature": None, "name": "Lead"})
    assert (seat["name"], seat["temperature"], seat["overrides"]) == ("Lead", 0.1, [])


def test_a_seat_keeps_the_values_of_a_deleted_agent(anna: ApiClient) -> None:
    values = {"name": "Guide", "role": "leads", "system_prompt": "Lead.", "temperature": 0.5,
              "max_tokens": 77, "max_iterations": 4, "tools": ["file_read"]}  # fmt: skip
    agent = anna.good("POST", "/agents", json=values)
    room = new_room(anna, agents=[{"agent_id": agent["id"], "max_tokens": 12}])
    anna.good("DELETE", f"/agents/{agent['id']}")
    (seat,) = anna.good("GET", f"/chat-rooms/{room['id']}/agents")
    assert seat["agent_id"] is None
    assert {name: seat[name] for name in values} == values | {"max_tokens": 12}


def test_a_seat_keeps_the_values_of_an_agent_that_is_no_longer_shared(
    admin: ApiClient, join: Callable[..., ApiClient]
) -> None:
    user = join()
    agent = admin.good("POST", "/agents", json={"name": "Team", "role": "helps", "is_shared": True})
    seats = {"agents": [{"agent_id": agent["id"]}]}
    room, own_room = new_room(user, **seats), new_room(admin, **seats)
    admin.good("PUT", f"/agents/{agent['id']}", json={"is_shared": False, "role": "keeps a secret"})
    (seat,) = user.good("GET", f"/chat-rooms/{room['id']}/agents")
    assert (seat["agent_id"], seat["role"]) == (None, "helps")
    (own_seat,) = admin.good("GET", f"/chat-rooms/{own_room['id']}/agents")
    assert (own_seat["agent_id"], own_seat["role"]) == (agent["id"], "keeps a secret")


def test_a_seat_keeps_the_name_of_a_deleted_provider(anna: ApiClient, upstream: ScriptedProvider) -> None:
    provider_id = connect(anna, upstream)
    room = new_room(anna, agents=[{"name": "A", "provider_id": provider_id}])
    assert room["agents"][0]["provider_id"] == provider_id
    anna.good("DELETE", f"/providers/{provider_id}")
    (seat,) = anna.good("GET", f"/chat-rooms/{room['id']}/agents")
    assert (seat["provider_id"], seat["lost_provider"]) == (None, "scripted")


def test_a_seat_with_its_own_provider_does_not_take_the_model_of_the_agent(
    anna: ApiClient, upstream: ScriptedProvider
) -> None:
    agent = anna.good("POST", "/agents", json={"name": "Guide", "model": "only-there"})
    provider_id = anna.good("GET", "/providers")["items"][0]["id"]
    room = new_room(anna, agents=[{"agent_id": agent["id"], "provider_id": provider_id}])
    assert room["agents"][0]["model"] is None
    anna.good("DELETE", f"/agents/{agent['id']}")
    (seat,) = anna.good("GET", f"/chat-rooms/{room['id']}/agents")
    assert (seat["provider_id"], seat["model"]) == (provider_id, None)


def test_seats_are_in_turn_order_and_at_most_twenty(anna: ApiClient) -> None:
    room = new_room(anna, *(f"seat {number}" for number in range(19)))
    path = f"/chat-rooms/{room['id']}/agents"
    seat = anna.good("POST", path, json={"name": "late"})
    assert seat["turn_order"] == 19
    full = anna.bad("POST", path, 409, json={"name": "one more"})
    assert full["detail"]["kind"] == "too_many_seats"
    anna.good("PUT", f"{path}/{seat['id']}", json={"turn_order": 0, "muted": True})
    names = [one["name"] for one in anna.good("GET", path)]
    assert names[:3] == ["seat 0", "late", "seat 1"]
    anna.good("DELETE", f"{path}/{seat['id']}")
    assert len(anna.good("GET", path)) == 19
    anna.good("POST", path, json={"name": "late"})


def test_a_seat_that_the_stop_names_cannot_be_removed(anna: ApiClient) -> None:
    room = new_room(anna, "A", "B")
    path, seat_id = f"/chat-rooms/{room['id']}", room["agents"][0]["id"]
    anna.good("PUT", path, json={"stop": {"any": [{"rounds": 3}, {"phrase": "done", "seat_id": seat_id}]}})
    assert "stop" in anna.bad("DELETE", f"{path}/agents/{seat_id}", 409)["error"]
    anna.good("DELETE", f"{path}/agents/{room['agents'][1]['id']}")
    anna.good("PUT", path, json={"stop": None})
    anna.good("DELETE", f"{path}/agents/{seat_id}")


# Status, messages, outcome, reset


@pytest.mark.parametrize(
    ("run", "status"),
    [
        ({"status": "queued"}, "running"),
        ({"status": "running"}, "running"),
        ({"status": "waiting"}, "running"),
        ({"status": "paused"}, "paused"),
        ({"status": "paused", "error": "no seat can go on"}, "error"),
        ({"status": "completed", "stop_reason": "rounds"}, "completed"),
        ({"status": "cancelled", "stop_reason": "cancelled"}, "completed"),
        ({"status": "failed", "stop_reason": "error", "error": "broken"}, "error"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value.values()),
)
def test_the_status_of_a_room_is_that_of_its_newest_run(
    anna: ApiClient, rows: RoomRows, run: dict[str, Any], status: str
) -> None:
    room = new_room(anna, "A")
    run_id = rows.add_run(room["id"], **run)
    shown = anna.good("GET", f"/chat-rooms/{room['id']}")
    assert (shown["status"], shown["run_id"]) == (status, run_id)
    assert (shown["stop_reason"], shown["error"]) == (run.get("stop_reason"), run.get("error"))
    listed = anna.good("GET", "/chat-rooms")["items"][0]
    assert {**shown, "agents": None} == {**listed, "agents": None}


def test_messages_are_newest_first_in_pages_and_by_cursor(anna: ApiClient, rows: RoomRows) -> None:
    room = new_room(anna, "A", "B")
    path = f"/chat-rooms/{room['id']}/messages"
    ids = [rows.say(room["id"], "Go on.")]
    ids += [
        rows.say(room["id"], f"text {number}", room["agents"][number % 2], round_number=1 + number // 2)
        for number in range(5)
    ]
    found = anna.good("GET", f"{path}?page_size=4")
    assert [one["id"] for one in found["items"]] == ids[:1:-1]
    assert (found["total"], found["has_more"]) == (6, True)
    newest = found["items"][0]
    seat = room["agents"][0]
    assert (newest["text"], newest["content"]) == ("text 4", "text 4")
    assert (newest["sender_name"], newest["sender_color"]) == (seat["name"], seat["color"])
    assert (newest["round_number"], newest["role"], newest["room_id"]) == (3, "assistant", room["id"])
    assert (newest["conversation_id"], newest["parent_id"]) == (None, None)
    second = anna.good("GET", f"{path}?page_size=4&page=2")
    assert [one["id"] for one in second["items"]] == ids[1::-1]
    assert second["items"][1]["role"] == "user"
    assert second["items"][1]["sender_name"] == "a person"
    assert second["has_more"] is False
    before = anna.good("GET", f"{path}?before={ids[3]}&limit=2")
    assert ([one["id"] for one in before["items"]], before["has_more"]) == ([ids[2], ids[1]], True)
    assert anna.good("GET", f"{path}?limit=6")["has_more"] is False


def test_a_page_of_very_long_messages_is_refused_and_a_cursor_gives_those_that_fit(
    anna: ApiClient, rows: RoomRows
) -> None:
    room = new_room(anna, "A")
    for _ in range(4):
        rows.say(room["id"], "x" * 11_000_000, room["agents"][0])
    path = f"/chat-rooms/{room['id']}"
    assert "page_size" in anna.bad("GET", f"{path}/messages?page_size=4", 413)["error"]
    found = anna.good("GET", f"{path}/messages?limit=4")
    assert (len(found["items"]), found["has_more"], found["total"]) == (3, True, 4)
    anna.bad("GET", f"{path}/export?format=md", 413)
    anna.good("DELETE", path)


def test_the_outcome_has_the_last_message_of_each_seat_and_the_totals(
    anna: ApiClient, rows: RoomRows
) -> None:
    room = new_room(anna, "A", "B", "C")
    path = f"/chat-rooms/{room['id']}/outcome"
    before = anna.good("GET", path)
    assert (before["status"], before["run_id"], before["messages"]) == ("idle", None, 0)
    assert [seat["message"] for seat in before["agents"]] == [None, None, None]
    old_run = rows.add_run(room["id"], "cancelled")
    rows.say(room["id"], "an earlier run", room["agents"][0], run_id=old_run)
    run_id = rows.add_run(room["id"], "completed", stop_reason="phrase")
    for text, seat in (("one", 0), ("two", 1), ("three", 0)):
        rows.say(room["id"], text, room["agents"][seat], run_id=run_id)
    anna.good("DELETE", f"/chat-rooms/{room['id']}/agents/{room['agents'][2]['id']}")
    outcome = anna.good("GET", path)
    assert (outcome["status"], outcome["stop_reason"]) == ("completed", "phrase")
    assert (outcome["messages"], outcome["cost"]) == (3, 0.25)
    assert outcome["usage"]["total_tokens"] == 12
    said = {seat["name"]: seat["message"]["text"] for seat in outcome["agents"]}
    assert said == {"A": "three", "B": "two"}


def test_a_reset_clears_messages_and_runs_and_keeps_the_seats(anna: ApiClient, rows: RoomRows) -> None:
    room, other = new_room(anna, "A"), new_room(anna, "A")
    for each in (room, other):
        run_id = rows.add_run(each["id"], "completed")
        for number in range(501):
            rows.say(each["id"], f"text {number}", each["agents"][0], run_id=run_id)
    reset = anna.good("POST", f"/chat-rooms/{room['id']}/reset")
    assert (reset["status"], reset["run_id"], reset["current_round"]) == ("idle", None, 0)
    assert [seat["name"] for seat in reset["agents"]] == ["A"]
    assert anna.good("GET", f"/chat-rooms/{room['id']}/messages")["total"] == 0
    assert anna.good("GET", f"/runs?subject_id={room['id']}")["total"] == 0
    assert anna.good("GET", f"/chat-rooms/{other['id']}/messages")["total"] == 501
    assert anna.good("GET", f"/runs?subject_id={other['id']}")["total"] == 1


@pytest.mark.parametrize("status", ["queued", "running", "waiting"])
def test_a_running_room_cannot_be_reset(anna: ApiClient, rows: RoomRows, status: str) -> None:
    room = new_room(anna, "A")
    run_id = rows.add_run(room["id"], status)
    rows.say(room["id"], "kept", room["agents"][0], run_id=run_id)
    refused = anna.bad("POST", f"/chat-rooms/{room['id']}/reset", 409)
    assert refused["detail"] == {"kind": "room_running", "run_id": run_id}
    assert anna.good("GET", f"/chat-rooms/{room['id']}/messages")["total"] == 1


def test_settings_and_seats_of_a_running_room_can_be_changed(anna: ApiClient, rows: RoomRows) -> None:
    room = new_room(anna, "A")
    rows.add_run(room["id"], "running")
    path = f"/chat-rooms/{room['id']}"
    assert anna.good("PUT", path, json={"max_rounds": 20})["max_rounds"] == 20
    seat = anna.good("POST", f"{path}/agents", json={"name": "B"})
    assert anna.good("PUT", f"{path}/agents/{seat['id']}", json={"muted": True})["muted"] is True


def test_deleting_a_room_deletes_everything_in_it(anna: ApiClient, bob: ApiClient, rows: RoomRows) -> None:
    room = new_room(anna, "A")
    member(anna, room, bob, "watch")
    run_id = rows.add_run(room["id"], "completed")
    rows.say(room["id"], "text", room["agents"][0], run_id=run_id)
    conditions = {
        "messages": f"room_id = '{room['id']}'",
        "room_agents": f"room_id = '{room['id']}'",
        "runs": f"subject_id = '{room['id']}'",
        "subject_members": f"subject_id = '{room['id']}'",
    }
    assert {table: rows.count(table, where) for table, where in conditions.items()} == dict.fromkeys(
        conditions, 1
    )
    anna.good("DELETE", f"/chat-rooms/{room['id']}")
    assert {table: rows.count(table, where) for table, where in conditions.items()} == dict.fromkeys(
        conditions, 0
    )


def test_deleting_a_user_deletes_their_rooms_and_memberships(
    admin: ApiClient, anna: ApiClient, join: Callable[..., ApiClient], rows: RoomRows
) -> None:
    owner, guest = join(), join()
    room, annas = new_room(owner, "A"), new_room(anna, "A")
    member(owner, room, guest, "steer")
    member(anna, annas, guest, "watch")
    rows.say(room["id"], "text", room["agents"][0])
    admin.good("DELETE", f"/auth/users/{owner.user['id']}")
    for table in ("chat_rooms", "subject_members", "messages"):
        name = {"chat_rooms": "id", "subject_members": "subject_id", "messages": "room_id"}[table]
        assert rows.count(table, f"{name} = '{room['id']}'") == 0, table
    assert guest.good("GET", "/chat-rooms")["total"] == 1
    admin.good("DELETE", f"/auth/users/{guest.user['id']}")
    assert anna.good("GET", f"/chat-rooms/{annas['id']}/members")["total"] == 0


# Members


def test_members_are_added_listed_changed_and_removed(anna: ApiClient, bob: ApiClient) -> None:
    room = new_room(anna, "A")
    path = f"/chat-rooms/{room['id']}/members"
    name, own = bob.user["username"], {"username": anna.user["username"], "right": "watch"}
    added = anna.good("POST", path, json={"username": name.upper(), "right": "watch"})
    assert {name: added[name] for name in ("user_id", "username", "right")} == {
        "user_id": bob.user["id"], "username": name, "right": "watch"
    }  # fmt: skip
    assert anna.bad("POST", path, 409, json={"username": name, "right": "steer"})
    assert anna.good("GET", path)["items"] == [added]
    assert anna.good("PUT", f"{path}/{bob.user['id']}", json={"right": "speak"})["right"] == "speak"
    assert bob.good("GET", f"/chat-rooms/{room['id']}")["right"] == "speak"
    assert "own this room" in anna.bad("POST", path, 400, json=own)["error"]
    anna.good("DELETE", f"{path}/{bob.user['id']}")
    anna.bad("DELETE", f"{path}/{bob.user['id']}", 404)
    bob.bad("GET", f"/chat-rooms/{room['id']}", 404)


def test_a_member_sees_the_room_in_the_list_but_not_the_prompts(anna: ApiClient, bob: ApiClient) -> None:
    room = new_room(anna, agents=[SEAT])
    before = bob.good("GET", "/chat-rooms")["total"]
    member(anna, room, bob, "watch")
    listed = bob.good("GET", "/chat-rooms")
    assert listed["total"] == before + 1
    assert next(one["right"] for one in listed["items"] if one["id"] == room["id"]) == "watch"
    (seat,) = bob.good("GET", f"/chat-rooms/{room['id']}")["agents"]
    assert (seat["system_prompt"], seat["role"]) == (None, SEAT["role"])
    assert SEAT["system_prompt"] not in json.dumps(bob.good("GET", f"/chat-rooms/{room['id']}/agents"))
    assert anna.good("GET", f"/chat-rooms/{room['id']}")["agents"][0]["system_prompt"] == "Write plainly."


READING = ["", "/agents", "/members", "/messages", "/outcome", "/export?format=md"]
STEERING: list[tuple[str, str, Any]] = [
    ("PUT", "/agents/{seat}", {"muted": True, "turn_order": 4}),
    ("POST", "/reset", None),
]
RUN_ACTIONS = ("stop", "resume", "skip", "finish", "floor")
OWNING: list[tuple[str, str, Any]] = [
    ("PUT", "", {"title": "changed"}),
    ("POST", "/agents", {"name": "B"}),
    ("PUT", "/agents/{seat}", {"role": "changed"}),
    ("PUT", "/agents/{seat}", {"muted": True, "name": "changed"}),
    ("GET", "/export?format=yaml", None),
    ("GET", "/export?format=json", None),
    ("POST", "/fork", {}),
    ("PUT", "/members/{bob}", {"right": "steer"}),
    ("POST", "/members", None),
    ("DELETE", "/agents/{seat}", None),
    ("DELETE", "", None),
]


@pytest.mark.parametrize("right", [None, "watch", "speak", "steer"])
def test_each_right_allows_what_it_says_and_nothing_more(
    anna: ApiClient, bob: ApiClient, rows: RoomRows, right: str | None
) -> None:
    room = new_room(anna, "A")
    run_id = rows.add_run(room["id"], "completed")
    message_id = rows.say(room["id"], "text", room["agents"][0], run_id=run_id)
    if right is not None:
        member(anna, room, bob, right)
    names = {"seat": room["agents"][0]["id"], "bob": bob.user["id"]}
    own = {"username": anna.user["username"], "right": "watch"}
    owning = [(method, path, own if path == "/members" else body) for method, path, body in OWNING]
    root = f"/chat-rooms/{room['id']}"
    for path in [*(root + path for path in READING), f"/runs/{run_id}"]:
        assert bob.ask("GET", path).status_code == (404 if right is None else 200), path
    assert bob.good("GET", f"/runs?subject_id={room['id']}")["total"] == (0 if right is None else 1)
    cancelled = bob.ask("POST", f"/runs/{run_id}/cancel").status_code
    assert cancelled == {None: 404, "steer": 409}.get(right, 403), "it has ended"
    before = anna.good("GET", root)
    for action in RUN_ACTIONS:
        body = {"json": {"seat_id": names["seat"]}} if action == "floor" else {}
        answer = bob.ask("POST", f"{root}/{action}", **body)
        # With the right, the answer is that nothing runs or waits to go on.
        assert answer.status_code == {None: 404, "steer": 409}.get(right, 403), action
    context = bob.ask("GET", f"{root}/messages/{message_id}/context").status_code
    assert context == (404 if right is None else 403)
    for method, path, body in owning:
        url = root + path.format(**names)
        assert bob.ask(method, url, json=body).status_code == (404 if right is None else 403), (method, path)
    assert anna.good("GET", root) == before
    steering = 200 if right == "steer" else 404 if right is None else 403
    for method, path, body in STEERING:
        url = root + path.format(**names)
        assert bob.ask(method, url, json=body).status_code == steering, (method, path)
    spoken = bob.ask("POST", f"{root}/messages", json={"content": "Hello"}).status_code
    assert spoken == {None: 404, "watch": 403}.get(right, 201)
    # The control: the owner may do all of it.
    for method, path, body in STEERING + owning:
        if body == own or ("{bob}" in path and right is None):
            continue
        url = root + path.format(**names)
        assert anna.ask(method, url, json=body).is_success, (method, path)


def test_a_user_of_another_tenant_can_neither_be_a_member_nor_remain_one(
    admin: ApiClient, anna: ApiClient, join: Callable[..., ApiClient]
) -> None:
    other = admin.good("POST", "/admin/tenants", json={"name": f"rooms {next(numbers)}"})["id"]
    stranger, guest = join(other), join()
    room = new_room(anna, "A")
    path = f"/chat-rooms/{room['id']}/members"
    unknown = anna.bad("POST", path, 404, json={"username": "nobody-has-it", "right": "watch"})
    foreign = anna.bad("POST", path, 404, json={"username": stranger.user["username"], "right": "watch"})
    assert foreign == unknown
    anna.bad("POST", path, 404, json={"user_id": stranger.user["id"], "right": "watch"})
    member(anna, room, guest, "steer")
    guest.good("GET", f"/chat-rooms/{room['id']}")
    admin.good("PUT", f"/auth/users/{guest.user['id']}", json={"tenant_id": other})
    guest.sign_in(guest.user["username"], PASSWORD)
    guest.bad("GET", f"/chat-rooms/{room['id']}", 404)
    assert guest.good("GET", "/chat-rooms")["total"] == 0


def test_runs_have_the_title_of_their_room_for_those_who_may_see_it(
    anna: ApiClient, bob: ApiClient, rows: RoomRows
) -> None:
    room = new_room(anna, "A")
    member(anna, room, bob, "watch")
    run_id = rows.add_run(room["id"], "completed")
    anna.good("PUT", f"/chat-rooms/{room['id']}", json={"title": "Renamed"})
    for person in (anna, bob):
        (listed,) = person.good("GET", "/runs", params={"subject_id": room["id"]})["items"]
        assert (listed["id"], listed["title"]) == (run_id, "Renamed")
        assert person.good("GET", f"/runs/{run_id}")["title"] == "Renamed"
    bob.good("DELETE", f"/chat-rooms/{room['id']}/members/{bob.user['id']}")
    assert bob.good("GET", "/runs", params={"subject_id": room["id"]})["total"] == 0
    bob.bad("GET", f"/runs/{run_id}", 404)


def test_members_may_leave(anna: ApiClient, bob: ApiClient) -> None:
    room = new_room(anna, "A")
    member(anna, room, bob, "watch")
    bob.good("DELETE", f"/chat-rooms/{room['id']}/members/{bob.user['id']}")
    bob.bad("GET", f"/chat-rooms/{room['id']}", 404)


def test_the_stream_of_a_removed_member_ends(anna: ApiClient, bob: ApiClient, rows: RoomRows) -> None:
    room = new_room(anna, "A")
    member(anna, room, bob, "watch")
    run_id = rows.add_run(room["id"], "waiting")
    bob.bad("GET", f"/runs/{NO_ID}/events", 404)
    with (
        anna.http.stream("GET", f"/runs/{run_id}/events") as own,
        bob.http.stream("GET", f"/runs/{run_id}/events") as stream,
    ):
        lines, own_lines = stream.iter_lines(), own.iter_lines()
        assert next(lines) == next(own_lines) == "event: run"
        anna.good("DELETE", f"/chat-rooms/{room['id']}/members/{bob.user['id']}")
        assert "event: done" not in list(lines), "it ended, without the end of the run"
        assert next(own_lines).startswith("data:"), "that of the owner stays open"
    bob.bad("GET", f"/runs/{run_id}/events", 404)


# Copies and files


def test_a_fork_copies_settings_seats_and_messages(anna: ApiClient, rows: RoomRows) -> None:
    room = new_room(anna, "A", "B", policy="mention", max_rounds=7)
    path = f"/chat-rooms/{room['id']}"
    stop = {"all": [{"rounds": 2}, {"phrase": "done", "seat_id": room["agents"][1]["id"]}]}
    anna.good("PUT", path, json={"stop": stop})
    run_id = rows.add_run(room["id"], "completed")
    ids = [rows.say(room["id"], "Start.", run_id=run_id)]
    for number in range(3):
        ids.append(rows.say(room["id"], f"text {number}", room["agents"][number % 2], run_id=run_id))
    whole = anna.good("POST", f"{path}/fork")
    assert whole["id"] != room["id"]
    assert (whole["status"], whole["policy"], whole["max_rounds"]) == ("idle", {"name": "mention"}, 7)
    assert [seat["name"] for seat in whole["agents"]] == ["A", "B"]
    assert whole["stop"]["all"][1]["seat_id"] == whole["agents"][1]["id"] != room["agents"][1]["id"]
    copied = anna.good("GET", f"/chat-rooms/{whole['id']}/messages")["items"]
    assert [one["text"] for one in copied] == ["text 2", "text 1", "text 0", "Start."]
    outcome = anna.good("GET", f"/chat-rooms/{whole['id']}/outcome")
    assert [seat["message"]["text"] for seat in outcome["agents"]] == ["text 2", "text 1"]
    part = anna.good("POST", f"{path}/fork", json={"message_id": ids[1]})
    assert anna.good("GET", f"/chat-rooms/{part['id']}/messages")["total"] == 2
    assert anna.good("GET", f"{path}/messages")["total"] == 4
    anna.bad("POST", f"{path}/fork", 404, json={"message_id": copied[0]["id"]})
    anna.good("DELETE", path)
    assert anna.good("GET", f"/chat-rooms/{whole['id']}/messages")["total"] == 4


# Replies


def test_a_reply_names_a_message_of_its_room_and_quotes_it(
    anna: ApiClient, bob: ApiClient, rows: RoomRows
) -> None:
    room, other = new_room(anna, "Writer"), new_room(anna, "Writer")
    path = f"/chat-rooms/{room['id']}"
    long = rows.say(room["id"], "A **plan** in\n\nthree parts. " + "More of it. " * 30, room["agents"][0])
    said = anna.good("POST", f"{path}/messages", json={"content": "Shorter.", "reply_to": long})
    text = "A **plan** in three parts. " + "More of it. " * 30
    quoted = {"sender_name": "Writer", "text": f"{text[:199]}…"}
    assert (said["reply_to"], said["quoted"]) == (long, quoted)
    again = anna.good("POST", f"{path}/messages", json={"content": "Or not.", "reply_to": said["id"]})
    assert again["quoted"] == {"sender_name": anna.user["username"], "text": "Shorter."}
    plain = anna.good("POST", f"{path}/messages", json={"content": "Well.", "reply_to": None})
    assert "reply_to" not in plain
    assert "quoted" not in plain
    # In pages, whether what is answered is on the same page or not.
    for query in ("", "?limit=3", f"?limit=1&before={plain['id']}", "?page=2&page_size=1"):
        items = anna.good("GET", f"{path}/messages{query}")["items"]
        shown = {one["id"]: one.get("quoted") for one in items}
        assert shown[again["id"]] == again["quoted"]
        assert shown.get(said["id"], quoted) == quoted
    # Neither a message of another room, nor of somebody else, nor none at all.
    elsewhere = rows.say(other["id"], "Elsewhere.")
    of_bob = rows.say(new_room(bob, "Writer")["id"], "Of bob.")
    chat = anna.good("POST", "/conversations", json={"title": "t"})["id"]
    for wrong in (elsewhere, of_bob, chat, NO_ID, "x"):
        refused = anna.bad("POST", f"{path}/messages", 404, json={"content": "Hm.", "reply_to": wrong})
        assert refused["detail"]["kind"] == "message_not_found"
        assert "not in this room" in refused["error"]
    for wrong in ("", "x" * 65, 5, [long]):
        refused = anna.bad("POST", f"{path}/messages", 400, json={"content": "Hm.", "reply_to": wrong})
        assert "$.reply_to" in refused["detail"]["fields"]
    assert anna.good("GET", f"{path}/messages")["total"] == 4
    # Who may only watch reads quotations, and others nothing.
    member(anna, room, bob, "watch")
    assert bob.good("GET", f"{path}/messages?limit=2")["items"][1]["quoted"] == again["quoted"]
    bob.bad("POST", f"{path}/messages", 403, json={"content": "Hm.", "reply_to": long})
    # What was answered is deleted: the reply stays, and says so.
    anna.good("DELETE", f"/messages/{said['id']}")
    left = anna.good("GET", f"{path}/messages")["items"][1]
    assert (left["id"], left["reply_to"], left["quoted"]) == (again["id"], said["id"], None)
    anna.bad("POST", f"{path}/messages", 404, json={"content": "Hm.", "reply_to": said["id"]})


def test_replies_are_in_copies_transcripts_and_links(anna: ApiClient, rows: RoomRows) -> None:
    room = new_room(anna, "Writer")
    path = f"/chat-rooms/{room['id']}"
    deleted = rows.say(room["id"], "Gone soon.", room["agents"][0])
    answered = rows.say(room["id"], "A *plan*.", room["agents"][0])
    for content, reply_to in (("Yes.", answered), ("What?", deleted)):
        anna.good("POST", f"{path}/messages", json={"content": content, "reply_to": reply_to})
    anna.good("DELETE", f"/messages/{deleted}")
    copy = anna.good("POST", f"{path}/fork")
    what, yes, first = anna.good("GET", f"/chat-rooms/{copy['id']}/messages")["items"]
    assert (yes["reply_to"], yes["quoted"]) == (
        first["id"],
        {"sender_name": "Writer", "text": "A *plan*."},
    )
    assert what["quoted"] is None
    transcript = anna.ask("GET", f"{path}/export?format=md").text
    assert "*In reply to Writer: A \\*plan\\*.*\n\n> Yes." in transcript
    assert "*In reply to a message that was deleted.*\n\n> What?" in transcript
    for is_live in (True, False):
        body = {"kind": "room", "subject_id": room["id"], "audience": "tenant", "is_live": is_live}
        token = anna.good("POST", "/shares", json=body)["token"]
        shown = anna.good("GET", f"/tenant/shared/{token}?after=1")["messages"]
        assert [one["quoted"] for one in shown] == [{"sender_name": "Writer", "text": "A *plan*."}, None]
        assert "quoted" not in anna.good("GET", f"/tenant/shared/{token}")["messages"][0]


@pytest.mark.parametrize("format", ["yaml", "json"])
def test_an_exported_room_is_imported_equal(anna: ApiClient, format: str) -> None:
    provider = anna.good("GET", "/providers")["items"][0]
    agent = anna.good(
        "POST", "/agents", json={"name": "Guide", "role": "leads", "system_prompt": "Lead\nus."}
    )
    policy = {"name": "selector", "provider_id": provider["id"], "prompt": "Who?"}
    seats = [SEAT | {"provider_id": provider["id"]}, {"agent_id": agent["id"], "muted": True}]
    room = new_room(anna, policy=policy, agents=seats)
    path, seat_id = f"/chat-rooms/{room['id']}", room["agents"][0]["id"]
    stop = {"any": [{"phrase": "done", "seat_id": seat_id}, {"all": [{"cost": 0.5}, {"messages": 9}]}]}
    room = anna.good("PUT", path, json={"stop": stop})
    exported = anna.ask("GET", f"{path}/export?format={format}").text
    plain = yaml.safe_load(exported)
    assert plain["policy"]["provider"] == provider["name"]
    assert plain["stop"]["any"][0]["seat"] == "Writer"
    copy = anna.good("POST", "/chat-rooms/import", content=exported)
    new_seat_id = copy["agents"][0]["id"]
    assert copy["stop"]["any"][0]["seat_id"] == new_seat_id
    assert (copy["policy"], copy["title"], copy["task"]) == (room["policy"], room["title"], room["task"])
    own = {"id", "room_id", "created_at", "agent_id", "overrides"}
    for old, new in zip(room["agents"], copy["agents"], strict=True):
        assert {name: value for name, value in old.items() if name not in own} == {
            name: value for name, value in new.items() if name not in own
        }
    assert anna.ask("GET", f"/chat-rooms/{copy['id']}/export?format={format}").text == exported


def test_a_file_may_name_an_agent(anna: ApiClient) -> None:
    agent = anna.good("POST", "/agents", json={"name": "Named", "role": "leads"})
    file = "version: 1\ntitle: t\ntask: t\nagents:\n  - agent: named\n  - agent: named\n    name: Second\n"
    room = anna.good("POST", "/chat-rooms/import", content=file)
    assert [(seat["name"], seat["agent_id"]) for seat in room["agents"]] == [
        ("Named", agent["id"]), ("Second", agent["id"])
    ]  # fmt: skip


def test_the_schema_of_the_file_is_the_documented_one() -> None:
    documented = json.loads((ROOT / "docs" / "room.schema.json").read_text("utf-8"))
    assert documented == document_schema()


def test_the_messages_are_exported_as_markdown_for_members_too(
    anna: ApiClient, bob: ApiClient, rows: RoomRows
) -> None:
    room = new_room(anna, agents=[SEAT], title="A *talk*")
    member(anna, room, bob, "watch")
    rows.say(room["id"], "Begin.")
    rows.say(room["id"], "It has begun.", room["agents"][0], round_number=1)
    response = bob.ask("GET", f"/chat-rooms/{room['id']}/export?format=md")
    assert response.headers["content-type"].startswith("text/markdown")
    for part in (
        r"# A \*talk\*",
        "> Discuss.",
        "## a person",
        "> Begin.",
        "Round 1",
        "## Writer",
        "> It has begun.",
    ):
        assert part in response.text
    assert SEAT["system_prompt"] not in response.text
