"""Wrong requests about rooms: each is refused with a sentence for its field and changes nothing, and the same
request with a valid value in that place is accepted.
"""

from typing import Any

import msgspec
import pytest

from api.client import ApiClient
from api.room_rows import new_room

ROOM = {"title": "t", "task": "t"}
FILE = {"version": 1, "title": "t", "task": "t"}
NO_NUMBER = 987_654


class Case(msgspec.Struct, frozen=True):
    """`bad` and `good` are merged into the body of the request `at`; `field` is in the refusal."""

    at: str
    bad: dict[str, Any]
    field: str
    good: dict[str, Any]
    status: int = 400

    def __str__(self) -> str:
        return f"{self.at} {self.field} {str(self.bad)[:60]}"


def seats(*bodies: dict[str, Any]) -> dict[str, Any]:
    return {"agents": list(bodies)}


A, B = {"name": "A"}, {"name": "B"}
CASES = [
    # A new room
    Case("room", {"title": ""}, "$.title", {"title": "x"}),
    Case("room", {"title": " \t"}, "$.title", {"title": " x "}),
    Case("room", {"title": "two\nlines"}, "$.title", {"title": "one line"}),
    Case("room", {"title": "x" * 301}, "$.title", {"title": "x" * 300}),
    Case("room", {"title": 5}, "$.title", {"title": "5"}),
    Case("room", {"task": "  \n "}, "$.task", {"task": "a\nb"}),
    Case("room", {"task": None}, "$.task", {"task": "x" * 100_000}),
    Case("room", {"max_rounds": 0}, "$.max_rounds", {"max_rounds": 1}),
    Case("room", {"max_rounds": 101}, "$.max_rounds", {"max_rounds": 100}),
    Case("room", {"max_rounds": "3"}, "$.max_rounds", {"max_rounds": 3.0}),
    Case("room", {"topic": "x"}, "$.topic", {}),
    Case("room", {"status": "running"}, "$.status", {}),
    Case("room", {"policy": "loudest"}, "$.policy", {"policy": "manual"}),
    Case("room", {"policy": {"name": "moderator"}}, "$.policy.name", {"policy": {"name": "mention"}}),
    Case("room", {"policy": "handoff"}, "$.policy", {"policy": "parallel"}),
    Case("room", {"policy": {"name": "synthesise"}}, "$.policy.name", {"policy": "sequential"}),
    Case("room", {"policy": {"name": "selector", "temperature": 1}}, "$.policy.temperature",
         {"policy": {"name": "selector", "prompt": "Who?"}}),
    Case("room", {"policy": {"prompt": "Who?"}}, "$.policy.name",
         {"policy": {"name": "selector", "prompt": "Who?"}}),
    Case("room", {"policy": {"name": "round_robin", "model": "m"}}, "$.policy.model",
         {"policy": {"name": "selector", "model": "m"}}),
    Case("room", {"policy": {"name": "selector", "provider_id": NO_NUMBER}}, "$.policy.provider_id",
         {"policy": {"name": "selector", "provider_id": None}}, 404),
    Case("room", {"stop": {}}, "$.stop", {"stop": {"rounds": 1}}),
    Case("room", {"stop": {"rounds": 0}}, "$.stop.rounds", {"stop": {"rounds": 1}}),
    Case("room", {"stop": {"rounds": 1, "cost": 1}}, "$.stop",
         {"stop": {"any": [{"rounds": 1}, {"cost": 1}]}}),
    Case("room", {"stop": {"person": False}}, "$.stop", {"stop": {"person": True}}),
    Case("room", {"stop": {"any": []}}, "$.stop.any", {"stop": {"any": [{"tokens": 1}]}}),
    Case("room", {"stop": {"all": [{"rounds": 1}, {"minutes": 3}]}}, "$.stop.all[1].minutes",
         {"stop": {"all": [{"rounds": 1}, {"seconds": 3}]}}),
    Case("room", {"stop": {"any": [{"any": [{"any": [{"any": [{"rounds": 1}]}]}]}]}},
         "$.stop.any[0].any[0].any[0].any[0]", {"stop": {"any": [{"any": [{"any": [{"rounds": 1}]}]}]}}),
    Case("room", {"stop": {"phrase": "done", "seat_id": 1}}, "$.stop.seat_id", {"stop": {"phrase": "done"}}),
    Case("room", {"stop": {"any": [{"any": [{"phrase": "a"}] * 10}] * 4}}, "$.stop",
         {"stop": {"any": [{"any": [{"phrase": "a"}] * 10}] * 3}}),
    Case("room", {"stop": {"cost": -1}}, "$.stop.cost", {"stop": {"cost": 0.01}}),
    Case("room", seats(*({"name": f"{n}"} for n in range(21))), "$.agents",
         seats(*({"name": f"{n}"} for n in range(20)))),
    Case("room", seats(A, {"name": "a "}), "$.agents[1].name", seats(A, B)),
    Case("room", seats(A, {"name": "STRASSE"}, {"name": "straße"}), "$.agents[2].name",
         seats(A, {"name": "STRASSE"}, {"name": "strasze"})),
    Case("room", seats({"role": "x"}), "$.agents[0].name", seats({"role": "x", "name": "x"})),
    # A seat
    Case("seat", {"name": "one"}, "$.name", {"name": "two"}),
    Case("seat", {"name": "ONE"}, "$.name", {"name": "TWO"}),
    Case("seat", {"name": "x" * 101}, "$.name", {"name": "x" * 100}),
    Case("seat", {"name": "x", "agent_id": NO_NUMBER}, "$.agent_id", {"name": "x", "agent_id": None}, 404),
    Case("seat", {"name": "x", "provider_id": NO_NUMBER}, "$.provider_id", {"name": "x"}, 404),
    Case("seat", {"name": "x", "provider_id": 2**31}, "$.provider_id", {"name": "x", "provider_id": None}),
    Case("seat", {"name": "x", "color": "red"}, "$.color", {"name": "x", "color": "#FF0000"}),
    Case("seat", {"name": "x", "tools": ["no_such_tool"]}, "$.tools", {"name": "x", "tools": ["file_read"]}),
    Case("seat", {"name": "x", "skills": ["no-such-skill"]}, "$.skills", {"name": "x", "skills": []}),
    Case("seat", {"name": "x", "temperature": 2.1}, "$.temperature", {"name": "x", "temperature": 2}),
    Case("seat", {"name": "x", "turn_order": -1}, "$.turn_order", {"name": "x", "turn_order": 0}),
    Case("seat", {"name": "x", "max_iterations": 0}, "$.max_iterations", {"name": "x", "max_iterations": 1}),
    # Changes
    Case("change", {"title": None}, "$.title", {"title": "x"}),
    Case("change", {"agents": []}, "$.agents", {}),
    Case("change", {"max_rounds": None}, "$.max_rounds", {"max_rounds": 2}),
    Case("change", {"stop": {"phrase": "x", "seat_id": NO_NUMBER}}, "$.stop.seat_id", {"stop": None}),
    Case("change seat", {"name": None}, "$.name", {"name": "x"}),
    Case("change seat", {"name": "Other"}, "$.name", {"name": "ONE"}),
    Case("change seat", {"muted": None}, "$.muted", {"muted": True}),
    Case("change seat", {"agent_id": NO_NUMBER}, "$.agent_id", {"agent_id": 1}, 404),
    Case("change seat", {"agent_id": 0}, "$.agent_id", {"agent_id": None}),
    Case("change seat", {"agent_id": 2**31}, "$.agent_id", {"model": "m"}),
    Case("change seat", {"agent_id": "1"}, "$.agent_id", {"agent_id": 1, "model": "m"}),
    Case("change seat", {"agent_id": True}, "$.agent_id", {}),
    Case("change seat", {"provider_id": NO_NUMBER}, "$.provider_id", {"provider_id": None}, 404),
    # Members
    Case("member", {"right": "watch"}, "$.username", {"right": "watch", "username": "{bob}"}),
    Case("member", {"right": "watch", "user_id": 1, "username": "{bob}"}, "$.user_id",
         {"right": "watch", "username": "{bob}"}),
    Case("member", {"username": "{bob}"}, "$.right", {"right": "speak", "username": "{bob}"}),
    Case("member", {"username": "{bob}", "right": "own"}, "$.right", {"right": "steer", "username": "{bob}"}),
    Case("member", {"username": "nobody-here", "right": "watch"}, "$.username",
         {"right": "watch", "username": "{bob}"}, 404),
    # Files
    Case("file", {"version": 2}, "$.version", {"version": 1}),
    Case("file", {"version": None}, "$.version", {}),
    Case("file", {"status": "idle"}, "$.status", {}),
    Case("file", {"policy": {"name": "manual", "provider": "x"}}, "$.policy.provider", {"policy": "manual"}),
    Case("file", {"policy": {"name": "selector", "provider": "no such"}}, "$.policy.provider",
         {"policy": {"name": "selector"}}),
    Case("file", seats({"agent": "no such agent"}), "$.agents[0].agent", seats({"agent": "Basic"})),
    Case("file", seats(A, {"name": "B", "provider": "no such"}), "$.agents[1].provider", seats(A, B)),
    Case("file", seats(A, {"name": "B", "id": 5}), "$.agents[1].id", seats(A, B)),
    Case("file", seats(A) | {"stop": {"phrase": "x", "seat": "B"}}, "$.stop.seat",
         seats(A) | {"stop": {"phrase": "x", "seat": "a"}}),
    Case("file", seats(A) | {"stop": {"rounds": 1, "seat": "A"}}, "$.stop",
         seats(A) | {"stop": {"rounds": 1}}),
]  # fmt: skip


