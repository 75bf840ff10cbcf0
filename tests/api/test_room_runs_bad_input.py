"""Wrong requests about the run of a room: each is refused in words and changes nothing."""

from typing import Any

import msgspec
import pytest

from api.client import ApiClient
from api.room_rows import new_room

NO_ID = "01890a5d-ac96-774b-bcce-b302099a8057"
HUGE = 10**30


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A request about `room` (fresh, ended, manual, empty); `words` and `fields` are in the refusal."""

    name: str
    room: str = "fresh"
    method: str = "POST"
    path: str
    body: Any = None
    headers: dict[str, str] = {}
    status: int = 400
    words: str = ""
    fields: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


def floor(name: str, body: Any, *fields: str, **more: Any) -> Case:
    return Case(name=f"floor: {name}", path="/floor", body=body, fields=fields, **{"room": "manual"} | more)


def spoken(name: str, body: Any, *fields: str) -> Case:
    return Case(name=f"speaking: {name}", path="/messages", body=body, fields=fields)


def events(name: str, query: str, *fields: str, **more: Any) -> Case:
    base: dict[str, Any] = {"room": "ended", "method": "GET", "path": f"/events{query}", "fields": fields}
    return Case(name=f"events: {name}", **base | more)


JSON = {"accept": "application/json"}
CASES = [
    Case(name="starting without seats", room="empty", path="/start", status=409, words="add one first"),
    Case(name="starting perhaps", path="/start?accumulated=perhaps", fields=("accumulated",)),
    Case(name="stopping what does not run", path="/stop", status=409, words="it is idle"),
    Case(name="stopping what has ended", room="ended", path="/stop", status=409, words="it is completed"),
    Case(name="resuming what never began", path="/resume", status=409, words="has not been started"),
    Case(name="resuming what has ended", room="ended", path="/resume", status=409, words="it is completed"),
    Case(name="resuming perhaps", path="/resume?accumulated=2", fields=("accumulated",)),
    Case(name="skipping nothing", path="/skip", status=409, words="it is idle"),
    Case(name="ending what does not run", path="/finish", status=409, words="it is idle"),
    Case(name="ending what has ended", room="ended", path="/finish", status=409, words="it is completed"),
    floor("no seat", {}, "$.seat_id"),
    floor("a list", [], "$"),
    floor("null", {"seat_id": None}, "$.seat_id"),
    floor("a name", {"seat_id": "A"}, "$.seat_id"),
    floor("zero", {"seat_id": 0}, "$.seat_id"),
    floor("a huge number", {"seat_id": HUGE}, "$.seat_id"),
    floor("half a seat", {"seat_id": 1.5}, "$.seat_id"),
    floor("two seats", {"seat_id": [1, 2]}, "$.seat_id"),
    floor("more than a seat", {"seat_id": 1, "text": "x"}, "$.text"),
    floor("a seat that there is not", {"seat_id": 2**31 - 1}, status=404, words="no seat with this id"),
    floor("a seat of another room", {"seat_id": "{fresh}"}, status=404, words="no seat with this id"),
    floor("a muted seat", {"seat_id": "{muted}"}, status=409, words="unmute it first"),
    floor("a room that does not run", {"seat_id": "{manual}"}, status=409, words="it is idle"),
    floor("another policy", {"seat_id": "{fresh}"}, status=409, room="fresh", words="only manual"),
    spoken("nothing", {}, "$.content"),
    spoken("an empty text", {"content": ""}, "$.content"),
    spoken("blanks", {"content": " \n\t"}, "$.content"),
    spoken("a number", {"content": 5}, "$.content"),
    spoken("too much", {"content": "x" * 1_000_001}, "$.content"),
    spoken("a NUL", {"content": "a\x00b"}, "$.content"),
    spoken("as somebody else", {"content": "x", "sender_name": "A"}, "$.sender_name"),
    spoken("a list", ["x"], "$"),
    events("of a room without a run", "", room="fresh", status=404, words="has not been started"),
    events("after a text", "?last_event_id=x", "last_event_id"),
    events("after less than nothing", "?last_event_id=-1", "last_event_id"),
    events("after what has not happened", "?last_event_id=100000", "last_event_id"),
    events("a header of text", "", "Last-Event-ID", headers={"last-event-id": "first"}),
    events("a header too far", "", "Last-Event-ID", headers={"last-event-id": "100000"}),
    events("a page of none", "?limit=0", "limit", headers=JSON),
    events("a page too large", "?limit=1001", "limit", headers=JSON),
    events("from less than nothing", "?from_sequence=-1", "from_sequence", headers=JSON),
    events("from where nothing is", "?from_sequence=100000", "from_sequence", headers=JSON),
    Case(name="the context of no message", room="ended", method="GET", path=f"/messages/{NO_ID}/context",
         status=404, words="no seat of this room"),
    Case(name="the context of a person's message", room="ended", method="GET",
         path="/messages/{person}/context", status=404, words="no seat of this room"),
    Case(name="the context of another room's message", room="fresh", method="GET",
         path="/messages/{seat}/context", status=404, words="no seat of this room"),
    Case(name="the context of a NUL", room="ended", method="GET", path="/messages/%00/context"),
]  # fmt: skip
ACTIONS = ("start", "stop", "resume", "skip", "finish", "floor", "events")


class Rooms(msgspec.Struct, frozen=True):
    """Rooms by what they are for, and the values of the braces in cases."""

    by_name: dict[str, dict[str, Any]]
    values: dict[str, Any]


@pytest.fixture(scope="module")
def rooms(anna: ApiClient) -> Rooms:
    by_name = {
        "fresh": new_room(anna, "A", "B"),
        "manual": new_room(anna, "A", "B", policy="manual"),
        "ended": new_room(anna, "A", max_rounds=1),
        "empty": new_room(anna),
    }
    path = f"/chat-rooms/{by_name['ended']['id']}"
    person = anna.good("POST", f"{path}/messages", json={"content": "Begin."})
    with anna.http.stream("POST", f"{path}/start") as stream:
        stream.read()
    seat = anna.good("GET", f"{path}/messages")["items"][0]
    muted = by_name["manual"]["agents"][1]["id"]
    anna.good("PUT", f"/chat-rooms/{by_name['manual']['id']}/agents/{muted}", json={"muted": True})
    values = {"person": person["id"], "seat": seat["id"], "muted": muted}
    values |= {name: by_name[name]["agents"][0]["id"] for name in ("fresh", "manual")}
    return Rooms(
        {name: anna.good("GET", f"/chat-rooms/{room['id']}") for name, room in by_name.items()}, values
    )


def state(person: ApiClient, room: dict[str, Any]) -> list[Any]:
    path = f"/chat-rooms/{room['id']}"
    parts = [person.good("GET", path), person.good("GET", f"{path}/messages")]
    return [*parts, person.good("GET", f"/runs?subject_id={room['id']}")]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_wrong_request_about_a_run_is_refused_in_words(anna: ApiClient, rooms: Rooms, case: Case) -> None:
    room = rooms.by_name[case.room]
    before = state(anna, room)
    body = case.body
    if isinstance(body, dict) and isinstance(body.get("seat_id"), str) and body["seat_id"][0] == "{":
        body = {"seat_id": rooms.values[body["seat_id"][1:-1]]}
    path = f"/chat-rooms/{room['id']}{case.path.format(**rooms.values)}"
    content = {} if body is None else {"json": body}
    failure = anna.bad(case.method, path, case.status, headers=case.headers, **content)
    assert case.words in failure["error"]
    for field in case.fields:
        sentence = failure["detail"]["fields"][field]
        assert sentence
        assert "^" not in sentence, "a pattern is no sentence"
    assert failure["detail"]["kind"]
    assert state(anna, room) == before


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("room_id", [NO_ID, "not-an-id", "x" * 65])
def test_a_room_that_there_is_not_has_no_run(anna: ApiClient, action: str, room_id: str) -> None:
    method = "GET" if action == "events" else "POST"
    body = {"json": {"seat_id": 1}} if action == "floor" else {}
    answer = anna.ask(method, f"/chat-rooms/{room_id}/{action}", **body)
    assert answer.status_code == 404, answer.text
    assert answer.json()["error"] == "no room with this id"


def test_a_room_that_runs_or_pauses_is_not_started_again(anna: ApiClient) -> None:
    room = new_room(anna, "A", policy="manual")
    path = f"/chat-rooms/{room['id']}"
    run = anna.good("POST", f"{path}/start", headers=JSON)
    for refused in ("start", "resume"):
        failure = anna.bad("POST", f"{path}/{refused}", 409, headers=JSON)
        assert failure["error"].endswith(("runs already", "it is running", "it is waiting", "it is queued"))
    assert anna.bad("POST", f"{path}/start", 409)["detail"]["run_id"] == run["id"]
    anna.good("POST", f"{path}/stop")
    assert "resume it" in anna.bad("POST", f"{path}/start", 409)["error"]
    assert anna.bad("POST", f"{path}/stop", 409)["error"].endswith("it is paused")
    anna.good("POST", f"/runs/{run['id']}/cancel")
    assert anna.good("GET", path)["status"] == "completed"
    assert "it is cancelled" in anna.bad("POST", f"{path}/resume", 409)["error"]
    again = anna.good("POST", f"{path}/start", headers=JSON)
    anna.good("POST", f"{path}/finish")
    assert anna.good("GET", f"/runs/{again['id']}")["stop_reason"] == "person"
