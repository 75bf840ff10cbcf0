"""`GET /search` finds messages, answers, rooms and tasks of the user until they are deleted."""

import json
from pathlib import Path
from typing import Any

import pytest

from api.bad_requests import UNKNOWN_ID
from api.client import ApiClient
from api.room_rows import new_room


@pytest.fixture(scope="module")
def chat(anna: ApiClient) -> dict[str, Any]:
    """A conversation with a question and its answer."""
    conversation = anna.good("POST", "/conversations", json={})
    file = {"name": "einkauf.txt", "content": "Milch"}
    body = {"conversation_id": conversation["id"], "content": "什么是机器学习？", "attachments": [file]}
    conversation["answer"] = anna.good("POST", "/messages", json=body)
    return conversation


def hits(person: ApiClient, query: str, **more: Any) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = person.good("GET", "/search", params={"q": query, **more})["items"]
    return items


def test_a_question_its_title_and_its_answer_are_found(anna: ApiClient, chat: dict[str, Any]) -> None:
    title, question = sorted(hits(anna, "机器学习"), key=lambda hit: hit["kind"])
    assert (title["kind"], title["message_id"], title["role"]) == ("conversation", None, None)
    assert (question["kind"], question["role"]) == ("message", "user")
    assert title["conversation_title"] == question["conversation_title"] == "什么是机器学习？"
    snippet = question["snippet"]
    assert [snippet["text"][mark["start"] : mark["end"]] for mark in snippet["marks"]] == ["机器学习"]
    (answer,) = hits(anna, '"hello there"', conversation_id=chat["id"])
    assert (answer["message_id"], answer["room_id"]) == (chat["answer"]["id"], None)
    assert [hit["message_id"] for hit in hits(anna, "einkauf")] == [question["message_id"]]
    assert hits(anna, "Milch") == []


def test_kind_conversation_and_pages_narrow_the_results(anna: ApiClient, chat: dict[str, Any]) -> None:
    other = anna.good("POST", "/conversations", json={"title": "学习 Plan"})["id"]
    assert [hit["conversation_id"] for hit in hits(anna, "学习", kind="conversation")] == [other, chat["id"]]
    kinds = [hit["kind"] for hit in hits(anna, "学习", conversation_id=chat["id"])]
    assert sorted(kinds) == ["conversation", "message"]
    page = anna.good("GET", "/search?q=学习&page=2&page_size=2")
    assert (page["total"], page["page"], page["page_size"], page["has_more"]) == (3, 2, 2, False)
    assert [hit["rank"] for hit in page["items"]] == [3]
    anna.good("PUT", f"/conversations/{other}", json={"title": "renamed"})
    assert hits(anna, "Plan") == []
    assert [hit["conversation_id"] for hit in hits(anna, "RENAMED")] == [other]


def test_punctuation_alone_finds_nothing_and_is_no_error(anna: ApiClient) -> None:
    for query in ('"', "***", "😀", " ", "-- ;"):
        assert hits(anna, query) == []


def test_other_users_do_not_find_it(bob: ApiClient, chat: dict[str, Any]) -> None:
    assert hits(bob, "机器学习") == []
    bob.bad("GET", f"/search?q=机器学习&conversation_id={chat['id']}", 404)


def test_a_cut_answer_is_found_and_a_deleted_conversation_is_not(anna: ApiClient) -> None:
    conversation_id = anna.good("POST", "/conversations", json={"title": "Fleeting"})["id"]
    headers = {"accept": "application/json"}
    body = {"conversation_id": conversation_id, "content": "wait here"}
    run = anna.good("POST", "/messages/stream", json=body, headers=headers)
    anna.good("POST", f"/runs/{run['id']}/cancel")
    stored = anna.good("GET", f"/messages?conversation_id={conversation_id}")["items"]
    assert [message["status"] for message in stored] == ["partial", "complete"]
    results = hits(anna, stored[0]["text"] or "wait", conversation_id=conversation_id)
    assert results[0]["message_id"] == stored[0 if stored[0]["text"] else 1]["id"]
    anna.good("DELETE", f"/messages/{stored[0]['id']}")
    assert [hit["role"] for hit in hits(anna, "wait", conversation_id=conversation_id)] == ["user"]
    anna.good("DELETE", f"/conversations/{conversation_id}")
    assert hits(anna, "fleeting") == hits(anna, "wait here") == []