def send(person: ApiClient, bob: ApiClient, room: dict[str, Any], case: Case, change: dict[str, Any]) -> Any:
    change = {name: bob.user["username"] if value == "{bob}" else value for name, value in change.items()}
    path = f"/chat-rooms/{room['id']}"
    match case.at:
        case "room":
            return person.ask("POST", "/chat-rooms", json=ROOM | change)
        case "file":
            return person.ask("POST", "/chat-rooms/import", json=FILE | change)
        case "seat":
            return person.ask("POST", f"{path}/agents", json=change)
        case "change":
            return person.ask("PUT", path, json=change)
        case "change seat":
            return person.ask("PUT", f"{path}/agents/{room['agents'][0]['id']}", json=change)
        case _:
            return person.ask("POST", f"{path}/members", json=change)


@pytest.fixture(scope="module")
def watched(anna: ApiClient) -> dict[str, Any]:
    """A room that no case changes. The controls use rooms of their own."""
    return new_room(anna, "one", "other")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_wrong_request_is_refused_and_its_control_accepted(
    anna: ApiClient, bob: ApiClient, watched: dict[str, Any], case: Case
) -> None:
    rooms = anna.good("GET", "/chat-rooms?page_size=100")
    refused = send(anna, bob, watched, case, case.bad)
    assert refused.status_code == case.status, refused.text
    failure = refused.json()
    assert case.field in failure["detail"]["fields"], failure
    sentence = failure["detail"]["fields"][case.field]
    assert sentence in failure["error"]
    assert "^" not in sentence, "a pattern is no sentence"
    assert anna.good("GET", "/chat-rooms?page_size=100") == rooms
    assert anna.good("GET", f"/chat-rooms/{watched['id']}") == watched
    assert anna.good("GET", f"/chat-rooms/{watched['id']}/members")["total"] == 0
    room = new_room(anna, "one", "other")
    accepted = send(anna, bob, room, case, case.good)
    assert accepted.is_success, accepted.text
    for created in {room["id"], accepted.json()["data"].get("id")} - {None}:
        anna.ask("DELETE", f"/chat-rooms/{created}")


