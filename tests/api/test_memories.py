"""`/memories`: what was true and known when, undoing, deletion, and which requests are refused."""

import time
from pathlib import Path
from typing import Any

from api.client import ApiClient
from api.conftest import Join
from api.owned_ids import NO_UUID
from api.server_process import ServerProcess

SUBJECTS = ("city", "job", "pet", "car")
MONTHS = {"city": 3, "job": 5, "pet": 7, "car": 9}
"""When the second fact about each subject replaces the first."""


def at(month: int, day: int = 1, year: int = 2026) -> str:
    return f"{year}-{month:02}-{day:02}T00:00:00Z"


def texts(person: ApiClient, **params: str) -> set[str]:
    return {fact["text"] for fact in person.good("GET", "/memories?page_size=100", params=params)["items"]}


def test_facts_are_answered_as_of_a_time_and_as_known_at_a_time(anna: ApiClient) -> None:
    known: dict[str, list[str]] = {}
    ids: dict[str, str] = {}
    for subject in SUBJECTS:
        change = at(MONTHS[subject])
        first = anna.good("POST", "/memories", json={"text": f"{subject} one", "valid_at": at(1)})
        ended = anna.good("PUT", f"/memories/{first['id']}", json={"invalid_at": change})
        second = anna.good("POST", "/memories", json={"text": f"{subject} two", "valid_at": change})
        corrected = anna.good("PUT", f"/memories/{second['id']}", json={"text": f"{subject} second"})
        ids[subject] = second["id"]
        known[subject] = [first["created_at"], second["created_at"], corrected["created_at"]]
        assert ended["created_at"] > first["created_at"]
    for subject in SUBJECTS:
        month = MONTHS[subject]
        one, second = {f"{subject} one"}, {f"{subject} second"}
        for as_of, expected in (
            (at(12, 31, 2025), set[str]()),
            (at(1), one),
            (at(month - 1, 28), one),
            (at(month), second),
            (at(month, 2), second),
            (at(1, 1, 2030), second),
        ):
            assert texts(anna, q=subject, as_of=as_of) == expected, (subject, as_of)
        for known_at, expected in zip(
            known[subject], (one, {f"{subject} two"}, {f"{subject} second"}), strict=True
        ):
            assert texts(anna, q=subject, as_of=at(12), known_at=known_at) == expected, (subject, known_at)
        path = f"/memories/{ids[subject]}"
        for params, text in (
            ({}, "second"),
            ({"as_of": at(month)}, "second"),
            ({"known_at": known[subject][1]}, "two"),
            ({"known_at": known[subject][1], "as_of": at(month, 2)}, "two"),
            ({"known_at": known[subject][2]}, "second"),
        ):
            assert anna.good("GET", path, params=params)["text"] == f"{subject} {text}", params
        for params in ({"known_at": known[subject][0]}, {"as_of": at(month - 1)}):
            assert anna.bad("GET", path, 404, params=params)["detail"]["kind"] == "fact_not_found"
    assert texts(anna, q="") == texts(anna)


def test_a_tool_stores_the_same_words_again_only_for_another_time(join: Join) -> None:
    ann = join(1, 2)

    def remember(**more: Any) -> str:
        body = {"arguments": {"content": "Ann lives in Bergen.", **more}}
        return ann.good("POST", "/tools/memory_create/execute", json=body)["data"]["id"]

    first = remember(valid_at=at(1, year=2020))
    assert remember() == remember(valid_at=at(1, year=2090)) == first
    ann.good("PUT", f"/memories/{first}", json={"invalid_at": at(1, year=2080)})
    assert remember(valid_at=at(1, year=2070)) == first
    later = remember(valid_at=at(1, year=2090))
    assert later != first
    assert remember(valid_at=at(2, year=2090)) == later
    ann.good("PUT", f"/memories/{first}", json={"invalid_at": at(1, year=2021)})
    again = remember()
    assert again not in (first, later)
    assert remember() == again