def test_the_messages_of_a_room_are_found_by_its_owner_only(anna: ApiClient, bob: ApiClient) -> None:
    room, other = (new_room(anna, "A", title=title) for title in ("Kraken talk", "Other"))
    path = f"/chat-rooms/{room['id']}"
    anna.good("POST", f"{path}/members", json={"user_id": bob.user["id"], "right": "steer"})
    spoken = bob.good("POST", f"{path}/messages", json={"content": "Release the kraken!"})
    anna.good("POST", f"/chat-rooms/{other['id']}/messages", json={"content": "Another kraken"})
    hit = hits(anna, "release kraken", kind="message")[0]
    assert (hit["kind"], hit["message_id"], hit["role"]) == ("message", spoken["id"], "user")
    assert (hit["room_id"], hit["room_title"]) == (room["id"], "Kraken talk")
    assert (hit["conversation_id"], hit["conversation_title"]) == (None, None)
    assert len(hits(anna, "kraken", kind="message")) == 2
    in_room = hits(anna, "kraken", room_id=room["id"], sort="newest")
    assert [one["message_id"] for one in in_room] == [spoken["id"], None]
    assert hits(bob, "kraken") == []
    foreign = bob.bad("GET", f"/search?q=kraken&room_id={room['id']}", 404)
    assert foreign == bob.bad("GET", f"/search?q=kraken&room_id={UNKNOWN_ID}", 404)
    copy = anna.good("POST", f"{path}/fork", json={})
    assert [one["room_id"] for one in hits(anna, '"release the"')] == [copy["id"], room["id"]]
    anna.good("POST", f"{path}/reset")
    anna.good("DELETE", f"/chat-rooms/{other['id']}")
    assert [one["room_id"] for one in hits(anna, "kraken", kind="message")] == [copy["id"]]
    anna.good("DELETE", f"/chat-rooms/{copy['id']}")
    assert [(one["kind"], one["room_id"]) for one in hits(anna, "kraken")] == [("room", room["id"])]


def test_a_room_is_found_by_its_title_and_task_by_its_owner_only(anna: ApiClient, bob: ApiClient) -> None:
    room = new_room(anna, "A", title="Walrus colony", task="Count the pups.\n\nThen rest.")
    path = f"/chat-rooms/{room['id']}"
    anna.good("POST", f"{path}/members", json={"user_id": bob.user["id"], "right": "watch"})
    (hit,) = hits(anna, "pup walruses")
    assert (hit["kind"], hit["room_id"], hit["room_title"]) == ("room", room["id"], "Walrus colony")
    empty = ("conversation_id", "conversation_title", "task_id", "task_name", "message_id", "role")
    assert [hit[name] for name in empty] == [None] * 6
    assert hit["created_at"] == room["created_at"]
    text, marks = hit["snippet"]["text"], hit["snippet"]["marks"]
    assert [text[mark["start"] : mark["end"]] for mark in marks] == ["Walrus", "pups"]
    assert hits(bob, "walrus") == hits(anna, "walrus", kind="conversation") == []
    spoken = bob.bad("POST", f"{path}/messages", 403, json={"content": "walrus"})
    assert spoken["detail"]
    anna.good("POST", f"{path}/messages", json={"content": "A walrus again"})
    found = [(one["kind"], one["room_title"]) for one in hits(anna, "walrus", room_id=room["id"])]
    assert sorted(found) == [("message", "Walrus colony"), ("room", "Walrus colony")]
    anna.bad("PUT", path, 400, json={"title": "Never", "task": " "})
    anna.good("PUT", path, json={"title": "Ospreys"})
    assert hits(anna, "walrus", kind="room") == hits(anna, "never", kind="room") == []
    anna.good("PUT", path, json={"task": "Watch the nest."})
    assert hits(anna, "pups") == []
    assert [one["room_id"] for one in hits(anna, '"ospreys" nest')] == [room["id"]]
    copy = anna.good("POST", f"{path}/fork", json={})["id"]
    file = anna.http.get(f"{path}/export?format=json").json()
    imported = anna.good("POST", "/chat-rooms/import", json=file)["id"]
    assert [one["room_id"] for one in hits(anna, "nest", kind="room")] == [imported, copy, room["id"]]
    for room_id in (imported, copy, room["id"]):
        anna.good("DELETE", f"/chat-rooms/{room_id}")
    assert hits(anna, "nest") == hits(anna, "walrus") == []