def test_all_problems_of_a_request_are_named_at_once(anna: ApiClient) -> None:
    broken = seats(A, {"name": "a", "provider_id": NO_NUMBER, "tools": ["no_such_tool"]}, {"role": "x"})
    body = ROOM | {"policy": {"name": "manual", "model": "m"}, "stop": {}} | broken
    failure = anna.bad("POST", "/chat-rooms", 400, json=body)
    assert set(failure["detail"]["fields"]) == {
        "$.policy.model", "$.stop", "$.agents[1].name", "$.agents[1].provider_id", "$.agents[1].tools",
        "$.agents[2].name",
    }  # fmt: skip
    broken = seats({"agent": "no such"}, {"name": "A"}, {"name": "a", "provider": "none", "skills": ["no"]})
    file = FILE | {"stop": {"phrase": "x", "seat": "Z"}} | broken
    failure = anna.bad("POST", "/chat-rooms/import", 400, json=file)
    assert set(failure["detail"]["fields"]) == {
        "$.agents[0].agent", "$.agents[2].name", "$.agents[2].provider", "$.agents[2].skills", "$.stop.seat",
    }  # fmt: skip


def test_unknown_and_mistyped_fields_of_a_file_do_not_hide_its_other_problems(anna: ApiClient) -> None:
    broken = seats(
        {"name": "A", "colour": "red"}, {"name": "B", "muted": "no", "provider": "none", "tools": ["no"]}
    )
    stop = {"any": [{"phrase": "x", "seat": "Z"}, {"rounds": "two"}]}
    file = FILE | {"stop": stop, "policy": {"name": "manual", "model": "m"}, "max_rounds": "many"} | broken
    failure = anna.bad("POST", "/chat-rooms/import", 400, json=file)
    assert set(failure["detail"]["fields"]) == {
        "$.agents[0].colour", "$.agents[1].muted", "$.agents[1].provider", "$.agents[1].tools",
        "$.stop.any[0].seat", "$.stop.any[1].rounds", "$.policy.model", "$.max_rounds",
    }  # fmt: skip
    file = FILE | {"stop": {"phrase": "x", "seat": "A"}} | seats({"names": "A"}, {"name": "B"})
    failure = anna.bad("POST", "/chat-rooms/import", 400, json=file)
    assert set(failure["detail"]["fields"]) == {"$.agents[0].names", "$.agents[0].name"}


