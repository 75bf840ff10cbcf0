"""Branches over HTTP: regenerated answers, edited questions, the tree, and the prompt that follows
from it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api.client import ApiClient
from api.conftest import connect
from api.server_process import ServerProcess
from api.streams import stream_run
from branching_client import JSON, BranchingClient, ConversationClient, branching_client, script
from process_environment import scripted_models

NOBODYS = "01890a5d-ac96-774b-bcce-b302099a8057"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BranchingClient]:
    with branching_client(tmp_path_factory.mktemp("branches")) as client:
        yield client


@pytest.fixture
def chat(client: BranchingClient) -> ConversationClient:
    return client.chat()


def children(chat: ConversationClient, message_id: str) -> list[str]:
    return next(node["children"] for node in chat.tree()["nodes"] if node["id"] == message_id)


def test_an_answer_regenerated_is_a_sibling_and_the_selected_leaf(
    client: BranchingClient, chat: ConversationClient
) -> None:
    first = chat.send("hello")
    second = chat.again(first["id"])
    assert second["parent_id"] == first["parent_id"]
    assert second["text"] != first["text"]
    assert children(chat, first["parent_id"]) == [first["id"], second["id"]]
    assert chat.show()["selected_leaf_id"] == second["id"]
    assert client.prompt() == [("user", "hello")]
    chat.send("go on")
    assert client.prompt() == [("user", "hello"), ("assistant", second["text"]), ("user", "go on")]


def test_any_user_message_can_be_answered_again(client: BranchingClient, chat: ConversationClient) -> None:
    first = chat.send("hello")
    chat.send("and then")
    again = chat.again(first["parent_id"])
    assert again["parent_id"] == first["parent_id"]
    assert client.prompt() == [("user", "hello")]
    assert chat.texts() == ["hello", again["text"]]


def test_regenerating_streams_like_sending(client: BranchingClient, chat: ConversationClient) -> None:
    first = chat.send("hello")
    with client.person.http.stream("POST", f"/messages/{first['id']}/regenerate?accumulated=1") as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        body = response.read().decode()
    assert body.startswith("event: run\n")
    assert "event: done\n" in body
    assert '"accumulated"' in body


def test_regenerating_may_use_other_settings(client: BranchingClient, chat: ConversationClient) -> None:
    first = chat.send("hello", tools=False)
    assert "tools" not in client.sent()
    chat.again(first["id"], tools=["file_read"], model="other", thinking_enabled=False)
    assert client.sent()["model"] == "other"
    assert [tool["function"]["name"] for tool in client.sent()["tools"]] == ["file_read", "result_read"]
    chat.again(first["id"])
    assert client.sent()["model"] == "scripted"


def test_the_tree_cannot_change_during_a_run_and_names_the_run(
    client: BranchingClient, chat: ConversationClient
) -> None:
    person = client.person
    first = chat.send("hello")
    run = chat.send_without_waiting("wait")
    for method, path, body in (
        ("POST", f"/messages/{first['id']}/regenerate", {}),
        ("PUT", f"/messages/{first['parent_id']}", {"content": "other"}),
        ("PUT", f"/messages/{first['id']}", {"content": "other"}),
        ("PUT", f"/conversations/{chat.id}", {"selected_leaf_id": first["id"]}),
        ("POST", "/messages", {"conversation_id": chat.id, "content": "x", "parent_id": first["id"]}),
    ):
        detail = person.bad(method, path, 409, json=body)["detail"]
        assert (detail["kind"], detail["run_id"]) == ("run_active", run["id"]), path
    assert len(chat.fork().messages()) == 3
    person.good("POST", f"/runs/{run['id']}/cancel")
    assert chat.show()["run_id"] is None
    assert chat.again(first["id"])["status"] == "complete"


def test_a_run_that_regenerates_can_be_cancelled_and_its_text_is_kept(
    client: BranchingClient, chat: ConversationClient
) -> None:
    asked = chat.send_without_waiting("wait")
    client.person.good("POST", f"/runs/{asked['id']}/cancel")
    run = client.person.good("POST", f"/messages/{asked['message_id']}/regenerate", headers=JSON)
    with stream_run(client.person, run["id"]) as stream:
        stream.until("process_step")
        client.person.good("POST", f"/runs/{run['id']}/cancel")
        assert stream.read_to_end()[-1]["status"] == "stopped"
    stopped = chat.messages()[-1]
    assert (stopped["id"], stopped["status"], stopped["text"]) == (run["message_id"], "partial", "I am")
    assert chat.show()["selected_leaf_id"] == run["message_id"]


def test_a_failed_answer_can_be_regenerated(client: BranchingClient, chat: ConversationClient) -> None:
    body = {"conversation_id": chat.id, "content": "fail"}
    detail = client.person.bad("POST", "/messages", 502, json=body)["detail"]
    failed = chat.messages()[-1]
    assert (failed["id"], failed["status"]) == (detail["message_id"], "failed")
    better = chat.edit(failed["parent_id"], "do not")
    answer = chat.again(better["id"])
    assert (answer["status"], client.prompt()) == ("complete", [("user", "do not")])
    assert chat.again(failed["id"])["status"] == "failed"
    assert client.prompt() == [("user", "fail")]


def test_editing_creates_and_selects_a_sibling_without_a_model_call(
    client: BranchingClient, chat: ConversationClient
) -> None:
    chat.send("hello")
    second = chat.send("second")
    asked = len(client.upstream.requests)
    edited = chat.edit(second["parent_id"], "better")
    assert len(client.upstream.requests) == asked
    assert (edited["role"], edited["text"], edited["status"]) == ("user", "better", "complete")
    old = next(message for message in chat.messages() if message["id"] == second["parent_id"])
    assert (edited["parent_id"], old["text"]) == (old["parent_id"], "second")
    assert chat.show()["selected_leaf_id"] == edited["id"]
    answer = chat.again(edited["id"])
    assert [text for _role, text in client.prompt()] == ["hello", chat.messages()[1]["text"], "better"]
    assert chat.texts()[-1] == answer["text"]


def test_an_edited_message_keeps_its_files_unless_others_are_given(chat: ConversationClient) -> None:
    files = [{"name": "note.md", "content": "Buy milk."}]
    user_message_id = chat.send("what does it say", attachments=files)["parent_id"]
    assert [each["content"] for each in chat.edit(user_message_id, "read it")["attachments"]] == ["Buy milk."]
    other = [{"name": "b.txt", "content": "Bread."}]
    assert [
        each["name"] for each in chat.edit(user_message_id, "read it", attachments=other)["attachments"]
    ] == ["b.txt"]
    assert chat.edit(user_message_id, "read it", attachments=[])["attachments"] == []


def test_an_edited_answer_is_a_branch_with_its_author_and_is_what_the_model_sees(
    client: BranchingClient, chat: ConversationClient
) -> None:
    answer = chat.send("hello")
    asked = len(client.upstream.requests)
    edited = chat.edit(answer["id"], "I am clever")
    assert len(client.upstream.requests) == asked
    (step,) = edited["steps"]
    assert (step["type"], step["content"], step["edited_by"]) == ("text", "I am clever", "anna")
    for name in ("parent_id", "role", "model", "provider_id"):
        assert edited[name] == answer[name], name
    assert (edited["status"], edited["token_count"], edited["usage"]) == ("complete", 0, None)
    assert chat.tree()["selected_path"] == [answer["parent_id"], edited["id"]]
    chat.send("second")
    assert [text for _role, text in client.prompt()] == ["hello", "I am clever", "second"]
    again = chat.edit(edited["id"], "I am cleverer")
    copied = chat.fork(again["id"]).messages()[-1]
    assert (copied["text"], copied["steps"]) == ("I am cleverer", again["steps"])
    exported = client.person.ask("GET", f"/conversations/{chat.id}/export", params={"format": "md"})
    assert "*Edited by anna:*\n\n> I am cleverer" in exported.text
    old = next(message for message in chat.messages() if message["id"] == answer["id"])
    assert (old["text"], old["steps"]) == (answer["text"], answer["steps"])
    chat.select(answer["id"])
    chat.send("third")
    assert [text for _role, text in client.prompt()] == ["hello", answer["text"], "third"]


def test_a_message_is_not_edited_into_an_empty_one_and_an_answer_has_no_files(
    client: BranchingClient, chat: ConversationClient
) -> None:
    answer = chat.send("hello")
    file = {"name": "a.txt", "content": "A"}
    body = {"content": "I am clever", "attachments": [file]}
    failure = client.person.bad("PUT", f"/messages/{answer['id']}", 400, json=body)
    assert failure["detail"]["kind"] == "not_editable"
    for message_id in (answer["id"], answer["parent_id"]):
        blank = client.person.bad("PUT", f"/messages/{message_id}", 400, json={"content": " \n"})
        assert set(blank["detail"]["fields"]) == {"$.content"}
    assert len(chat.messages()) == 2


def test_selecting_an_inner_message_selects_the_newest_leaf_under_it(
    client: BranchingClient, chat: ConversationClient
) -> None:
    first = chat.send("hello")
    left = chat.send("left")
    chat.select(first["id"])
    right = chat.send("right", parent_id=first["id"])
    assert chat.select(left["id"]) == left["id"]
    chat.send("on the left")
    assert [text for _role, text in client.prompt()][2:] == ["left", left["text"], "on the left"]
    assert chat.select(right["parent_id"]) == right["id"]
    leaves = [node["id"] for node in chat.tree()["nodes"] if not node["children"]]
    assert chat.select(first["parent_id"]) == max(leaves)


def test_a_message_may_be_sent_below_any_other(client: BranchingClient, chat: ConversationClient) -> None:
    first = chat.send("hello")
    chat.send("away")
    chat.send("beside", parent_id=first["id"])
    assert [text for _role, text in client.prompt()] == ["hello", first["text"], "beside"]
    elsewhere = client.chat().send("elsewhere")
    body = {"conversation_id": chat.id, "content": "x", "parent_id": elsewhere["id"]}
    assert client.person.bad("POST", "/messages", 404, json=body)["detail"]["kind"] == "message_not_found"
    failure = client.person.bad(
        "PUT", f"/conversations/{chat.id}", 404, json={"selected_leaf_id": elsewhere["id"]}
    )
    assert failure["detail"]["kind"] == "message_not_found"
    client.person.bad("POST", f"/conversations/{chat.id}/fork", 404, json={"message_id": elsewhere["id"]})


def test_the_tree_shows_the_parent_of_each_message(client: BranchingClient, chat: ConversationClient) -> None:
    first = chat.send("  much\n\tto   say " + "x" * 500)
    second = chat.again(first["id"])
    tree = chat.tree()
    assert [node["id"] for node in tree["nodes"]] == [message["id"] for message in chat.messages()]
    root, one, two = tree["nodes"]
    assert root["children"] == [first["id"], second["id"]]
    assert (root["parent_id"], one["parent_id"], two["parent_id"]) == (None, root["id"], root["id"])
    assert root["preview"].startswith("much to say xxx")
    assert len(root["preview"]) == 120
    assert [one["preview"], two["preview"]] == [first["text"], second["text"]]
    assert (one["role"], one["status"], one["children"]) == ("assistant", "complete", [])
    assert tree["selected_leaf_id"] == second["id"]
    assert tree["selected_path"] == [root["id"], second["id"]]
    brief = chat.tree(is_brief=True)
    assert brief["nodes"] == [{name: node[name] for name in ("id", "parent_id")} for node in tree["nodes"]]
    assert brief == {**tree, "nodes": brief["nodes"]}
    empty = client.chat().tree()
    assert empty == {"nodes": [], "selected_leaf_id": None, "selected_path": []}


def test_deleting_a_branch_leaves_the_others_and_the_selection_where_it_is(
    client: BranchingClient, chat: ConversationClient
) -> None:
    first = chat.send("hello")
    second = chat.again(first["id"])
    chat.delete(first["id"])
    assert chat.show()["selected_leaf_id"] == second["id"]
    assert chat.texts() == ["hello", second["text"]]
    third = chat.again(second["id"])
    chat.delete(third["id"])
    assert chat.show()["selected_leaf_id"] == second["parent_id"]
    assert chat.select(second["id"]) == second["id"]


def test_deleting_a_first_message_selects_its_sibling(
    client: BranchingClient, chat: ConversationClient
) -> None:
    first = chat.send("hello")
    instead = chat.edit(first["parent_id"], "good day")
    answer = chat.again(instead["id"])
    chat.select(first["id"])
    chat.delete(first["parent_id"])
    assert chat.show()["selected_leaf_id"] == answer["id"]
    chat.delete(instead["id"])
    assert chat.show()["selected_leaf_id"] is None
    assert chat.messages() == []


def test_deleting_a_branch_deletes_its_runs(client: BranchingClient, chat: ConversationClient) -> None:
    first = chat.send("hello")
    chat.again(first["id"])
    runs = client.person.good("GET", f"/runs?subject_id={chat.id}")["items"]
    assert len(runs) == 2
    chat.delete(first["parent_id"])
    assert client.person.good("GET", f"/runs?subject_id={chat.id}")["items"] == []


def test_deleting_a_message_that_is_being_answered_again_stops_the_run(
    client: BranchingClient, chat: ConversationClient
) -> None:
    asked = chat.send_without_waiting("wait")
    client.person.good("POST", f"/runs/{asked['id']}/cancel")
    run = client.person.good("POST", f"/messages/{asked['message_id']}/regenerate", headers=JSON)
    chat.delete(asked["message_id"])
    assert client.person.good("GET", f"/runs/{run['id']}")["status"] == "running"
    chat.delete(chat.messages()[0]["id"])
    assert client.person.ask("GET", f"/runs/{run['id']}").status_code == 404
    assert chat.show()["run_id"] is None
    assert chat.messages() == []


def test_a_fork_is_an_independent_copy_of_the_path(client: BranchingClient) -> None:
    person = client.person
    project = person.good("POST", "/projects", json={"name": "garden"})["id"]
    chat = client.chat(title="Plans", system_prompt="Be brief.", tags=["a"], project_id=project)
    files = [{"name": "note.md", "content": "Buy milk."}]
    first = chat.send("one", attachments=files)
    second = chat.send("two")
    chat.again(second["id"])
    fork = chat.fork(second["id"])
    shown = fork.show()
    assert (shown["title"], shown["system_prompt"], shown["tags"]) == ("Plans", "Be brief.", ["a"])
    assert (shown["project_id"], shown["run_id"], shown["pinned"]) == (project, None, False)
    changing = ("id", "conversation_id", "parent_id")
    path = [next(m for m in chat.messages() if m["id"] == id_) for id_ in (
        first["parent_id"], first["id"], second["parent_id"], second["id"])]  # fmt: skip

    def copied_fields(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{key: value for key, value in each.items() if key not in changing} for each in messages]

    assert copied_fields(fork.messages()) == copied_fields(path)
    assert fork.messages()[0]["attachments"][0]["content"] == "Buy milk."
    assert not {each["id"] for each in fork.messages()} & {each["id"] for each in chat.messages()}
    before = chat.messages()
    third = fork.send("three")
    assert [text for _role, text in client.prompt()][2:] == ["two", second["text"], "three"]
    fork.delete(fork.messages()[0]["id"])
    assert chat.messages() == before
    assert third["conversation_id"] == fork.id


def test_a_fork_without_a_message_copies_the_selected_path_and_an_empty_one_nothing(
    client: BranchingClient,
) -> None:
    chat = client.chat()
    first = chat.send("one")
    again = chat.again(first["id"])
    assert [each["text"] for each in chat.fork().messages()] == ["one", again["text"]]
    empty = client.chat().fork()
    assert (empty.messages(), empty.show()["selected_leaf_id"]) == ([], None)


def test_a_fork_of_the_middle_ends_there(client: BranchingClient, chat: ConversationClient) -> None:
    first = chat.send("one")
    chat.send("two")
    fork = chat.fork(first["parent_id"])
    assert fork.texts() == ["one"]
    assert fork.again(fork.messages()[0]["id"])["status"] == "complete"
    assert client.prompt() == [("user", "one")]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", f"/messages/{NOBODYS}/regenerate", {}),
        ("PUT", f"/messages/{NOBODYS}", {"content": "x"}),
        ("GET", f"/conversations/{NOBODYS}/tree", None),
        ("POST", f"/conversations/{NOBODYS}/fork", {}),
    ],
)
def test_unknown_ids_are_404(client: BranchingClient, method: str, path: str, body: Any) -> None:
    client.person.bad(method, path, 404, json=body)


@pytest.mark.heavy
def test_another_answer_is_written_to_its_end_by_the_server_after_a_killed_one(tmp_path: Path) -> None:
    with scripted_models(script()) as upstream, ServerProcess(tmp_path) as first:
        with ApiClient(first, None).sign_in() as admin:
            connect(admin, upstream)
            chat = BranchingClient(admin, upstream).chat()
            user_message_id = chat.edit(chat.send("hello")["parent_id"], "wait")["id"]
            run = admin.good("POST", f"/messages/{user_message_id}/regenerate", headers=JSON)
            with stream_run(admin, run["id"]) as stream:
                stream.until("process_step")
                first.kill()
        upstream.release("waiting")
        with ServerProcess(tmp_path) as second, ApiClient(second, None).sign_in() as admin:
            with stream_run(admin, run["id"]) as stream:
                assert stream.read_to_end()[-1]["status"] == "completed"
            again = ConversationClient(BranchingClient(admin, upstream), chat.id)
            assert again.texts() == ["wait", "I am"]
            assert len(again.messages()) == 4
            assert again.show()["run_id"] is None
