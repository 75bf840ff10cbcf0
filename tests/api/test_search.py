"""`GET /search` finds messages and answers of the user until they are deleted."""

from typing import Any

import pytest

from api.client import ApiClient


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
    title, question = hits(anna, "机器学习")
    assert (title["kind"], title["message_id"], title["role"]) == ("conversation", None, None)
    assert (question["kind"], question["role"]) == ("message", "user")
    assert title["conversation_title"] == question["conversation_title"] == "什么是机器学习？"
    snippet = question["snippet"]
    assert [snippet["text"][mark["start"] : mark["end"]] for mark in snippet["marks"]] == ["机器学习"]
    assert [hit["message_id"] for hit in hits(anna, '"hello there"')] == [chat["answer"]["id"]]
    assert [hit["message_id"] for hit in hits(anna, "einkauf")] == [question["message_id"]]
    assert hits(anna, "Milch") == []


def test_kind_conversation_and_pages_narrow_the_results(anna: ApiClient, chat: dict[str, Any]) -> None:
    other = anna.good("POST", "/conversations", json={"title": "学习 Plan"})["id"]
    assert [hit["conversation_id"] for hit in hits(anna, "学习", kind="conversation")] == [other, chat["id"]]
    assert [hit["kind"] for hit in hits(anna, "学习", conversation_id=chat["id"])] == [
        "conversation",
        "message",
    ]
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