def tasks_found(person: ApiClient, query: str) -> list[str]:
    """The tasks with all of the words, newest first."""
    words = " ".join(f'"{word}"' for word in query.split())
    return [hit["task_id"] for hit in hits(person, words, kind="task", sort="newest")]


def execute(person: ApiClient, task_id: str) -> None:
    with person.http.stream("POST", f"/tasks/{task_id}/execute") as stream:
        assert b"task_complete" in stream.read()


def test_a_task_is_found_by_what_its_user_wrote_and_after_each_change(
    anna: ApiClient, bob: ApiClient
) -> None:
    steps = [{"id": "a", "name": "Dig"}, {"id": "b", "name": "Plant", "depends_on": ["a"]}]
    task = anna.good("POST", "/tasks", json={"name": "Orchard", "goal": "Ten pear trees", "steps": steps})
    path = f"/tasks/{task['id']}"
    (hit,) = hits(anna, "orchard pear plant")
    assert (hit["kind"], hit["task_id"], hit["task_name"]) == ("task", task["id"], "Orchard")
    empty = ("conversation_id", "conversation_title", "room_id", "room_title", "message_id", "role")
    assert [hit[name] for name in empty] == [None] * 6
    assert hit["created_at"] == task["created_at"]
    assert hits(bob, "orchard") == hits(anna, "orchard", kind="message") == []
    anna.good("PUT", path, json={"name": "Grove", "goal": "Ten plums"})
    assert tasks_found(anna, "orchard") == tasks_found(anna, "pear") == []
    assert tasks_found(anna, "grove plums dig") == [task["id"]]
    anna.good("PUT", f"{path}/steps/b", json={"name": "Sow"})
    assert (tasks_found(anna, "grove plant"), tasks_found(anna, "grove sow")) == ([], [task["id"]])
    anna.good("POST", f"{path}/steps", json={"steps": [{"name": "Prune"}]})
    assert tasks_found(anna, "grove prune") == [task["id"]]
    anna.good("DELETE", f"{path}/steps/b")
    assert tasks_found(anna, "grove sow") == []
    anna.good("PUT", f"{path}/graph", json={"steps": [{"name": "Mow"}]})
    assert (tasks_found(anna, "grove prune"), tasks_found(anna, "grove mow")) == ([], [task["id"]])
    file = anna.http.get(f"{path}/export?format=json").json()
    imported = anna.good("POST", "/tasks/import", json=file)["id"]
    template = anna.good("POST", "/task-templates", json={"name": "Groves", "document": file})["id"]
    made = anna.good("POST", f"/task-templates/{template}/instantiate", json={"name": "Grove two"})["id"]
    assert tasks_found(anna, "grove mow") == [made, imported, task["id"]]
    assert tasks_found(anna, "two") == [made]
    for task_id in (made, imported, task["id"]):
        anna.good("DELETE", f"/tasks/{task_id}")
    assert tasks_found(anna, "grove") == []


