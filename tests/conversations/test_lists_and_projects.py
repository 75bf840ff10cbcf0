"""Titles of conversations, their lists and filters, and projects."""

from collections.abc import Iterator
from typing import Any

import pytest
from branching_client import BranchingClient, branching_client

from luxx.domain.conversations.access import TITLE_LENGTH, UNTITLED, title_after


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BranchingClient]:
    with branching_client(tmp_path_factory.mktemp("lists")) as client:
        yield client


@pytest.mark.parametrize(
    ("said", "title"),
    [
        ("Hello there", "Hello there"),
        ("\n\n  Why \t is this?\nBecause.", "Why is this?"),
        ("x" * 60, "x" * 60),
        ("x" * 61, "x" * 59 + "…"),
        ("一" * 100, "一" * 59 + "…"),
        (f"{'word ' * 11}a-long-last-word", f"{'word ' * 11}".strip() + "…"),
        (f"short {'x' * 100}", f"short {'x' * 53}…"),
    ],
)
def test_a_title_is_the_first_line_cut_at_a_word(said: str, title: str) -> None:
    assert title_after(UNTITLED, said) == title
    assert len(title) <= TITLE_LENGTH
    assert title_after("named", said) == "named"


def test_a_conversation_gets_its_title_from_the_first_message_only(client: BranchingClient) -> None:
    chat = client.chat()
    assert chat.show()["title"] == UNTITLED
    first = chat.send("How do I\nplant a tree?")
    assert chat.show()["title"] == "How do I"
    chat.send("And water it?")
    chat.edit(first["parent_id"], "How do I plant two?")
    assert chat.show()["title"] == "How do I"
    client.person.good("PUT", f"/conversations/{chat.id}", json={"title": "Garden"})
    chat.send("Thanks")
    assert chat.show()["title"] == "Garden"


def test_a_title_set_by_the_user_stays(client: BranchingClient) -> None:
    chat = client.chat(title="Mine")
    chat.send("hello")
    assert chat.show()["title"] == "Mine"


def matching_titles(client: BranchingClient, **query: Any) -> list[str]:
    """The titles of the matching conversations, in order, from all pages."""
    titles: list[str] = []
    page = 1
    while True:
        answer = client.person.good("GET", "/conversations", params={**query, "page": page, "page_size": 3})
        if not answer["items"]:
            assert answer["total"] == len(titles)
            return titles
        titles += [each["title"] for each in answer["items"]]
        page += 1


@pytest.fixture(scope="module")
def sample_project(client: BranchingClient) -> str:
    """Creates conversations of many kinds in a project. Returns the project's id."""
    project: str = client.person.good("POST", "/projects", json={"name": "sample"})["id"]
    for title, fields in (
        ("plain", {}),
        ("pinned", {"pinned": True}),
        ("archived", {"archived": True}),
        ("pinned and archived", {"pinned": True, "archived": True}),
        ("tagged", {"tags": ["work", "a b"]}),
        ('tagged "oddly"', {"tags": ['x","work', "100%", "wörk"]}),
        ("100% Sure_thing", {"tags": ["work"]}),
    ):
        client.chat(title=title, project_id=project, **fields)
    return project


@pytest.mark.parametrize(
    ("query", "titles"),
    [
        ({"pinned": True}, ["pinned and archived", "pinned"]),
        ({"pinned": True, "archived": False}, ["pinned"]),
        ({"archived": True}, ["pinned and archived", "archived"]),
        ({"tag": "work"}, ["100% Sure_thing", "tagged"]),
        ({"tag": "a b"}, ["tagged"]),
        ({"tag": 'x","work'}, ['tagged "oddly"']),
        ({"tag": "wörk"}, ['tagged "oddly"']),
        ({"tag": "wor"}, []),
        ({"tag": "%"}, []),
        ({"tag": ""}, []),
        ({"q": "ARCH"}, ["pinned and archived", "archived"]),
        ({"q": "100%"}, ["100% Sure_thing"]),
        ({"q": "e_t"}, ["100% Sure_thing"]),
        ({"q": "%"}, ["100% Sure_thing"]),
        ({"q": "tagged", "tag": "work"}, ["tagged"]),
        ({"q": "\\"}, []),
    ],
)
def test_lists_contain_conversations_that_match_every_filter(
    client: BranchingClient, sample_project: str, query: dict[str, Any], titles: list[str]
) -> None:
    assert matching_titles(client, project_id=sample_project, **query) == titles


def test_an_empty_query_filters_nothing(client: BranchingClient, sample_project: str) -> None:
    assert len(matching_titles(client, project_id=sample_project, q="")) == 7
    assert matching_titles(client, project_id="no such project") == []


def test_lists_are_sorted_by_creation_or_by_activity(client: BranchingClient) -> None:
    project = client.person.good("POST", "/projects", json={"name": "order"})["id"]
    chats = [client.chat(title=title, project_id=project) for title in ("one", "two", "three", "four")]
    chats[1].send("hello")
    client.person.good("PUT", f"/conversations/{chats[0].id}", json={"pinned": True})
    assert matching_titles(client, project_id=project) == ["four", "three", "two", "one"]
    assert matching_titles(client, project_id=project, sort="newest") == ["four", "three", "two", "one"]
    assert matching_titles(client, project_id=project, sort="updated") == ["one", "two", "four", "three"]


def test_a_project_is_made_listed_shown_changed_and_deleted(client: BranchingClient) -> None:
    person = client.person
    created = person.ask("POST", "/projects", json={"name": " Garden ", "description": "Trees."})
    assert created.status_code == 201
    project = created.json()["data"]
    assert set(project) == {"id", "user_id", "name", "description", "memory", "created_at", "updated_at"}
    assert (project["name"], project["description"], project["user_id"]) == (
        "Garden",
        "Trees.",
        person.user["id"],
    )
    path = f"/projects/{project['id']}"
    assert person.good("GET", path) == project
    changed = person.good("PUT", path, json={"name": "Yard"})
    assert (changed["name"], changed["description"]) == ("Yard", "Trees.")
    assert person.good("PUT", path, json={"description": ""})["description"] == ""
    other = person.good("POST", "/projects", json={"name": "Yard"})["id"]
    page = person.good("GET", "/projects?page_size=100")
    assert [each["id"] for each in page["items"]][:2] == [other, project["id"]]
    assert page["total"] == len(page["items"])
    person.good("DELETE", path)
    person.bad("GET", path, 404)
    person.bad("DELETE", path, 404)


def test_the_conversations_of_a_project_are_listed_in_pages_and_outlive_it(client: BranchingClient) -> None:
    person = client.person
    project = person.good("POST", "/projects", json={"name": "garden"})["id"]
    chats = [client.chat(project_id=project).id for _ in range(3)]
    late = client.chat().id
    person.good("PUT", f"/conversations/{late}", json={"project_id": project})
    path = f"/projects/{project}/conversations"
    first = person.good("GET", f"{path}?page_size=3")
    assert [each["id"] for each in first["items"]] == [late, chats[2], chats[1]]
    assert (first["total"], first["page"], first["page_size"]) == (4, 1, 3)
    assert [each["id"] for each in person.good("GET", f"{path}?page_size=3&page=2")["items"]] == chats[:1]
    person.good("PUT", f"/conversations/{late}", json={"project_id": None})
    assert person.good("GET", path)["total"] == 3
    person.good("DELETE", f"/projects/{project}")
    person.bad("GET", path, 404)
    assert [person.good("GET", f"/conversations/{id_}")["project_id"] for id_ in chats] == [None] * 3