def test_a_refused_policy_lists_those_that_there_are(anna: ApiClient) -> None:
    failure = anna.bad("POST", "/chat-rooms", 400, json=ROOM | {"policy": "loudest"})
    for name in ("round_robin", "sequential", "selector", "mention", "parallel", "manual"):
        assert name in failure["error"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("version: 1\ntitle: [", "not valid YAML"),
        ("version: 1\nversion: 1\ntitle: t\ntask: t", "twice"),
        ("version: 1\ntitle: &a t\ntask: *a", "alias"),
        ("x" * 1_000_001, "limit"),
        ("- a list", "JSON object"),
    ],
    ids=["broken", "a key twice", "an alias", "too long", "a list"],
)
def test_an_unreadable_file_is_refused(anna: ApiClient, content: str, words: str) -> None:
    assert words in anna.bad("POST", "/chat-rooms/import", 400, content=content)["error"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/chat-rooms/{room}/messages?limit=0", 400),
        ("GET", "/chat-rooms/{room}/messages?before=first", 400),
        ("GET", "/chat-rooms/{room}/messages?page=0", 400),
        ("GET", "/chat-rooms?status=idle", 400),
        ("GET", "/chat-rooms/{room}/export?format=xml", 400),
        ("GET", "/chat-rooms/not-an-id", 404),
        ("PUT", "/chat-rooms/{room}/agents/0", 404),
        ("DELETE", "/chat-rooms/{room}/agents/99999999999999", 404),
        ("DELETE", "/chat-rooms/{room}/members/99999999999999", 404),
    ],
)
def test_wrong_paths_and_parameters_are_refused(
    anna: ApiClient, watched: dict[str, Any], method: str, path: str, status: int
) -> None:
    body = {"muted": True} if method == "PUT" else None
    anna.bad(method, path.format(room=watched["id"]), status, json=body)