def test_a_task_is_found_by_the_plan_and_the_result_that_its_runs_store(anna: ApiClient) -> None:
    """The model plans one step, Do it, and answers Hello there to it."""
    task_id = anna.good("POST", "/tasks", json={"name": "Marmalade", "goal": "Oranges"})["id"]
    assert tasks_found(anna, "marmalade do") == []
    execute(anna, task_id)
    assert tasks_found(anna, "marmalade do it hello there") == [task_id]
    anna.good(
        "POST", f"/tasks/{task_id}/steps", json={"steps": [{"id": "w", "name": "W", "goal": "wait here"}]}
    )
    headers = {"accept": "application/json"}
    run = anna.good("POST", f"/tasks/{task_id}/execute", headers=headers)
    assert anna.good("GET", f"/tasks/{task_id}")["result"] is None
    assert (tasks_found(anna, "marmalade hello"), tasks_found(anna, "marmalade w")) == ([], [task_id])
    anna.good("POST", f"/runs/{run['id']}/cancel")


def test_kinds_are_mixed_by_relevance_or_by_time(anna: ApiClient) -> None:
    anna.good("POST", "/conversations", json={"title": "Narwhal talk"})
    room = new_room(anna, "A", title="Narwhal room")
    anna.good(
        "POST", f"/chat-rooms/{room['id']}/messages", json={"content": "One narwhal with a tusk of ice"}
    )
    anna.good("POST", "/tasks", json={"name": "Narwhal task", "goal": "g"})
    kinds = ["task", "message", "room", "conversation"]
    assert [hit["kind"] for hit in hits(anna, "narwhal", sort="newest")] == kinds
    assert sorted(hit["kind"] for hit in hits(anna, "narwhals")) == sorted(kinds)
    assert next(hit["kind"] for hit in hits(anna, "tusks of narwhals")) == "message"
    assert [hit["kind"] for hit in hits(anna, "icy tusk narwhal", sort="newest")] == ["message"]
    page = anna.good("GET", "/search?q=narwhal&page=2&page_size=3")
    assert ([hit["rank"] for hit in page["items"]], page["total"]) == ([4], 4)
    for kind in kinds:
        assert [hit["kind"] for hit in hits(anna, "narwhal", kind=kind)] == [kind]


QUESTIONS = json.loads((Path(__file__).parent / "search_questions.json").read_text())
"""Conversations, and questions with the number of the message that answers each."""


def imported(person: ApiClient, conversation: dict[str, Any]) -> None:
    at = "2026-05-04T10:00:00Z"
    messages: list[dict[str, Any]] = [
        {
            "id": f"m{number}",
            "parent_id": f"m{number - 1}" if number else None,
            "created_at": at,
            "role": role,
        }
        | ({"text": said} if role == "user" else {"steps": [step(said)]})
        for number, said in enumerate(conversation["messages"])
        for role in (("user", "assistant")[number % 2],)
    ]
    header = {"id": "c", "title": conversation["title"], "created_at": at, "updated_at": at}
    document = {
        "format": "luxx.conversation", "version": 1, "exported_at": at, "conversation": header,
        "messages": messages,
    }  # fmt: skip
    files = {"file": ("a.json", json.dumps(document))}
    assert person.http.post("/conversations/import", files=files).status_code in (200, 201)


def step(said: str) -> dict[str, Any]:
    return {"id": "s0", "index": 0, "type": "text", "content": said}


def test_questions_find_the_message_that_answers_them(bob: ApiClient) -> None:
    for conversation in QUESTIONS:
        imported(bob, conversation)
    first = ten = asked = 0
    for conversation in QUESTIONS:
        for question, number in conversation["questions"].items():
            items = hits(bob, question, page_size=10)
            answer = conversation["messages"][number]
            places = [
                place
                for place, hit in enumerate(items)
                if hit["kind"] == "message"
                and answer.startswith(hit["snippet"]["text"][:40])
                and hit["conversation_title"] == conversation["title"]
            ]
            asked += 1
            ten += bool(places)
            first += places[:1] == [0]
    assert ten / asked >= 0.9
    assert first / asked >= 0.65
