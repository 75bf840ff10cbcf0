"""Branches and lists on both databases, through whole servers, also under concurrent requests."""

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from branching_client import JSON, BranchingClient, branching_client

from store.databases import new_database

SECRET = "a secret that all servers of one database share, long enough"
AT_ONCE = 8

numbers = itertools.count()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BranchingClient]:
    settings: dict[str, str] = {}
    if request.param == "postgresql":
        url = new_database(request.getfixturevalue("postgresql"), f"branching{next(numbers)}")
        settings = {"LUXX_DATABASE__URL": url, "LUXX_APP__SECRET_KEY": SECRET}
    with branching_client(tmp_path_factory.mktemp("branching"), **settings) as client:
        yield client


def test_a_conversation_branches_and_is_forked(client: BranchingClient) -> None:
    chat = client.chat()
    files = [{"name": "note.md", "content": "Buy milk."}]
    first = chat.send("hello", attachments=files)
    second = chat.again(first["id"])
    edited = chat.edit(first["parent_id"], "good day")
    third = chat.again(edited["id"])
    assert chat.select(first["parent_id"]) == second["id"]
    fork = chat.fork(first["id"])
    assert [each["text"] for each in fork.messages()] == ["hello", first["text"]]
    assert fork.messages()[0]["attachments"][0]["content"] == "Buy milk."
    assert fork.messages()[1]["usage"] == first["usage"]
    chat.delete(first["parent_id"])
    assert chat.show()["selected_leaf_id"] == third["id"]
    assert chat.texts() == ["good day", third["text"]]
    assert fork.texts() == ["hello", first["text"]]


def test_conversations_are_found_by_project_tags_and_text(client: BranchingClient) -> None:
    project = client.person.good("POST", "/projects", json={"name": "sample"})["id"]
    for title, tags in (("50% off", ["work", "a b"]), ("Other", ['x","work']), ("third", [])):
        client.chat(title=title, tags=tags, project_id=project)

    def titles(query: str) -> list[str]:
        page = client.person.good("GET", f"/conversations?project_id={project}&{query}")
        assert page["total"] == len(page["items"])
        return [each["title"] for each in page["items"]]

    assert titles("tag=work") == ["50% off"]
    assert titles("tag=x%22,%22work") == ["Other"]
    assert titles("q=50%25") == ["50% off"]
    assert titles("q=OTHER&pinned=false&archived=false&sort=updated") == ["Other"]
    for title in ("Über München", "ДОМ 100%", "Straße"):
        client.chat(title=title, project_id=project)
    for query in ("q=ÜBER", "q=über mÜN", "q=MÜNCHEN&sort=updated"):
        assert titles(query) == ["Über München"], query
    assert titles("q=дом 100%25") == ["ДОМ 100%"]
    assert titles("q=_ber") == titles("q=%25ber") == []
    client.person.good("DELETE", f"/projects/{project}")
    assert titles("q=") == []


def test_one_of_many_concurrent_regenerations_succeeds(client: BranchingClient) -> None:
    chat = client.chat()
    user_message_id = chat.edit(chat.send("hello")["parent_id"], "wait")["id"]
    path = f"/messages/{user_message_id}/regenerate"
    with ThreadPoolExecutor(AT_ONCE) as threads:
        answers = list(threads.map(lambda _: client.person.ask("POST", path, headers=JSON), range(AT_ONCE)))
    (run,) = [each.json()["data"] for each in answers if each.status_code == 202]
    refused = [each.json() for each in answers if each.status_code != 202]
    assert {each["code"] for each in refused} == {409}
    assert {each["detail"]["run_id"] for each in refused} == {run["id"]}
    client.person.good("POST", f"/runs/{run['id']}/cancel")
    assert [node["children"] for node in chat.tree()["nodes"] if node["id"] == user_message_id] == [
        [run["message_id"]]
    ]


def test_concurrent_deletes_and_messages_leave_a_consistent_tree(client: BranchingClient) -> None:
    for _ in range(5):
        chat = client.chat()
        first = chat.send("hello")
        message = f"/messages/{first['id']}"
        wanted = [
            ("POST", f"{message}/regenerate", {}),
            ("DELETE", message, None),
            ("PUT", f"/messages/{first['parent_id']}", {"content": "other"}),
            ("POST", f"/conversations/{chat.id}/fork", {"message_id": first["id"]}),
            ("PUT", f"/conversations/{chat.id}", {"selected_leaf_id": first["id"]}),
            ("DELETE", f"/messages/{first['parent_id']}", None),
        ]
        with ThreadPoolExecutor(len(wanted)) as threads:
            answers = list(
                threads.map(lambda one: client.person.ask(one[0], one[1], json=one[2], headers=JSON), wanted)
            )
        assert {each.status_code for each in answers} <= {200, 201, 202, 404, 409}
        for run in client.person.good("GET", f"/runs?subject_id={chat.id}&status=running")["items"]:
            client.person.ask("POST", f"/runs/{run['id']}/cancel")
        tree = chat.tree()
        known = {node["id"] for node in tree["nodes"]}
        assert {node["parent_id"] for node in tree["nodes"]} <= known | {None}
        assert (tree["selected_leaf_id"] in known) if known else tree["selected_leaf_id"] is None