def test_an_export_is_the_same_after_an_edit_is_undone(anna: ApiClient) -> None:
    body = {"text": "Anna owns a boat.", "subject": "Anna", "predicate": "owns", "object": "boat"}
    fact = anna.good("POST", "/memories", json=body)
    path = f"/memories/{fact['id']}"
    before = anna.ask("GET", "/memories/export").content
    for change in (
        {"text": "Anna owns a yacht.", "object": "yacht", "entities": [{"name": "Kiel", "type": "place"}]},
        {"valid_at": at(2), "category": "history"},
        {"subject": None, "predicate": None, "object": None},
        {"invalid_at": at(3)},
    ):
        anna.good("PUT", path, json=change)
    assert anna.good("POST", f"{path}/restore")["invalid_at"] is None
    assert anna.ask("GET", "/memories/export").content != before
    changes = anna.good("GET", "/memories/changes", params={"fact_id": fact["id"]})["items"]
    assert [change["kind"] for change in changes] == ["restore", "edit", "edit", "edit", "edit"]
    refused = anna.bad("POST", f"/memories/changes/{changes[-1]['id']}/undo", 409)
    assert refused["detail"] == {"kind": "change_not_newest", "change_id": changes[0]["id"]}
    for change in changes:
        assert anna.good("POST", f"/memories/changes/{change['id']}/undo")["undone_at"] is not None
    assert anna.ask("GET", "/memories/export").content == before
    assert anna.bad("POST", f"{path}/restore", 409)["detail"]["kind"] == "fact_not_retired"


def test_what_was_deleted_is_nowhere(server: ServerProcess, anna: ApiClient) -> None:
    keep = anna.good("POST", "/memories", json={"text": "Keep this.", "subject": "Zanzibar"})
    gone = anna.good(
        "POST", "/memories", json={"text": "Quixotic secret.", "subject": "Zanzibar", "object": "Xylia"}
    )
    anna.good("PUT", f"/memories/{gone['id']}", json={"text": "Quixotic again."})
    anna.good("DELETE", f"/memories/{gone['id']}")
    for path in ("/memories?page_size=100", "/memories/changes", "/memories/export"):
        answer = anna.ask("GET", path).text
        assert "Quixotic" not in answer, path
        assert "Xylia" not in answer, path
    assert anna.bad("POST", f"/memories/{gone['id']}/restore", 404)["detail"]["kind"] == "fact_not_found"
    assert anna.good("GET", f"/memories/{keep['id']}") == keep
    assert anna.good("DELETE", "/memories", params={"scope": "user", "source": "person"})["deleted"] >= 1
    assert texts(anna, scope="user") == set()
    until_erased(server.data_dir, b"quixotic")


def until_erased(folder: Path, word: bytes) -> None:
    """Waits until no file of the folder has the word, and fails after the minute that the server has."""
    ends = time.monotonic() + 60
    while True:
        found = [path for path in folder.rglob("*") if path.is_file() and word in path.read_bytes().lower()]
        if not found:
            return
        assert time.monotonic() < ends, found
        time.sleep(0.5)


TEXT = {"text": "x"}
BAD_BODIES: list[tuple[dict[str, Any], str]] = [
    ({}, "$.text"),
    ({"text": ""}, "$.text"),
    ({"text": " \n"}, "$.text"),
    ({"text": "x" * 2_001}, "$.text"),
    ({"text": "a\x00b"}, "$.text"),
    ({"text": 5}, "$.text"),
    (TEXT | {"category": "opinion"}, "$.category"),
    (TEXT | {"scope": "everybody"}, "$.scope"),
    (TEXT | {"scope": "user:1"}, "$.scope"),
    (TEXT | {"scope": "project:"}, "$.scope"),
    (TEXT | {"scope": "room"}, "$.scope"),
    (TEXT | {"scope": "x" * 51}, "$.scope"),
    (TEXT | {"subject": ""}, "$.subject"),
    (TEXT | {"subject": "a\nb"}, "$.subject"),
    (TEXT | {"subject": "x" * 201}, "$.subject"),
    (TEXT | {"predicate": "knows"}, "$.predicate"),
    (TEXT | {"object": "Ben"}, "$.object"),
    (TEXT | {"subject": "Anna", "predicate": "x" * 101}, "$.predicate"),
    (TEXT | {"entities": [{"name": " "}]}, "$.entities[0].name"),
    (TEXT | {"entities": [{"name": "x", "type": "y" * 51}]}, "$.entities[0].type"),
    (TEXT | {"entities": [{"name": "x"}] * 21}, "$.entities"),
    (TEXT | {"entities": ["Anna"]}, "$.entities[0]"),
    (TEXT | {"valid_at": "2026-01-01"}, "$.valid_at"),
    (TEXT | {"valid_at": "2026-01-01T00:00:00"}, "$.valid_at"),
    (TEXT | {"valid_at": "0001-01-01T00:00:00+14:00"}, "$.valid_at"),
    (TEXT | {"valid_at": at(2), "invalid_at": at(2)}, "$.invalid_at"),
    (TEXT | {"pinned": "yes"}, "$.pinned"),
    (TEXT | {"origin": "model"}, "$.origin"),
]
BAD_QUERIES = [
    ("GET", "/memories?scope=", "scope"),
    ("GET", "/memories?scope=rooms", "scope"),
    ("GET", "/memories?as_of=yesterday", "as_of"),
    ("GET", "/memories?as_of=0001-01-01T00:00:00%2B14:00", "as_of"),
    ("GET", "/memories?known_at=2026-01-01T00:00:00", "known_at"),
    ("GET", "/memories?category=opinion", "category"),
    ("GET", f"/memories?q={'x' * 301}", "q"),
    ("GET", "/memories?page_size=101", "page_size"),
    ("GET", "/memories/changes?fact_id=x", "fact_id"),
    ("GET", "/memories/changes?entity_id=%25", "entity_id"),
    ("DELETE", "/memories", "scope"),
    ("DELETE", "/memories?source=nobody", "source"),
    ("DELETE", "/memories?source=person:x", "source"),
    ("DELETE", "/memories?source=message:", "source"),
    ("GET", "/memories/changes?fact_id=", "fact_id"),
    ("GET", "/memories/changes?entity_id=x", "entity_id"),
    ("GET", f"/memories/{NO_UUID}?known_at=yesterday", "known_at"),
]


def test_wrong_requests_are_refused_with_their_field(anna: ApiClient) -> None:
    for body, field in BAD_BODIES:
        refused = anna.bad("POST", "/memories", 400, json=body)
        assert list(refused["detail"]["fields"]) == [field], (body, refused)
    for method, path, field in BAD_QUERIES:
        refused = anna.bad(method, path, 400)
        assert list(refused["detail"]["fields"]) == [field], (path, refused)
        assert "must be only" not in refused["error"], path
    fact = anna.good(
        "POST", "/memories", json={"text": "x", "valid_at": at(5), "subject": "A", "object": "B"}
    )
    for body, field in (
        ({"invalid_at": at(4)}, "$.invalid_at"),
        ({"subject": None}, "$.object"),
        ({"text": None}, "$.text"),
    ):
        refused = anna.bad("PUT", f"/memories/{fact['id']}", 400, json=body)
        assert list(refused["detail"]["fields"]) == [field], (body, refused)
    for scope in (f"project:{NO_UUID}", f"room:{NO_UUID}", "project:x"):
        assert (
            anna.bad("GET", "/memories", 404, params={"scope": scope})["detail"]["kind"] == "scope_not_found"
        )
        anna.bad("POST", "/memories", 404, json=TEXT | {"scope": scope})
    anna.bad("POST", "/memories", 403, json=TEXT | {"scope": "tenant"})
    anna.bad("DELETE", "/memories", 403, params={"scope": "tenant"})
    assert anna.bad("POST", f"/memories/changes/{NO_UUID}/undo", 404)["detail"]["kind"] == "change_not_found"
